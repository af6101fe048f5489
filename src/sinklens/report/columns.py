"""Tables as plain text: columns side by side, or one row below the other where they would be too wide.

No number is cut: a number that is cut is a wrong number.
"""

from collections.abc import Sequence
from textwrap import wrap


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> list[str]:
    """The lines of a table; width: columns of the terminal, None where nothing limits them.

    >>> print("\\n".join(columns(("model", "right"), [("tiny-llama", "100 %")])))
    model       right
    tiny-llama  100 %
    >>> print("\\n".join(columns(("model", "right"), [("tiny-llama", "100 %")], width=16)))
    tiny-llama
      right: 100 %
    """
    whole = [list(header), *map(list, rows)]
    widths = [max(len(row[place]) for row in whole) for place in range(len(header))]
    lines = ["  ".join(cell.ljust(room) for cell, room in zip(row, widths, strict=True)).rstrip() for row in whole]
    if width is None or max(map(len, lines)) <= width:
        return lines
    return [line for row in rows for line in _below(header, row, width)]


def _below(header: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """The first cell, then all that is known of it; cells stay whole where a line can hold them."""
    glue = "\N{NO-BREAK SPACE}"
    known = [(name, cell) for name, cell in zip(header[1:], row[1:], strict=True) if cell not in ("", "-")]
    told = [f"{name}: {cell}".replace(" ", glue) for name, cell in known]
    text = ", ".join(told)
    lines = wrap(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return [row[0], *(line.replace(glue, " ") for line in lines)]
