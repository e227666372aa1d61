"""The argument parser of the commands about runs."""

import argparse
from typing import Any, NoReturn

from distrl.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments by ConfigError. The command line itself prints the help."""

    def __init__(self, command: str):
        """Args: command: name of the command."""
        super().__init__(prog=command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"{self.prog}: {message}; see `distrl {self.prog} --help`")

    def add(self, *names: str, **options: Any) -> "Parser":
        """Adds an argument; see `argparse`."""
        self.add_argument(*names, **options)
        return self
