"""`distrl sweep`: grid and random search over settings, each with several seeds."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from distrl.errors import ConfigError, SpecError
from distrl.experiment import Experiment, deferred_checks
from distrl.launch.cli import config_file
from distrl.launch.cli.auto import without_measuring
from distrl.launch.cli.load_experiment import load_experiment
from distrl.launch.cli.read_command import read_command
from distrl.launch.cli.train_flags import BUDGETS, SHORT, joined_flags
from distrl.launch.run_dir.folder import folder_in_runs, folder_of_flag
from distrl.launch.runs.text_table import print_table
from distrl.launch.supervision.result import EXIT_FAILED, EXIT_FINISHED
from distrl.launch.sweep.fit import TrialSlots, busy_cores
from distrl.launch.sweep.folder import SweepFolder, Trial, make_trials
from distrl.launch.sweep.ranking import TABLE, damage, rows, standings, write_table
from distrl.launch.sweep.search import make_search, split_values
from distrl.launch.sweep.trials import Runner, start_training
from distrl.programs import AUTO
from distrl.programs.groups import num_gpus_together
from distrl.programs.resources import node_environments, process_environment
from distrl.runtime.working_folder import shown

_REPEATED = ("grid", "random", "seeds", "trials", "sweep_seed", "jobs", "by")
_BY = "mean_return"
_NOT_OF_TRIALS = {
    "run_dir": "a sweep names its trials' folders; its own is --dir",
    "debug": "debug one run, with `distrl train`",
    "coordinator_address": "each trial is a process of its own",
    "terminal": "the output of each trial is in a file of the sweep's folder",
}
_SEED = "config.seed"
_OF_SEEDS = "for seeds of the trials use --seeds=3, or --seeds=1,5,7"


class _Need(NamedTuple):
    """The most that a trial needs."""

    cores: int
    gpus: int


def sweep(arguments: list[str]) -> int:
    """Runs a sweep, resumes one, or shows one.

    Args:
      arguments: the command and its flags, with those of `distrl train` for all trials.

    Returns:
      The exit status: 1 if a trial has failed, 128 and the signal's number if one stopped it.

    Raises:
      ConfigError, SpecError, flags.Error: bad input, refused before any trial starts.
    """
    values = _define_flags()
    words = values(arguments, known_only=True)[1:]
    if values.show is not None:
        return _show(Path(values.show), values.by if values["by"].present else None, words)
    folder = _folder(values, words)
    need = check(folder)
    command = folder.command
    slots = TrialSlots(str(command["jobs"]), need.cores, need.gpus)
    folder.open()
    todo = sum(trial.wanted and not trial.is_done for trial in folder.trials)
    wanted = sum(trial.wanted for trial in folder.trials)
    print(
        f"distrl: {wanted} trials, {wanted - todo} of them done, up to {slots.count} at a time; "
        f"everything is written to {shown(folder.path)}",
        flush=True,
    )
    runner = Runner(folder, slots, start_training(folder), lambda line: print(line, flush=True))
    runner.run()
    by = str(command["by"])
    try:
        _print(folder, by)
    except ConfigError as error:  # the sweep itself is done
        print(f"distrl: {error}", flush=True)
        _print(folder, _BY)
    write_table(folder)
    print(f"all trials: {shown(folder.path / TABLE)}", flush=True)
    if runner.stopped_by is not None:
        print(f"distrl: resume it with: distrl sweep --dir={shown(folder.path)}", flush=True)
        return 128 + runner.stopped_by
    failed = any(trial.wanted and not trial.is_done for trial in folder.trials)
    return EXIT_FAILED if failed else EXIT_FINISHED


def _define_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    defined: dict[str, Any] = {"flag_values": values, "module_name": __name__}
    flags.DEFINE_multi_string("grid", [], "NAME=VALUE,VALUE.", **defined)
    flags.DEFINE_multi_string("random", [], "NAME=KIND:LOW:HIGH or NAME=VALUE,VALUE.", **defined)
    flags.DEFINE_integer("trials", None, "Draws of --random.", **defined)
    flags.DEFINE_string("seeds", "1", "Number of seeds, or the seeds with commas.", **defined)
    flags.DEFINE_integer("sweep_seed", 0, "Root of the draws of --random.", **defined)
    flags.DEFINE_string("jobs", "1", "Trials at a time, or auto.", **defined)
    flags.DEFINE_string("dir", None, "Folder of the sweep.", **defined)
    flags.DEFINE_string("show", None, "Folder whose table to print.", **defined)
    flags.DEFINE_string("by", _BY, "Column to rank by.", **defined)
    values.set_gnu_getopt(True)
    return values


def _folder(values: flags.FlagValues, words: Sequence[str]) -> SweepFolder:
    """Returns the sweep that the flags describe, or the one in the folder that they name."""
    given = {name: values[name].value for name in _REPEATED if values[name].present}
    path = (
        folder_of_flag(values.dir, "--dir") if values.dir is not None else folder_in_runs("sweep")
    )
    old = None if words or values.dir is None else SweepFolder.read(path)
    if not words and not given.keys() - {"jobs", "by"}:
        if values.dir is None:
            raise ConfigError("sweep: say what to try; see `distrl sweep --help`")
        if old is None:
            raise ConfigError(f"--dir: {values.dir} has no sweep to resume; say what to try")
        old.command.update(given)
        return old
    first = "0"
    if old is not None:  # its command, extended
        words = old.words
        for name in old.command.keys() - given.keys():
            values[name].value = old.command[name]
        if "," not in str(old.command["seeds"]):
            first = str(min(trial.seed for trial in old.trials if trial.wanted))
    search = make_search(values.grid, values.random, values.trials, values.sweep_seed)
    words = joined_flags(words, flags.FLAGS)
    names = {word.lstrip("-").partition("=")[0] for word in words}
    for name in (*search.grid, *search.random, *names):
        if name in _NOT_OF_TRIALS:
            raise ConfigError(f"sweep: --{name} is not for a sweep: {_NOT_OF_TRIALS[name]}")
        if name == _SEED or (name == "seed" and name not in names):
            raise ConfigError(f"sweep: --{name}: {_OF_SEEDS}")
    settings = {SHORT.get(name, name) for name in names}
    for name in (*search.grid, *search.random):
        if SHORT.get(name, name) in settings:
            raise ConfigError(f"sweep: --{name} is both given for all trials and tried")
    seeds = [word.partition("=")[2] for word in words if word.startswith("--seed=")]
    first = [first, *seeds][-1]
    words = [word for word in words if not word.startswith("--seed=")]
    if not names & {"topology", "config_file"} and "topology" not in {*search.grid, *search.random}:
        words.append("--topology=single_process")  # trials share the machine
    command = {name: values[name].value for name in _REPEATED}
    trials = make_trials(search.settings(), _seeds(values.seeds, first))
    return SweepFolder(path, command, words, trials)


def _seeds(text: str, first: str) -> list[int]:
    """Returns the seeds: `text` has their number, or the seeds themselves."""
    parts = split_values(text)
    if not _is_whole(first):
        raise ConfigError(f"--seed={first}: expected a whole number")
    if not all(map(_is_whole, parts)):
        raise ConfigError(f"--seeds={text}: expected a number of seeds, or seeds with commas")
    if len(parts) == 1 and int(text) < 1:
        raise ConfigError(f"--seeds must be 1 or more, got {text}")
    seeds = [*map(int, parts)] if len(parts) > 1 else [int(first) + k for k in range(int(text))]
    if min(seeds) < 0:
        flag = f"--seeds={text}" if len(parts) > 1 else f"--seed={first}"
        raise ConfigError(f"{flag}: a seed must be 0 or more, got {min(seeds)}")
    return list(dict.fromkeys(seeds))


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def check(folder: SweepFolder) -> _Need:
    """Returns what the trials need, after making the experiment of each.

    Raises:
      ConfigError: settings that `distrl train` refuses, or trials that may never end.
    """
    loaded: dict[tuple[str, ...], Experiment] = {}
    cores, gpus = 1, 0
    distinct = {tuple(trial.words): trial for trial in folder.trials if trial.wanted}
    for trial in distinct.values():
        try:
            experiment, topology = _experiment(folder, trial, loaded)
        except (ConfigError, SpecError, flags.Error) as error:
            of_trial = f"{' '.join(trial.words)}: " if trial.settings else ""
            raise ConfigError(f"sweep: {of_trial}{error}") from error
        cores = max(cores, busy_cores(experiment, topology))
        gpus = max(gpus, num_gpus_together(experiment, topology == "light_env"))
    return _Need(cores, gpus)


def _experiment(
    folder: SweepFolder, trial: Trial, loaded: dict[tuple[str, ...], Experiment]
) -> tuple[Experiment, str]:
    """Returns a trial's experiment and topology. Args: loaded: experiments before settings."""
    arguments = ["distrl train", *folder.words, *trial.words]
    values = copy.deepcopy(flags.FLAGS)
    values(arguments, known_only=True)
    names = ("env", "agent", "experiment", "transforms", "config_file")
    key = tuple(str(values[name].value) for name in names)
    if key not in loaded and values.config_file is None:
        with deferred_checks():  # flags may correct it
            loaded[key] = load_experiment(values)
    base = loaded.get(key)
    if values.config_file is not None:
        _check_file(values)
    values = copy.deepcopy(flags.FLAGS)
    experiment, topology, _ = read_command(
        arguments, values, None if base is None else lambda: base
    )
    if topology == AUTO:
        topology = without_measuring(experiment, values)
    if topology == "multi_machine":
        raise ConfigError("topology: a sweep's trials run on this machine; take another topology")
    for name, reason in _NOT_OF_TRIALS.items():
        if name != "run_dir" and values[name].present:  # in a file of settings
            raise ConfigError(f"--{name} is not for a sweep: {reason}")
    goals = [task.goal for task in experiment.tasks.values()]
    ends = (*BUDGETS, "max_learner_steps", "max_seconds")
    if not all(any(getattr(goal, name) is not None for name in ends) for goal in goals):
        raise ConfigError(
            "a trial whose goal is out of reach would never end; give all a budget, as in "
            "--max_env_steps=100_000"
        )
    if topology == "single_process":
        process_environment(experiment)
    else:
        node_environments(experiment, topology)
    return experiment, topology


