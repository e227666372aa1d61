"""The experiment and the topology that a command line describes, checked as `distrl train` does."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import flags

from distrl.errors import ConfigError
from distrl.experiment import Experiment, deferred_checks
from distrl.field_checks import choose_from
from distrl.launch.cli import config_file, config_flags, machine_flags, train_flags
from distrl.launch.cli.load_experiment import apply_settings, load_experiment
from distrl.programs import AUTO, TOPOLOGIES, substrate

FLAG_MODULES = (train_flags.__name__, machine_flags.__name__, config_flags.MODULE_NAME)
"""The modules that define the flags of `distrl train`, by which absl lists them."""


class TrainCommand(NamedTuple):
    """What a command line describes.

    Attributes:
      experiment: with the settings of all flags.
      topology: a key of `TOPOLOGIES`.
      arguments: the command and its flags, with those of `--config_file`.
    """

    experiment: Experiment
    topology: str
    arguments: list[str]


def read_command(
    arguments: Sequence[str],
    values: flags.FlagValues,
    load: Callable[[], Any] | None = None,
) -> TrainCommand:
    """Reads the flags of `distrl train`.

    Args:
      arguments: the command and its flags.
      values: the defined flags; the experiment's settings are added, and all get their values.
      load: returns the experiment; None: the flags name one.

    Raises:
      ConfigError, SpecError, flags.Error: bad input.
    """
    arguments = list(arguments)
    values(arguments, known_only=True)
    of_line = arguments[1:]
    stored: config_file.ConfigFile | None = None
    if values.config_file is not None:
        stored, given = config_file.read(values.config_file, values), machine_flags.given(values)
        words = train_flags.without_replaced(stored.words, of_line, values)
        values([arguments[0], *words, *of_line], known_only=True)
        if stored.of_run:  # which may have been on other machines
            names = [name for name in machine_flags.given(values) if name not in given]
            words = machine_flags.drop_unfit(names, words, _taken(values), values)
        arguments = [arguments[0], *words, *of_line]
    topology = check_topology(values.topology, values.substrate)
    with deferred_checks():  # flags may correct what a preset or a file has
        experiment = load_experiment(values, load)
        config_flags.define_flags(experiment, values=values)
        if stored is not None:
            words = train_flags.without_replaced(
                stored.setting_words(experiment, values, of_line), of_line, values
            )
            arguments = [arguments[0], *words, *arguments[1:]]
        train_flags.check_forms(arguments[1:], values)
        train_flags.parse_all_but_launchpads(arguments, values)
        experiment = apply_settings(experiment, values)
    experiment.check()
    check_for(experiment, _taken(values), values)
    return TrainCommand(experiment, topology, arguments)


def check_for(experiment: Experiment, topology: str, values: flags.FlagValues) -> None:
    """Checks experiment and flags for the topology that they are to run under.

    Args:
      experiment: what to train.
      topology: a key of `TOPOLOGIES`; of AUTO only flags of several machines are refused.
      values: the flags' values.

    Raises:
      ConfigError: the topology does not have what they ask for.
    """
    machine_flags.check_flags(topology, values)
    if experiment.lockstep and topology not in ("single_process", "heavy_env", AUTO):
        raise ConfigError(
            f"lockstep: {topology} serves requests in the order of their arrival; use "
            "--topology=heavy_env or --topology=single_process"
        )
    if topology == "single_process":
        experiment.check_single_process()
        if values.debug not in (None, "all"):
            raise ConfigError(
                f"--debug={values.debug}: {topology} has no nodes; use --debug=all, or "
                "--topology=heavy_env or light_env"
            )


def _taken(values: flags.FlagValues) -> str:
    """Returns the topology; `multi_machine` where flags say that "auto" takes it."""
    several = values.topology == AUTO and machine_flags.is_for_machines(values) is not None
    return "multi_machine" if several else values.topology


def check_topology(name: str, on: str = substrate.AUTO) -> str:
    """Returns the name of a topology that can run here.

    Args:
      name: the topology's.
      on: the substrate.

    Raises:
      ConfigError: there is none of that name, or what it needs is not installed.
    """
    if name not in TOPOLOGIES:
        raise ConfigError(f"topology: unknown name {name!r}{choose_from(name, TOPOLOGIES)}")
    if name not in ("single_process", AUTO):
        substrate.resolve(on)
    return name
