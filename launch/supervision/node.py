"""The supervisor's view of a node, and the messages that nodes send it."""

import abc
import dataclasses

from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.restart_policy import RestartHistory, RestartPolicy
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.usage import Usage
from distrl.runtime.heartbeat import Heartbeat

KILL_S = 3.0  # for the kernel to end a killed process


@dataclasses.dataclass
class Message:
    """A message from a node to the supervisor.

    Attributes:
      time: seconds of the machine's monotonic clock, read by the node.
      node: its name, "actor/0".
      kind: "running", "stop" (it asks for the end of the program), "failure" or "ended".
      reason: why it asks for a stop; for a failure "Type: message".
      finished: whether a stop means that the goal is reached.
      traceback: the traceback of a failure, or of a stop because of one.
      bad_input: whether a failure is the user's to fix, with a separate exit status; it is final.
      final: whether a failure ends the program at once, because a restart would not help; without a
        traceback its one line says all.
    """

    time: float
    node: str
    kind: str
    reason: str = ""
    finished: bool = True
    traceback: str | None = None
    bad_input: bool = False
    final: bool = False

    def __post_init__(self) -> None:
        self.final |= self.bad_input


class SupervisedNode(abc.ABC):
    """A node as the supervisor sees it, whatever it runs in.

    Attributes:
      name: "actor/0".
      label: its group, "actor".
      exit: how its current or last life ended.
      alive: started, and not collected yet.
      started: when its life began, in seconds of the monotonic clock.
      failure: message of the exception that ends this life of a restartable node.
      hung_cause: why the watchdog ends this life.
      hung_since: when the watchdog found that.
      should_run: False while the group is scaled below this node.
      may_return: it may end by itself, with status 0; otherwise that is a failure.
      stop_deadline: when it is killed, after it was asked to stop while the program continues.
      host: name of the remote host that it runs on; "" for this machine.
      unavailable_reason: why it cannot be started now: its host is lost.
      essential: the program ends when its host is lost.
    """

    kill_timeout = KILL_S  # seconds for the node to end after `kill`
    can_be_killed = True

    def __init__(
        self,
        name: str,
        label: str,
        log: NodeLog,
        heartbeat: Heartbeat,
        restart_policy: RestartPolicy,
    ) -> None:
        self.name = name
        self.label = label
        self.log = log
        self.heartbeat = heartbeat
        self.restartable = restart_policy.restarts > 0
        self.history = RestartHistory(restart_policy)
        self.exit = NodeExit(causes=self.history.causes)
        self.alive = False
        self.started = 0.0
        self.failure: Message | None = None
        self.hung_cause: str | None = None
        self.hung_since = 0.0
        self.should_run = True
        self.may_return = False
        self.stop_deadline: float | None = None
        self.host = ""
        self.unavailable_reason: str | None = None
        self.essential = False

    @property
    def has_returned(self) -> bool:
        """Whether it has ended by itself, as it may."""
        ended = not self.alive and self.exit.state == "ended"
        return self.may_return and ended and self.failure is None

    def begin(self, life: int) -> None:
        """Starts a life of the node. Raises OSError if the system refuses that."""
        self.heartbeat.begin(life)
        try:
            self.start()
        except OSError:
            self.heartbeat.not_started()
            raise

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the node, whose heartbeat has the life; see `begin`."""

    @abc.abstractmethod
    def usage(self) -> Usage | None:
        """Returns the node's current resource usage; None if it has ended."""

    @abc.abstractmethod
    def collect(self) -> bool:
        """Returns True once when the node has ended, with `alive` False and `exit` complete."""

    def wake(self) -> None:  # noqa: B027  # a thread cannot be suspended alone
        """Lets the node run again if SIGSTOP has suspended it."""

    @abc.abstractmethod
    def ask_to_stop(self) -> None:
        """Sets the node's stop event."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Ends the node by force, where that is possible."""

    @abc.abstractmethod
    def show_stacks(self, also_if_stopped: bool = False) -> None:
        """Writes the stacks of the node's threads to its log.

        Args:
          also_if_stopped: read them from outside, which takes a second but works for a node that
            does not respond.
        """
