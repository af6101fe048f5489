"""The page is one file that can request nothing, runs nothing but the viewer, and holds what a model wrote as text."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from contextlib import suppress
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sinklens
from report.three_models import MappedTrace
from sinklens.errors import SinklensError, UsageError
from sinklens.report.notebook import in_notebook
from sinklens.report.page import fresh_page, page_text, viewer_script, viewer_style, write_page
from sinklens.report.payload import View
from sinklens.sinks.arrays import Canvases, MemoryTrace, from_arrays

HOSTILE = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "<!--<script>", "]]>", "</style>", "&quot;",
    "\u2028", "\u202e", "{policy}", "%s", "\\u003c", '"', "'",
)  # fmt: skip


class Elements(HTMLParser):
    """Every element with its attributes and its text, as a browser would see the file."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.ended = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.ended = False

    def handle_endtag(self, tag: str) -> None:
        self.ended = True

    def handle_data(self, data: str) -> None:
        at = len(self.found) - 1
        if not self.ended:
            self.texts[at] = self.texts.get(at, "") + data

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, self.texts.get(at, "")) for at, (name, attributes) in enumerate(self.found) if name == tag]


def hostile_trace() -> MemoryTrace:
    plain = from_arrays(np.ones((3, 1, 2, len(HOSTILE)), np.float32), viewers=8.0)
    old = plain.canvases(0)
    canvases = Canvases(
        sample=0, prompt_length=2, ids=old.ids, masked=old.masked, committed=old.committed, confidence=old.confidence,
        blocks=old.blocks, tokens=dict(enumerate(HOSTILE)), classes={},
    )  # fmt: skip
    return MemoryTrace(contents=plain.contents, texts={0: canvases}, name="<b onclick=alert(3)>&</b></title>")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pages") / "made on the way" / "page.html"
    write_page([hostile_trace()], path)
    return path.read_text("utf-8")


