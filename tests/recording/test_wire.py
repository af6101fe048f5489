"""Messages between two processes: they come out as they went in, however large."""

import os
import socket
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sinklens.recording import wire

PLAIN = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = PLAIN | st.tuples(st.integers(0, 9), st.integers(0, 9))
ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.int64, np.bool_, np.int32]), hnp.array_shapes(min_side=0, max_dims=3)
)
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(message=st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_messages_come_out_as_they_went_in(message: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        wire.send(ours, message)
        ours.shutdown(socket.SHUT_WR)
        assert same(wire.receive(theirs), message)
        assert wire.receive(theirs) is None


def same(one: Any, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        equal = np.array_equal(one, other, equal_nan=other.dtype.kind == "f")
        return bool(one.dtype == other.dtype and one.shape == other.shape and equal and one.flags.aligned)
    if isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in other)
    if isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_a_large_message_in_pieces_and_one_that_is_cut() -> None:
    ours, theirs = socket.socketpair()
    many = {"arrays": tuple(np.full(7, i, np.float32) for i in range(2000)), "large": np.arange(3_000_000)}
    with closing(ours), closing(theirs):
        child = os.fork()
        if child == 0:
            wire.send(ours, many)
            ours.sendall(b"\x09\x00\x00")
            os._exit(0)
        ours.close()
        assert same(wire.receive(theirs), many)
        with pytest.raises(ConnectionResetError, match="in the middle of a message"):
            wire.receive(theirs)
        os.waitpid(child, 0)
