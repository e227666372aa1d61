"""Values as bytes that describe themselves: arguments and results of calls between nodes.

A message has None, booleans, integers, floats, text, bytes, tuples, lists, dicts and arrays of
numbers, and nothing that names code: reading one runs none and makes no other object. What it
allocates is bounded by its size.
"""

import math
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError

DEPTH = 32  # most levels of nested collections
_MAX_DIGITS_BYTES = 1024  # largest size of an integer
_MAX_DIMENSIONS = 32
_SIZE = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_INT64 = struct.Struct("<q")
_KIND_AND_SIZE = struct.Struct("<cQ")
_KIND_AND_FLOAT = struct.Struct("<cd")
_KIND_AND_INT64 = struct.Struct("<cq")
_KINDS = "?biufc"  # kinds of NumPy's types: booleans and numbers
_OTHER_TYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
_TYPES = {
    np.dtype(kind).newbyteorder("<").str: np.dtype(kind).newbyteorder("<")
    for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
}

_Add = Callable[[bytes | memoryview], None]


class MessageError(SpecError):
    """Bytes that are not a message, or a value that no message can contain."""


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
      MessageError: the bytes are not a message.
    """
    try:
        value, end = _read(data, 0, 0)
    except (IndexError, struct.error):  # a kind or a number beyond the end
        raise _early() from None
    if end != len(data):
        raise MessageError(f"a message has {len(data) - end} bytes too many")
    return value


def _early() -> MessageError:
    return MessageError("a message ends early")


# Writers append a value's bytes; `depth` counts the collections that it is in.


def _encode(value: Any, add: _Add, depth: int) -> None:
    write = _WRITERS.get(type(value)) or _writer(value)
    write(value, add, depth)


def _writer(value: Any) -> Callable[[Any, _Add, int], None]:
    """Returns the writer of a value of a type that is not in `_WRITERS`."""
    for kind in (int, str, bytes, memoryview, tuple, list, dict):
        if isinstance(value, kind):
            return _WRITERS[kind]
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        return _write_array
    raise MessageError(f"a message cannot have a {type(value).__name__}")


def _write_none(value: None, add: _Add, depth: int) -> None:
    add(b"N")


def _write_bool(value: bool, add: _Add, depth: int) -> None:
    add(b"T" if value else b"F")


def _write_int(value: int, add: _Add, depth: int) -> None:
    if -(2**63) <= value < 2**63:
        add(_KIND_AND_INT64.pack(b"i", value))
        return
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(data) > _MAX_DIGITS_BYTES:
        raise MessageError(f"a message cannot have an integer of {len(data)} bytes")
    add(_KIND_AND_SIZE.pack(b"I", len(data)) + data)


def _write_float(value: float, add: _Add, depth: int) -> None:
    add(_KIND_AND_FLOAT.pack(b"f", value))


def _write_text(value: str, add: _Add, depth: int) -> None:
    text = value.encode("utf-8", "surrogatepass")
    add(_KIND_AND_SIZE.pack(b"s", len(text)))
    add(text)


def _write_bytes(value: bytes | bytearray | memoryview, add: _Add, depth: int) -> None:
    add(_KIND_AND_SIZE.pack(b"b", memoryview(value).nbytes))
    add(bytes(value))


def _write_sequence(value: tuple[Any, ...] | list[Any], add: _Add, depth: int) -> None:
    add(_KIND_AND_SIZE.pack(b"t" if isinstance(value, tuple) else b"l", len(value)))
    depth = _inside(depth, len(value))
    for part in value:  # like `_encode`, without another call
        write = _WRITERS.get(type(part)) or _writer(part)
        write(part, add, depth)


def _write_dict(value: dict[Any, Any], add: _Add, depth: int) -> None:
    add(_KIND_AND_SIZE.pack(b"d", len(value)))
    depth = _inside(depth, len(value))
    for key, part in value.items():
        _encode(key, add, depth)
        _encode(part, add, depth)


def _write_array(value: Any, add: _Add, depth: int) -> None:
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


_WRITERS: dict[type, Callable[[Any, _Add, int], None]] = {
    type(None): _write_none,
    bool: _write_bool,
    int: _write_int,
    float: _write_float,
    str: _write_text,
    bytes: _write_bytes,
    bytearray: _write_bytes,
    memoryview: _write_bytes,
    tuple: _write_sequence,
    list: _write_sequence,
    dict: _write_dict,
    np.ndarray: _write_array,
}


def _inside(depth: int, parts: int) -> int:
    """Returns the depth of the parts of a collection at this depth."""
    if depth == DEPTH and parts:
        raise MessageError(f"a message has collections in each other, more than {DEPTH}")
    return depth + 1


# Readers return the value whose bytes, after its kind, begin at `at`, and their end.


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Returns the value that begins at `at` with its kind, and where it ends."""
    read = _READERS.get(data[at]) or _no_reader(data, at)
    return read(data, at + 1, depth)


