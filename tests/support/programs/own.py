"""Launchpad programs as a user writes them, for `distrl launch FILE.py:NAME`."""

import os

import launchpad as lp
import neighbour
from absl import flags
from launchpad.examples.consumer_producers import program as consumer_producers
from launchpad.examples.program_wait import launch as program_wait
from launchpad.nodes.multi_processing_colocation.node import MultiProcessingColocation
from launchpad.nodes.python.local_multi_processing import PythonProcess

_PRODUCERS = flags.DEFINE_integer("num_producers", 2, "Producers.")
_RESTART = flags.DEFINE_string("restart", "no", "A flag whose name `distrl launch` has too.")

RESOURCES = {"printer": PythonProcess(env={"GREETING": "hello", "NUMBER": 3})}
ARGUMENTS = {"printer": PythonProcess(args={"verbose": 1})}
NUMBERS = {"printer": 3}
nothing = None


def print_environment() -> None:
    print(os.environ.get("GREETING"), os.environ.get("NUMBER"), _RESTART.value, neighbour.NAME)


def printer() -> lp.Program:
    program = lp.Program("printer")
    program.add_node(lp.PyNode(print_environment), label="printer")
    return program


def producers() -> lp.Program:
    return consumer_producers.make_program(_PRODUCERS.value)


def waiting() -> lp.Program:
    return program_wait.make_program()


def with_arguments(number: int, name: str = "", *others: int) -> lp.Program:
    raise NotImplementedError


def in_processes() -> lp.Program:
    program = lp.Program("in_processes")
    inner = MultiProcessingColocation([lp.PyNode(print_environment)])
    program.add_node(lp.MultiThreadingColocation([inner]), label="group")
    return program
