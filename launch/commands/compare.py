"""`distrl compare RUN RUN`: settings that differ, and how far each run got."""

from collections.abc import Iterator, Sequence

from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.run import Run, load_run
from distrl.launch.runs.text_table import number, print_table

_FIGURES = ("seconds", "env_steps", "learner_steps", "episodes", "mean_return")


def compare(arguments: list[str]) -> int:
    """Prints what differs between runs.

    Args:
      arguments: the command and the run folders.

    Returns:
      The exit status.

    Raises:
      ConfigError: one is no run folder.
    """
    values = Parser("compare").add("run").add("other", nargs="+").parse_args(arguments[1:])
    runs = [load_run(path, command="compare") for path in (values.run, *values.other)]
    names = ("", *(run.path.name for run in runs))
    print_table([names, *differences(runs), *_figures(runs)])
    return 0


def differences(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Yields the settings that differ: the name, and each run's value; "-": it has none."""
    settings = [run.flat_settings for run in runs]
    for name in dict.fromkeys(name for each in settings for name in each):
        values = [str(each[name]) if name in each else "-" for each in settings]
        if len(set(values)) > 1:
            yield name, *values


def _figures(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    last_rows = [run.last_rows for run in runs]
    for name in _FIGURES:
        values = [
            "/".join(number(row[name]) for row in rows if name in row) or "-" for rows in last_rows
        ]
        yield f"at the end: {name}", *values
