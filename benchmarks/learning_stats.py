"""Statistics of a few runs: interquartile means, and intervals by the stratified bootstrap.

The definitions are rliable's (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264): runs are
drawn with replacement within each task, and the interval is between percentiles of the statistic
over such draws. Pure functions.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

DRAWS = 2_000
CONFIDENCE = 0.95


def iqm(scores: npt.ArrayLike) -> float:
    """Returns the mean of the middle half: of what is left without a quarter at either end.

    Of n scores floor(n / 4) are left out at each end: none of three, one of five.

    Args:
      scores: at least one, of any shape; of several tasks, all together.
    """
    return float(_iqm(np.asarray(scores, np.float64).reshape(1, -1))[0])


def _iqm(rows: Array) -> Array:
    """Returns the interquartile mean of each row."""
    size = rows.shape[1]
    cut = size // 4
    return np.sort(rows, axis=1)[:, cut : size - cut].mean(axis=1)


def interval(
    scores: Sequence[npt.ArrayLike],
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> tuple[float, float]:
    """Returns the interval of the interquartile mean over tasks and runs.

    Args:
      scores: by task, its runs' scores; tasks may have different numbers of runs.
      draws: bootstrap samples.
      confidence: share of them within the interval.
      seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    parts = []
    for task in scores:
        runs = np.asarray(task, np.float64)
        parts.append(runs[rng.integers(len(runs), size=(draws, len(runs)))])
    means = _iqm(np.concatenate(parts, axis=1))
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def on_grid(grid: npt.ArrayLike, steps: npt.ArrayLike, values: npt.ArrayLike) -> Array:
    """Returns a run's values at the steps of a grid, linear between those that are known.

    Args:
      grid: [G], rising.
      steps, values: [N], of the run, rising steps.

    Returns:
      [G]; NaN before the first known step and after the last.
    """
    return np.interp(
        np.asarray(grid, np.float64), np.asarray(steps), np.asarray(values), np.nan, np.nan
    )


def band(curves: npt.ArrayLike, seed: int = 0) -> tuple[Array, Array, Array]:
    """Returns interquartile mean and interval at each point of several runs' curves.

    Args:
      curves: [runs, G]; points at which a run has NaN are left out for it.
      seed: of the draws.

    Returns:
      Mean, lower and upper end, [G] each; NaN where fewer than half of the runs have a value.
    """
    columns = np.asarray(curves, np.float64).T
    found = np.full((3, len(columns)), np.nan)
    for number, column in enumerate(columns):
        known = column[~np.isnan(column)]
        if 2 * len(known) >= len(column):
            found[:, number] = iqm(known), *interval([known], seed=seed)
    return found[0], found[1], found[2]
