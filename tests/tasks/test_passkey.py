"""Pass keys: where the key stands, what the splits hold out, what counts as found."""

import re
from itertools import islice, pairwise
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.tasks import passkey_filler
from sinklens.tasks.item import SPLITS, Item
from sinklens.tasks.passkey import grade, items

EVERY = passkey_filler.TRAINED + passkey_filler.RESERVED
KNOWN = (
    "Clouds move slowly over the town. "
    "The pass key is 98005. "
    "Do not forget it. "
    "The coat is too big for him. "
    "What is the pass key? "
    "The pass key is",
    " 98005.",
    "stated.2 asked.0",
)


def take(split: str, count: int, **options: object) -> list[Item]:
    return list(islice(items(split, **options), count))


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.?]) ", text)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPLITS), st.integers(0, 999), st.integers(0, 10**9), st.integers(0, 80), st.integers(0, 40))
def test_the_key_is_stated_once_and_asked_for_last(split: str, seed: int, start: int, low: int, more: int) -> None:
    item = take(split, 1, seed=seed, start=start, words=(low, low + more))[0]
    key = item.facts["key"]
    assert re.findall(r"\d+", item.prompt) == [key]
    assert len(key) in ((6,) if split == "numbers" else (4, 5))
    assert item.answer == f" {key}."
    assert grade(item, item.answer)
    assert re.fullmatch(r".*pass key\? (The pass key is|Remember, it is)", item.prompt)
    filler = [sentence for sentence in sentences(item.prompt) if sentence in EVERY]
    words = sum(len(sentence.split()) for sentence in filler)
    assert item.facts["words"] == words
    assert low <= words < low + more + max(len(sentence.split()) for sentence in EVERY)
    before = [s for s in sentences(item.prompt[: item.prompt.index(key)]) if s in EVERY]
    assert item.facts["depth"] * words == pytest.approx(sum(len(sentence.split()) for sentence in before))


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.integers(0, 1000))
def test_the_depth_is_met_to_the_nearest_sentence(depth: float, start: int) -> None:
    item = take("train", 1, start=start, words=(100, 100), depth=depth)[0]
    longest = max(len(sentence.split()) for sentence in EVERY)
    assert abs(item.facts["depth"] - depth) <= longest / 2 / 100


def test_depth_0_begins_and_depth_1_ends_with_the_key() -> None:
    for item in take("train", 20, depth=0):
        assert item.facts["depth"] == 0
        assert item.facts["key"] in " ".join(item.prompt.split()[:9])
    for item in take("train", 20, depth=1):
        assert item.facts["depth"] == 1
        assert item.facts["key"] in " ".join(item.prompt.split()[-20:])


def test_drawn_depths_and_lengths_cover_their_range() -> None:
    drawn = take("train", 1000)
    depths = [item.facts["depth"] for item in drawn]
    for low in (0.0, 0.25, 0.5, 0.75):
        assert sum(low <= depth <= low + 0.25 for depth in depths) > 180
    words = [item.facts["words"] for item in drawn]
    assert min(words) < 26 and max(words) > 115
    assert {len(item.facts["key"]) for item in drawn} == {4, 5}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SPLITS), st.integers(0, 1000), st.integers(0, 20))
def test_any_item_can_be_drawn_alone(split: str, seed: int, index: int) -> None:
    whole = take(split, index + 1, seed=seed)
    assert whole[index] == take(split, 1, seed=seed, start=index)[0]
    assert whole[index].index == index


def test_the_text_of_an_item_stays_what_it_is() -> None:
    item = take("train", 1, words=(10, 20), start=3)[0]
    assert (item.prompt, item.answer, item.template) == KNOWN


def test_splits_are_apart() -> None:
    train, test = take("train", 1000), take("test", 50)
    assert all(crc32(item.prompt.encode()) % 50 for item in train)
    assert not any(crc32(item.prompt.encode()) % 50 for item in test)
    for split in SPLITS:
        pool = passkey_filler.RESERVED if split == "templates" else passkey_filler.TRAINED
        for item in take(split, 50):
            filler = [sentence for sentence in sentences(item.prompt) if sentence in EVERY]
            assert filler and set(filler) <= set(pool)
            assert not any(a == b for a, b in pairwise(filler))
            assert [".reserved." in name for name in item.template.split()] == [split == "templates"] * 2


def test_the_filler_is_varied_and_the_reserved_one_uses_known_words() -> None:
    assert len(set(EVERY)) == len(EVERY)
    assert len(passkey_filler.TRAINED) >= 60
    assert not re.search(r"\d|key|number|remember", " ".join(EVERY).lower())
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in EVERY)
    known = set(re.findall(r"\w+", " ".join(passkey_filler.TRAINED).lower()))
    assert set(re.findall(r"\w+", " ".join(passkey_filler.RESERVED).lower())) <= known


ITEM = Item(task="passkey", split="test", index=0, template="", prompt="", answer="", facts={"key": "48213"})


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" 48213.", True),
        ("48213", True),
        (" 48213. Later it was 77777.", True),
        (" the number 48213. And 5.", True),
        (" 4821.", False),
        (" 482131.", False),
        (" 048213.", False),
        (" 5. 48213.", False),
        ("", False),
        (" not known", False),
    ],
)
def test_grade(text: str, right: bool) -> None:
    assert grade(ITEM, text) is right


@pytest.mark.parametrize("words", [(120, 20), (-1, 5), 40, (1, 2, 3), ("a", 3), (True, 4)])
def test_lengths_that_cannot_be_meant(words: object) -> None:
    with pytest.raises(UsageError, match=r"words is .*; give the fewest and the most words of filler"):
        items("train", words=words)


@pytest.mark.parametrize("depth", [-0.1, 1.5, "middle", True, float("nan")])
def test_depths_that_cannot_be_meant(depth: object) -> None:
    with pytest.raises(UsageError, match=r"depth is .*; give a share from 0 \(at the start\) to 1"):
        items("train", depth=depth)


def test_splits_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="unknown split 'valid'"):
        items("valid")
