"""Parameters of a test that are left out of `make test`."""

from typing import Any

import pytest


def full(*values: Any) -> Any:
    """Returns parameters that only `make test-all` and continuous integration run."""
    return pytest.param(*values, marks=pytest.mark.full)


def slow(*values: Any) -> Any:
    """Returns parameters that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
