"""Messages between two processes: plain values as JSON, arrays as they lie in memory behind it.

A message is a dict of numbers, texts, None, sequences, dicts (with keys of any of these) and numpy arrays. What comes
out is equal to what went in, but for sequences, which are tuples then. Nothing in a message can make code run.
"""

import json
import socket
import struct
from math import prod
from typing import Any

import numpy as np

MOST_PIECES = 512  # that one call sends
ALIGNED = 64  # bytes: where an array may begin
_FRAME = "<QQ"  # bytes of JSON, bytes of arrays


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Waits while the other side does not read."""
    arrays: list[np.ndarray] = []
    head = json.dumps(_plain(message, arrays)).encode()
    pieces = [array.data.cast("B") if array.size else memoryview(b"") for array in arrays]
    padded = [part for piece in pieces for part in (piece, bytes(-piece.nbytes % ALIGNED))]
    total = sum(len(part) for part in padded)
    left = [memoryview(part) for part in (struct.pack(_FRAME, len(head), total), head, *padded) if len(part)]
    while left:
        sent = channel.sendmsg(left[:MOST_PIECES])
        while left and sent >= left[0].nbytes:
            sent -= left.pop(0).nbytes
        if sent:
            left[0] = left[0][sent:]


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; None: the other side has ended."""
    frame = _read(channel, struct.calcsize(_FRAME), may_end=True)
    if frame is None:
        return None
    head, total = struct.unpack(_FRAME, frame)
    told = json.loads(bytes(_read(channel, head)))
    message: dict[str, Any] = _values(told, _read(channel, total))
    return message


def _plain(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return {"array": [arrays[-1].dtype.str, *value.shape]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key, arrays), _plain(item, arrays)] for key, item in value.items()]}
    if isinstance(value, tuple | list | set | frozenset | range):
        return [_plain(item, arrays) for item in value]
    return value


def _values(told: Any, memory: Any) -> Any:
    """Arrays in the order they were found in, each where the last one ends."""
    at = 0

    def value(part: Any) -> Any:
        nonlocal at
        if isinstance(part, list):
            return tuple(value(item) for item in part)
        if not isinstance(part, dict):
            return part
        if "dict" in part:
            return {value(key): value(item) for key, item in part["dict"]}
        kind, *shape = part["array"]
        dtype = np.dtype(kind)
        size = dtype.itemsize * prod(shape)
        found = memory[at : at + size].view(dtype).reshape(shape)
        at += size + -size % ALIGNED
        return found

    return value(told)


def _read(channel: socket.socket, size: int, *, may_end: bool = False) -> Any:
    """So many bytes. may_end: None where there is not even one."""
    place: Any = np.empty(size, np.uint8)
    got = 0
    while got < size:
        more = channel.recv_into(place[got:])
        if more == 0:
            if got or not may_end:
                raise ConnectionResetError("the other side ended in the middle of a message")
            return None
        got += more
    return place
