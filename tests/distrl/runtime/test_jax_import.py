"""JAX is imported whole or not at all."""

import subprocess
import sys
import textwrap

SCRIPT = """
    import gc, sys
    gc.set_threshold(1, 1, 1)  # every object that is made begins a collection of all
    from distrl.jax_import import import_jax
    import_jax()
    gc.set_threshold(700, 10, 10)
    assert gc.isenabled()
    assert sys.modules["jax"].tree.leaves((1, 2)) == [1, 2]
    print("imported")
"""


def test_no_collection_meets_jax_half_imported():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "imported"), done.stderr[-2000:]
