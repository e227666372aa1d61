"""`distrl list`: the runs of a folder."""

import math
import time
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.run_dir.folder import CONFIG
from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.run import Run
from distrl.launch.runs.text_table import print_table
from distrl.launch.supervision.launcher_process import is_running

_COLUMNS = ("run", "status", "topology", "env steps", "return", "started")


def list_runs(arguments: list[str]) -> int:
    """Prints a line for each run, the oldest first.

    Args:
      arguments: the command, and the folder; runs/ unless given.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no such folder.
    """
    values = Parser("list").add("folder", nargs="?", default="runs").parse_args(arguments[1:])
    folder = Path(values.folder)
    if not folder.is_dir():
        raise ConfigError(f"list: no folder {folder}; name the one that has your runs")
    configs = sorted(folder.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime)
    print_table([_COLUMNS, *(_row(config) for config in configs)])
    return 0


def _row(config: Path) -> tuple[str, ...]:
    run = Run(config.parent)
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(config.stat().st_mtime))
    try:
        topology = str(run.config.get("topology", "-"))
        status = "running" if is_running(config.parent) else run.status
    except ConfigError:
        return config.parent.name, "damaged", "-", "-", "-", started
    try:
        last = run.last_rows
        steps = f"{max(row['env_steps'] for row in last):,.0f}" if last else "-"
    except (ConfigError, KeyError):  # a cell, or the line of names
        return config.parent.name, status, topology, "damaged", "-", started
    returns = "/".join(f"{row.get('mean_return', math.nan):.1f}" for row in last) or "-"
    return config.parent.name, status, topology, steps, returns, started
