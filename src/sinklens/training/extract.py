"""From a source package to documents: pages, docstrings and code, cleaned.

Members are read from the archive in memory, under size limits; nothing is unpacked to disk and nothing is run: Python
files are parsed with `ast`, never imported. What remains of a page is the text a person wrote: no directives, link
targets, tables of numbers, encoded data, lists of merged changes. Code and the docstrings in it become two documents.
"""

import ast
import gzip
import html
import io
import json
import re
import tarfile
import unicodedata
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path

from sinklens.errors import SinklensError
from sinklens.training.markup import clean_page, english_share

MEMBER_LIMIT = 4 << 20  # bytes of one member; larger ones are data
ARCHIVE_LIMIT = 4 << 30  # bytes of all members read from one archive
SHORTEST_DOCUMENT = 200  # characters
SHORTEST_DOCSTRING = 60
ENGLISH_SHARE = 0.1  # of the words of a page, at least so many are common English ones
ASCII_SHARE = 0.9

# Code of others carries other licences; fixtures and translations are not what the package's authors wrote in English.
_SKIPPED_FOLDER = re.compile(
    r"(^|/)([^/]*vendor[^/]*|third[_-]?party|_?extern(al|als)?|subprojects|submodules|node_modules|site-packages|"
    r"highway|licen[sc]es?|locales?|i18n|translations?|test_?data|fixtures|baseline_images|data_files|\.[^/]*)/"
    r"|(_|/|\.)v\d+(p\d+)?(alpha|beta)\d*(/|_)|/docs?/[a-z]{2}(_[A-Z]{2})?/(?<!/en/)",
)
_SKIPPED_NAME = re.compile(
    r"(^|/)(licen[sc]e|copying|notice|authors|contributors|credits|thanks|sources|requirements|entry_points|top_level|"
    r"manifest|cmakelists|constraints|record|installed-files|dependency_links|maintainers|robots|humans)[^/]*$",
    re.IGNORECASE,
)
_TESTS = re.compile(r"(^|/)(tests?|testing|[\w-]*_tests?|conftest\.py|test_[^/]*|[^/]*_test\.py)(/|$)", re.IGNORECASE)
_OTHER_LICENCE = re.compile(
    r"gnu\s+(?:(?:lesser|affero|library|free)\s+)?(?:general\s+public|documentation)|\b[al]?gpl|"
    r"creative\s+commons|\bcc[ -]by|mozilla\s+public"
)
_OTHER_LICENCE_HINTS = (
    "gnu",
    "gpl",
    "creative",
    "cc by",
    "cc-by",
    "mozilla",
)  # plain searches, far faster than the pattern
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff\ufffd]")
_TAG = re.compile(r"<[^<>]{1,300}>")
_PARAGRAPH_END = re.compile(r"</(?:p|li|ul|ol|note|important|dt|dd|h\d)>")
_COMMENT_BLOCK = re.compile(r"(?:^[ \t]*#(?!!)[^\n]*\n){4,}", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text of the corpus."""

    text: str
    kind: str  # prose, docstring or code
    source: str  # name of the package
    path: str  # member of its archive


def read_members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path inside the archive and content of every plain file of at most MEMBER_LIMIT bytes, in archive order."""
    left = ARCHIVE_LIMIT
    try:
        for path, content in _read_zip(archive) if zipfile.is_zipfile(archive) else _read_tar(archive):
            left -= len(content)
            if left < 0:
                raise SinklensError(f"{archive.name} holds more than {ARCHIVE_LIMIT} bytes; it is not read further")
            yield path, content
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise SinklensError(
            f"{archive.name} cannot be read as an archive ({error}); delete it and fetch again"
        ) from error


def read_metadata(archive: Path) -> str:
    """The metadata that the package's authors declared: PKG-INFO of a source package, METADATA of a wheel."""
    for path, content in read_members(archive):
        if re.fullmatch(r"[^/]+/PKG-INFO|[^/]+\.dist-info/METADATA", path):
            return content.decode("utf-8", "replace")
    raise SinklensError(f"{archive.name} holds no metadata; it is no package")


def extract_documents(archive: Path, *, source: str, take: tuple[str, ...]) -> Iterator[Document]:
    """The documents of an archive of package `source`, of the kinds in `take`, in archive order."""
    for path, content in read_members(archive):
        if _SKIPPED_FOLDER.search(path) or _SKIPPED_NAME.search(path):
            continue
        for kind, text in _texts(path, content, take):
            cleaned = normalise(text)
            if is_wanted(cleaned, kind):
                yield Document(text=cleaned, kind=kind, source=source, path=path)


def normalise(text: str) -> str:
    """NFC; no control or invisible characters; no space at line ends; at most one empty line in a row."""
    text = _CONTROL.sub("", unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n")))
    text = re.sub(r"[ \t\xa0]+$", "", text.expandtabs(4), flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def is_wanted(text: str, kind: str) -> bool:
    """Long enough, mostly ASCII, under no other licence, and (unless code) English."""
    if len(text) < SHORTEST_DOCUMENT or len(text.encode("ascii", "ignore")) < ASCII_SHARE * len(text):
        return False
    if names_other_licence(text):
        return False
    return kind == "code" or english_share(text) >= ENGLISH_SHARE


def names_other_licence(text: str) -> bool:
    """Whether a text mentions a licence that does not belong here: it may be under it.

    >>> names_other_licence("Released under the GNU General Public License"), names_other_licence("MIT")
    (True, False)
    """
    lower = text.lower()
    return any(hint in lower for hint in _OTHER_LICENCE_HINTS) and _OTHER_LICENCE.search(lower) is not None


def _texts(path: str, content: bytes, take: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Kind and raw text of what one member holds."""
    suffix = path.rpartition(".")[2].lower()
    if path.endswith(("/service-2.json", "/service-2.json.gz")):
        if "prose" in take:
            yield from (("prose", text) for text in _service_descriptions(content))
        return
    if suffix not in ("py", "rst", "md", "txt", "ipynb", "yaml", "yml") or (suffix == "py" and _TESTS.search(path)):
        return
    text = content.decode("utf-8", "replace")
    # asked of the whole file: the statement may stand in a comment, which is cleaned away
    if names_other_licence(text):
        return
    if suffix == "py":
        yield from ((kind, part) for kind, part in _split_python(text) if kind in take)
    elif "prose" not in take:
        return
    elif suffix == "ipynb":
        yield "prose", clean_page(normalise(_notebook_pages(content)), markdown=True)
    elif suffix in ("rst", "md", "txt"):
        yield "prose", clean_page(normalise(text), markdown=suffix == "md")
    elif "/releasenotes/notes/" in path:
        yield "prose", clean_page(_release_note(normalise(text)), markdown=False)


def _split_python(source: str) -> Iterator[tuple[str, str]]:
    """The docstrings and long comments of a module as one text, and the module without them as another."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the code of others
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = source.splitlines(keepends=True)
    strings = []
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                strings.append((first.lineno, cleandoc(first.value.value)))
                end = first.end_lineno or first.lineno
                lines[first.lineno - 1 : end] = [""] * (end - first.lineno + 1)
    code = "".join(lines)
    comments = [re.sub(r"^[ \t]*#+ ?", "", block, flags=re.MULTILINE) for block in _COMMENT_BLOCK.findall(code)]
    pages = [text for _, text in sorted(strings)] + [text for text in comments if _is_explanation(text)]
    cleaned = (clean_page(normalise(page), markdown=False) for page in pages)
    yield "docstring", "\n\n".join(page for page in cleaned if len(page) >= SHORTEST_DOCSTRING)
    yield "code", _COMMENT_BLOCK.sub("", code)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A module and the statements in it at any depth; expressions, the bulk of a tree, hold no docstrings."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _statements(child)


def _is_explanation(comment: str) -> bool:
    """A comment in sentences, neither commented-out code nor a licence."""
    return english_share(comment) > 2 * ENGLISH_SHARE and not re.search(r"licen[sc]e|copyright", comment, re.IGNORECASE)


def _release_note(text: str) -> str:
    """The sentences of a release note in YAML: keys and list marks go, the block texts stay."""
    text = re.sub(r"^[a-z_]+:[ |>-]*$|^---$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *- *[|>]?[+-]?[ \n]", "\n", text, flags=re.MULTILINE)
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


def _notebook_pages(content: bytes) -> str:
    """The text cells of a notebook."""
    try:
        cells = json.loads(content)["cells"]
        return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    except (ValueError, KeyError, TypeError):
        return ""


def _service_descriptions(content: bytes) -> Iterator[str]:
    """The `documentation` strings of a service description, without HTML, about a page of them to a document."""
    if content[:2] == b"\x1f\x8b":
        with gzip.open(io.BytesIO(content)) as stream:
            content = stream.read(8 * MEMBER_LIMIT)
    try:
        found = _find_documentation(json.loads(content))
    except ValueError:
        return
    page: list[str] = []
    for text in found:
        plain = html.unescape(_TAG.sub("", _PARAGRAPH_END.sub("\n\n", text)))
        page.append(re.sub(r"[ \t]+", " ", plain).strip())
        if sum(map(len, page)) > 4000:
            yield "\n\n".join(page)
            page = []
    yield "\n\n".join(page)


def _find_documentation(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        text = node.get("documentation")
        if isinstance(text, str) and len(text) >= SHORTEST_DOCSTRING:
            yield text
        for value in node.values():
            yield from _find_documentation(value)
    elif isinstance(node, list):
        for value in node:
            yield from _find_documentation(value)


def _read_zip(archive: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            if not entry.is_dir() and entry.file_size <= MEMBER_LIMIT:
                with opened.open(
                    entry
                ) as stream:  # the size in the table of contents may lie: read no more than it says
                    yield entry.filename, stream.read(MEMBER_LIMIT)


def _read_tar(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive, "r|*") as opened:
        for entry in opened:
            stream = opened.extractfile(entry) if entry.isreg() and entry.size <= MEMBER_LIMIT else None
            if stream is not None:
                yield entry.name, stream.read(MEMBER_LIMIT)
