"""English text from the pages of a named package."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

from sinklens.errors import SinklensError, UsageError
from sinklens.training import english
from sinklens.training.sources import Source, read_sources

METADATA = "Metadata-Version: 2.4\nName: words\nVersion: 1.0\nLicense-Expression: MIT\n"
PAGE = "This is a page that tells the reader of the package what to do and how it is done, {}.\n\n"


def package(path: Path, metadata: str = METADATA) -> None:
    long = "".join(PAGE.format(number) for number in range(80))
    files = {
        "words-1.0/PKG-INFO": metadata,
        "words-1.0/docs/b.txt": f"Second\n\n{long}",
        "words-1.0/docs/a.rst": f"First\n\n{long}",
        "words-1.0/docs/short.txt": "Too short\n\n" + PAGE.format(0) * 5,
        "words-1.0/words.py": f'"""{long}"""\n',
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def source() -> Source:
    return Source(name="words", version="1.0", file="words-1.0.tar.gz", sha256="0" * 64, licence="MIT")


def test_long_pages_in_the_order_of_their_paths(tmp_path: Path, source: Source) -> None:
    package(tmp_path / source.file)
    pages = english.read_pages(source, tmp_path / source.file)
    assert [page.split("\n")[0] for page in pages] == ["First", "Second"]
    assert all(len(page) >= english.SHORTEST_PAGE for page in pages)
    package(tmp_path / source.file, METADATA.replace("MIT", "GPL-3.0-only"))
    with pytest.raises(SinklensError, match=r"declares 'GPL-3\.0-only', the list says 'MIT'; it is not used"):
        english.read_pages(source, tmp_path / source.file)


def test_the_command_writes_pages_with_breaks_between(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package(tmp_path / source.file)
    monkeypatch.setattr(english, "find_source", lambda _: source)
    monkeypatch.setattr(english, "fetch", lambda wanted, cache: cache / wanted.file)
    to = tmp_path / "out" / "text.txt"
    monkeypatch.setattr(sys, "argv", ["english", "words", "--to", str(to), "--cache", str(tmp_path)])
    english.main()
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{to}\n", "words-1.0.tar.gz: 2 pages, MIT\n")
    assert to.read_text(encoding="utf-8").split("\f") == english.read_pages(source, tmp_path / source.file)


def test_only_listed_packages() -> None:
    assert english.find_source("django") in read_sources()
    with pytest.raises(UsageError, match="package 'flying' is none whose pages may be taken; expected one of accel"):
        english.find_source("flying")
