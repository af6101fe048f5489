"""English text to measure a language model on: the pages of one package's documentation.

    python -m sinklens.training.english django --to FILE

The package is one of sources.toml, so the file has the same bytes everywhere. Pages stand in the order of their paths,
with a form feed between two of them: whoever cuts the text into chunks can tell where another page begins.
"""

import argparse
import sys
from pathlib import Path

from sinklens.errors import UsageError
from sinklens.training.extract import extract_documents, read_metadata
from sinklens.training.sources import Source, check_licence, default_cache, fetch, read_sources

PAGE_BREAK = "\f"
SHORTEST_PAGE = 4000  # characters: about a thousand tokens


def find_source(package: str) -> Source:
    """The package of sources.toml that has this name."""
    sources = {source.name: source for source in read_sources() if "prose" in source.take}
    if package not in sources:
        raise UsageError(f"package {package!r} is none whose pages may be taken; expected one of {', '.join(sources)}")
    return sources[package]


def read_pages(source: Source, archive: Path) -> list[str]:
    """The pages of a package that are long enough, in the order of their paths."""
    check_licence(source, read_metadata(archive))
    pages = sorted(extract_documents(archive, source=source.name, take=("prose",)), key=lambda page: page.path)
    return [page.text for page in pages if len(page.text) >= SHORTEST_PAGE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", help="one of sources.toml, such as django")
    parser.add_argument("--to", type=Path, required=True, help="the text file to write")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder for the downloaded package")
    chosen = parser.parse_args()
    source = find_source(chosen.package)
    pages = read_pages(source, fetch(source, chosen.cache))
    chosen.to.parent.mkdir(parents=True, exist_ok=True)
    chosen.to.write_text(PAGE_BREAK.join(pages), encoding="utf-8")
    print(f"{source.file}: {len(pages)} pages, {source.licence}", file=sys.stderr)
    print(chosen.to)


if __name__ == "__main__":
    main()
