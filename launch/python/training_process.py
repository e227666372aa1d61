"""The process that `distrl.train` trains in; what to train comes through stdin.

Training has a process of its own, so that the caller's may have used JAX before, which forked nodes
cannot, and may train again afterwards.
"""

import os
import pickle
import signal
import sys
from typing import Any


def order(arguments: list[str], experiment: Any) -> bytes:
    """Returns what the process reads from stdin.

    Args:
      arguments: flags of `distrl train`.
      experiment: an Experiment; None: the flags name one.

    Raises:
      ConfigError: the experiment cannot be pickled.
    """
    pickled = None if experiment is None else _pickled(experiment)
    return pickle.dumps((os.getpid(), list(sys.path), arguments, pickled))


def _pickled(experiment: Any) -> bytes:
    import cloudpickle

    from distrl.errors import ConfigError
    from distrl.launch.python.pickling import dumps

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
            f"{type(error).__name__}: {' '.join(str(error).split())}; {advice}"
        ) from error


def main() -> None:
    """Trains what stdin describes, and exits as `distrl train` does."""
    parent, path, arguments, pickled = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    from distrl.launch import posix

    posix.end_with_parent(parent, "distrl.train", signal.SIGTERM)
    from distrl.launch.main import main as command_line

    def load() -> Any:
        import cloudpickle

        return cloudpickle.loads(pickled)

    command_line(
        ["distrl", "train", *arguments], load=None if pickled is None else load, own_process=True
    )


if __name__ == "__main__":
    main()
