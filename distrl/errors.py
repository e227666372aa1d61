"""The exceptions that callers distinguish."""


class ConfigError(ValueError):
    """An invalid setting. The message is one line: what is wrong, and what would be right."""


class UntrustedError(ConfigError):
    """A file has code that must not run unless its reader trusts it.

    Args: the fact, and how to let the code run.
    """

    def __str__(self) -> str:
        fact, how = self.args
        return f"{fact}. If you trust everyone who could have written this file, {how}"


class SpecError(ValueError):
    """Data that violates its spec. The message names the field, the expected and actual value."""


class Stopped(Exception):
    """Raised by a wait when the program stops. Not a failure: loops end on it."""


class DeadlineExceeded(TimeoutError):
    """A wait reached its limit. The message says what waited for what, and for how long."""


class ServerSilent(DeadlineExceeded):
    """A replay's server did not answer: it is dead or unreachable."""


class Blocked(RuntimeError):
    """A wait that could never end. The message has the inequality that blocks it."""


class Diverged(ArithmeticError):
    """Training produced NaN or infinity. One line; restarting from a checkpoint would not help."""


class SharedMemoryLost(RuntimeError):
    """What nodes share has vanished from memory. One line; restarting a node would not help."""


class CallbackError(RuntimeError):
    """A callback raised: the run ends, and is saved. The message names method and exception."""


class PeerError(RuntimeError):
    """A call to another node failed. The message names the node and the method."""


class SaveError(RuntimeError):
    """The end of a run could not be saved. The message is one line: what, and why not."""


class TrainingError(RuntimeError):
    """Training from Python has failed. The message is one line: why, and where its output is."""


class EnvironmentFault(RuntimeError):
    """An environment misbehaved, and may not be restarted (again).

    The message names the environment, its id, seed and step, and ends with its traceback.

    Attributes:
      original: the environment's exception, if it was raised in this process.
    """

    original: BaseException | None = None
