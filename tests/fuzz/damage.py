"""Hostile values, and documents and files with something wrong in them."""

import json
from typing import Any

from hypothesis import strategies as st

NUMBERS = (0, -1, 1, 2, 7, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308)
ODD_NUMBERS = (float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    " ",
    "x",
    "0",
    "../../../../etc/passwd",
    "/etc/passwd",
    "..\\..\\x",
    "~",
    "~nobody-of-that-name/x",
    "a\x00b",
    "\x00",
    "\x1b[2J\x07\x08\r",
    "\u202eright to left\u202c",
    "\U0001f9d1\u200d\U0001f680\u2764\ufe0f",
    "\ud800",
    "\udcff\udc80",
    "\ufeff",
    "x" * 300,
    "{}{0}{role.__class__}%s%n",
    "{{ ''.__class__.__mro__ }}",
    "__import__('os').system('true')",
    "file:///etc/passwd",
)


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def texts() -> st.SearchStrategy[str]:
    """Anything that Python calls a text, lone surrogates included."""
    return (
        st.sampled_from(TEXTS)
        | st.text(max_size=40)
        | st.text(st.characters(categories=["Cs", "Cc", "Cf"]), max_size=9)
    )


def values() -> st.SearchStrategy[Any]:
    """What JSON can hold, and nobody expects."""
    plain = st.none() | st.booleans() | st.sampled_from(NUMBERS + ODD_NUMBERS) | st.integers() | st.floats() | texts()
    inner = st.recursive(plain, lambda some: st.lists(some, max_size=3) | st.dictionaries(texts(), some, max_size=3))
    return inner | st.sampled_from([nested(60), [0] * 3000, {}, [], [[]], {"": {}}])


def paths_of(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value in a document, its own first."""
    found = [path]
    if isinstance(document, dict):
        inside: Any = document.items()
    elif isinstance(document, list):
        inside = list(enumerate(document))[:8]
    else:
        return found
    return found + [place for key, value in inside for place in paths_of(value, (*path, key))]


@st.composite
def mutated(draw: Any, document: Any, *, keys: tuple[str, ...] = ()) -> Any:
    """A document with one to three things changed: a value replaced, an entry gone, a key that should not be there."""
    changed = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in paths_of(changed) if place]
        act = draw(st.sampled_from(("replace", "replace", "replace", "remove", "add")))
        if act == "add" or not places:
            if not isinstance(changed, dict):
                break
            changed[draw(st.sampled_from(keys) if keys else texts())] = draw(values())
            continue
        *above, last = draw(st.sampled_from(places))
        holder = changed
        for key in above:
            holder = holder[key]
        if act == "remove":
            del holder[last]
        else:
            holder[last] = draw(values())
    return changed


@st.composite
def damaged(draw: Any, content: bytes) -> bytes:
    """Bytes cut short, overwritten, put in, taken out, or repeated."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(data)))
        piece = draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from((b"\x00" * 8, b"\xff" * 8, b"[" * 9, b'"', b"}"))
        )
        act = draw(st.sampled_from(("cut", "overwrite", "overwrite", "insert", "remove", "append")))
        if act == "cut":
            del data[place:]
        elif act == "overwrite":
            data[place : place + len(piece)] = piece
        elif act == "insert":
            data[place:place] = piece
        elif act == "remove":
            del data[place : place + draw(st.integers(1, 64))]
        else:
            data += piece * draw(st.integers(1, 40))
    return bytes(data)


def damaged_json(document: Any, *, keys: tuple[str, ...] = ()) -> st.SearchStrategy[bytes]:
    """The bytes of a JSON file: mostly well-formed with wrong content, sometimes damaged, sometimes nested for ever."""
    well = mutated(document, keys=keys).map(lambda value: json.dumps(value).encode())
    deep = st.sampled_from(
        (b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000, b"", b"\xff\xfe{}", b"null")
    )
    return st.one_of(well, well, well, damaged(json.dumps(document).encode()), deep)
