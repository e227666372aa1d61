"""The line of progress that a run prints, and the name of the file with more details."""

import re
from collections.abc import Mapping
from typing import Any

FILE_NAME = "progress.json"
"""A file in the folder of a run, or of each of its tasks; see `distrl.metrics.run_status`."""
_LINE = re.compile(r"(\S+: )?\s*[\d.]+ s  env steps ")


def progress_line(row: Mapping[str, Any], rate: float, window: int) -> str:
    """Returns the line of progress.

    Args:
      row: the result of `Monitor.snapshot`.
      rate: environment steps per second.
      window: episodes that the mean return is taken over.
    """
    mean = "-" if row["mean_return"] is None else f"{row['mean_return']:.1f}"
    text = (
        f"{row['seconds']:6.1f} s  env steps {row['env_steps']:>10,} ({rate:,.0f}/s)  "
        f"learner steps {row['learner_steps']:,}  episodes {row['episodes']:,}  "
        f"return({window}) {mean}"
    )
    if row["success_rate"] is not None:
        text += f"  success {100 * row['success_rate']:.0f} %"
    if "policy_lag_mean" in row:
        text += f"  lag {row['policy_lag_mean']:.1f} max {row['policy_lag_max']:.0f}"
    if row.get("unrolls_too_old"):
        text += f"  too old {row['unrolls_too_old']:,}"
    if row["evaluation_return"] is not None:
        text += f"  evaluation {row['evaluation_return']:.1f}"
    if row["evaluation_success_rate"] is not None:
        text += f" (success {100 * row['evaluation_success_rate']:.0f} %)"
    if row.get("updates_skipped"):
        text += f"  updates skipped {row['updates_skipped']:,}"
    if row.get("env_steps_unreported"):
        text += f"  unreported steps {row['env_steps_unreported']:,}"
    if row["env_restarts"]:
        text += f"  environments restarted {row['env_restarts']}"
    return text


def is_progress_line(line: str) -> bool:
    """Returns whether a line is from `progress_line`, perhaps after a policy's name."""
    return _LINE.match(line) is not None
