"""Experiments that the tests name on a command line: `--experiment=FILE:FUNCTION`."""
