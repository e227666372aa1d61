"""The flags of `distrl train`, besides the experiment's settings and those of several machines."""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from absl import flags

from distrl.errors import ConfigError
from distrl.launch.cli.config_flags import PREFIX, SettingParser
from distrl.launch.launch_types import LAUNCH_TYPES, LIVE, LOCAL_MP, TERMINALS
from distrl.programs import AUTO, TOPOLOGIES
from distrl.programs.substrate import AUTO as AUTO_SUBSTRATE
from distrl.programs.substrate import SUBSTRATES

_LAUNCHPAD_FLAG = re.compile(r"--?(no)?(lp_(?!launch_type)|tmux_)")
BUDGETS = ("max_env_steps", "max_episodes", "max_trained_steps")
SHORT = {"seed": "config.seed", **{name: f"config.goal.{name}" for name in BUDGETS}}
"""The settings that have a short flag, by its name."""
_LONG = {setting: name for name, setting in SHORT.items()}
_HELP_FLAGS = ("--help", "-help", "--helpshort", "--helpfull", "-h")

flags.DEFINE_string(
    "env",
    None,
    "Environment name, looked up in EnvPool, gymnasium and dm_control, in that order: CartPole-v1, "
    "Pong-v5, MiniGrid-Empty-5x5-v0, cartpole-swingup. A prefix selects one suite: envpool:, gym:, "
    "dm_control:, minigrid:, ale:, and with several agents pettingzoo: and mpe2:. CartPole-v1 "
    "unless given.",
)
_AGENT_HELP = "Algorithm name{}; impala unless given, or ppo for continuous actions."
flags.DEFINE_string("agent", None, _AGENT_HELP.format(""))
flags.DEFINE_string(
    "experiment",
    None,
    "FILE.py or FILE.py:NAME, instead of --env and --agent: your own Experiment, or a function "
    "that returns one. NAME is `experiment` unless given.",
)
flags.DEFINE_string(
    "config_file",
    None,
    "Flags and settings from a file, overridden by those of the command line: a run's config.json, "
    "or JSON or YAML with flags by name and settings under `config`.",
)
flags.DEFINE_list(
    "transforms",
    None,
    "Names of data transforms, in order from the time step to the agent. They replace the "
    "experiment's: --transforms=observation_normalizer,reward_clip; --transforms= for none.",
)
flags.DEFINE_string(
    "topology",
    AUTO,
    "How the parts are distributed. "
    + "; ".join(f"{name}: {what}" for name, what in TOPOLOGIES.items())
    + ".",
)
flags.DEFINE_enum(
    "substrate",
    AUTO_SUBSTRATE,
    SUBSTRATES,
    "The library that runs a program's nodes. launchpad: Launchpad and Courier, and Reverb if "
    "asked for (Python 3.10); builtin: distrl's own nodes and gRPC (any Python); auto: Launchpad "
    "where it is installed.",
)
flags.DEFINE_integer("seed", None, "Root of all seeds of the run; the experiment's unless given.")
flags.DEFINE_integer("max_env_steps", None, "Short for --config.goal.max_env_steps.")
flags.DEFINE_integer("max_episodes", None, "Short for --config.goal.max_episodes.")
flags.DEFINE_integer("max_trained_steps", None, "Short for --config.goal.max_trained_steps.")
for _budget in BUDGETS:  # they take what the settings take, such as 1e6
    flags.FLAGS[_budget].parser = SettingParser((int,))
flags.DEFINE_string(
    "run_dir",
    None,
    "Folder to write the run to, or the folder of a run to resume; a new folder in runs/ unless "
    "given.",
)
flags.DEFINE_bool(
    "snapshot",
    True,
    "Keep the code in the run folder: distrl's revision and changes, your modules that are "
    "imported, and the versions of packages.",
)
flags.DEFINE_enum(
    "terminal",
    LIVE,
    TERMINALS,
    "Where to show the nodes' output, which is always in their log files, too. `live`: here, with "
    "the run's status below it if stdout is a terminal; `current_terminal`: here, without the "
    "status; `output_to_files`: nowhere else.",
)
flags.DEFINE_string(
    "debug",
    None,
    "NODE (such as actor/0): run this node in the terminal, where breakpoint() and an exception "
    "open pdb; the other nodes are processes that wait for it without a timeout. NODE:PORT: wait "
    "for an editor's debugpy on this port instead. `all`, with single_process or "
    "--lp_launch_type=local_mt: open pdb at the first exception of any node.",
)
flags.DEFINE_string(
    "coordinator_address",
    None,
    "For a learner of several processes (single_process only): HOST:PORT at which process 0 "
    "listens. Start the same command for each process, with a different --process_id.",
)
flags.DEFINE_integer(
    "num_processes", None, "Number of learner processes; with --coordinator_address."
)
flags.DEFINE_integer(
    "process_id", None, "Index of this learner process, from 0; with --coordinator_address."
)
flags.DEFINE_bool(
    "open_learner_ports",
    False,
    "With --coordinator_address: let the learner processes use ports without encryption or "
    "authentication, where only the learner's hosts and users can reach each other.",
)
flags.DEFINE_enum(  # Launchpad defines it again when it is imported
    "lp_launch_type",
    LOCAL_MP,
    LAUNCH_TYPES,
    "Launchpad's launch type: processes, threads, or threads for tests. No effect on "
    "single_process.",
    allow_override=True,
)


