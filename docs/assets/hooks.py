"""What the site takes from outside docs: pages at the root of the repository, and the examples."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "LOG.md": "log.md"}
OUTSIDE = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<target>(?:[A-Z]+\.md|examples/[\w.-]+))(?P<anchor>#[\w-]+)?\)")


def on_config(config: Any) -> Any:
    """Pages that the navigation does not name: results among the results, others at the end of the reference."""
    text = repr(config.nav)
    sections = {name: pages for section in config.nav for name, pages in section.items()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.relative_to(ROOT / "docs").as_posix()
        if f"'{page}'" not in text:
            sections["Results" if page.startswith("results/") else "Reference"].append(page)
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for example in sorted((ROOT / "examples").glob("*.*")):
        if example.is_file():
            files.append(File.generated(config, f"examples/{example.name}", abs_src_path=str(example)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that leave docs/ end where the hook has put the file; other links out of it stay, and are warned of."""
    depth = page.file.src_uri.count("/")

    def inside(link: re.Match[str]) -> str:
        if link["up"].count("../") != depth + 1:
            return link[0]
        target = PAGES.get(link["target"], link["target"])
        return f"]({'../' * depth}{target}{link['anchor'] or ''})"

    return OUTSIDE.sub(inside, markdown)
