"""The corpus: repeats go, shares hold, the split follows the text alone, and a build gives the same bytes twice."""

import io
import json
import random
import tarfile
from collections import Counter
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import SinklensError, UsageError
from sinklens.training.corpus import (
    Shares,
    arrange,
    build,
    describe,
    is_held_out,
    read_documents,
    without_repeats,
    write_documents,
)
from sinklens.training.extract import Document
from sinklens.training.sources import Source

TEXT = "the sum of all numbers that you give is kept in a list and when it grows it will be written to disk"


def paragraph(seed: int, *, words: int = 60) -> str:
    generator = random.Random(seed)
    return " ".join(generator.choices(TEXT.split(), k=words)) + "."


def document(text: str, *, kind: str = "prose", source: str = "a") -> Document:
    return Document(text=text, kind=kind, source=source, path="p")


def test_a_paragraph_stays_once() -> None:
    first, second, shared = paragraph(1), paragraph(2), paragraph(3)
    renumbered = shared.replace("sum", "Sum 2 ")
    found = list(
        without_repeats(
            [
                document(f"{first}\n\nParameters\n\n{shared}"),
                document(f"{second}\n\nParameters\n\n{renumbered}"),
                document(f"Parameters\n\n{shared}"),
            ]
        )
    )
    assert [entry.text for entry in found] == [f"{first}\n\nParameters\n\n{shared}", f"{second}\n\nParameters"]


def test_what_is_left_must_be_a_document() -> None:
    long, short = paragraph(1), paragraph(2, words=20)
    assert 40 < len(short) < 200
    assert [entry.text for entry in without_repeats([document(long), document(f"{long}\n\n{short}")])] == [long]


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from(["prose", "code"]), st.integers(1, 400)), max_size=40
    ),
    code=st.floats(0.05, 0.9),
    package=st.floats(0.2, 0.9),
)
def test_shares_hold(sizes: list[tuple[str, str, int]], code: float, package: float) -> None:
    documents = [
        document(f"{i} " + "x" * size, kind=kind, source=source) for i, (source, kind, size) in enumerate(sizes)
    ]
    try:
        kept = arrange(documents, shares=Shares(code=code, package=package))
    except UsageError:  # no choice of so few documents keeps these shares
        return
    total = sum(len(entry.text) for entry in kept)
    by_source: Counter[str] = Counter()
    for entry in kept:
        by_source[entry.source] += len(entry.text)
    assert sum(len(entry.text) for entry in kept if entry.kind == "code") <= code * total
    assert all(size <= package * total for size in by_source.values())


def test_nothing_is_cut_within_the_shares() -> None:
    documents = [document(paragraph(i), source="abcd"[i % 4], kind="prose") for i in range(40)]
    kept = arrange(documents, shares=Shares(package=0.5))
    assert sorted(kept, key=lambda entry: entry.text) == sorted(documents, key=lambda entry: entry.text)