def name_agents(names: Iterable[str], values: flags.FlagValues) -> None:
    """Names the algorithms in the help of --agent; apart, as importing them takes seconds."""
    values["agent"].help = _AGENT_HELP.format(f": {', '.join(names)}")


def without_flags(
    words: Sequence[str], names: Collection[str], values: flags.FlagValues
) -> list[str]:
    """Returns the words of a command line without some of its flags.

    Args:
      words: flags as absl takes them: `--name=value`, `--name value`, `-name`, `--noname`.
      names: names of the flags to leave out.
      values: the defined flags.
    """
    return [word for name, parts in _split(words, values) if name not in names for word in parts]


def joined_flags(words: Sequence[str], values: flags.FlagValues) -> list[str]:
    """Returns the words of a command line with each flag in one: `--name=value`, `--noname`.

    Args:
      words: flags as absl takes them.
      values: the defined flags.
    """
    return [
        parts[0] if name is None else f"--{'='.join([parts[0].lstrip('-'), *parts[1:]])}"
        for name, parts in _split(words, values)
    ]


def check_forms(words: Sequence[str], values: flags.FlagValues) -> None:
    """Raises ConfigError for a setting that is given by its short flag and by its long one."""
    joined = [word.lstrip("-") for word in joined_flags(words, values) if "=" in word]
    given = dict(word.split("=", 1) for word in joined)
    for name, setting in SHORT.items():
        if given.keys() >= {name, setting}:
            raise ConfigError(
                f"--{name}={given[name]} is short for --{setting}, which is {given[setting]} here; "
                "leave one of them out"
            )


def without_replaced(
    words: Sequence[str], by: Sequence[str], values: flags.FlagValues
) -> list[str]:
    """Returns words without the flags that other words give in their other form.

    Args:
      words: flags of a file.
      by: flags of the command line: one that is short replaces a long one, and the other way round.
      values: the defined flags.
    """
    given = {name for name, _ in _split(by, values)}
    replaced = [other for name, other in {**SHORT, **_LONG}.items() if name in given]
    return without_flags(words, replaced, values)


def _split(
    words: Sequence[str], values: flags.FlagValues
) -> Iterator[tuple[str | None, list[str]]]:
    """Yields each flag's name and its words; None: words that are no flags."""
    rest = iter(words)
    for word in rest:
        if word == "--":
            yield from ((None, [each]) for each in (word, *rest))
            return  # absl takes no flags after it
        name, equals, _ = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            yield None, [word]
            continue
        parts = [word]
        # Those of settings, which all take a value, may not be defined yet.
        is_setting = name.startswith(f"{PREFIX}.")
        if not equals and (not values[name].boolean if name in values else is_setting):
            parts += itertools.islice(rest, 1)
        yield name, parts


def asks_for_help(arguments: list[str]) -> bool:
    """Returns whether a help flag was given."""
    return any(argument in _HELP_FLAGS for argument in arguments)


def without_help(arguments: list[str]) -> list[str]:
    """Returns the arguments without help flags."""
    return [a for a in arguments if "help" not in a and a != "-h"]


def parse_all_but_launchpads(arguments: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Parses the arguments, all of which must be flags that are defined.

    Launchpad's flags are left out: they become known when it is imported, which takes seconds, and
    everything else should be checked before that.

    Raises:
      ConfigError, flags.Error: an argument that is no known flag, or a bad value.
    """
    # A file of --experiment may have imported Launchpad, which defines the flag again.
    values.set_default("lp_launch_type", LOCAL_MP)
    rest = values([a for a in arguments if not _LAUNCHPAD_FLAG.match(a)])[1:]
    for flag in values.flags_by_module_dict().get("absl.app", ()):
        if flag.present:
            raise ConfigError(
                f"--{flag.name}: absl defines it, and `distrl train` does not use it; "
                "`distrl train --help` lists all flags"
            )
    if rest:
        raise ConfigError(f"unexpected argument {rest[0]!r}; flags are written --name=value")
