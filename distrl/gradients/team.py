"""A learner's gradient workers: who computes which share, and what happens to lost shares."""

import collections
import concurrent.futures
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.agents.agent import Logs
from distrl.errors import Stopped
from distrl.gradients.layout import MessageLayout
from distrl.gradients.member import LostError, Member, WorkerConnection, deadline
from distrl.gradients.memory import SharedMemory
from distrl.gradients.messages import pack
from distrl.gradients.shares import BatchFacts, Extent, ShareGradients, leaves_of_share, split
from distrl.types import Params, Trajectory

_POLL_S = 0.02  # between two checks of whether workers are alive
_RECENT = 32  # shares from whose times the usual time follows


class GradientTeam:
    """Computes the gradients of batches, in shares.

    A share whose worker dies, fails or is late is computed by another worker, or by the learner
    itself if there is none: an update's result is always that of the whole batch. A late worker
    gets no shares for some updates, twice as many each time in a row.

    Attributes:
      lost, late, local: numbers of shares whose worker died or failed; whose worker was late; that
        the learner computed itself.
    """

    def __init__(
        self,
        gradients: ShareGradients,
        task: str,
        connections: Sequence[WorkerConnection],
        members: Sequence[int],
        *,
        timeout: float,
        start_timeout: float,
        should_stop: Callable[[], bool] = lambda: False,
        printer: Callable[[str], None] = print,
    ):
        """Args:
        gradients: computes the shares that no worker computes.
        task: name of the learner's task.
        connections: connections to all workers of the program.
        members: indices of the learner's first workers; see `assign`.
        timeout: seconds after which a share is late at the latest.
        start_timeout: seconds to wait for workers before the first update.
        should_stop: asked while it waits for workers at the start.
        printer: takes lines about workers.
        """
        self._gradients, self._task = gradients, task
        self._everyone = [Member(*pair) for pair in enumerate(connections)]
        self._members = [self._everyone[index] for index in members]
        self._timeout, self._start_timeout = timeout, start_timeout
        self._should_stop, self._printer = should_stop, printer
        self._name = uuid.uuid4().hex
        self._number = 0
        self._count = len(self._members)  # number of workers that batches are split for
        self._seconds: collections.deque[float] = collections.deque(maxlen=_RECENT)
        self.lost = self.late = self.local = 0
        self._lay_out()

    def _lay_out(self) -> None:
        """Allocates the memory: inputs, shares, and a result for each worker."""
        batch_size = self._gradients.batch_size
        shares = max(
            sum(self._gradients.share_layout(extent.size).nbytes for extent in extents)
            for extents in map(self._extents, range(len(self._everyone) + 1))
        )
        result = self._gradients.outputs(batch_size).nbytes
        self._shares_at = self._gradients.inputs.nbytes
        self._results_at = [
            self._shares_at + shares + index * result for index in range(len(self._everyone))
        ]
        nbytes = self._shares_at + shares + len(self._everyone) * result
        self._memory = SharedMemory(nbytes)
        self._inputs = self._gradients.inputs.views(self._memory.block)
        self._changed = [0] * len(self._inputs)  # the number at which each was last changed

    def _extents(self, count: int) -> list[Extent]:
        """Returns the shares of a batch for `count` workers."""
        batch_size = self._gradients.batch_size
        return split(batch_size, min(max(1, count), batch_size))

    @property
    def workers(self) -> list[int]:
        """Indices of the learner's workers."""
        return [member.index for member in self._members]

    def assign(self, members: Sequence[int]) -> None:
        """Replaces the workers; batches are split for them as soon as they are ready."""
        self._members = [self._everyone[index] for index in members]

    def report(self) -> dict[str, Any]:
        """Returns metrics."""
        return {
            "gradient_workers": len(self._members),
            "gradient_workers_ready": sum(bool(member.sizes) for member in self._members),
            "gradient_shares_lost": self.lost,
            "gradient_shares_late": self.late,
            "gradient_shares_local": self.local,
        }

    def close(self) -> None:
        """Frees the memory."""
        self._memory.close()

    def compute(
        self, params: Params, learner_state: Any, batch: Trajectory, facts: BatchFacts
    ) -> list[tuple[Extent, Params, Logs]]:
        """Returns the shares of a batch in order, with their gradients and logs.

        The arrays are valid until the next call. Raises Stopped at the first call only.
        """
        if self._number == 0:
            self._wait_for_members()
        self._look_after_members()
        self._number += 1
        self._publish(self._gradients.select(params, learner_state))
        return self._gather(_Batch(batch, self._extents(self._count), facts))

    # Inputs and shares in memory.

    def _publish(self, leaves: Sequence[Any]) -> None:
        """Writes the inputs that have changed."""
        for index, (leaf, kept) in enumerate(zip(leaves, self._inputs, strict=True)):
            array = np.asarray(leaf)
            if self._changed[index] == 0 or not np.array_equal(array, kept):
                kept[...] = array
                self._changed[index] = self._number

    def _request(self, member: Member, batch: "_Batch", share: int) -> bytes:
        extent = batch.extents[share]
        changed = [i for i, number in enumerate(self._changed) if number > member.number]
        header = {
            "task": self._task,
            "team": self._name,
            "base": member.number,
            "number": self._number,
            "changed": changed,
            "extent": extent,
            "facts": batch.facts,
        }
        leaves = leaves_of_share(batch.trajectory, extent)
        if member.shared:
            layouts = [self._gradients.share_layout(each.size) for each in batch.extents]
            start = self._shares_at + sum(layout.nbytes for layout in layouts[:share])
            layouts[share].write(leaves, self._memory.block, start)
            header |= {"inputs": 0, "share": start, "result": self._results_at[member.index]}
            return pack(header)
        structs = self._gradients.inputs_of(changed) + self._gradients.batch_structs(extent.size)
        layout = MessageLayout(structs)
        block = np.empty(layout.nbytes, np.uint8)
        layout.write([*(self._inputs[i] for i in changed), *leaves], block)
        return pack(header, block)

    # Shares.

    def _gather(self, batch: "_Batch") -> list[tuple[Extent, Params, Logs]]:
        """Hands out the shares until all are computed."""
        count = len(batch.extents)
        pending = collections.deque(range(count))
        results: dict[int, list[Any]] = {}
        computed: dict[int, int] = {}  # the last share of each worker
        while len(results) < count:
            for member in self._idle(batch):
                if pending:
                    earlier, share = computed.get(member.index), pending.popleft()
                    if earlier is not None:  # its memory is about to be written again
                        results[earlier] = [np.array(leaf) for leaf in results[earlier]]
                    member.assign(self._request(member, batch, share), self._number, share)
            working = [
                (member, member.assignment)
                for member in self._members
                if member.assignment is not None and member.assignment.number == self._number
            ]
            if not working:
                share = pending.popleft()
                results[share] = self._compute_here(batch, share)
                continue
            futures = [assignment.future for _, assignment in working]
            concurrent.futures.wait(
                futures, _POLL_S, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for member, assignment in working:
                share = assignment.share
                try:
                    leaves = self._outcome(member, batch.extents[share])
                except LostError as error:
                    self.late += error.late
                    self.lost += not error.late
                    self._printer(
                        f"{member.connection.name} {error}: its share of update {self._number} is "
                        "computed elsewhere"
                    )
                    pending.append(share)
                else:
                    if leaves is not None:
                        results[share], computed[member.index] = leaves, share
        return [
            (extent, *self._gradients.result(extent.size, results[share]))
            for share, extent in enumerate(batch.extents)
        ]

    def _idle(self, batch: "_Batch") -> list[Member]:
        """Returns the workers that can take a share of this batch."""
        return [member for member in self._members if member.can_take(batch.sizes, self._number)]

    def _compute_here(self, batch: "_Batch", share: int) -> list[Any]:
        extent = batch.extents[share]
        self.local += 1
        leaves = leaves_of_share(batch.trajectory, extent)
        return self._gradients(self._inputs, leaves, extent, batch.facts)

    def _outcome(self, member: Member, extent: Extent) -> list[npt.NDArray[Any]] | None:
        """Returns the result of a worker's share; None: not yet there. Raises LostError."""
        outcome = member.outcome(deadline(list(self._seconds), self._timeout))
        if outcome is None:
            return None
        block, seconds = outcome
        self._seconds.append(seconds)
        layout = self._gradients.outputs(extent.size)
        if member.shared:
            return layout.views(self._memory.block, self._results_at[member.index])
        return layout.views(block)

    # Workers.

    def _wait_for_members(self) -> None:
        """Waits until the workers are ready, at most `start_timeout` seconds."""
        until = time.monotonic() + self._start_timeout
        while True:
            self._look_after_members()
            waiting = [m for m in self._members if not self._wanted() <= m.sizes]
            if not waiting:
                return
            if time.monotonic() >= until:
                break
            if self._should_stop():
                raise Stopped("stopped while waiting for gradient workers")
            asked = [member.preparing for member in waiting if member.preparing]
            if asked:
                concurrent.futures.wait(asked, _POLL_S)
            else:  # until it is time to ask again
                time.sleep(_POLL_S)
        names = ", ".join(member.connection.name for member in waiting)
        self._printer(f"not ready after {self._start_timeout:g} s; continuing without: {names}")

    def _wanted(self) -> frozenset[int]:
        """Returns the sizes of shares for the present number of workers."""
        return frozenset(extent.size for extent in self._extents(len(self._members)))

    def _look_after_members(self) -> None:
        """Records which workers are ready, and asks the others to get ready. Never waits."""
        wanted = self._wanted()
        for member in self._everyone:
            member.look(self._number)
        header = {
            "task": self._task,
            "team": self._name,
            "sizes": sorted(wanted),
            "memory": self._memory.address,
        }
        shares = frozenset(extent.size for extent in self._extents(self._count))
        is_ready = any(wanted <= member.sizes for member in self._members)
        for member in self._members:
            # One at a time of those that compute the present shares compiles for the next ones.
            others = any(each.preparing for each in self._members if each is not member)
            waits = others and not is_ready and shares <= member.sizes
            problem = member.get_ready(wanted, pack(header), ask=not waits)
            if problem is not None:
                self._printer(problem)
        # One worker that has compiled the new sizes is enough to change; others join later.
        if not self._members or any(wanted <= member.sizes for member in self._members):
            self._count = len(self._members)


class _Batch(NamedTuple):
    trajectory: Trajectory
    extents: list[Extent]
    facts: BatchFacts

    @property
    def sizes(self) -> frozenset[int]:
        """Sizes of the shares."""
        return frozenset(extent.size for extent in self.extents)
