"""Thrift's compact protocol, as far as the footers of Parquet files need it: read into plain values, written back.

A struct is a dict of its fields by number, in their order, each with its type; a list has a type and its items. There
are no sets and maps in a footer.
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
    reader = _Reader(data)
    found = reader.struct()
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes behind the end of a footer")
    return found


def write(struct: Struct) -> bytes:
    """The bytes that `read` takes."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while head := self._byte():
            distance, kind = head >> 4, head & 15
            number = number + distance if distance else _signed(self._number())
            found[number] = (kind, kind == TRUE if kind in (TRUE, FALSE) else self._value(kind))
        return found

    def _value(self, kind: int) -> Any:
        if kind in INTEGERS:
            return _signed(self._number())
        if kind == BINARY:
            return self._take(self._number())
        if kind == STRUCT:
            return self.struct()
        if kind == LIST:
            return self._list()
        if kind in WIDTHS:
            return self._take(WIDTHS[kind])
        raise ValueError(f"a footer holds a value of type {kind}, which Parquet does not use")

    def _list(self) -> Items:
        head = self._byte()
        count, kind = head >> 4, head & 15
        count = self._number() if count == MOST_SHORT else count
        return Items(kind, [self._value(kind) for _ in range(count)])

    def _number(self) -> int:
        byte = self._byte()
        number, shift = byte & 127, 7
        while byte > 127:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
        return number

    def _byte(self) -> int:
        try:
            byte = self._data[self.at]
        except IndexError:
            raise ValueError(CUT) from None
        self.at += 1
        return byte

    def _take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._data):
            raise ValueError(CUT)
        taken, self.at = self._data[self.at : end], end
        return taken


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


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
    elif kind == STRUCT:
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
