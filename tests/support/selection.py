"""Parameters of a test that are left out of `make test`."""

import importlib.util
from typing import Any

import pytest


def full(*values: Any) -> Any:
    """Returns parameters that only `make test-all` and continuous integration run."""
    return pytest.param(*values, marks=pytest.mark.full)


def full_with_launchpad(*values: Any) -> Any:
    """Returns parameters that are quick where Launchpad is not installed, and else as `full`."""
    return pytest.param(*values) if importlib.util.find_spec("launchpad") is None else full(*values)


def slow(*values: Any) -> Any:
    """Returns parameters that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
