"""A user's Launchpad program that pages name; it defines a flag."""

import launchpad as lp
from absl import flags

flags.DEFINE_integer("num_producers", 1, "Number of producers.")


def make_program() -> lp.Program:
    return lp.Program("mine")
