"""The shared memory through which actors of one machine use an inference service.

Each client has a slot with room for one request and its answer, in the layout of
`InferenceMessages`, and two counts: of its requests, which the client writes, and of the answered
ones, which the server writes. A request waits for its answer while they differ. So neither needs a
lock, and either may die at any instruction: what it has not counted was not done. A restarted
server finds the requests that its predecessor has left unanswered.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.inference.messages import HEADER, InferenceMessages
from distrl.shared_memory import segment
from distrl.shared_memory.futex import Bell, Event
from distrl.shared_memory.process import Process
from distrl.shared_memory.segment import SharedFile

_LINE = 64  # bytes of a cache line; rows begin at a multiple
_SIZES = struct.Struct("<8q")  # see `SlotFile.sizes`
_MAGIC = 0x6C727473_00000001
_BELL, _SERVER, _COUNTS = 64, 128, 192  # offsets
_SERVING = struct.Struct("<qq")  # the server's process id and its start
TEXT_BYTES = 1024  # least room for an answer, which may be an error's text


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


class Sizes:
    """The layout of a file of slots.

    Attributes:
      count: number of slots.
      rows: most rows of a request.
      nbytes: size of the file.
    """

    def __init__(self, messages: InferenceMessages, count: int, rows: int):
        """Args: messages: the layout of requests and answers. count, rows: see the class."""
        self.count, self.rows = count, rows
        row_bytes = [m.row_bytes for m in (messages.request, messages.answer, messages.state)]
        self.answer_offset = _LINE + _aligned(rows * row_bytes[0])
        self.answer_bytes = max(TEXT_BYTES, HEADER.size + rows * (row_bytes[1] + row_bytes[2]))
        self.stride = self.answer_offset + _aligned(self.answer_bytes)
        self.first = _aligned(_COUNTS + 8 * count)
        self.nbytes = self.first + count * self.stride
        self.numbers = (_MAGIC, count, rows, *row_bytes, self.stride, self.nbytes)


class SlotFile:
    """A file of slots, as one process has mapped it.

    Attributes:
      name: name of the service, for messages.
      sizes: its layout.
      bell: rung after each request.
      requested: counts of requests by slot; uint32, written by the clients.
      answered: counts of answered requests by slot; uint32, written by the server.
    """

    def __init__(self, file: SharedFile, memory: npt.NDArray[Any], sizes: Sizes):
        """Args:
        file: the file.
        memory: its bytes.
        sizes: the expected layout.

        Raises:
          SpecError: it has another layout.
        """
        stored = _SIZES.unpack_from(memory.data) if len(memory) >= _SIZES.size else ()
        if stored != sizes.numbers or len(memory) != sizes.nbytes:
            raise SpecError(
                f"{file.path}: the layout {stored} is not this program's, {sizes.numbers}"
            )
        self.name, self.sizes, self._memory = file.name, sizes, memory
        self._address = memory.ctypes.data
        self.bell = Bell(self._address + _BELL)
        counts = memory[_COUNTS : _COUNTS + 8 * sizes.count].view(np.uint32)
        self.requested, self.answered = counts[: sizes.count], counts[sizes.count :]

    @classmethod
    def create(cls, name: str, sizes: Sizes, owner: Process) -> "SlotFile":
        """Creates the file, which other processes can find from then on.

        Args:
          name: unique to the program.
          sizes: its layout.
          owner: the file is in use as long as this process lives.

        Raises:
          ConfigError: the name is in use, or there is not enough memory.
        """
        segment.sweep()
        file = segment.create(name, sizes.nbytes, owner, segment.REQUESTS)
        try:
            memory = file.map()
            _SIZES.pack_into(memory.data, 0, *sizes.numbers)
            return cls(segment.publish(file), memory, sizes)
        except BaseException:
            file.path.unlink(missing_ok=True)
            raise

    @classmethod
    def open(cls, name: str, sizes: Sizes, timeout: float, stop: Any = None) -> "SlotFile":
        """Waits for the file.

        Raises:
          Stopped: `stop` was set first.
          DeadlineExceeded: there was none within `timeout` seconds.
          SpecError: it has another layout.
        """
        return cls(*segment.find(name, timeout, stop, segment.REQUESTS), sizes)

    @property
    def server(self) -> Process | None:
        """The process that serves; None: there was none yet."""
        pid, start = _SERVING.unpack_from(self._memory.data, _SERVER)
        return Process(pid, start) if pid else None

    @server.setter
    def server(self, process: Process) -> None:
        _SERVING.pack_into(self._memory.data, _SERVER, *process)

    def answer_event(self, index: int) -> Event:
        """Returns the event that wakes a slot's client: its count of answers."""
        return Event(self._address + _COUNTS + 4 * (self.sizes.count + index))

    def slot(self, index: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns a slot's parts, uint8 `[bytes]`: a request's header, its rows, and the answer."""
        start = self.sizes.first + index * self.sizes.stride
        answer = start + self.sizes.answer_offset
        return (
            self._memory[start : start + HEADER.size],
            self._memory[start + _LINE : answer],
            self._memory[answer : answer + self.sizes.answer_bytes],
        )

    def close(self) -> None:
        """Unmaps the file in this process; the file's owner removes it."""
        self.requested = self.answered = self._memory = np.zeros(0, np.uint8)
