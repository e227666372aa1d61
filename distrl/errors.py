"""The exceptions that callers tell apart."""


class ConfigError(ValueError):
    """A setting that cannot work. One line: what is wrong, and what would be right."""


class SpecError(ValueError):
    """Data that breaks its spec. The message names the field, what was expected and what came."""


class Stopped(Exception):
    """Raised out of a wait when the program is stopping. Not a failure: loops end on it."""


class DeadlineExceeded(TimeoutError):
    """A wait reached its limit. The message says who waited for what, and for how long."""


class Blocked(RuntimeError):
    """A wait that could never end. The message has the inequality that holds it."""


class PeerError(RuntimeError):
    """A call to another node failed. The message names the node and the method."""


class EnvironmentFault(RuntimeError):
    """An environment misbehaved, and its policy was to fail or its budget was spent.

    The message names the environment, its id, seed and step, and ends with its own traceback.

    Attributes:
      original: the environment's own exception, where it was raised in this process.
    """

    original: BaseException | None = None
