"""`distrl train`: flags -> experiment -> topology -> run folder -> result."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from distrl.agents.components import components_of
from distrl.agents.defaults import lost_ratio
from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.saved import Saved
from distrl.errors import ConfigError
from distrl.experiment import Experiment, deferred_checks
from distrl.launch.cli import config_flags, machine_flags, multi_machine, train_flags
from distrl.launch.cli.auto import resolve
from distrl.launch.cli.load_experiment import load_experiment
from distrl.launch.cli.read_command import check_for, read_command
from distrl.launch.launch_types import LOCAL_MP, TERMINALS
from distrl.launch.local import debugging
from distrl.launch.local.single_process import run_single_process
from distrl.launch.paths import file_and_name
from distrl.launch.run_dir.run_dir import RunFolder, open_run
from distrl.launch.run_dir.snapshot import write_snapshot
from distrl.launch.supervision.result import EXIT_FINISHED
from distrl.programs import AUTO, substrate
from distrl.programs.program import check_builtin
from distrl.programs.resources import node_environments, process_environment, unused_gpus
from distrl.replay.memory_check import shortage
from distrl.runtime.jax_import import set_environment
from distrl.runtime.process_exit import announce, exit_at_once
from distrl.runtime.provenance import provenance
from distrl.runtime.working_folder import absolute, shown

if TYPE_CHECKING:
    from distrl.programs.learner_processes import ProcessGroupSpec


def train(arguments: list[str], load: Callable[[], Any] | None = None) -> int:
    """Trains what the flags describe.

    Args:
      arguments: the command and its flags.
      load: returns the experiment; None: the flags name one.

    Returns:
      The exit status.

    Raises:
      ConfigError, SpecError, flags.Error: bad input, refused before anything is started.
    """
    values = flags.FLAGS
    if train_flags.asks_for_help(arguments):
        return _print_help(arguments, values)
    experiment, topology, arguments = read_command(arguments, values, load)
    debugging.check_terminal(values.debug, topology != "single_process")
    is_preset = load is None and values.experiment is None
    experiment, topology, chosen = resolve(experiment, topology, values, is_preset, _say)
    check_for(experiment, topology, values)  # a run that is resumed has its own topology
    name = experiment.environment.name
    if is_preset and values.env is None:
        name += " (--env names another)"
    process_group = _process_group(experiment, values, topology)
    if topology == "single_process":
        return _train_in_one_process(experiment, arguments, values, process_group, chosen, name)
    if topology == "multi_machine":
        loaded = load is not None
        return _train_on_several_machines(experiment, arguments, values, chosen, name, loaded)
    return _train_in_nodes(experiment, topology, arguments, values, chosen, name)


def _train_in_one_process(
    experiment: Experiment,
    arguments: list[str],
    values: flags.FlagValues,
    process_group: "ProcessGroupSpec | None",
    chosen: dict[str, Any],
    name: str,
) -> int:
    debug = values.debug is not None
    environment = process_environment(experiment)
    if process_group is not None and not process_group.is_first:
        set_environment(environment)
        return run_single_process(experiment, None, ResumePoint(), debug, process_group)
    folder = _open_run(experiment, "single_process", arguments, values, chosen, name)
    if folder.ended is not None:
        return folder.ended[1]
    set_environment(environment)
    if values["lp_launch_type"].present:
        _say("distrl: --lp_launch_type has no effect: single_process starts no nodes")
    return run_single_process(
        experiment, folder.path, folder.resume_point, debug, process_group, values.terminal
    )


def _train_on_several_machines(
    experiment: Experiment,
    arguments: list[str],
    values: flags.FlagValues,
    chosen: dict[str, Any],
    name: str,
    loaded: bool,
) -> int:
    nodes_of = _substrate(experiment, values)
    prepared = multi_machine.prepare(experiment, nodes_of, arguments, values, _say, loaded)
    if prepared is None:  # the user or a scheduler starts it
        return EXIT_FINISHED
    experiment, placement = prepared
    _import_topology("multi_machine", nodes_of)
    values(arguments)
    chosen = {**chosen, "substrate": nodes_of}
    folder = _open_run(experiment, "multi_machine", arguments, values, chosen, name)
    if folder.ended is not None:
        return folder.ended[1]
    return multi_machine.run_on_hosts(
        experiment, placement, nodes_of, folder.path, folder.resume_point, values
    )


def _train_in_nodes(
    experiment: Experiment,
    topology: str,
    arguments: list[str],
    values: flags.FlagValues,
    chosen: dict[str, Any],
    name: str,
) -> int:
    node_environments(experiment, topology)  # refuses what is not available, before slow imports
    nodes_of = _substrate(experiment, values)
    make_program = _import_topology(topology, nodes_of)
    values(arguments)
    debug = debugging.Debug.of_flag(values.debug, values.lp_launch_type)
    chosen = {**chosen, "substrate": nodes_of}
    folder = _open_run(experiment, topology, arguments, values, chosen, name)
    if folder.ended is not None:
        return folder.ended[1]
    program = make_program(experiment, str(folder.path), folder.resume_point, substrate=nodes_of)
    from distrl.launch.launcher import launch_experiment

    result = launch_experiment(
        program,
        experiment,
        topology,
        folder.path,
        values.lp_launch_type,
        # A debugger has the terminal for itself.
        terminal=values.terminal if values.debug is None else TERMINALS[0],
        debug=debug,
    )
    if values.lp_launch_type != LOCAL_MP:
        # Threads of nodes or of C++ libraries that cannot be ended may be left: an ordinary exit
        # would wait for them, or abort because of them.
        exit_at_once(result.exit_code)
    return result.exit_code


def _substrate(experiment: Experiment, values: flags.FlagValues) -> str:
    """Returns what the program's nodes are made of."""
    taken = substrate.resolve(values.substrate)
    if taken == substrate.BUILTIN:
        check_builtin(experiment)
    return taken


