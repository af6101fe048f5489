"""Arrays as parts of a JSON document: raw deflate, base 64, little endian, and what makes them smaller before that.

    {"dtype": "u1", "shape": [8, 32, 4, 60], "codec": "deflate", "base": "64", "delta": 1, "data": "..."}

delta: along this axis every value is the difference from the one before, modulo 256 (u1) or 2 ** 32 (i4).
split: the first bytes of all numbers, then the second bytes, and so on (f4 only); their high bytes repeat.
A browser reads both with DecompressionStream("deflate-raw") and a loop.
"""

import base64
import json
import zlib
from typing import Any

import numpy as np

LEVEL = 6
SEARCHED = 1_000_000  # bytes
_DTYPES = {"u1": "<u1", "i4": "<i4", "f4": "<f4"}
_ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&"}


def pack(values: Any, dtype: str, *, delta: int | None = None) -> dict[str, Any]:
    """An array as an object of the payload."""
    array = np.ascontiguousarray(values, _DTYPES[dtype])
    entry: dict[str, Any] = {"dtype": dtype, "shape": list(array.shape), "codec": "deflate", "base": "64"}
    if delta is not None:
        entry["delta"] = delta
    if dtype == "f4":
        entry["split"] = True
    entry["data"] = base64.b64encode(deflate(_filtered(array, delta=delta, split=dtype == "f4"))).decode("ascii")
    return entry


def _filtered(array: np.ndarray, *, delta: int | None, split: bool) -> bytes:
    if split:
        return np.frombuffer(array.tobytes(), np.uint8).reshape(-1, array.itemsize).T.tobytes()
    return (array if delta is None else differences(array, delta)).tobytes()


def differences(codes: np.ndarray, axis: int) -> np.ndarray:
    """From one entry to the next along the axis, in the array's own arithmetic; the first stays."""
    first = np.zeros_like(codes.take([0], axis)) if codes.shape[axis] else None
    return codes if first is None else np.diff(codes, axis=axis, prepend=first)


def deflate(raw: bytes) -> bytes:
    """The shortest of several, without zlib's header, as DecompressionStream("deflate-raw") reads it.

    Codes and their differences hardly repeat in longer pieces. Where zlib looks for such pieces all the same, it takes
    ten times as long and the result is up to 20 % larger; so it looks in small arrays only.
    """
    strategies = (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, *((zlib.Z_DEFAULT_STRATEGY,) if len(raw) <= SEARCHED else ()))
    return min((_deflated(raw, strategy) for strategy in strategies), key=len)


def _deflated(raw: bytes, strategy: int) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    return packer.compress(raw) + packer.flush()


def text_size(packed: int) -> int:
    """Characters that so many bytes take in base 64."""
    return -(-packed // 3) * 4


def script_json(document: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or begin another.

    It is plain ASCII, so that no server or editor can misread its encoding.
    """
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)
