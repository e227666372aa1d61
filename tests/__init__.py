"""The tests. A package, so that test files import `tests.support`."""
