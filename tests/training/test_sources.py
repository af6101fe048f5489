"""Sources: the list that ships, its licences, and fetching over the simple API from a server in this process."""

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from sinklens.errors import SinklensError, UsageError
from sinklens.training import sources
from sinklens.training.sources import (
    LICENCES,
    Source,
    check_licence,
    declared_licences,
    default_cache,
    fetch,
    index_url,
    read_sources,
)

CONTENT = b"an archive, as far as fetching is concerned"


def source(**changes: object) -> Source:
    row = {"name": "Some.Pack_age", "version": "1.0", "file": "some-1.0.tar.gz", "licence": "MIT"}
    return Source(**{**row, "sha256": sha256(CONTENT).hexdigest(), **changes})  # type: ignore[arg-type]


class Index:
    """A package index: paths to answers, and a record of what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, bytes]]] = {}
        self.asked: list[str] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                left = index.answers.get(self.path, [(404, b"")])
                status, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple/"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(sources.time, "sleep", lambda seconds: None)
    found = Index()
    page = (
        b'<html><a href="../../files/other-1.0.tar.gz#sha256=00">other</a><a href="../../files/some-1.0.tar.gz">x</a>'
    )
    found.answers["/simple/some-pack-age/"] = [(200, page)]
    found.answers["/files/some-1.0.tar.gz"] = [(200, CONTENT)]
    thread = Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def test_fetch_follows_the_link_and_keeps_the_file(index: Index, tmp_path: Path) -> None:
    path = fetch(source(), tmp_path / "cache", index=index.url)
    assert path.read_bytes() == CONTENT
    assert index.asked == ["/simple/some-pack-age/", "/files/some-1.0.tar.gz"]
    assert fetch(source(), tmp_path / "cache", index=index.url) == path
    assert len(index.asked) == 2  # the second time from the cache
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["some-1.0.tar.gz"]


def test_json_pages_are_read(index: Index, tmp_path: Path) -> None:
    page = {"files": [{"filename": "some-1.0.tar.gz", "url": "/files/some-1.0.tar.gz", "hashes": {}}]}
    index.answers["/simple/some-pack-age/"] = [(200, json.dumps(page).encode())]
    assert fetch(source(), tmp_path, index=index.url).read_bytes() == CONTENT


def test_a_failing_server_is_asked_again(index: Index, tmp_path: Path) -> None:
    index.answers["/files/some-1.0.tar.gz"] = [(503, b""), (503, b""), (200, CONTENT)]
    assert fetch(source(), tmp_path, index=index.url).read_bytes() == CONTENT
    index.answers["/files/other-1.0.tar.gz"] = [(503, b"")]
    with pytest.raises(SinklensError, match=r"could not be read in 4 attempts \(HTTP Error 503.*try again later"):
        fetch(source(file="other-1.0.tar.gz"), tmp_path, index=index.url)
    assert index.asked.count("/files/other-1.0.tar.gz") == 4


def test_what_is_missing_is_named(index: Index, tmp_path: Path) -> None:
    with pytest.raises(SinklensError, match=r"gone-1.0.zip is not on the index page of Some.Pack_age"):
        fetch(source(file="gone-1.0.zip"), tmp_path, index=index.url)
    with pytest.raises(SinklensError, match=r"/simple/nobody/ cannot be had \(404"):
        fetch(source(name="nobody"), tmp_path, index=index.url)
    assert index.asked.count("/simple/nobody/") == 1  # a missing page will not appear by asking again


def test_a_wrong_hash_is_refused_and_not_kept(index: Index, tmp_path: Path) -> None:
    index.answers["/files/some-1.0.tar.gz"] = [(200, b"tampered")]
    with pytest.raises(SinklensError, match=rf"came with SHA-256 {sha256(b'tampered').hexdigest()}, expected"):
        fetch(source(), tmp_path, index=index.url)
    assert not list(tmp_path.iterdir())
    (tmp_path / "some-1.0.tar.gz").write_bytes(b"damaged")
    with pytest.raises(SinklensError, match=r"expected .*; delete it"):
        fetch(source(), tmp_path, index=index.url)


def test_a_file_beyond_the_limit_is_not_kept(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "DOWNLOAD_LIMIT", len(CONTENT) - 1)
    index.answers["/simple/some-pack-age/"] = [(200, b'<a href="/files/some-1.0.tar.gz">')]
    with pytest.raises(SinklensError, match="is larger than 42 bytes"):
        fetch(source(), tmp_path, index=index.url)


def test_index_is_the_one_of_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://example.invalid/simple")
    assert index_url() == "http://example.invalid/simple/"
    monkeypatch.delenv("PIP_INDEX_URL")
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://mirror.invalid/simple/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert index_url() == "http://mirror.invalid/simple/"


def test_default_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "sinklens" / "sources"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "sinklens" / "sources"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"licence": "GPL-3.0-only"}, "licence 'GPL-3.0-only' is not accepted; accepted are .*Apache-2.0.*MIT"),
        ({"take": ("pictures",)}, r"take=\['pictures'\]; expected some of prose, docstring, code"),
        ({"take": ()}, r"take=\[\]"),
        ({"sha256": "abc"}, "expected 64 hexadecimal digits"),
        ({"file": "../evil.zip"}, "expected a plain file name"),
    ],
)
def test_entries_that_cannot_be_meant(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source(**changes)


@pytest.mark.parametrize(
    ("headers", "licence"),
    [
        ("License-Expression: BSD-3-Clause AND MIT", "BSD-3-Clause"),
        ("License-Expression: Apache-2.0 OR BSD-2-Clause", "BSD-2-Clause"),
        ("Classifier: License :: OSI Approved :: BSD License", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved :: Apache Software License\nLicense: see LICENSE", "Apache-2.0"),
        ("Classifier: License :: OSI Approved :: Python Software Foundation License", "PSF-2.0"),
        ("License: MIT License\n        Copyright (c) somebody", "MIT"),
        ("Classifier: License :: OSI Approved\nLicense: ISC", "ISC"),
    ],
)
def test_declared_licences_that_are_accepted(headers: str, licence: str) -> None:
    check_licence(source(licence=licence), f"Name: x\n{headers}\n\nDescription: not GPL")


@pytest.mark.parametrize(
    ("headers", "declared"),
    [
        ("License-Expression: GPL-3.0-or-later", "'GPL-3.0-or-later'"),
        ("License-Expression: MIT AND GPL-2.0-only", "'MIT', 'GPL-2.0-only'"),
        ("License-Expression: Apache-2.0", "'Apache-2.0'"),  # accepted, but not what the list says
        ("Classifier: License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)", "'GNU Lesser"),
        ("License: MIT/GPL", "'MIT/GPL'"),
        ("License: Fancy Source Available 1.0", "'Fancy"),
        ("License: UNKNOWN", "no licence"),
    ],
)
def test_declared_licences_that_are_refused(headers: str, declared: str) -> None:
    with pytest.raises(SinklensError, match=rf"declares {re.escape(declared)}.*the list says 'MIT'; it is not used"):
        check_licence(source(), f"Name: x\n{headers}\n\n")


def test_expression_comes_before_classifiers() -> None:
    text = "License-Expression: (MIT OR Apache-2.0)\nClassifier: License :: OSI Approved :: BSD License\n\n"
    assert declared_licences(text) == ["MIT", "Apache-2.0"]


def test_a_file_that_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[[source]]\nname = 'x'\nwidth = 3\n")
    with pytest.raises(UsageError, match=r"a.toml is no list of sources .*expected \[\[source\]\] tables"):
        read_sources(tmp_path / "a.toml")


def test_the_list_that_ships() -> None:
    found = read_sources()
    assert len(found) > 100
    assert {entry.licence for entry in found} <= LICENCES
    assert len({entry.file for entry in found}) == len(found) == len({entry.name for entry in found})
    assert all(f"{entry.version}." in entry.file or f"{entry.version}-" in entry.file for entry in found)
