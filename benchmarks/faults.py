"""The fault matrix: runs it, and writes what came of each cell to docs/faults.md.

  python benchmarks/faults.py               # all of it: an hour or two
  python benchmarks/faults.py -k heavy_env  # pytest's own flags choose
  python benchmarks/faults.py --report      # nothing: the table, of what was noted

Each cell is noted in `benchmarks/faults.jsonl`, of which the newest counts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTES = Path(__file__).with_suffix(".jsonl")
MATRIX = "tests/programs/test_fault_matrix.py"
KINDS = ("raise", "exit", "sigkill", "sigsegv", "sigstop", "loop", "block", "constructor")
HEAD = """# What happens when a node fails

`make faults` made this table: in a real program one node did something wrong, and a test looked at
what came of it. "again" means that the node was started again and training went on; "ends" that the
program ended with exit status 1 and named the node and the cause. Beside it are the seconds until
then, with a watchdog set to 4 s for a node that is blocked, 15 s for one that is busy, and 2 s for
one that is stopped (the usual limits are 60, 600 and 10 s). Afterwards no process and no shared
memory was left. An empty field does not apply (an error in a call that a node serves is its
caller's), or was not run yet. Other programs kept the machine busy meanwhile.
"""


def main() -> None:
    """Runs the matrix with pytest, and writes the table."""
    code = 0
    if "--report" not in sys.argv:
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-o", "faulthandler_timeout=1800", MATRIX, "-k", "test_fault", *sys.argv[1:],
        ]  # fmt: skip
        env = {**os.environ, "DISTRL_FAULT_TABLE": str(NOTES)}
        code = subprocess.run(command, cwd=ROOT, env=env).returncode
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for line in NOTES.read_text().splitlines():
        topology, backend, node, kind, launch_type, always, outcome, seconds = json.loads(line)
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
    sys.exit(code)


if __name__ == "__main__":
    main()
