"""`explore`: the viewer inside a notebook, as an anywidget; elsewhere the page."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sinklens.errors import SinklensError
from sinklens.report.encode import script_json
from sinklens.report.page import fresh_page, viewer_script, viewer_style, write_page
from sinklens.report.payload import BUDGET, View, build_payload, now

RENDER = """
export default {
  render({ model, el }) {
    const view = mount(el, JSON.parse(model.get("payload")), { hash: false });
    return () => view.destroy();
  },
};
"""


def explore(
    trace: Any,
    other: Any = None,
    *,
    to: "str | os.PathLike[str] | None" = None,
    samples: int | Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[tuple[int, int]] | None = None,
    epsilon: Any = 3.0,
    budget: int = BUDGET,
) -> Any:
    """Scrub through a trace, or through two side by side.

    In a notebook: a widget (needs the extra `notebook`). Elsewhere, or with `to`: one HTML file that works offline;
    its path is returned, runs/explore-N.html unless `to` says otherwise.

    trace, other: what `trace` and `open_trace` return, or their folders. samples: the first by default.
    layers: all by default. heads: (layer, head) pairs whose exact numbers are kept, by default the one with
    the strongest sink that moves and three with the strongest; all others have 8 bits; the page opens on the first.
    epsilon: of the tracks. budget: bytes of the page.
    """
    traces = [_opened(one) for one in (trace, other) if one is not None]
    chosen = [samples] if isinstance(samples, int) else samples
    view = View(samples=chosen, layers=layers, heads=heads, epsilon=float(epsilon), budget=budget)
    if to is None and in_notebook():
        return _widget(build_payload(traces, view, made=now()))
    path = fresh_page() if to is None else Path(to)
    write_page(traces, path, view=view, made=now())
    return path


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; a terminal's IPython is none."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def _opened(trace: Any) -> Any:
    if isinstance(trace, str | os.PathLike):
        from sinklens.traces.read import open_trace

        return open_trace(Path(trace))
    return trace


def _widget(payload: dict[str, Any]) -> Any:
    try:
        anywidget, traitlets = import_module("anywidget"), import_module("traitlets")
    except ImportError as error:
        raise SinklensError(
            "the explorer in a notebook needs anywidget, which is not installed; pip install '.[notebook]', or "
            "write a page instead: explore(trace, to='page.html')"
        ) from error
    members = {
        "_esm": viewer_script() + RENDER,
        "_css": viewer_style(),
        "payload": traitlets.Unicode().tag(sync=True),
        "__doc__": "The explorer of one trace, or of two.",
    }
    return type("Explorer", (anywidget.AnyWidget,), members)(payload=script_json(payload))
