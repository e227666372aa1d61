"""`distrl completion`: scripts for bash, zsh and fish, and what they ask for at each press of Tab.

Names of flags, settings, environments and agents come from a file in the user's cache, because
finding them out takes seconds; see `completion_words`. Nothing heavy is imported here.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.command_table import A_RUN, A_RUN_AND_NODES, A_SHELL, COMMANDS, PATH_FLAGS, RUNS
from distrl.launch.commands import completion_words
from distrl.launch.launch_types import LAUNCH_TYPES, TERMINALS
from distrl.launch.paths import python_command
from distrl.programs import TOPOLOGIES
from distrl.runtime.files import TASKS

_AS = re.compile(r"\[flags of (?:distrl )?(\w+)\]")  # in a command's help
_TO_TRY = {"--grid", "--random"}  # flags of `distrl sweep` that name flags, without dashes
_FLAG = re.compile(r"(?<![\w-])(--?[a-z][a-z_]*)(?:(=)([a-z|A-Z]+(?![\w.|]))?)?")
_COLUMNS = {"x", "y", "by"}  # flags that name a column of a run's metrics
_METRICS = "metrics.csv"
_DEFAULT_AGENT = "impala"

_BASH = """# bash: eval "$(distrl completion bash)", in .bashrc
_distrl() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n'
    COMPREPLY=($(distrl _complete "$line" 2>/dev/null))
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/] ]] && compopt -o nospace
    local word="${line##* }"  # bash breaks it at = and :
    local head="${word%"${word##*[=:]}"}"
    COMPREPLY=("${COMPREPLY[@]#"$head"}")
}
complete -o default -F _distrl distrl
"""
_ZSH = """#compdef distrl
# zsh: eval "$(distrl completion zsh)" after compinit, or into a folder of $fpath as _distrl
_distrl() {
    local -a found open
    found=(${(f)"$(distrl _complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
    open=(${(M)found:#*[=/]})
    found=(${found:#*[=/]})
    (( $#open )) && compadd -S '' -- $open
    (( $#found )) && compadd -- $found
    (( $#open + $#found )) || _default
}
if [[ $funcstack[1] == _distrl ]]; then _distrl "$@"; else compdef _distrl distrl; fi
"""
_FISH = """# fish: distrl completion fish > ~/.config/fish/completions/distrl.fish
function __distrl_complete
    set -l found (distrl _complete (commandline -cp | string collect) 2>/dev/null)
    set -q found[1]; and printf '%s\\n' $found; or __fish_complete_path (commandline -ct)
end
complete -c distrl -f -a '(__distrl_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(arguments: list[str]) -> int:
    """Prints a shell's script.

    Args:
      arguments: the command, and the shell.

    Returns:
      The exit status.

    Raises:
      ConfigError: no such shell.
    """
    if len(arguments) != 2 or arguments[1] not in SCRIPTS:
        raise ConfigError(f"completion: name a shell: {', '.join(SCRIPTS)}")
    _read_words()
    print(SCRIPTS[arguments[1]], end="")
    return 0


def complete(line: str) -> int:
    """Prints the possible completions of a command line's last word, one per line.

    Args:
      line: the command line up to the cursor.

    Returns:
      The exit status.
    """
    words = line.split()
    if line.endswith(" "):
        words.append("")
    for word in candidates(words[1:], _read_words()):
        print(word)
    return 0


def _read_words() -> Mapping[str, Any]:
    """Returns the names in the cache; starts a process to look them up if they are old."""
    words, is_new = completion_words.read()
    if not is_new:
        subprocess.Popen(
            python_command(completion_words.__name__),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return words


def candidates(words: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Returns what the last word may become.

    Args:
      words: the words after `distrl`, the last of which may be empty.
      known: what `completion_words.collect` returned; parts may be missing.
    """
    current = words[-1] if words else ""
    if len(words) < 2:
        possible: Sequence[str] = [*COMMANDS, "--help", "--version"]
    else:
        possible = _of_command(words, known)
    return sorted({word for word in possible if word.startswith(current)})


def _of_command(words: Sequence[str], known: Mapping[str, Any]) -> Sequence[str]:
    command, current = words[0], words[-1]
    with_train = _has_train_flags(command)
    flags = _own_flags(command)
    if with_train and len(words) > 2 and words[-2] in _TO_TRY:
        return _to_try(words, known)
    if current.startswith("-"):
        name, equals, begin = current.partition("=")
        if equals:
            return [f"{name}={value}" for value in _values(name, begin, words, known, flags)]
        flag_words = [flag if values is None else f"{flag}=" for flag, values in flags.items()]
        return [*flag_words, "--help", *(_train_flags(words, known) if with_train else ())]
    before = words[-2]
    if before.startswith("--") and "=" not in before:
        takes_value = flags.get(before) is not None or before in ("--show", "--set")
        if takes_value or (with_train and f"{before}=" in _train_flags(words, known)):
            return _values(before, current, words, known, flags)
    named = [word for word in words[1:-1] if not word.startswith("-")]
    completes = COMMANDS[command].completes if command in COMMANDS else ""
    if completes == A_SHELL:
        return [] if named else list(SCRIPTS)
    if completes == A_RUN_AND_NODES and named:
        return _nodes(Path(named[0]))
    if completes == RUNS or (completes in (A_RUN, A_RUN_AND_NODES) and not named):
        return _runs(current)
    return []


def _has_train_flags(command: str) -> bool:
    """Returns whether a command takes all flags of `distrl train`."""
    return command == "train" or _same_as(command) == "train"


def _same_as(command: str) -> str | None:
    """Returns the command whose flags another takes, too, as its help says."""
    match = _AS.search(COMMANDS[command].help) if command in COMMANDS else None
    return None if match is None else match[1]


def _own_flags(command: str) -> dict[str, list[str] | None]:
    """Returns the flags in a command's help, with the values to choose from.

    The list is empty for any value, and None for a flag that has none.
    """
    text = COMMANDS[command].help if command in COMMANDS else ""
    flags: dict[str, list[str] | None] = {}
    if (same_as := _same_as(command)) and not _has_train_flags(same_as):
        flags = _own_flags(same_as)
    for flag, equals, values in _FLAG.findall(text):
        if equals and not flags.get(flag):
            flags[flag] = [value for value in values.split("|") if value.islower()]
        flags.setdefault(flag, None)
    return {flag: None if flag in _TO_TRY else values for flag, values in flags.items()}


def _to_try(words: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Returns what `--grid` may name, and the values of what it names, also after a comma."""
    name, equals, begin = words[-1].partition("=")
    if not equals:
        return [flag.lstrip("-") for flag in _train_flags(words, known)]
    first, comma, _ = begin.rpartition(",")
    given = set(first.split(","))
    values = _values(name, begin, words, known, {})
    return [f"{name}={first}{comma}{value}" for value in values if value not in given]


def _train_flags(words: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Returns the flags of `distrl train`, with the settings of the agent that is named."""
    settings = known.get("settings", {}).get(_agent(words), {})
    return [f"--{name}=" for name in (*known.get("flags", ()), *settings)]


def _agent(words: Sequence[str]) -> str:
    named = [word.partition("=")[2] for word in words if word.startswith("--agent=")]
    return named[-1] if named else _DEFAULT_AGENT


def _values(
    flag: str,
    begin: str,
    words: Sequence[str],
    known: Mapping[str, Any],
    flags: Mapping[str, Sequence[str] | None],
) -> Sequence[str]:
    """Returns the values of a flag that begin like this. Args: flags: from `_own_flags`."""
    name = flag.lstrip("-")
    fixed: dict[str, Sequence[str]] = {
        "topology": list(TOPOLOGIES),
        "terminal": TERMINALS,
        "lp_launch_type": LAUNCH_TYPES,
        "env": known.get("environments", ()),
        "agent": list(known.get("settings", ())),
    }
    if name in fixed:
        return fixed[name]
    if name == "run_dir":
        return _runs(begin)
    if name in PATH_FLAGS:
        return _paths(begin)
    named = [Path(word) for word in words[1:-1] if not word.startswith("-")]
    if name in _COLUMNS and named:
        return _columns(named[0])
    if name == "task" and named:
        return [path.name for path in (named[0] / TASKS).glob("*")]
    settings = {
        **dict(known.get("choices", {})),
        **known.get("settings", {}).get(_agent(words), {}),
    }
    return flags.get(flag) or list(settings.get(name, ()))


def _paths(begin: str) -> list[str]:
    """Returns the files and folders whose paths begin like this."""
    head = begin[: begin.rfind("/") + 1]
    try:
        paths = [path for path in Path(head or ".").iterdir() if not path.name.startswith(".")]
    except OSError:  # no such folder
        return []
    return [f"{head}{path.name}{'/' if path.is_dir() else ''}" for path in paths]


def _runs(begin: str) -> list[str]:
    """Returns folders that begin like this: those of runs, and those that may contain runs."""
    folders = [path for path in _paths(begin or "runs/") if path.endswith("/")]
    return [path.rstrip("/") if (Path(path) / "config.json").exists() else path for path in folders]


def _columns(run_dir: Path) -> list[str]:
    try:
        with open(run_dir / _METRICS) as file:
            return file.readline().strip().split(",")
    except OSError:
        return []


def _nodes(run_dir: Path) -> list[str]:
    logs = (path.stem for path in (run_dir / "logs").glob("*.log"))
    return ["/".join(name.rsplit("-", 1)) for name in logs]