def _no_reader(data: bytes, at: int) -> NoReturn:
    raise MessageError(f"a message has no value of kind {data[at : at + 1]!r}")


def _end(data: bytes, at: int) -> tuple[int, int]:
    """Returns the start and end of the bytes that follow their size, which is at `at`."""
    start = at + _SIZE.size
    end = start + _SIZE.unpack_from(data, at)[0]
    if end > len(data):
        raise _early()
    return start, end


def _read_none(data: bytes, at: int, depth: int) -> tuple[None, int]:
    return None, at


def _read_true(data: bytes, at: int, depth: int) -> tuple[bool, int]:
    return True, at


def _read_false(data: bytes, at: int, depth: int) -> tuple[bool, int]:
    return False, at


def _read_int(data: bytes, at: int, depth: int) -> tuple[int, int]:
    return _INT64.unpack_from(data, at)[0], at + 8


def _read_large_int(data: bytes, at: int, depth: int) -> tuple[int, int]:
    start, end = _end(data, at)
    if end - start > _MAX_DIGITS_BYTES:
        raise MessageError(f"a message cannot have an integer of {end - start} bytes")
    return int.from_bytes(data[start:end], "little", signed=True), end


def _read_float(data: bytes, at: int, depth: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 8


def _read_text(data: bytes, at: int, depth: int) -> tuple[str, int]:
    start, end = _end(data, at)
    try:
        return str(data[start:end], "utf-8", "surrogatepass"), end
    except UnicodeDecodeError as error:
        raise MessageError(f"a message has text that is not UTF-8: {error}") from error


def _read_bytes(data: bytes, at: int, depth: int) -> tuple[bytes, int]:
    start, end = _end(data, at)
    return data[start:end], end


def _read_list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    at, end = _end(data, at)  # each part has at least one byte
    parts, depth = [], _inside(depth, end - at)
    for _ in range(end - at):  # like `_read`, without another call
        read = _READERS.get(data[at]) or _no_reader(data, at)
        part, at = read(data, at + 1, depth)
        parts.append(part)
    return parts, at


def _read_tuple(data: bytes, at: int, depth: int) -> tuple[tuple[Any, ...], int]:
    parts, at = _read_list(data, at, depth)
    return tuple(parts), at


def _read_dict(data: bytes, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    at, end = _end(data, at)
    result, depth = {}, _inside(depth, end - at)
    for _ in range(end - at):
        key, at = _read(data, at, depth)
        part, at = _read(data, at, depth)
        try:
            result[key] = part
        except TypeError as error:
            raise MessageError(f"a message has a key that is a {type(key).__name__}") from error
    return result, at


def _read_scalar(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    array, at = _read_array(data, at, depth)
    return (array if array.ndim else array[()]), at


def _read_array(data: bytes, at: int, depth: int) -> tuple[npt.NDArray[Any], int]:
    start = at + 1
    at = start + data[at]
    label = data[start:at].decode("ascii", "replace")
    dtype = _OTHER_TYPES.get(label) or _TYPES.get(label)
    if dtype is None:
        raise MessageError(f"a message cannot have an array of type {label!r}")
    dimensions = data[at]
    if dimensions > _MAX_DIMENSIONS:
        raise MessageError(f"a message cannot have an array of {dimensions} dimensions")
    shape = struct.unpack_from(f"<{dimensions}Q", data, at + 1)
    start = at + 1 + 8 * dimensions
    if max(shape, default=0) >= 2**31:
        raise MessageError("a message cannot have an array with an axis of 2^31 or more")
    end = start + math.prod(shape) * dtype.itemsize
    if end > len(data):
        raise _early()
    try:
        return np.ndarray(shape, dtype, data, start), end
    except ValueError as error:  # too many empty axes for NumPy
        raise MessageError(f"a message has an array of an impossible shape: {error}") from error


_READERS: dict[int, Callable[[bytes, int, int], tuple[Any, int]]] = {
    ord("N"): _read_none,
    ord("T"): _read_true,
    ord("F"): _read_false,
    ord("i"): _read_int,
    ord("I"): _read_large_int,
    ord("f"): _read_float,
    ord("s"): _read_text,
    ord("b"): _read_bytes,
    ord("t"): _read_tuple,
    ord("l"): _read_list,
    ord("d"): _read_dict,
    ord("a"): _read_array,
    ord("g"): _read_scalar,
}
