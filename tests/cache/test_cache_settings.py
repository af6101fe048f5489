"""Settings of a compression, and budgets as they are written on a command line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sinklens as sl
from sinklens.cache.settings import parse_keep
from sinklens.errors import UsageError


@pytest.mark.parametrize(
    ("text", "length", "count"),
    [
        ("128", 1000, 128),
        ("50%", 13, 7),
        ("60%", 13, 8),
        ("10%", 100, 10),
        ("7%", 100, 7),
        ("0.5%", 10, 1),
        ("100%", 9, 9),
    ],
)
def test_parse_keep(text: str, length: int, count: int) -> None:
    assert parse_keep(text, length) == count


@given(st.integers(1, 100), st.integers(1, 100_000))
def test_a_share_is_rounded_up_once(share: int, length: int) -> None:
    assert parse_keep(f"{share}%", length) == -(-share * length // 100)


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-3", "half", "1.5", "", "50 percent"])
def test_parse_keep_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="keep is"):
        parse_keep(text, 10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"order": "lowest"}, "unknown order 'lowest'"),
        ({"schedule": "twice"}, "unknown schedule 'twice'"),
        ({"keep": 0}, "keep is 0; expected a whole number of at least 1"),
        ({"keep": 0.5}, "keep is 0.5"),
        ({"keep": True}, "keep is True"),
        ({"first": 3, "last": 3}, "first=3 and last=3 protect more entries than keep=5"),
        ({"skip": 3}, "skip is 3; expected layer numbers"),
        ({"skip": (-1,)}, r"skip is \(-1,\)"),
        ({"schedule": "saw"}, "needs above="),
        ({"schedule": "saw", "above": 5}, "above is 5; expected a whole number of at least 6"),
        ({"above": 9}, "above=9 belongs to schedule='saw'"),
        ({"strict": True, "schedule": "cap"}, "strict belongs to schedule='once'"),
        ({"strict": True, "first": 5}, "leaves no room"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"seed": ()}, r"seed is \(\)"),
    ],
)
def test_settings_that_cannot_be_meant(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        sl.Compression(**({"keep": 5} | changes))


def test_settings_as_data() -> None:
    assert sl.Compression(keep=5, skip=[2, 0, 2]).skip == (0, 2)
    assert sl.Compression(keep=5) == sl.Compression(keep=5)
    assert sl.Compression(keep=5).order_name == "low"
    assert sl.Compression(keep=5, order=len).order_name == "len"
    saw = sl.Compression(keep=1960, above=2000, schedule="saw")
    assert [saw.left_of(held) for held in (1, 1960, 1999, 2000, 3000)] == [1, 1960, 1999, 1960, 1960]
    cap = sl.Compression(keep=5, schedule="cap")
    assert [cap.left_of(held) for held in (4, 5, 6)] == [4, 5, 5]
