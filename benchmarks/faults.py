"""The fault matrix: runs it, and writes what came of each cell to docs/faults.md.

python benchmarks/faults.py               # all of it: an hour or two
python benchmarks/faults.py -k heavy_env  # pytest's own flags choose
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MATRIX = "tests/programs/test_fault_matrix.py"
KINDS = ("raise", "exit", "sigkill", "sigsegv", "sigstop", "loop", "block", "constructor")
HEAD = """# What happens when a node fails

`make faults` made this table: in a real program one node did something wrong, and a test looked at
what came of it. "again" means that the node was started again and training went on; "ends" that the
program ended with exit status 1 and named the node and the cause. Beside it are the seconds until
then, with a watchdog set to 4 s for a node that is blocked, 15 s for one that is busy, and 2 s for
one that is stopped (the usual limits are 60, 600 and 10 s). Afterwards no process and no shared
memory was left. An empty field does not apply: an error in a call that a node serves is its
caller's.
"""


def main() -> None:
    """Runs the matrix with pytest, and writes the table."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.jsonl"
        table.touch()
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                MATRIX, "-k", "test_fault", *sys.argv[1:],
            ],
            cwd=ROOT, env={**os.environ, "DISTRL_FAULT_TABLE": str(table)},
        )  # fmt: skip
        cells = [json.loads(line) for line in table.read_text().splitlines()]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for topology, backend, node, kind, launch_type, always, outcome, seconds in cells:
        what = "again" if outcome == "started again" else "ends"
        spread = (topology, backend, launch_type, node + (", in each life" if always else ""))
        rows.setdefault(spread, {})[kind] = f"{what} {seconds:.0f}"
    lines = [
        HEAD,
        f"| topology | replay | launch type | node | {' | '.join(KINDS)} |",
        "|---" * (4 + len(KINDS)) + "|",
    ]
    for spread, found in rows.items():
        lines.append(f"| {' | '.join([*spread, *(found.get(kind, '') for kind in KINDS)])} |")
    (ROOT / "docs" / "faults.md").write_text("\n".join(lines) + "\n")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
