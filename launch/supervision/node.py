"""One node as the supervisor sees it, whatever it runs in; and what it says of itself."""

import abc
import dataclasses

from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.restart_policy import RestartHistory, RestartPolicy
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.watchdog import Usage
from distrl.runtime.heartbeat import Heartbeat

KILL_S = 3.0  # for the kernel to end what was killed


@dataclasses.dataclass
class Message:
    """What a node says of itself. `time` is its own reading of the machine's monotonic clock."""

    time: float
    node: str
    kind: str  # "running", "stop", "failure" or "ended"
    reason: str = ""  # of a stop; of a failure "Type: message"
    finished: bool = True  # a stop because the goal is reached
    traceback: str | None = None
    bad_input: bool = False  # the failure is the user's to mend: one line, and its own status


class SupervisedNode(abc.ABC):
    """One node as the supervisor sees it."""

    last_wait = KILL_S  # for it to end after `kill`
    can_be_killed = True

    def __init__(
        self, name: str, label: str, log: NodeLog, heartbeat: Heartbeat, rule: RestartPolicy
    ) -> None:
        self.name = name
        self.label = label
        self.log = log
        self.heartbeat = heartbeat
        self.restartable = rule.restarts > 0
        self.history = RestartHistory(rule)
        self.exit = NodeExit(causes=self.history.causes)
        self.alive = False
        self.started = 0.0
        self.failure: Message | None = None  # of a node that heals: what ends this life
        self.hangs: str | None = None  # why the watchdog ends this life
        self.hangs_since = 0.0
        self.wanted = True
        self.leaves_by: float | None = None  # it was asked to stop, while the others go on
        self.host = ""  # another machine that it runs on
        self.away: str | None = None  # why it cannot be started now: its host is lost
        self.essential = False  # the program ends with its host

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the node, for the first time or again."""

    @abc.abstractmethod
    def usage(self) -> Usage | None:
        """What it uses now; None when it has ended."""

    @abc.abstractmethod
    def collect(self) -> bool:
        """True, once, when the node has ended: `alive` is False then, and `exit` is complete."""

    @abc.abstractmethod
    def ask_to_stop(self) -> None:
        """Sets the node's stop event."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Ends it by force, where that can be done."""

    @abc.abstractmethod
    def show_stacks(self, also_if_stopped: bool = False) -> None:
        """Has the stacks of its threads written to its log.

        Args:
          also_if_stopped: by a way that takes a second, and that the node has no part in.
        """
