"""Messages of calls: what arrives is what was sent, and bytes that are none do nothing."""

import random
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrl.runtime.messages import DEPTH, MessageError, decode, encode

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda parts: (
        st.lists(parts, max_size=4)
        | st.lists(parts, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), parts, max_size=4)
    ),
    max_leaves=12,
)


def typed(value):
    """Returns a value with its types, since 1 == True and (1,) is no list."""
    if isinstance(value, dict):
        return dict, [(typed(key), typed(part)) for key, part in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value), [typed(part) for part in value]
    return type(value), value


@settings(max_examples=60, deadline=None)
@given(plain)
def test_what_arrives_is_what_was_sent(value):
    assert typed(decode(encode(value))) == typed(value)


@pytest.mark.parametrize("dtype", ["?", "i1", ">i4", "u8", "f2", "f8", "c8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 1)])
def test_arrays_keep_type_and_shape(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    arrived = decode(encode({"x": array.T}))["x"]
    assert arrived.shape == array.T.shape
    assert arrived.dtype == np.dtype(dtype).newbyteorder("<")
    np.testing.assert_array_equal(arrived, array.T)


def test_scalars_stay_scalars():
    arrived = decode(encode((np.float32(1.5), np.bool_(True))))
    assert [type(value) for value in arrived] == [np.float32, np.bool_]


@pytest.mark.parametrize("value", [object(), {1, 2}, len, np.array([None]), np.array(["a"])])
def test_what_no_message_can_have_is_refused(value):
    with pytest.raises(MessageError, match="a message cannot have"):
        encode([value])


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def test_the_depth_is_bounded():
    assert decode(encode(nested(DEPTH))) == nested(DEPTH)
    with pytest.raises(MessageError, match="in each other"):
        encode(nested(DEPTH + 1))
    with pytest.raises(MessageError, match="in each other"):
        decode((b"l" + struct.pack("<Q", 1)) * 10_000 + b"N")


def array_header(dtype, *shape):
    sizes = b"".join(struct.pack("<Q", size) for size in shape)
    return b"a" + bytes([len(dtype)]) + dtype + bytes([len(shape)]) + sizes


HUGE = struct.pack("<Q", 2**62)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"?", b"b" + HUGE, b"s" + HUGE, b"l" + HUGE, b"t" + HUGE, b"d" + HUGE, b"I" + HUGE,
        b"NN", b"i123", b"s" + struct.pack("<Q", 1) + b"\xff",
        b"d" + struct.pack("<Q", 1) + b"l" + struct.pack("<Q", 0) + b"N",
        array_header(b"<f4", 2**40, 2**40), array_header(b"|O", 1) + bytes(8),
        array_header(b"<f4", 2**63 - 1, 0), array_header(b"<f4", *[2**30] * 32),
        array_header(b"\xff\xfe", 1), b"a\x03<f4\xff" + bytes(8 * 255),
    ],
)  # fmt: skip
def test_bytes_that_are_no_message_are_refused_without_memory(data):
    tracemalloc.start()
    try:
        with pytest.raises(MessageError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_changed_messages_are_read_or_refused_within_their_size():
    """Fuzzing: what is read allocates no more than a fixed multiple of the message."""
    rng = random.Random(0)
    good = encode((("report", 3, [1.5, None], b"x" * 50), {"a": np.ones((3, 4)), "b": {1: "text"}}))
    refused = 0
    tracemalloc.start()
    try:
        for case in range(3000):
            data = bytearray(good if case % 3 else rng.randbytes(rng.randrange(200)))
            for _ in range(rng.randrange(1, 6)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            data = bytes(data[: rng.randrange(len(data) + 1)] if case % 5 == 0 else data)
            tracemalloc.reset_peak()
            try:
                decode(data)
            except MessageError:
                refused += 1
            assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()
    assert refused > 1000
