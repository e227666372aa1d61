"""Packs parameters into bytes, or for readers on the same machine into shared memory."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl.agents.agent import Agent
from distrl.agents.structs import params_struct
from distrl.runtime.codec import Codec
from distrl.runtime.joined import Joined, Layout, Run
from distrl.shared_memory.published import PublishedVersions, read_version, shared_memory_domain
from distrl.types import Params

Packed = bytes | str
"""Packed parameters, the path of a file that has them, or the path of a `Board`."""

_LEAST_FILE = 1 << 20  # bytes; smaller parameters are cheaper to write again than to ask for


def copy_bytes(data: bytes, memory: npt.NDArray[Any]) -> None:
    """Copies packed parameters into memory, uint8 `[len(data)]`."""
    np.copyto(memory, np.frombuffer(data, np.uint8))


def is_small(nbytes: int) -> bool:
    """Whether packed parameters of this size are quick to copy."""
    return nbytes < _LEAST_FILE


class ParamsCodec:
    """Packs an agent's parameters into bytes, and unpacks them.

    Attributes:
      nbytes: size of the packed parameters.
    """

    def __init__(self, agent: Agent):
        """Args: agent: the parameters' agent."""
        self._codec = Codec(params_struct(agent), "parameters")
        self.nbytes = self._codec.row_bytes
        self._layout: Layout | None = None
        self._runs: list[Run] = []  # of `_layout`
        self._split = jax.jit(lambda rows: _first(self._codec.from_rows(rows)))

    @property
    def is_small(self) -> bool:
        """Whether a version is quick to copy."""
        return is_small(self.nbytes)

    def put(self, params: Params | Joined, memory: npt.NDArray[Any]) -> None:
        """Packs parameters into memory, uint8 `[nbytes]`."""
        if isinstance(params, Joined):
            if params.layout is not self._layout:
                self._layout = params.layout
                self._runs = params.layout.runs(self._codec.offsets, self._codec.dtypes)
            for number, start, stop, offset in self._runs:
                run = params.vectors[number].reshape(-1)[start:stop].view(np.uint8)
                memory[offset : offset + len(run)] = run
            return
        self._codec.put(params, self._codec.columns(memory, 1))  # columns [1, ...] broadcast

    def unpack(self, data: bytes | npt.NDArray[Any]) -> Params:
        """Unpacks parameters, as views of the packed ones."""
        return _first(self._codec.unpack(data, 1))

    def to_device(self, data: bytes | npt.NDArray[Any]) -> Params:
        """Unpacks parameters onto JAX's device."""
        if not self.is_small:
            return jax.device_put(self.unpack(data))
        # Putting small leaves there takes 40 us each; a compiled function takes 15 us for all.
        self._codec.check(len(data), 1)
        return self._split(np.frombuffer(data, np.uint8)[None])


class PackedVersions:
    """Versions of packed parameters: large ones each in a file, others as bytes."""

    def __init__(self, files: PublishedVersions | None):
        """Args: files: files for large versions; None: all are bytes."""
        self._files = files
        self._paths: dict[int, str] = {}
        self._bytes: dict[int, bytes] = {}

    def __contains__(self, version: int) -> bool:
        """Returns whether a version is kept."""
        return version in self._paths or version in self._bytes

    def put(self, version: int, nbytes: int, write: Callable[[npt.NDArray[Any]], None]) -> None:
        """Adds a version unless it is kept already; as bytes also if there is no memory for a file.

        Args:
          version: its number.
          nbytes: size of the packed parameters.
          write: packs them into memory, uint8 `[nbytes]`.
        """
        if version not in self and not self._published(version, nbytes, write):
            memory = np.empty(nbytes, np.uint8)
            write(memory)
            self._bytes[version] = memory.tobytes()

    def put_bytes(self, version: int, data: bytes) -> None:
        """Like `put`, given packed parameters."""
        write = functools.partial(copy_bytes, data)
        if version not in self and not self._published(version, len(data), write):
            self._bytes[version] = data

    def _published(
        self, version: int, nbytes: int, write: Callable[[npt.NDArray[Any]], None]
    ) -> bool:
        """Writes a version to a file, and returns whether it did; see `put` for the arguments."""
        path = None
        if self._files is not None and not is_small(nbytes):
            path = self._files.publish(version, nbytes, write)
        if path is not None:
            self._paths[version] = path
        return path is not None

    def get(self, version: int, reader_domain: str) -> Packed:
        """Returns a kept version: as a path for readers of this `shared_memory_domain()`."""
        path = self._paths.get(version)
        if path is not None and reader_domain == shared_memory_domain():
            return path
        return self.bytes_of(version)

    def bytes_of(self, version: int) -> bytes:
        """Returns a kept version as bytes."""
        data = self._bytes.get(version)
        if data is None:
            data = self._bytes[version] = read_version(self._paths[version]).tobytes()
        return data

    def keep(self, versions: set[int]) -> None:
        """Forgets all other versions."""
        if self._files is not None:
            self._files.keep(versions)
        for known in (self._paths, self._bytes):
            for version in known.keys() - versions:
                del known[version]

    def close(self) -> None:
        """Forgets all versions, and makes no more files."""
        self.keep(set())
        self._files = None


def _first(rows: Any) -> Params:
    return jax.tree.map(lambda leaf: leaf[0], rows)
