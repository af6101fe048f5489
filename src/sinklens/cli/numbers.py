"""Numbers as people write them on a command line."""

import re

from sinklens.errors import UsageError

_MAP = re.compile(r"(\d+)\.(\d+)@(\d+)(?:-(\d+))?")


def parse_numbers(option: str, text: str | None) -> list[int] | None:
    """`0-3,7` is 0, 1, 2, 3, 7; None stays None.

    >>> parse_numbers("--layers", "0-3,7")
    [0, 1, 2, 3, 7]
    """
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise UsageError(f"{option} {text!r} is no list of numbers; expected e.g. 0-3,7")
        first, last = _span(f"{option} {text!r}", match[1], match[2])
        numbers += range(first, last + 1)
    if not numbers:
        raise UsageError(f"{option} {text!r} holds no number; expected e.g. 0-3,7")
    return numbers


def parse_maps(text: str | None) -> list[tuple[int, int, int]]:
    """`LAYER.HEAD@STEP`, several with commas, steps also as a range.

    >>> parse_maps("3.1@38-39,0.2@5")
    [(3, 1, 38), (3, 1, 39), (0, 2, 5)]
    """
    found: list[tuple[int, int, int]] = []
    for part in [] if text is None else text.split(","):
        match = _MAP.fullmatch(part.strip())
        if match is None:
            raise UsageError(
                f"--maps {part.strip()!r}; expected LAYER.HEAD@STEP or LAYER.HEAD@FIRST-LAST, e.g. 3.1@38-39"
            )
        first, last = _span(f"--maps {part.strip()!r}", match[3], match[4])
        found += [(int(match[1]), int(match[2]), step) for step in range(first, last + 1)]
    return found


def _span(what: str, first: str, last: str | None) -> tuple[int, int]:
    if last is not None and int(last) < int(first):
        raise UsageError(f"{what} runs from {first} to {last}; give the smaller number first")
    return int(first), int(last or first)


def show_bytes(size: int) -> str:
    """In units of 1000.

    >>> show_bytes(52_300_000)
    '52.3 MB'
    """
    if size < 1000:
        return f"{size} B"
    power = min(3, (len(str(size)) - 1) // 3)
    return f"{size / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"
