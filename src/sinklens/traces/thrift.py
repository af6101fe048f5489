"""Thrift's compact protocol, as far as the footers of Parquet files need it: read into plain values, written back.

A struct is a dict of its fields by number, in their order, each with its type; a list has a type and its items. There
are no sets and maps in a footer. A struct inside another may be given as the bytes it was written to.
"""

from dataclasses import dataclass, field
from typing import Any, Final

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
INTEGERS: Final = (I16, I32, I64)
WIDTHS: Final = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}  # in a list a boolean is a byte
CUT = "a footer ends in the middle of a value"
MOST_SHORT = 15  # items of a list, and distance between two fields, that need no number of their own

Struct = dict[int, tuple[int, Any]]


@dataclass
class Items:
    """A list."""

    kind: int
    values: list[Any] = field(default_factory=list)


def read(data: bytes) -> Struct:
    """The struct that `data` is."""
    at = 0  # functions in place of a class: a footer has hundreds of values, and is read while others wait

    def number() -> int:
        nonlocal at
        byte = data[at]
        at += 1
        if byte < 128:
            return byte
        found, shift = byte & 127, 7
        while byte > 127:
            byte = data[at]
            at += 1
            found |= (byte & 127) << shift
            shift += 7
        return found

    def struct() -> Struct:
        nonlocal at
        found: Struct = {}
        field = 0
        while head := data[at]:
            at += 1
            kind = head & 15
            field = field + (head >> 4) if head > 15 else value(I16)
            found[field] = (kind, kind == TRUE if kind <= FALSE else value(kind))
        at += 1
        return found

    def value(kind: int) -> Any:
        nonlocal at
        if kind in INTEGERS:
            raw = number()
            return (raw >> 1) ^ -(raw & 1)
        if kind == BINARY:
            return take(number())
        if kind == STRUCT:
            return struct()
        if kind == LIST:
            head = data[at]
            at += 1
            count, inner = head >> 4, head & 15
            count = number() if count == MOST_SHORT else count
            return Items(inner, [value(inner) for _ in range(count)])
        if kind in WIDTHS:
            return take(WIDTHS[kind])
        raise ValueError(f"a footer holds a value of type {kind}, which Parquet does not use")

    def take(count: int) -> bytes:
        nonlocal at
        taken = data[at : at + count]
        if len(taken) < count:
            raise ValueError(CUT)
        at += count
        return taken

    try:
        found = struct()
    except IndexError:
        raise ValueError(CUT) from None
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes behind the end of a footer")
    return found


def write(struct: Struct) -> bytes:
    """The bytes that `read` takes."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number, (kind, value) in struct.items():
        if 0 < number - last <= MOST_SHORT:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_signed(out, number)
        last = number
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in INTEGERS:
        _write_signed(out, value)
    elif kind == BINARY:
        _write_number(out, len(value))
        out += value
    elif kind == LIST:
        short = len(value.values) < MOST_SHORT
        out.append((len(value.values) if short else MOST_SHORT) << 4 | value.kind)
        if not short:
            _write_number(out, len(value.values))
        for item in value.values:
            _write_value(out, value.kind, item)
    elif kind == STRUCT and not isinstance(value, bytes):  # bytes: written before
        _write_struct(out, value)
    else:
        out += value


def _write_signed(out: bytearray, value: int) -> None:
    _write_number(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_number(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
