"""`distrl top RUN`: watches a running program from another terminal."""

import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from distrl.errors import ConfigError
from distrl.launch.live.view import View
from distrl.launch.runs.arguments import Parser
from distrl.launch.supervision.launcher_process import is_running
from distrl.launch.supervision.node_logs import Stream
from distrl.launch.supervision.result import RESULT_FILE
from distrl.launch.supervision.status_file import read_status
from distrl.runtime.files import read_dict

_INTERVAL_S = 1.0
_WIDTH, _HEIGHT = 120, 200  # where there is no terminal


def top(arguments: list[str]) -> int:
    """Shows a program's status until it ends, or until Ctrl-C; once, if stdout is no terminal.

    Args:
      arguments: the command and the run folder.

    Returns:
      The exit status.

    Raises:
      ConfigError: `run_dir` is not the folder of a run, or its program has ended.
    """
    run_dir = Path(Parser("top").add("run").parse_args(arguments[1:]).run)
    view, status = View(run_dir), read_status(str(run_dir), "top")
    stream = Stream(sys.stdout)
    if not stream.is_terminal:
        print("\n".join(view.lines(status, _WIDTH, _HEIGHT)))
        return 0
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = signal.signal(signal.SIGINT, end)
    try:
        _watch(run_dir, view, stream, ended)
    finally:
        signal.signal(signal.SIGINT, before)
    if not ended.is_set():
        result = read_dict(run_dir / RESULT_FILE) or {"status": "ended", "reason": "no result"}
        print(f"{run_dir}: {result['status']}: {result['reason']}")
    return 0


def _watch(run_dir: Path, view: View, stream: Stream, ended: threading.Event) -> None:
    """Draws until the program ends, or `ended` is set; what was drawn last stays."""
    while is_running(run_dir):
        try:
            status = read_status(str(run_dir), "top")
        except ConfigError:  # it ends at this moment
            return
        stream.show_footer(view.lines(status, *stream.footer_size))
        if ended.wait(_INTERVAL_S):
            return
