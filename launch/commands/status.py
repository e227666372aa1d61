"""`distrl status RUN`: shows the status of a run's nodes."""

import time
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.live.progress import read_progress, shares_of_nodes, time_text
from distrl.launch.supervision.status_file import read_status, suspension


def status(arguments: list[str]) -> int:
    """Prints a table of a running program's nodes, and its bottleneck.

    Args:
      arguments: the command and the run folder.

    Returns:
      The exit status.

    Raises:
      ConfigError: see `read_status`.
    """
    if len(arguments) != 2:
        raise ConfigError("status: name one run folder, as in `distrl status runs/NAME`")
    status_data = read_status(arguments[1], "status")
    progress = read_progress(Path(arguments[1]))
    shares = shares_of_nodes(progress)
    hosts = any(node["host"] for node in status_data["nodes"].values())
    where = f"{'host':<12} " if hosts else ""
    head = f"{'node':<14} {where}{'pid':>8} {'state':<11} {'life':>4}"
    print(f"{head} {'cores':>6} {'MB':>8} {'shared':>8}")
    for name, node in status_data["nodes"].items():
        pid = node["pid"] or "-"
        where = f"{node['host']:<12} " if hosts else ""
        line = f"{name:<14} {where}{pid:>8} {node['status']:<11} {node['life']:>4}"
        if "cores" in node:
            line += f" {node['cores']:>6.2f} {node['resident_mb']:>8.1f} {node['shared_mb']:>8.1f}"
            stuck = node["seconds_since_progress"]
            if stuck is not None and stuck > 2:
                line += f"  no progress for {stuck:.0f} s"
        if name in shares:
            line += f"  {time_text(shares[name])}"
        print(line)
    for task, facts in progress.items():
        if facts["bottleneck"] is not None:
            print(f"{task}: {facts['bottleneck']}" if task else facts["bottleneck"])
    age = time.monotonic() - status_data["monotonic"]
    print(f"written {age:.0f} s ago")
    asleep = suspension(status_data)
    if asleep is not None:
        print(asleep)
    return 0
