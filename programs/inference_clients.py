"""Clients of inference services, by calls or in the memory of one machine."""

import time
from typing import Any, NamedTuple

from distrl.envs.native import NativeEnvironment
from distrl.errors import PeerError, Stopped
from distrl.inference.frame_service import FrameInferenceClient
from distrl.inference.messages import InferenceMessages
from distrl.inference.same_core import SameCore
from distrl.inference.server import RemoteInferencer
from distrl.inference.slot_client import SlotInferencer
from distrl.inference.slots import Sizes, SlotFile
from distrl.inferencer import InferenceSource
from distrl.programs.build import Builder
from distrl.programs.program import NodeHandle
from distrl.programs.remote import RESTART_TIMEOUT_S, Peer, PeerWatch
from distrl.programs.running.shared_files import check_not_lost
from distrl.programs.substrate import node_context
from distrl.runtime.heartbeat import DOWN, GONE
from distrl.shared_memory.segment import REQUESTS

_OPEN_TIMEOUT_S = 600.0  # for the service to begin: what it needs may take long to load


class InferenceHandle(NamedTuple):
    """The means by which one actor asks an inference service.

    Attributes:
      node: the service's node, which is asked if there are no slots.
      slots: name of the file of slots in shared memory; None: it is not asked there.
      num_slots: number of slots in it.
      slot: the actor's slot.
    """

    node: NodeHandle
    slots: str | None = None
    num_slots: int = 0
    slot: int = 0

    @property
    def group(self) -> str:
        """The label of the service's node."""
        return self.node.group


def inference_client(
    builder: Builder, handle: InferenceHandle, stop: Any, own_process: bool
) -> InferenceSource:
    """Returns an actor's client of its inference service.

    Args:
      builder: the builder of the service's task.
      handle: the service.
      stop: event that is set when the program stops.
      own_process: whether the actor has a process to itself.
    """
    task, messages = builder.task, InferenceMessages(builder.agent)
    node, rows = handle.node, task.actors.envs_per_step
    if handle.slots is None and node.served is not None:
        client = FrameInferenceClient(
            messages,
            rows,
            node.served.address.resolve(),
            node.served.key,
            task.inference.timeout,
            stop,
        )
        node_context.manager().on_close(client.close)
        return RemoteInferencer(Peer(node._replace(client=client)), messages)
    if handle.slots is None:
        return RemoteInferencer(Peer(node), messages)
    sizes = Sizes(messages, handle.num_slots, rows)
    check_not_lost(handle.slots, REQUESTS, node.name)
    file = SlotFile.open(handle.slots, sizes, _OPEN_TIMEOUT_S, stop)
    server = SlotService(handle.node, file, task.inference.timeout)
    # Pools that start processes later must not do so from a thread that is kept on a core.
    alone = handle.num_slots == 1 and own_process
    same_core = alone and isinstance(builder.experiment.environment, NativeEnvironment)
    return SlotInferencer(file, handle.slot, messages, server, SameCore() if same_core else None)


class SlotService:
    """A service that is asked in shared memory, as its clients know it."""

    def __init__(self, node: NodeHandle, file: SlotFile, timeout: float):
        """Args:
        node: its node.
        file: its slots.
        timeout: seconds that a request may wait while the service runs.
        """
        self._name, self._file, self._timeout = node.name, file, timeout
        self._peer, self._watch = Peer(node), PeerWatch(node)
        self._stop = node_context.stop_event()
        self._seen: Any = None  # the service's status and life, and since when it has them
        self._since = 0.0
        self.wait_for_restart = self._watch.wait_for_restart

    def request_version(self, version: int) -> None:
        """See `Inferencer.request_version`."""
        self._peer.request_version(version)

    @property
    def life(self) -> int:
        """The service's life."""
        return self._watch.life

    def check(self, what: str, began: float) -> None:
        """Raises if a wait cannot end.

        Args:
          what: what is waited for.
          began: when the wait began, in seconds of the monotonic clock.

        Raises:
          Stopped: the program stops.
          PeerError: the service has ended, or has not answered in time.
        """
        if self._stop.is_set():
            raise Stopped(f"{what}: the program stops")
        status = self._watch.status
        if status == GONE or (status is None and not self._lives()):
            raise PeerError(f"{what}: {self._name} has ended")
        seen = status, self._watch.life
        if seen != self._seen:
            # The time of a restart is not that of the request.
            self._since = 0.0 if self._seen is None else time.monotonic()
            self._seen = seen
        limit = RESTART_TIMEOUT_S if status == DOWN else self._timeout
        if time.monotonic() - max(began, self._since) > limit:
            state = "has not been restarted" if status == DOWN else "has not answered"
            raise PeerError(f"{what}: {self._name} {state} in {limit:g} s")

    def _lives(self) -> bool:
        server = self._file.server
        return server is None or server.lives()
