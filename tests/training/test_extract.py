"""Extraction from small archives made here: what becomes a document, what is cleaned away, what is never done."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinklens.errors import SinklensError
from sinklens.training import extract
from sinklens.training.extract import Document, extract_documents, is_wanted, normalise, read_members, read_metadata
from sinklens.training.markup import clean_page, english_share, is_language

PROSE = (
    "The function returns the sum of all numbers that were given to it, and it does so in the order in which they "
    "came. If you need the sum to be exact, use the other function, which is slower than this one but not wrong."
)
ALL = ("prose", "docstring", "code")


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def documents(tmp_path: Path, members: dict[str, str], take: tuple[str, ...] = ALL) -> list[Document]:
    path = tar(tmp_path / "a.tar.gz", {name: text.encode() for name, text in members.items()})
    return list(extract_documents(path, source="a", take=take))


def test_pages_and_where_they_come_from(tmp_path: Path) -> None:
    (page,) = documents(tmp_path, {"a-1/docs/page.rst": f"Title\n=====\n\n{PROSE}\n", "a-1/picture.svg": PROSE})
    assert page == Document(text=f"Title\n\n{PROSE}", kind="prose", source="a", path="a-1/docs/page.rst")


@pytest.mark.parametrize(
    "path",
    ["a/_vendor/b.md", "a/vendored-meson/b.md", "a/LICENSE.txt", "a/locale/x.md", "a/docs/fr/x.md", "a/.github/x.md"],
)
def test_what_others_wrote_is_left_out(tmp_path: Path, path: str) -> None:
    assert documents(tmp_path, {path: PROSE}) == []


@pytest.mark.parametrize("path", ["a/tests/x.py", "a/x_test.py", "a/test_x.py", "a/conftest.py"])
def test_code_of_tests_is_left_out(tmp_path: Path, path: str) -> None:
    assert documents(tmp_path, {path: f'"""{PROSE}"""\n' + "x = 1\n" * 80}) == []


def test_python_gives_docstrings_and_code_apart(tmp_path: Path) -> None:
    module = (
        "# Licensed under the MIT licence\n# as is, for all of you to use\n# and no more than that\n# is it\n\n"
        f'"""Module. {PROSE}"""\n\nimport os\n\n\nclass Thing:\n    """A thing of which more can be said than this.\n\n'
        f'    It goes on, and the indentation is not kept.\n    """\n\n    def f(self):\n        """Short."""\n'
        "        return 'not a docstring'\n" + "".join(f"\n    def g{i}(self):\n        return {i}\n" for i in range(9))
    )
    found = {document.kind: document.text for document in documents(tmp_path, {"a/m.py": module})}
    assert found["docstring"] == (
        f"Module. {PROSE}\n\nA thing of which more can be said than this.\n\n"
        "It goes on, and the indentation is not kept."
    )
    assert found["code"].startswith("import os\n\nclass Thing:")
    assert "return 'not a docstring'" in found["code"] and "more can be said" not in found["code"]
    assert "Licensed" not in found["code"] + found["docstring"]
    assert [d.kind for d in documents(tmp_path, {"a/m.py": module}, take=("docstring",))] == ["docstring"]


def test_python_is_parsed_and_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    documents(tmp_path, {"a/setup.py": f'"""{PROSE}"""\nopen({str(mark)!r}, "w")\n', "a/broken.py": "def :\n"})
    assert not mark.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.tar.gz"]


def test_long_comments_count_as_docstrings(tmp_path: Path) -> None:
    words = PROSE.split()
    lines = ["    # " + " ".join(words[i : i + 6]) for i in range(0, len(words), 6)]
    (found,) = documents(
        tmp_path, {"a/m.py": "def f():\n" + "\n".join(lines) + "\n    return 1\n"}, take=("docstring",)
    )
    assert " ".join(found.text.split()) == PROSE


def test_notebooks_notes_and_service_descriptions(tmp_path: Path) -> None:
    cells = [{"cell_type": "markdown", "source": [PROSE, "\n"]}, {"cell_type": "code", "source": ["x = 1"]}]
    note = "---\nfixes:\n  - |\n    " + PROSE + "\nupgrade:\n  - |\n    Restart it.\n"
    service = {"operations": {"Sum": {"documentation": f"<p>{PROSE}</p><p>See &lt;it&gt;.</p>", "http": 1}}}
    path = tar(
        tmp_path / "b.tar.gz",
        {
            "a/n.ipynb": json.dumps({"cells": cells}).encode(),
            "a/releasenotes/notes/x.yaml": note.encode(),
            "a/settings.yaml": note.encode(),
            "a/data/s/2020/service-2.json.gz": gzip.compress(json.dumps(service).encode()),
        },
    )
    texts = [document.text for document in extract_documents(path, source="a", take=("prose",))]
    assert texts == [PROSE, f"{PROSE}\n\nRestart it.", f"{PROSE}\n\nSee <it>."]


