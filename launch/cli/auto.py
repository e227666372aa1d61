"""`--topology=auto`: that of the resumed run, or chosen by the settings or by measured costs."""

import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from absl import flags

from distrl.experiment import Experiment
from distrl.launch.cli.machine_flags import is_for_machines
from distrl.launch.cli.read_command import check_topology
from distrl.launch.local.processes import ForkError, check_can_fork, other_threads
from distrl.launch.run_dir.folder import CONFIG, has_config
from distrl.programs import AUTO
from distrl.programs.auto import (
    LEARNER_GPUS,
    SERVICES_GPUS,
    Candidates,
    Choice,
    candidates,
    choice,
    plans,
    with_settings,
)
from distrl.programs.resources import unused_gpus
from distrl.programs.topology_rates import HEAVY, LIGHT, SINGLE, Costs
from distrl.runtime import posix
from distrl.runtime.files import read_json
from distrl.runtime.host_resources import usable_cores
from distrl.runtime.process_exit import exit_at_once
from distrl.runtime.working_folder import absolute

MEASURED_S = 300.0  # seconds within which costs must be known: compilation takes most of them
_OF_GROUP = ("coordinator_address", "num_processes", "process_id")


def resolve(
    experiment: Experiment,
    topology: str,
    values: flags.FlagValues,
    is_preset: bool,
    say: Callable[[str], None],
    measured: Callable[[Experiment, int], Costs | str] | None = None,
) -> tuple[Experiment, str, dict[str, Any]]:
    """Returns experiment and topology to run, and what of them was chosen, for `config.json`.

    Args:
      experiment: what the flags describe.
      topology: its name; any but AUTO is taken.
      values: the values of the flags.
      is_preset: whether the experiment is made from names, so that nobody has chosen its number of
        actors unless a flag gives it.
      say: prints a line for the user.
      measured: returns what the experiment's parts cost, or why that is not known.
    """
    if topology != AUTO:
        return experiment, topology, {}
    stored = _stored(values)
    if stored is None:
        cores = usable_cores()
        chosen = _choose(experiment, values, is_preset, cores, measured or measure_in_fork)
        say(f"distrl: auto: {chosen.reason}")
        unused = unused_gpus(experiment, chosen.topology == LIGHT)
        if unused and not chosen.by_costs and is_for_machines(values) is None:
            say(f"distrl: {unused}")
    else:
        chosen = stored
    check_topology(chosen.topology, values.substrate)
    free = {name: value for name, value in chosen.settings.items() if not _is_given(values, name)}
    # Those of one part belong together.
    touched = {name.partition(".")[0] for name in chosen.settings.keys() - free.keys()}
    free = {name: value for name, value in free.items() if name.partition(".")[0] not in touched}
    note = {"reason": chosen.reason, "settings": dict(chosen.settings)}
    return with_settings(experiment, free), chosen.topology, {AUTO: note}


def without_measuring(experiment: Experiment, values: flags.FlagValues) -> str:
    """Returns a topology that the experiment can have: nodes, if that is a matter of speed."""
    if is_for_machines(values) is not None:
        return "multi_machine"
    topologies = candidates(experiment, usable_cores(), _excluded(values)).topologies
    return next((name for name in topologies if name != SINGLE), topologies[0])


def _stored(values: flags.FlagValues) -> Choice | None:
    """Returns the choice of the run that is resumed; None: this is a new one."""
    if values.run_dir is None:
        return None
    folder = absolute(values.run_dir)
    if not has_config(folder, "topology", "experiment"):
        return None
    config = read_json(folder / CONFIG)
    auto = config.get(AUTO) or {}
    return Choice(config["topology"], str(auto.get("reason", "")), auto.get("settings") or {})


def _is_given(values: flags.FlagValues, name: str) -> bool:
    return f"config.{name}" in values and bool(values[f"config.{name}"].present)


def _choose(
    experiment: Experiment,
    values: flags.FlagValues,
    is_preset: bool,
    cores: int,
    measured: Callable[[Experiment, int], Costs | str],
) -> Choice:
    name = is_for_machines(values)
    if name is not None:
        return Choice("multi_machine", f"multi_machine: --{name}", {})
    possible = candidates(experiment, cores, _excluded(values))
    if possible.reason:
        return _clear(possible)
    costs = measured(experiment, cores)
    if isinstance(costs, str):
        return _clear(Candidates(possible.topologies[:1], costs))
    fixed = ("num_actors", "num_envs", "max_actors", "min_actors", "wait_num")
    divide = is_preset and not any(_is_given(values, f"actors.{name}") for name in fixed)
    given = [name for name in (LEARNER_GPUS, SERVICES_GPUS) if _is_given(values, name)]
    made = plans(experiment, costs, cores, possible.topologies, divide, given)
    return choice(experiment, costs, cores, made)


def _clear(possible: Candidates) -> Choice:
    name = possible.topologies[0]
    return Choice(name, f"{name}: {possible.reason}", {})


def _excluded(values: flags.FlagValues) -> Mapping[str, str]:
    """Returns the topologies that flags exclude, with the reason."""
    for name in _OF_GROUP:
        if values[name].value is not None:
            return dict.fromkeys((HEAVY, LIGHT), f"--{name}")
    if values["lp_launch_type"].present:
        return {SINGLE: f"--lp_launch_type={values.lp_launch_type}"}
    if values.debug == "all":
        return dict.fromkeys((HEAVY, LIGHT), "--debug=all")
    return {} if values.debug is None else {SINGLE: f"--debug={values.debug}"}


def measure_in_fork(experiment: Experiment, cores: int) -> Costs | str:
    """Returns what an experiment's parts cost, or why that is not known.

    A fork measures: nodes are forked from this process, in which JAX must not have started.
    """
    try:
        check_can_fork()
    except ForkError:
        return "not measured: JAX has created its devices in this process"
    if other_threads():
        return f"not measured: this process has threads ({', '.join(other_threads())})"
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _measure(experiment, cores, parent, writer)
    os.close(writer)
    try:
        answer = _read(reader, time.monotonic() + MEASURED_S)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if answer is None:
        return f"not measured within {MEASURED_S:.0f} s"
    costs: Costs | str = pickle.loads(answer) if answer else "not measured: the process has died"
    return costs


def _measure(experiment: Experiment, cores: int, parent: int, writer: int) -> NoReturn:
    """Writes the costs; in a separate process."""
    costs: Costs | str
    try:
        posix.end_with_parent(parent, "distrl:auto")
        from distrl.programs.costs import measure

        costs = measure(experiment, cores)
    except BaseException as error:  # the run will meet it too, and report it as it should
        costs = f"not measured: {type(error).__name__}: {error}".partition("\n")[0]
    with os.fdopen(writer, "wb") as file:
        file.write(pickle.dumps(costs))
    exit_at_once(0)


def _read(descriptor: int, deadline: float) -> bytes | None:
    """Returns all that comes until the other end is closed; None: not within the time."""
    data = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return None
        part = os.read(descriptor, 1 << 16)
        if not part:
            return data
        data += part