def _open_run(
    experiment: Experiment,
    topology: str,
    arguments: list[str],
    values: flags.FlagValues,
    chosen: dict[str, Any],
    name: str,
) -> RunFolder:
    """Opens the run folder, and prints what the user should know of the run.

    Args:
      experiment, topology, arguments, values: those of the run.
      chosen: what `auto` has chosen.
      name: the environment's name, for the user.
    """
    file = None if values.experiment is None else file_and_name(values.experiment)[0]
    origin = {**provenance(file), "working_folder": str(absolute(".")), **chosen}
    folder = open_run(values.run_dir, experiment, topology, arguments, _say, origin)
    if folder.ended is not None:
        _say(
            f"distrl: {shown(folder.path)} has already ended: {folder.ended[0]}; nothing was "
            "trained; to continue, set a larger goal"
        )
    else:
        if values.snapshot:
            _keep_code(folder.path, experiment, arguments, values)
        announce(run_dir=str(folder.path), saved_before=Saved.read(folder.path))
        _say(f"distrl: {name} in {topology}; everything is written to {shown(folder.path)}")
        if topology != "multi_machine":  # where the table is on another machine
            unused = unused_gpus(experiment, topology == "light_env")
            if unused and AUTO not in chosen:  # which has measured them, or said it
                _say(f"distrl: {unused}")
            short = shortage(sum(task.table_bytes for task in experiment.tasks.values()))
            if short is not None:
                _say(f"distrl: warning: {short}")
        if topology != "single_process":  # where acting and learning take turns
            lost = [
                lost_ratio(task.agent, task.env_spec, task.replay, task.learner)
                for task in experiment.tasks.values()
            ]
            for line in dict.fromkeys(filter(None, lost)):  # once for tasks that are alike
                _say(f"distrl: warning: {line}")
    return folder


def _keep_code(
    path: Path, experiment: Experiment, arguments: list[str], values: flags.FlagValues
) -> None:
    file = values.experiment if values.env is None else ""
    try:
        write_snapshot(path, experiment, file, arguments)
    except (OSError, ConfigError) as error:  # the run itself does not need it
        _say(f"distrl: no snapshot of the code in {shown(path)}: {error}")


def _say(line: str) -> None:
    print(line, flush=True)


def _print_help(arguments: list[str], values: flags.FlagValues) -> int:
    """Prints our flags, without those that absl's own modules define."""
    from distrl.presets import AGENTS

    train_flags.name_agents(AGENTS, values)
    values(train_flags.without_help(arguments), known_only=True)
    with deferred_checks():  # flags may correct it
        experiment = load_experiment(values)
    config_flags.define_flags(experiment)
    print("usage: distrl train [flags]")
    for heading, module in (
        ("Flags", train_flags.__name__),
        ("Flags of --topology=multi_machine", machine_flags.__name__),
        ("Settings of the experiment", config_flags.MODULE_NAME),
    ):
        body = values.module_help(module).strip("\n").partition("\n")[2]  # without its own heading
        print(f"\n{heading}:\n{body}")
    for name, task in experiment.tasks.items():
        components = components_of(task.make_agent())
        if components:
            agent = f"agent of policy {name}" if experiment.policies else "agent"
            print(f"\nComponents of the {agent}, for its setting `components`:")
            print(f"  {', '.join(components)}")
    return EXIT_FINISHED


def _import_topology(topology: str, nodes_of: str) -> Any:
    """Imports the topology's function, and Launchpad, which defines flags, if it is taken."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # for Reverb's TensorFlow
    make_program = getattr(importlib.import_module(f"distrl.programs.{topology}"), topology)
    if nodes_of == substrate.LAUNCHPAD:
        import launchpad  # noqa: F401
    flags.FLAGS.set_default("lp_launch_type", LOCAL_MP)
    return make_program


def _process_group(
    experiment: Experiment, values: flags.FlagValues, topology: str
) -> "ProcessGroupSpec | None":
    """Returns which process of a learner this is; None where the learner has one process."""
    names = ("coordinator_address", "num_processes", "process_id")
    given = [name for name in names if values[name].value is not None]
    if not given:
        return None
    if len(given) < len(names):
        missing = [f"--{name}" for name in names if name not in given]
        raise ConfigError(f"--{given[0]} also needs {' and '.join(missing)}")
    if topology != "single_process":
        raise ConfigError(
            f"--coordinator_address: {topology} has one learner process; use "
            "--topology=single_process"
        )
    if experiment.policies:
        raise ConfigError(
            f"--num_processes={values.num_processes}: an experiment with `policies` learns in one "
            f"process; leave out {', '.join(f'--{name}' for name in names)}"
        )
    from distrl.programs.learner_processes import ProcessGroupSpec

    group = ProcessGroupSpec(values.coordinator_address, values.num_processes, values.process_id)
    group.check()
    if not values.open_learner_ports:
        raise ConfigError(
            f"--coordinator_address={values.coordinator_address}: the ports of JAX and gloo or "
            "NCCL have no encryption and no authentication, and whoever reaches them can change "
            "what is learned; if your network and its hosts keep others away from them "
            "(docs/devices.md), add --open_learner_ports"
        )
    return group
