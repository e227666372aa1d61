"""Experiments with other settings."""

import dataclasses
from typing import Any

from distrl.experiment import Experiment


def replaced(experiment: Experiment, part: str, **settings: Any) -> Experiment:
    """Returns the experiment with settings of one of its parts replaced."""
    changed = dataclasses.replace(getattr(experiment, part), **settings)
    return dataclasses.replace(experiment, **{part: changed})