def test_order_depends_on_the_texts_alone() -> None:
    documents = [document(paragraph(i), source="ab"[i // 50]) for i in range(100)]
    kept = arrange(documents, shares=Shares(package=0.9))
    assert kept == arrange(reversed(documents), shares=Shares(package=0.9))
    changes = sum(one.source != other.source for one, other in pairwise(kept))
    assert changes > 25  # about half of the neighbours come from different packages


def test_one_in_a_hundred_is_held_out() -> None:
    held_out = [is_held_out(f"text {i}") for i in range(20_000)]
    assert 150 < sum(held_out) < 250
    assert held_out[:50] == [is_held_out(f"text {i}") for i in range(50)]
    # known answer: another split would put held-out text of earlier corpora into training
    assert [i for i in range(700) if held_out[i]] == [47, 88, 149, 192, 227, 354, 359, 470, 560, 668]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.xz"])
def test_written_documents_come_back(tmp_path: Path, name: str) -> None:
    documents = [document("line\nline “quoted” \u2028 end"), document("x", kind="code", source="b")]
    write_documents(tmp_path / name, documents)
    assert list(read_documents(tmp_path / name)) == documents
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("name", "share"), [("code", 0.0), ("package", 1.0), ("code", -0.5)])
def test_shares_that_cannot_be_meant(name: str, share: float) -> None:
    with pytest.raises(UsageError, match=rf"share {name}={share}; expected a number between 0 and 1"):
        Shares(**{name: share})


def test_too_few_packages_for_the_share() -> None:
    documents = [document(paragraph(i), source="ab"[i % 2]) for i in range(10)]
    with pytest.raises(
        UsageError, match=r"2 groups of at most 0.1 make no whole; give a larger share or more packages"
    ):
        arrange(documents, shares=Shares(package=0.1))


def package(cache: Path, name: str, *, licence: str = "MIT", seed: int = 0) -> Source:
    """A source package with a page, a module and a stated licence, as it would lie in the cache."""
    page = "\n\n".join(paragraph(seed + i) for i in range(30))
    functions = "".join(f"\n\ndef {name}_{letter}(x):\n    return x + 1\n" for letter in "abcdefghij")
    module = f'"""{paragraph(seed + 50)}"""\n{functions}'
    members = {"PKG-INFO": f"Name: {name}\nLicense-Expression: {licence}\n\n", "docs/page.rst": page, "m.py": module}
    with tarfile.open(cache / f"{name}-1.tar.gz", "w:gz") as archive:
        for path, text in members.items():
            entry = tarfile.TarInfo(f"{name}-1/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    digest = sha256((cache / f"{name}-1.tar.gz").read_bytes()).hexdigest()
    return Source(name=name, version="1", file=f"{name}-1.tar.gz", sha256=digest, licence="MIT")


def test_build(tmp_path: Path) -> None:
    sources = [package(tmp_path, name, seed=100 * i) for i, name in enumerate(("one", "two", "three"))]
    shares = Shares(package=0.5)
    card = build(sources, tmp_path, folder=tmp_path / "x", shares=shares)
    assert build(sources, tmp_path, folder=tmp_path / "y", shares=shares, processes=2) == card
    for name in ("train.jsonl.xz", "held_out.jsonl.xz", "card.json"):
        assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "y" / name).read_bytes()
    assert json.loads((tmp_path / "x" / "card.json").read_text()) == card
    parts = {name: list(read_documents(tmp_path / "x" / f"{name}.jsonl.xz")) for name in ("train", "held_out")}
    everything = parts["train"] + parts["held_out"]
    assert card["documents"] == len(everything) == 9
    assert card["bytes"] == sum(len(entry.text.encode()) for entry in everything)
    assert {kind: row["documents"] for kind, row in card["kinds"].items()} == {"prose": 3, "docstring": 3, "code": 3}
    assert card["licences"] == {"MIT": {"bytes": card["bytes"], "documents": 9}}
    assert card["packages"]["two"]["version"] == "1"
    assert all(is_held_out(entry.text) for entry in parts["held_out"])
    assert not any(is_held_out(entry.text) for entry in parts["train"])


def test_build_refuses_another_licence(tmp_path: Path) -> None:
    with pytest.raises(SinklensError, match=r"declares 'GPL-3.0-only', the list says 'MIT'; it is not used"):
        build([package(tmp_path, "one", licence="GPL-3.0-only")], tmp_path, folder=tmp_path / "x")


def test_card_of_two_licences() -> None:
    row = {"version": "1", "sha256": "0" * 64}
    sources = [
        Source(name="a", file="a-1.zip", licence="MIT", **row),
        Source(name="b", file="b-1.zip", licence="ISC", **row),
    ]
    card = describe([document("né"), document("xyz", source="b"), document("xy", source="b", kind="code")], sources)
    assert card["licences"] == {"ISC": {"bytes": 5, "documents": 2}, "MIT": {"bytes": 3, "documents": 1}}
    assert list(card["packages"]) == ["b", "a"]
    assert card["kinds"]["code"] == {"bytes": 2, "documents": 1}