def _check_file(values: flags.FlagValues) -> None:
    """Raises ConfigError if a file of settings has a seed; that of a run is left out."""
    stored = config_file.read(values.config_file, values)
    words = {word.lstrip("-").partition("=")[0] for word in stored.words}
    if not stored.of_run and {"seed", _SEED} & {*words, *stored.settings}:
        raise ConfigError(f"--config_file: {values.config_file} has a seed: {_OF_SEEDS}")


def _show(path: Path, by: str | None, words: Sequence[str]) -> int:
    """Prints a sweep's table. Args: by: column to rank by; None: the sweep's own."""
    if words:
        raise ConfigError(f"sweep: unexpected {words[0]!r} with --show, which takes --by only")
    folder = SweepFolder.read(path)
    if folder is None:
        raise ConfigError(f"--show: {path} has no sweep")
    _print(folder, str(folder.command["by"]) if by is None else by)
    return EXIT_FINISHED


def _print(folder: SweepFolder, by: str) -> None:
    """Prints the table, what of it cannot be read, and the best settings."""
    table = standings(folder, by)
    for line in damage(folder):
        print(f"distrl: {line}", flush=True)
    print_table(rows(table, by))
    best = table[0] if table and table[0].ranked else None
    if best is not None and best.settings:
        words = " ".join(f"--{name}={value}" for name, value in best.settings.items())
        print(f"best: {words}", flush=True)
