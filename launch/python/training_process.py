"""The process that `distrl.train` trains in.

Its stdin is a socket: what to train comes from it, and the exit status goes there.

Training has a separate process, so that the caller's may have used JAX before, which forked nodes
cannot, and may train again afterwards.
"""

import contextlib
import io
import os
import pickle
import signal
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any


def order(
    arguments: list[str],
    experiment: Any,
    argv: Sequence[str],
    module_flags: Mapping[str, Any] = types.MappingProxyType({}),
) -> bytes:
    """Returns what the process reads from stdin.

    Args:
      arguments: flags of `distrl train`.
      experiment: an Experiment; None: the flags name one.
      argv: `sys.argv` as modules are to see it that are imported there.
      module_flags: values of absl flags that such modules may define, by name. Those that cannot
        be pickled are left out.

    Raises:
      ConfigError: the experiment cannot be pickled.
    """
    from distrl.launch.python.pickling import dumps

    pickled = None if experiment is None else _pickled(experiment)
    flags: dict[str, bytes] = {}
    for name, value in module_flags.items():
        with contextlib.suppress(Exception):  # whatever pickling a user's object raises
            flags[name] = dumps(value)
    return pickle.dumps((os.getpid(), list(sys.path), list(argv), arguments, pickled, flags))


def _pickled(experiment: Any) -> bytes:
    import cloudpickle

    from distrl.errors import ConfigError
    from distrl.launch.python.pickling import dumps
    from distrl.runtime.traceback_text import describe_error

    try:
        return dumps(experiment)
    except Exception as error:
        what, advice = "the experiment", "what it is made of must be picklable"
        for callback in experiment.callbacks:
            try:
                cloudpickle.dumps(callback)
            except Exception:
                what = f"callback {type(callback).__name__}"
                advice = "open files, locks and connections in one of its methods, not in __init__"
                break
        raise ConfigError(
            f"distrl.train: {what} cannot be sent to the process that trains: "
            f"{describe_error(error)}; {advice}"
        ) from error


def main() -> None:
    """Trains what stdin describes, and exits as `distrl train` does."""
    parent, path, argv, arguments, pickled, module_flags = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    sys.argv[:] = argv or [""]  # an embedded Python may have none, and runpy expects one
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # its caller may ignore it
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8")  # which the caller reads, whatever PYTHONIOENCODING is
    from distrl.launch.local import debugging
    from distrl.runtime import posix

    posix.end_with_parent(parent, "distrl.train", signal.SIGTERM)
    debugging.use_no_terminal()
    from distrl.launch.main import main as command_line

    def load() -> Any:
        from absl.flags import FLAGS

        from distrl.launch.python.pickling import loads

        ours = set(FLAGS)
        experiment = loads(pickled)
        for name, value in module_flags.items():
            if name in FLAGS and name not in ours:
                FLAGS[name].value = loads(value)
        return experiment

    this = os.getpid()
    try:
        command_line(
            ["distrl", "train", *arguments],
            load=None if pickled is None else load,
            own_process=True,
        )
    except SystemExit as error:
        if os.getpid() == this:  # it guards its copy, which trains, and knows the true status
            with contextlib.suppress(BrokenPipeError):  # its caller is gone
                os.write(0, str(error.code).encode())
        raise


if __name__ == "__main__":
    main()
