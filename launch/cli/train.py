"""`distrl train`: flags -> experiment -> topology -> run folder -> result."""

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from absl import flags

from distrl import transforms
from distrl.checkpointing.checkpointer import ResumePoint
from distrl.errors import ConfigError, SpecError
from distrl.experiment import Experiment, SupervisionConfig
from distrl.launch.cli import config_flags, multi_machine
from distrl.launch.launch_types import LAUNCH_TYPES, LOCAL_MP, TERMINALS
from distrl.launch.run_dir.run_dir import open_run
from distrl.launch.supervision.result import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    write_result,
)
from distrl.launch.supervision.stop_on_signals import StopOnSignals
from distrl.programs import TOPOLOGIES
from distrl.programs.resources import node_environments

if TYPE_CHECKING:
    from distrl.programs.learner_processes import ProcessGroupSpec

_LEAVE_S = 5.0  # seconds beyond the grace time for a program to end by itself
_LAUNCHPAD_FLAG = re.compile(r"--?(no)?(lp_(?!launch_type)|tmux_)")

flags.DEFINE_string(
    "env",
    None,
    "Environment by name, from EnvPool, gymnasium or dm_control, whichever has it first: "
    "CartPole-v1, Pong-v5, MiniGrid-Empty-5x5-v0, cartpole-swingup. A prefix chooses: envpool:, "
    "gym:, dm_control:, minigrid:, ale:.",
)
flags.DEFINE_string("agent", "impala", "Algorithm.")
flags.DEFINE_string(
    "experiment",
    None,
    "FILE.py or FILE.py:NAME instead of --env and --agent: an Experiment of your own, or a "
    "function that returns one; NAME is `experiment` unless given.",
)
flags.DEFINE_list(
    "transforms",
    None,
    "Data transforms by name, from the time step to the agent, in the place of the experiment's: "
    "--transforms=observation_normalizer,reward_clip; --transforms= for none.",
)
flags.DEFINE_string(
    "topology",
    "light_env",
    "How it is spread: " + "; ".join(f"{name}: {what}" for name, what in TOPOLOGIES.items()),
)
flags.DEFINE_integer(
    "seed", None, "The root of every seed of the run; the experiment's unless given."
)
flags.DEFINE_integer("max_env_steps", None, "Short for --config.goal.max_env_steps.")
flags.DEFINE_string(
    "run_dir",
    None,
    "Where the run is written, or the folder of a run to go on with; a new folder of runs/ unless "
    "given.",
)
flags.DEFINE_enum(
    "terminal",
    "current_terminal",
    TERMINALS,
    "Where the nodes' output goes, beside their log files.",
)
flags.DEFINE_string(
    "debug",
    None,
    "NODE (actor/0) runs in this terminal, where breakpoint() and its failure stop in pdb; the "
    "other nodes are processes that wait for it as long as it takes. NODE:PORT waits for an "
    "editor's debugpy instead. `all`, for single_process and --lp_launch_type=local_mt: pdb at the "
    "first failure of any part.",
)
flags.DEFINE_string(
    "coordinator_address",
    None,
    "Several processes that are one learner (single_process only): HOST:PORT at which process 0 "
    "listens. Start the same command in each, with its own --process_id.",
)
flags.DEFINE_integer("num_processes", None, "Of the learner; with --coordinator_address.")
flags.DEFINE_integer("process_id", None, "Of this process, from 0; with --coordinator_address.")
flags.DEFINE_enum(  # Launchpad defines it again when it is imported
    "lp_launch_type",
    LOCAL_MP,
    LAUNCH_TYPES,
    "Launchpad's: processes, threads, or threads for tests. No effect on single_process.",
    allow_override=True,
)


