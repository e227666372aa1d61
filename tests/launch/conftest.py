"""Commands that run in the tests' own process."""

from tests.support.in_process import status_of  # noqa: F401  (a fixture)
