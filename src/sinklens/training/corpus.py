"""The training text of the embedded models, rebuilt from named packages.

    sources.toml -> fetch -> extract -> paragraphs seen before go -> shares -> order by hash -> train, held out

Every step is a function of the archives alone: the same `sources.toml` gives the same files, byte for byte. A
paragraph counts as seen when its letters were: two interface versions of one text differ in digits only. Which
documents are held out, and the order of all of them, follow from a hash of the text; so neither depends on the order
of the packages, and the documents of one package do not stand together.
"""

import json
import lzma
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal

from sinklens.errors import UsageError
from sinklens.files import written_whole
from sinklens.training.extract import SHORTEST_DOCUMENT, Document, extract_documents, read_metadata
from sinklens.training.sources import Source, check_licence, fetch, index_url
from sinklens.training.workers import worker_pool

SHORTEST_PARAGRAPH = 40  # letters; shorter ones ("Parameters", "import os") may come again
HELD_OUT_EVERY = 100  # one document in so many


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Upper bounds on the part of the corpus, in bytes, that is code or comes from one package."""

    code: float = 0.25
    package: float = 0.06

    def __post_init__(self) -> None:
        for name, share in asdict(self).items():
            if not 0 < share < 1:
                raise UsageError(f"share {name}={share}; expected a number between 0 and 1")


def build(
    sources: Sequence[Source], cache: Path, *, folder: Path, shares: Shares | None = None, processes: int = 1
) -> dict[str, Any]:
    """Fetch, extract, write `train.jsonl.xz`, `held_out.jsonl.xz` and `card.json` into `folder`; return the card."""
    complete = all((cache / source.file).exists() for source in sources)
    index = None if complete else index_url()
    archives = [fetch(source, cache, index=index) for source in sources]
    documents = arrange(without_repeats(_extract_all(sources, archives, processes)), shares=shares or Shares())
    folder.mkdir(parents=True, exist_ok=True)
    held_out = [is_held_out(document.text) for document in documents]
    for name, wanted in (("train", False), ("held_out", True)):
        chosen = (document for document, out in zip(documents, held_out, strict=True) if out is wanted)
        write_documents(folder / f"{name}.jsonl.xz", chosen)
    card = describe(documents, sources)
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    return card


def without_repeats(documents: Iterable[Document]) -> Iterator[Document]:
    """Each document without the paragraphs that stood in an earlier one; too little left, and it goes."""
    seen: set[bytes] = set()
    for document in documents:
        kept, fresh = [], 0
        for paragraph in document.text.split("\n\n"):
            letters = "".join(filter(str.isalpha, paragraph)).lower()
            mark = blake2b(letters.encode(), digest_size=12).digest()
            if mark not in seen:
                seen.add(mark)
                fresh += len(paragraph)
            elif len(letters) >= SHORTEST_PARAGRAPH:
                continue
            kept.append(paragraph)
        if fresh >= SHORTEST_DOCUMENT:
            yield replace(document, text="\n\n".join(kept).strip("\n"))


def arrange(documents: Iterable[Document], *, shares: Shares) -> list[Document]:
    """All documents in the order of their hashes; what exceeds a share is cut from the end of that order."""
    ordered = sorted(documents, key=lambda document: (_digest("order", document.text), document.source, document.path))
    while True:  # each cut shrinks the whole of which the other is a share
        before = len(ordered)
        ordered = _cut(ordered, shares.code, key=lambda document: document.kind, capped={"code"})
        ordered = _cut(ordered, shares.package, key=lambda document: document.source, capped=None)
        if len(ordered) == before:
            return ordered


def is_held_out(text: str) -> bool:
    """Whether a document belongs to the held-out part: a property of its text alone."""
    return int.from_bytes(_digest("split", text)[:8], "big") % HELD_OUT_EVERY == 0


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """One JSON object a line: text, kind, source, path; compressed where the name ends in .xz."""
    with (
        written_whole(path) as temporary,
        _open(temporary, "w", compressed=path.suffix == ".xz") as stream,
    ):
        for document in documents:
            stream.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")


def read_documents(path: Path) -> Iterator[Document]:
    """What `write_documents` wrote, in its order."""
    with _open(path, "r", compressed=path.suffix == ".xz") as stream:
        for line in stream:
            yield Document(**json.loads(line))


def describe(documents: Sequence[Document], sources: Sequence[Source]) -> dict[str, Any]:
    """The data card: bytes and documents in all, per part, kind, licence and package."""
    licences = {source.name: source.licence for source in sources}
    versions = {source.name: source.version for source in sources}
    sizes = [len(document.text.encode()) for document in documents]

    def table(key: Callable[[Document], str]) -> dict[str, dict[str, int]]:
        rows: defaultdict[str, dict[str, int]] = defaultdict(lambda: {"bytes": 0, "documents": 0})
        for document, size in zip(documents, sizes, strict=True):
            rows[key(document)]["bytes"] += size
            rows[key(document)]["documents"] += 1
        return dict(sorted(rows.items(), key=lambda row: (-row[1]["bytes"], row[0])))

    return {
        "bytes": sum(sizes),
        "documents": len(documents),
        "parts": table(lambda document: "held_out" if is_held_out(document.text) else "train"),
        "kinds": table(lambda document: document.kind),
        "licences": table(lambda document: licences[document.source]),
        "packages": {
            name: {"version": versions[name], "licence": licences[name], **row}
            for name, row in table(lambda document: document.source).items()
        },
    }


def _extract_all(sources: Sequence[Source], archives: Sequence[Path], processes: int) -> Iterator[Document]:
    """The documents of all archives in the order of `sources`, whichever process read them."""
    if processes == 1:
        for source, archive in zip(sources, archives, strict=True):
            yield from _extract_one(source, archive)
        return
    with worker_pool(processes) as pool:
        for documents in pool.map(_extract_one, sources, archives):
            yield from documents


def _extract_one(source: Source, archive: Path) -> list[Document]:
    check_licence(source, read_metadata(archive))
    return list(extract_documents(archive, source=source.name, take=source.take))


def _cut(
    documents: list[Document], share: float, *, key: Callable[[Document], str], capped: set[str] | None
) -> list[Document]:
    """Cut groups back to `share` of what remains. Cutting one group shrinks the whole: repeat until all fit."""
    sizes = [len(document.text.encode()) for document in documents]
    keys = [key(document) for document in documents]
    totals: Counter[str] = Counter()
    for name, size in zip(keys, sizes, strict=True):
        totals[name] += size
    large: set[str] = set()
    while True:
        rest = sum(size for name, size in totals.items() if name not in large)
        if totals and not rest:  # all are at their bound, and the bounds do not add up to the whole
            raise UsageError(
                f"{len(large)} groups of at most {share} make no whole; give a larger share or more packages"
            )
        limit = share * rest / (1 - len(large) * share)
        found = {name for name, size in totals.items() if size > limit and (capped is None or name in capped)}
        if found <= large:
            break
        large |= found
    used: Counter[str] = Counter()
    kept = []
    for document, name, size in zip(documents, keys, sizes, strict=True):
        if name in large and used[name] + size > limit:
            continue
        used[name] += size
        kept.append(document)
    return kept


def _digest(purpose: str, text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16, person=purpose.encode()).digest()


def _open(path: Path, mode: Literal["r", "w"], *, compressed: bool) -> TextIOWrapper:
    if not compressed:
        return open(path, mode, encoding="utf-8", newline="\n")
    if mode == "r":
        return lzma.open(path, "rt", encoding="utf-8", newline="\n")
    return lzma.open(path, "wt", encoding="utf-8", newline="\n", preset=3)