def train(arguments: list[str]) -> int:
    """Trains as the flags say.

    Returns:
      The exit status.

    Raises:
      ConfigError, SpecError, flags.Error: bad input, told before anything is started.
    """
    values = flags.FLAGS
    if any(a in ("--help", "-help", "--helpshort", "--helpfull", "-h") for a in arguments):
        return _help(values, arguments)
    values(arguments, known_only=True)
    topology = _topology(values.topology)
    experiment = _transformed(_experiment(values), values)
    config_flags.define_flags(experiment)
    # Launchpad's other flags are known once it is imported, which takes seconds: all else is
    # checked before.
    rest = values([a for a in arguments if not _LAUNCHPAD_FLAG.match(a)])[1:]
    if rest:
        raise ConfigError(f"unexpected argument {rest[0]!r}; flags are written --name=value")
    experiment = config_flags.apply_flags(experiment, values)
    if values.max_env_steps is not None:
        experiment = dataclasses.replace(
            experiment,
            goal=dataclasses.replace(experiment.goal, max_env_steps=values.max_env_steps),
        )
    if values.debug is not None:
        experiment = _patient(experiment)
    if values.seed is not None:
        experiment = dataclasses.replace(experiment, seed=values.seed)
    if experiment.lockstep and topology not in ("single_process", "heavy_env"):
        raise ConfigError(
            f"lockstep: in {topology} an inferencer serves what comes first; take "
            "--topology=heavy_env or single_process"
        )
    place = _place(values, topology)
    if place is not None and not place.is_first:
        return _run_single_process(experiment, None, ResumePoint(), values.debug is not None, place)
    placement = None
    if topology == "multi_machine":
        prepared = multi_machine.prepare(experiment, arguments, values, _say)
        if prepared is None:  # others will run it
            return EXIT_FINISHED
        experiment, placement = prepared
        _import_topology(topology)
        values(arguments)
    elif topology != "single_process":
        node_environments(experiment, topology)  # refuses what cannot be had, before any import
        make_program = _import_topology(topology)
        values(arguments)
    folder = open_run(values.run_dir, experiment, topology, arguments, _say)
    run_dir = folder.path
    if folder.ended is not None:
        reason, code = folder.ended
        _say(f"distrl: {run_dir} has ended already: {reason}; a larger goal would go on")
        return code
    _say(f"distrl: {experiment.environment.name} in {topology}; everything is written to {run_dir}")
    if topology == "single_process":
        if values["lp_launch_type"].present:
            print("distrl: --lp_launch_type has no effect: single_process starts no nodes")
        debug = values.debug is not None
        return _run_single_process(experiment, run_dir, folder.start, debug, place)
    if placement is not None:
        return multi_machine.launch(experiment, placement, run_dir, folder.start, values, _say)
    program = make_program(experiment, str(run_dir), folder.start)
    return _launch(program, experiment, topology, run_dir, values)


def _say(line: str) -> None:
    print(line, flush=True)


def _help(values: flags.FlagValues, arguments: list[str]) -> int:
    plain = [a for a in arguments if "help" not in a and a != "-h"]
    values(plain, known_only=True)
    config_flags.define_flags(_transformed(_experiment(values), values))
    print("distrl train: trains an experiment.\n")
    print(values.get_help())
    return 0


def _topology(name: str) -> str:
    if name not in TOPOLOGIES:
        near = difflib.get_close_matches(name, TOPOLOGIES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(TOPOLOGIES)}"
        raise ConfigError(f"topology: no {name!r}; {hint}")
    missing = [m for m in ("launchpad", "reverb") if importlib.util.find_spec(m) is None]
    if name != "single_process" and missing:
        raise ConfigError(
            f"topology {name} needs Launchpad and Reverb, and {' and '.join(missing)} is not "
            f"installed (they exist for Python 3.10; this is {sys.version.split()[0]}): "
            "use --topology=single_process, or set up Python 3.10 as the README says"
        )
    return name


