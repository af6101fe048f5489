"""What the pages promise: every public name in the reference, code in a language, links without a network."""

import re

import pytest
from doc_blocks import COMMAND, DOCS, ROOT, blocks_of, pages

import sinklens

LANGUAGES = {"python", "bash", "output", "text", "toml", "sql", "json"}
WRITTEN = [page for page in pages() if not page.startswith("results/")]


def test_the_reference_has_every_public_name() -> None:
    named = set(re.findall(r"^::: sinklens\.(\w+)$", (DOCS / "reference" / "api.md").read_text("utf-8"), re.MULTILINE))
    assert named - {"errors"} == set(sinklens.__all__) - {"__version__"}


@pytest.mark.parametrize("page", [page for page in WRITTEN if page.split("/")[0] in {"howto", "explanation"}])
def test_every_block_says_what_it_is(page: str) -> None:
    assert {block.language for block in blocks_of(page)} <= LANGUAGES


@pytest.mark.docs
@pytest.mark.parametrize("page", WRITTEN)
def test_no_command_hides_in_plain_text(page: str) -> None:
    """A block that would run under another name of its language."""
    for block in blocks_of(page):
        assert block.language in LANGUAGES | {""}, block.name
        if not block.language:
            assert not [line for line in block.code.splitlines() if COMMAND.match(line)], block.name


def test_the_glossary_is_sorted() -> None:
    text = (DOCS / "reference" / "glossary.md").read_text("utf-8")
    words = re.findall(r"^\| \*\*(.*?)\*\* \|", text, re.MULTILINE)
    assert len(words) > 30
    assert words == sorted(words)


def test_a_page_of_the_site_requests_nothing() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "font: false" in settings
    assert "polyfills: [assets/iframe-worker.js]" in settings  # else the offline plugin takes one from a network
    for name in ("site.css", "iframe-worker.js"):
        assert "http" not in (DOCS / "assets" / name).read_text("utf-8")
