"""Runs the fault matrix, and writes the outcome of each cell to docs/faults.md.

  python benchmarks/faults.py               # all of it: an hour or two
  python benchmarks/faults.py -k heavy_env  # a part, selected by pytest's flags
  python benchmarks/faults.py --report      # runs nothing; only writes the table

Outcomes are appended to `benchmarks/faults.jsonl`; the newest of each cell counts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTES = Path(__file__).with_suffix(".jsonl")
MATRIX = "tests/programs/faults/test_fault_matrix.py"
KINDS = ("raise", "exit", "sigkill", "sigsegv", "sigstop", "loop", "block", "constructor")
HEAD = """# The outcome for each node and fault

`make faults` made this table: in a real program one node was made to fail, and a test recorded the
outcome. "Restarted" means that the node was restarted and training continued; "ends" that the
program ended with exit status 1 and named the node and the cause. The number is the seconds until
then, with the watchdog set to 4 s for a blocked node, 15 s for a busy one and 2 s for a stopped one
(the defaults are 60, 600 and 10 s). Afterwards no process and no shared memory was left. An empty
cell does not apply (an error in a call that a node serves is raised in its caller), or was not run.
Other programs kept the machine busy.
"""


def main() -> None:
    """Runs the matrix with pytest and writes the table."""
    code = 0
    if "--report" not in sys.argv:
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-o", "faulthandler_timeout=1800", MATRIX, "-k", "test_fault", *sys.argv[1:],
        ]  # fmt: skip
        env = {**os.environ, "DISTRL_FAULT_TABLE": str(NOTES)}
        code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    rows: dict[tuple[str, ...], dict[str, str]] = {}  # (topology, ...) -> fault -> outcome
    for line in NOTES.read_text().splitlines():
        topology, backend, node, kind, launch_type, always, outcome, seconds = json.loads(line)
        restarted = outcome in ("restarted", "started again")  # the latter in older records
        node += ", in each life" if always else ""
        cells = rows.setdefault((topology, backend, launch_type, node), {})
        cells[kind] = f"{'restarted' if restarted else 'ends'} {seconds:.0f}"
    lines = [
        HEAD,
        f"| topology | replay | launch type | node | {' | '.join(KINDS)} |",
        "|---" * (4 + len(KINDS)) + "|",
    ]
    for program, cells in rows.items():
        lines.append(f"| {' | '.join([*program, *(cells.get(kind, '') for kind in KINDS)])} |")
    (ROOT / "docs" / "faults.md").write_text("\n".join(lines) + "\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
