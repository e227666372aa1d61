"""Values as bytes that describe themselves: arguments and results of calls between nodes.

A message has None, booleans, integers, floats, text, bytes, tuples, lists, dicts and arrays of
numbers, and nothing that names code: reading one runs none and makes no other object. What it
allocates is bounded by its size.
"""

import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError

DEPTH = 32  # of collections in each other
_MAX_DIGITS_BYTES = 1024  # of an integer
_MAX_DIMENSIONS = 32
_SIZE = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_INT64 = struct.Struct("<q")
_KINDS = "?biufc"  # of NumPy's types: booleans and numbers
_OTHER_TYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


class MessageError(SpecError):
    """Bytes that are no message, or a value that no message can have."""


def encode(value: Any) -> bytes:
    """Returns a value as a message; a subclass of a collection becomes the collection.

    Raises:
      MessageError: it is, or has, a value of another type, or is nested too deeply.
    """
    parts: list[bytes | memoryview] = []
    _encode(value, parts.append, 0)
    return b"".join(parts)


def decode(data: bytes) -> Any:
    """Returns the value of a message. Arrays are read-only views of `data`.

    Raises:
      MessageError: it is no message.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise MessageError(f"a message has {len(data) - reader.at} bytes too many")
    return value


def _encode(value: Any, add: Callable[[bytes | memoryview], None], depth: int) -> None:
    if depth > DEPTH:
        raise MessageError(f"a message has collections in each other, more than {DEPTH}")
    if value is None:
        add(b"N")
    elif value is True or value is False:
        add(b"T" if value else b"F")
    elif isinstance(value, int):
        if -(2**63) <= value < 2**63:
            add(b"i" + _INT64.pack(value))
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            if len(data) > _MAX_DIGITS_BYTES:
                raise MessageError(f"a message cannot have an integer of {len(data)} bytes")
            add(b"I" + _SIZE.pack(len(data)) + data)
    elif type(value) is float:
        add(b"f" + _FLOAT.pack(value))
    elif isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        add(b"s" + _SIZE.pack(len(text)))
        add(text)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        add(b"b" + _SIZE.pack(memoryview(value).nbytes))
        add(bytes(value))
    elif isinstance(value, (tuple, list)):
        add((b"t" if isinstance(value, tuple) else b"l") + _SIZE.pack(len(value)))
        for part in value:
            _encode(part, add, depth + 1)
    elif isinstance(value, dict):
        add(b"d" + _SIZE.pack(len(value)))
        for key, part in value.items():
            _encode(key, add, depth + 1)
            _encode(part, add, depth + 1)
    elif isinstance(value, np.generic) or hasattr(value, "__array__"):
        _encode_array(value, add)
    else:
        raise MessageError(f"a message cannot have a {type(value).__name__}")


def _encode_array(value: Any, add: Callable[[bytes | memoryview], None]) -> None:
    array = np.asarray(value)
    name = (
        array.dtype.name if array.dtype.name in _OTHER_TYPES else array.dtype.newbyteorder("<").str
    )
    if array.dtype.name not in _OTHER_TYPES and array.dtype.kind not in _KINDS.replace("?", "b"):
        raise MessageError(f"a message cannot have an array of {array.dtype}")
    add(b"g" if isinstance(value, np.generic) else b"a")
    label = name.encode()
    add(bytes([len(label)]) + label + bytes([array.ndim]))
    add(b"".join(_SIZE.pack(size) for size in array.shape))
    if array.dtype.name not in _OTHER_TYPES:
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    add(array.tobytes())


class _Reader:
    """Reads a message. Attributes: at: position of the next byte."""

    def __init__(self, data: bytes):
        self._data = data
        self.at = 0

    def _take(self, size: int) -> int:
        """Goes on by `size` bytes; returns where they begin."""
        start = self.at
        self.at = start + size
        if self.at > len(self._data):
            raise MessageError(f"a message ends {self.at - len(self._data)} bytes early")
        return start

    def _bytes(self, size: int) -> bytes:
        start = self._take(size)
        return self._data[start : start + size]

    def _byte(self) -> int:
        return self._data[self._take(1)]

    def _size(self) -> int:
        return int(_SIZE.unpack_from(self._data, self._take(_SIZE.size))[0])

    def _count(self) -> int:
        """Returns the length of a collection, whose parts have a byte each at least."""
        count = self._size()
        if count > len(self._data) - self.at:
            raise MessageError(f"a message has no room for {count} values")
        return count

    def value(self, depth: int) -> Any:
        """Returns the next value. Args: depth: of the collections that it is in."""
        if depth > DEPTH:
            raise MessageError(f"a message has collections in each other, more than {DEPTH}")
        kind = self._byte()
        if kind == _INTEGER:
            return _INT64.unpack_from(self._data, self._take(8))[0]
        if kind == _TUPLE:
            return tuple([self.value(depth + 1) for _ in range(self._count())])
        if kind == _TEXT:
            try:
                return str(self._bytes(self._size()), "utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise MessageError(f"a message has text that is not UTF-8: {error}") from error
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind == _REAL:
            return _FLOAT.unpack_from(self._data, self._take(8))[0]
        if kind in _ARRAYS:
            return self._array(scalar=kind == _ARRAYS[1])
        if kind == _LIST:
            return [self.value(depth + 1) for _ in range(self._count())]
        if kind == _DICT:
            return self._dict(depth)
        if kind == _BYTES:
            return self._bytes(self._size())
        if kind == _LARGE_INTEGER:
            size = self._size()
            if size > _MAX_DIGITS_BYTES:
                raise MessageError(f"a message cannot have an integer of {size} bytes")
            return int.from_bytes(self._bytes(size), "little", signed=True)
        raise MessageError(f"a message has no value of kind {bytes([kind])!r}")

    def _dict(self, depth: int) -> dict[Any, Any]:
        result = {}
        for _ in range(self._count()):
            key = self.value(depth + 1)
            try:
                result[key] = self.value(depth + 1)
            except TypeError as error:
                raise MessageError(f"a message has a key that is a {type(key).__name__}") from error
        return result

    def _array(self, scalar: bool) -> Any:
        label = self._bytes(self._byte()).decode("ascii", "replace")
        dtype = _OTHER_TYPES.get(label) or _TYPES.get(label)
        if dtype is None:
            raise MessageError(f"a message cannot have an array of type {label!r}")
        dimensions = self._byte()
        if dimensions > _MAX_DIMENSIONS:
            raise MessageError(f"a message cannot have an array of {dimensions} dimensions")
        shape = [self._size() for _ in range(dimensions)]
        count = 1
        for size in shape:
            count *= size
        if max(shape, default=0) >= 2**31:
            raise MessageError("a message cannot have an array with an axis of 2^31 or more")
        start = self._take(count * dtype.itemsize)
        try:
            array: npt.NDArray[Any] = np.ndarray(shape, dtype, self._data, start)
        except ValueError as error:  # too many empty axes for NumPy
            raise MessageError(f"a message has an array of an impossible shape: {error}") from error
        return array[()] if scalar and not shape else array


_INTEGER, _LARGE_INTEGER, _REAL, _TEXT, _BYTES, _TUPLE, _LIST, _DICT = b"iIfsbtld"
_ARRAYS = tuple(b"ag")
_CONSTANTS: dict[int, Any] = {b"N"[0]: None, b"T"[0]: True, b"F"[0]: False}
_TYPES = {
    np.dtype(kind).newbyteorder("<").str: np.dtype(kind).newbyteorder("<")
    for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
}