def test_unwanted_texts() -> None:
    assert is_wanted(PROSE, "prose")
    assert not is_wanted(PROSE[:199], "prose")
    assert not is_wanted(PROSE + " It is under the GNU Lesser General Public License.", "prose")
    assert not is_wanted("数" * 50 + PROSE, "prose")
    french = "La fonction renvoie la somme de tous les nombres qui lui sont donnés, dans leur ordre. " * 4
    assert not is_wanted(french, "prose")
    assert is_wanted("total = first + second\n" * 20, "code")
    assert not is_wanted("total = first + second\n" * 20, "docstring")


@given(text=st.text())
def test_normalised_text_is_clean_and_stays_so(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert not any(mark < " " and mark != "\n" for mark in once)
    assert "\n\n\n" not in once
    assert not any(line.endswith((" ", "\t")) for line in once.split("\n"))


def test_normalise_composes_and_drops() -> None:
    assert normalise("e\u0301\x00\u200b\ta \r\nb\r\n\r\n\r\nc\n") == "é   a\nb\n\nc"


def test_directives_and_inline_markup() -> None:
    page = (
        ".. _label:\n\nHead\n----\n\n.. toctree::\n   :maxdepth: 2\n\n   one\n   two\n\n.. comment\n   goes on\n\n"
        "See :func:`~a.b`, :ref:`the\nnotes <c>`, `this page\n<http://d>`_ and ``code``::\n\n    x = 1\n\n"
        ".. note:: Take care\n   of it.\n\n   .. image:: x.png\n\n.. code-block:: python\n   :linenos:\n\n   y = 2\n\n"
        ".. versionadded:: 1.2\n\nWrite to <me@home.org> now.\n"
    )
    assert normalise(clean_page(page, markdown=False)) == (
        "Head\n\nSee `a.b`, the\nnotes, this page and `code`:\n\n    x = 1\n\nNote: Take care\nof it.\n\n    y = 2\n\n"
        "New in version 1.2\n\nWrite to now."
    )


def test_markdown() -> None:
    page = (
        "---\ntitle: x\n---\n# Head\n\n[![badge](http://a)](http://b) <b>Read</b> [the page](http://c_(d)) now.\n\n"
        "```python\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n[c]: http://e\n<!-- gone\nand gone -->\n"
    )
    assert normalise(clean_page(page, markdown=True)) == "# Head\n\n Read the page now.\n\n```python\nx = 1\n```"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("A sentence with 3 numbers, 14 and 15.", True),
        ("    return x + 1", True),
        ("-----  -----", False),
        ("+---+---+", False),
        ("0.123 0.456 0.789 1.000", False),
        ("de ad be ef 00 11 22 33 44", False),
        ("iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4z8DwHwAFBQIAX8jx0gAAAABJRU5", False),
        ("* Fix the sum of an empty list (#12345)", False),
        ("* Fix the sum of an empty list", True),
        ("The change in #12345 was undone.", True),
    ],
)
def test_lines_that_are_no_language(line: str, kept: bool) -> None:
    assert is_language(line) is kept


def test_lists_of_names_go() -> None:
    names = "* Ada Lovelace\n* Alan Turing\n* Grace Hopper\n* Emmy Noether"
    assert clean_page(f"Authors\n\n{names}\n", markdown=False).strip() == "Authors"
    assert english_share(names) == 0


def test_archives_of_both_kinds_read_alike(tmp_path: Path) -> None:
    members = {"a/b.txt": b"one", "a/c.txt": b"two"}
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert list(read_members(tmp_path / "a.whl")) == list(read_members(tar(tmp_path / "a.tgz", members)))


def test_links_and_large_members_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "MEMBER_LIMIT", 3)
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("a/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name in ("abc", "abcd"):
            entry = tarfile.TarInfo(f"a/{name}")
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    assert list(read_members(path)) == [("a/abc", b"abc")]


def test_archives_that_are_too_large_or_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "a.tar.gz", {"a/b": b"1234", "a/c": b"5678"})
    (tmp_path / "cut.tar.gz").write_bytes(path.read_bytes()[:60])
    with pytest.raises(SinklensError, match=r"cut.tar.gz cannot be read as an archive .*; delete it and fetch again"):
        list(read_members(tmp_path / "cut.tar.gz"))
    monkeypatch.setattr(extract, "ARCHIVE_LIMIT", 7)
    with pytest.raises(SinklensError, match=r"a.tar.gz holds more than 7 bytes"):
        list(read_members(path))


def test_metadata(tmp_path: Path) -> None:
    members = {"a-1/sub/PKG-INFO": b"wrong", "a-1/PKG-INFO": b"Name: a"}
    assert read_metadata(tar(tmp_path / "a.tar.gz", members)) == "Name: a"
    with pytest.raises(SinklensError, match=r"b.tar.gz holds no metadata; it is no package"):
        read_metadata(tar(tmp_path / "b.tar.gz", {"b/x": b""}))


def test_a_licence_in_a_comment_counts(tmp_path: Path) -> None:
    page = f"..\n  This work is licensed under a Creative Commons Attribution 3.0 Unported License.\n\n{PROSE}\n"
    assert documents(tmp_path, {"a/docs/page.rst": page}) == []
    assert documents(tmp_path, {"a/docs/page.rst": page.replace("Creative Commons", "permissive")})[0].text == PROSE
