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
from distrl.launch.cli import completion_words
from distrl.launch.launch_types import LAUNCH_TYPES, TERMINALS
from distrl.launch.paths import python_command
from distrl.programs import TOPOLOGIES

_WITH_RUNS = {
    "status", "top", "logs", "stop", "eval", "play", "video", "report", "plot", "compare", "actors",
    "stacks", "profile", "graph",
}  # fmt: skip
_WITH_NODES = {"logs", "stacks", "profile"}
_WITH_TRAIN_FLAGS = {"train", "sweep", "graph"}
_TO_TRY = {"--grid", "--random"}  # of `distrl sweep`: names of flags without their dashes
_FLAG = re.compile(r"--[a-z_]+")
_FLAGS_WITHOUT_VALUE = {"--help", "--version", "--trust"}
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
complete -c distrl -a '(distrl _complete (commandline -cp | string collect))'
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


def complete(line: str, help_of: Mapping[str, str]) -> int:
    """Prints how the last word of a command line may go on, a word a line.

    Args:
      line: the command line up to the cursor.
      help_of: the help of each command by its name.

    Returns:
      The exit status.
    """
    words = line.split()
    if line.endswith(" "):
        words.append("")
    print("\n".join(candidates(words[1:], help_of, _read_words())))
    return 0


def _read_words() -> Mapping[str, Any]:
    """Returns the names in the cache; has a process find them out anew if they are old."""
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


def candidates(
    words: Sequence[str], help_of: Mapping[str, str], known: Mapping[str, Any]
) -> list[str]:
    """Returns what the last word may become.

    Args:
      words: the words after `distrl`, the last of which may be empty.
      help_of: the help of each command by its name.
      known: what `completion_words.collect` returned; parts may be missing.
    """
    current = words[-1] if words else ""
    if len(words) < 2:
        found: Sequence[str] = [*help_of, "--help", "--version"]
    else:
        found = _of_command(words, help_of, known)
    return sorted({word for word in found if word.startswith(current)})


def _of_command(
    words: Sequence[str], help_of: Mapping[str, str], known: Mapping[str, Any]
) -> Sequence[str]:
    command, current = words[0], words[-1]
    with_train = command in _WITH_TRAIN_FLAGS
    if with_train and len(words) > 2 and words[-2] in _TO_TRY:
        return [name.lstrip("-") for name in _train_flags(words, known)]
    if current.startswith("-"):
        name, equals, _ = current.partition("=")
        if equals:
            return [f"{name}={value}" for value in _values(name, words, known)]
        own = dict.fromkeys(_FLAG.findall(help_of.get(command, "")))
        flags = [flag if flag in _FLAGS_WITHOUT_VALUE else f"{flag}=" for flag in own]
        return [*flags, "--help", *(_train_flags(words, known) if with_train else ())]
    if words[-2].startswith("--") and "=" not in words[-2]:
        return list(_values(words[-2], words, known))
    if command == "completion":
        return list(SCRIPTS)
    before = [word for word in words[1:-1] if not word.startswith("-")]
    if command in _WITH_NODES and before:
        return _nodes(Path(before[0]))
    return _runs(current) if command in _WITH_RUNS or command == "list" else []


def _train_flags(words: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Returns the flags of `distrl train`, with the settings of the agent that is named."""
    settings = known.get("settings", {}).get(_agent(words), {})
    return [f"--{name}=" for name in (*known.get("flags", ()), *settings)]


def _agent(words: Sequence[str]) -> str:
    named = [word.partition("=")[2] for word in words if word.startswith("--agent=")]
    return named[-1] if named else _DEFAULT_AGENT


def _values(flag: str, words: Sequence[str], known: Mapping[str, Any]) -> Sequence[str]:
    name = flag.lstrip("-")
    fixed: dict[str, Sequence[str]] = {
        "topology": list(TOPOLOGIES),
        "terminal": TERMINALS,
        "lp_launch_type": LAUNCH_TYPES,
        "env": known.get("environments", ()),
        "agent": list(known.get("settings", ())),
        "jobs": ("auto",),
        "which": ("latest", "best"),
        "run_dir": _runs(words[-1].partition("=")[2]) if name == "run_dir" else (),
    }
    if name in fixed:
        return fixed[name]
    return list(known.get("settings", {}).get(_agent(words), {}).get(name, ()))


def _runs(begin: str) -> list[str]:
    """Returns folders that begin like this: those of runs, and those that may contain runs."""
    folder = Path(begin if begin.endswith("/") else Path(begin).parent if begin else "runs")
    found = []
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                is_run = (path / "config.json").exists()
                found.append(str(path) if is_run else f"{path}/")
    except OSError:  # no such folder
        return []
    return found


def _nodes(run_dir: Path) -> list[str]:
    logs = (path.stem for path in (run_dir / "logs").glob("*.log"))
    return ["/".join(name.rsplit("-", 1)) for name in logs]