def _experiment(values: flags.FlagValues) -> Experiment:
    seed = values.seed or 0
    if values.experiment is None:
        from distrl import presets

        env = "CartPole-v1" if values.env is None else values.env
        return presets.experiment(env, values.agent, seed)
    if values.env is not None:
        raise ConfigError("--env and --experiment exclude each other: the file names its own")
    path, _, name = values.experiment.partition(":")
    name = name or "experiment"
    if not os.path.isfile(path):
        raise ConfigError(f"--experiment: no file {path!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--experiment: {path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    made = getattr(module, name, None)
    if callable(made):
        made = made()
    if not isinstance(made, Experiment):
        raise ConfigError(
            f"--experiment: {path} must define {name}, an Experiment or a function that returns "
            f"one; got {type(made).__name__}"
        )
    return made


def _transformed(experiment: Experiment, values: flags.FlagValues) -> Experiment:
    """With the transforms of `--transforms`, where it is given."""
    if values.transforms is None:
        return experiment
    chosen = transforms.by_name(values.transforms, experiment.transforms)
    return dataclasses.replace(experiment, transforms=chosen)


def _import_topology(topology: str) -> Any:
    """The topology's function. It takes seconds: TensorFlow comes with Reverb."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    make_program = getattr(importlib.import_module(f"distrl.programs.{topology}"), topology)
    flags.FLAGS.set_default("lp_launch_type", LOCAL_MP)
    return make_program


def _patient(experiment: Experiment) -> Experiment:
    """With deadlines that outlast a user at a debugger's prompt."""
    day = 86_400.0
    return dataclasses.replace(
        experiment,
        inference=dataclasses.replace(experiment.inference, timeout=day),
        learner=dataclasses.replace(experiment.learner, timeout=day),
        supervision=SupervisionConfig(0, None, None, None, call_timeout=day, insert_timeout=day),
    )


def _place(values: flags.FlagValues, topology: str) -> "ProcessGroupSpec | None":
    """Which process of a learner this is, where it has several."""
    names = ("coordinator_address", "num_processes", "process_id")
    given = [name for name in names if values[name].value is not None]
    if not given:
        return None
    if len(given) < len(names):
        raise ConfigError(f"--{given[0]} needs --{', --'.join(set(names) - set(given))} beside it")
    if topology != "single_process":
        raise ConfigError(
            f"--coordinator_address: {topology} has one learner process; take "
            "--topology=single_process"
        )
    from distrl.programs.learner_processes import ProcessGroupSpec

    place = ProcessGroupSpec(values.coordinator_address, values.num_processes, values.process_id)
    place.check()
    return place


def _run_single_process(
    experiment: Experiment,
    run_dir: Path | None,
    start: ResumePoint,
    debug: bool,
    place: "ProcessGroupSpec | None",
) -> int:
    import jax

    from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
    from distrl.programs.single_process import single_process

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    stop = threading.Event()
    join: Callable[[], LearnerGroup] = SingleProcessGroup
    if place is not None:
        from distrl.programs import learner_processes

        join = functools.partial(place.join, learner_processes.about(experiment))
        experiment = learner_processes.share_of(experiment, place)

    def leave(number: int) -> NoReturn:
        """The main thread does not come to its end, and all is saved that can be."""
        code = _stopped(run_dir, number)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    signals = StopOnSignals(stop, experiment.checkpoint.grace + _LEAVE_S, leave)
    try:
        with signals:
            ending = single_process(
                experiment,
                stop=stop,
                run_dir=run_dir,
                printer=lambda line: print(line, flush=True),
                start=start,
                give_up=lambda: leave(signals.caught[0]),
                join=join,
            )
    except Exception as error:
        if debug:
            from distrl.launch.local.debugging import post_mortem

            post_mortem(error)
        code = EXIT_BAD_INPUT if isinstance(error, (ConfigError, SpecError)) else EXIT_FAILED
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        _write_result(run_dir, "failed", reason, code)
        if place is not None:
            _end_at_once(error, code)
        raise
    if ending is None and not signals.caught:
        return _write_result(run_dir, "finished", "another learner process has ended the run", 0)
    if ending is None:
        return _stopped(run_dir, signals.caught[0])
    reason, reached = ending
    if reached:
        return _write_result(run_dir, "finished", reason, EXIT_FINISHED)
    return _write_result(run_dir, "failed", reason, EXIT_FAILED)


def _end_at_once(error: Exception, code: int) -> NoReturn:
    """JAX would wait at the exit for processes that have ended, and then abort."""
    if code == EXIT_BAD_INPUT:
        print(f"distrl: {' '.join(str(error).split())}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _stopped(run_dir: Path | None, number: int) -> int:
    return _write_result(run_dir, "stopped", signal.Signals(number).name, 128 + number)


def _write_result(run_dir: Path | None, status: str, reason: str, code: int) -> int:
    """Writes `result.json`, prints the last line and gives the exit status back."""
    if run_dir is not None:
        write_result(run_dir, status, reason, code)
    if code != EXIT_BAD_INPUT:  # whose one line comes from `main`
        print(f"distrl: {status}: {reason} (exit status {code})", flush=True)
    return code


def _launch(program: Any, experiment: Experiment, topology: str, run_dir: Path, values: Any) -> int:
    from distrl.launch.launcher import run
    from distrl.launch.local.debugging import Debug

    debug: Debug | bool = False
    if values.debug is not None:
        in_threads = values.lp_launch_type != "local_mp"
        if in_threads != (values.debug == "all"):
            raise ConfigError(
                f"--debug={values.debug}: with --lp_launch_type={values.lp_launch_type} it is "
                + ("--debug=all" if in_threads else "--debug=NODE, as in --debug=actor/0")
            )
        debug = in_threads or Debug.parse(values.debug)
    result = run(
        program,
        experiment,
        topology,
        run_dir,
        values.lp_launch_type,
        terminal=values.terminal,
        debug=debug,
    )
    if values.lp_launch_type != "local_mp":
        # Threads may be left that cannot be ended, of nodes or of C++ libraries: an ordinary exit
        # would wait for them, or abort on them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(result.exit_code)
    return result.exit_code