def policy_of(elements: Elements) -> dict[str, list[str]]:
    (content,) = (
        attributes["content"]
        for attributes, _ in elements.all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert content is not None
    return {name: values for name, *values in (part.split() for part in content.split(";"))}


def test_the_policy_allows_the_viewer_and_nothing_else(page: str) -> None:
    elements = Elements(page)
    policy = policy_of(elements)
    (style,) = elements.all("style")
    data, module = elements.all("script")
    assert policy == {
        "default-src": ["'none'"],
        "script-src": [f"'sha256-{digest(module[1])}'"],
        "style-src": [f"'sha256-{digest(style[1])}'"],
        "img-src": ["data:", "blob:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    assert (data[0]["type"], module[0]) == ("application/json", {"type": "module"})
    assert module[1].startswith(viewer_script())
    assert style[1] == viewer_style()


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_page_names_no_address(page: str) -> None:
    """Nothing to fetch in any attribute; no address in the viewer but the names of XML's name spaces."""
    for _, attributes in Elements(page).found:
        for name in ("src", "href", "action", "poster", "srcset", "data", "style"):
            assert attributes.get(name) in (None, "data:,")
        assert not [name for name in attributes if name.startswith("on")]
    addresses = set(re.findall(r"(?:https?:|wss?:|//)[\w.-]+\.[\w/.-]+", re.sub(r"(?m)^\s*(//|\*).*$", "", page)))
    assert {one for one in addresses if "www.w3.org/" not in one} == set()
    assert "@import" not in page
    assert "url(" not in viewer_style().replace("url(data:", "").replace('url("data:', "")


def test_hostile_text_is_data(page: str) -> None:
    elements = Elements(page)
    (title,) = elements.all("title")
    assert title[1] == "<b onclick=alert(3)>&</b></title> · sinklens"
    assert [tag for tag, _ in elements.found if tag not in {"meta", "link"}] == [
        "html", "head", "title", "style", "body", "div", "p", "noscript", "script", "script",
    ]  # fmt: skip
    payload = json.loads(elements.all("script")[0][1])
    (sample,) = payload["runs"][0]["samples"]
    assert sample["tokens"]["text"] == list(HOSTILE)


def test_the_same_trace_gives_the_same_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_page([hostile_trace()], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_page([hostile_trace()], tmp_path / "c", made="2026-01-02T03:04:05+00:00")
    assert (tmp_path / "c").read_text("utf-8") == page_text(
        write_page([hostile_trace()], tmp_path / "c", made="2026-01-02T03:04:05+00:00")
    )


def test_the_whole_page_fits_the_budget(tmp_path: Path) -> None:
    received = np.random.default_rng(0).lognormal(0, 0.5, (16, 4, 4, 128)).astype(np.float32)
    budget = len(page_text({"runs": []}).encode()) + 60_000
    payload = write_page([from_arrays(received)], tmp_path / "page.html", view=View(budget=budget))
    assert payload["runs"][0]["samples"][0]["scale"]["low"] > 0.1  # coarser than it would have been
    assert budget * 0.8 < (tmp_path / "page.html").stat().st_size <= budget


def test_only_pages_are_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "thesis.html"
    mine.write_text("years of work")
    with pytest.raises(UsageError, match=r"thesis\.html exists and is no page of sinklens; choose another name"):
        write_page([hostile_trace()], mine)
    assert mine.read_text() == "years of work"
    with pytest.raises(UsageError, match=r"is a folder; give a file, such as .*page\.html"):
        write_page([hostile_trace()], tmp_path)


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinklensError, match="cannot write"):
        write_page([hostile_trace()], tmp_path / "file" / "page.html")


def test_fresh_pages_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fresh_page() == Path("runs/explore-1.html")
    write_page([hostile_trace()], fresh_page())
    assert fresh_page() == Path("runs/explore-2.html")


def test_explore_writes_a_page_outside_notebooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traces: list[MappedTrace]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not in_notebook()
    assert sinklens.explore(hostile_trace()) == Path("runs/explore-1.html")
    path = sinklens.explore(traces[0], traces[2], to="both.html", samples=1, layers=[0, 2], heads=[(2, 1)], epsilon=4)
    assert path == Path("both.html")
    payload = json.loads(Elements(path.read_text("utf-8")).all("script")[0][1])
    assert [run["name"] for run in payload["runs"]] == ["llada", "llama"]
    (sample,) = payload["runs"][0]["samples"]
    assert (sample["sample"], sample["layers"], sample["tracks"]["epsilon"]) == (1, [0, 2], 4)
    assert [(one["layer"], one["head"]) for one in sample["exact"]] == [(2, 1)]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00", payload["made"])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process were a kernel."""
    with suppress(ImportError):
        import_module("anywidget")  # reads the real IPython
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.usefixtures("notebook")
def test_a_notebook_without_anywidget_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(SinklensError, match=r"needs anywidget.*'\.\[notebook\]'.*explore\(trace, to='page\.html'\)"):
        sinklens.explore(hostile_trace())
    assert sinklens.explore(hostile_trace(), to=tmp_path / "page.html") == tmp_path / "page.html"


def test_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(config={"TerminalIPythonApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()


def test_exploring_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, sinklens; from sinklens.sinks.arrays import from_arrays\n"
        f"sinklens.explore(from_arrays(numpy.ones((2, 1, 1, 9), 'float32')), to={str(tmp_path / 'page.html')!r})\n"
        "print(sorted({'torch', 'matplotlib', 'transformers', 'IPython'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def widget_module() -> Any:
    return pytest.importorskip("anywidget", reason="needs the extra `notebook`: pip install '.[notebook]'")


@pytest.mark.usefixtures("notebook")
def test_the_widget_holds_viewer_and_payload(traces: list[MappedTrace]) -> None:
    anywidget = widget_module()
    widget = sinklens.explore(traces[0])
    assert isinstance(widget, anywidget.AnyWidget)
    assert str(widget._esm).startswith(viewer_script())
    assert "export default" in str(widget._esm)
    assert str(widget._css) == viewer_style()
    assert json.loads(widget.payload)["runs"][0]["name"] == "llada"
