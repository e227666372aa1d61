"""The import of JAX survives a garbage collector that runs all the time."""

import subprocess
import sys
import textwrap

SCRIPT = """
    import gc, sys
    gc.set_threshold(1, 1, 1)  # each new object starts a full collection
    from distrl.runtime.jax_import import import_jax
    import_jax()
    gc.set_threshold(700, 10, 10)
    assert gc.isenabled()
    assert sys.modules["jax"].tree.leaves((1, 2)) == [1, 2]
    print("imported")
"""


def test_no_garbage_collection_during_the_import():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "imported"), done.stderr[-2000:]
