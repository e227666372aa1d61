"""What the process does with freed memory."""

import subprocess
import sys

import pytest

# An array of 256 MiB, as JAX's temporary ones are; and how many of its 65,536 pages were new the
# second time.
_PAGES = """
import resource
import sys
import threading
import numpy as np
from distrl.runtime.freed_memory import keep_freed_memory

def main():
    np.ones(2**26, np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**26, np.float32)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

keep_freed_memory()
if sys.argv[1] == "main":
    main()
else:
    threading.Thread(target=main).start()
"""


@pytest.mark.parametrize(
    ("thread", "variables", "is_kept"),
    [
        ("main", {}, True),
        ("another", {}, True),
        ("main", {"MALLOC_MMAP_THRESHOLD_": "65536"}, False),
        ("main", {"MALLOC_TRIM_THRESHOLD_": "65536"}, False),
        ("main", {"MALLOC_ARENA_MAX": "2"}, True),
        ("another", {"MALLOC_ARENA_MAX": "2"}, False),
    ],
)
def test_memory_is_kept_unless_the_user_has_set_limits(monkeypatch, thread, variables, is_kept):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", _PAGES, thread]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    pages = int(output)
    # Where the kernel gives huge pages, as numpy asks it to, one stands for 512.
    assert pages < 60 if is_kept else pages >= 100
