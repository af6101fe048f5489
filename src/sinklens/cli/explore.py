"""`sinklens explore`: a recorded generation as one HTML file to scrub through."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.numbers import parse_numbers, show_bytes
from sinklens.errors import UsageError


def explore(
    traces: Annotated[
        list[Path], typer.Argument(metavar="DIR [DIR2]", help="A folder that `sinklens trace` wrote; two to compare.")
    ],
    *,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page.", show_default="a new one, runs/explore-N.html")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", metavar="", help="Open it in a browser.")] = False,
    samples: Annotated[
        str | None, typer.Option(metavar="LIST", help="Prompts to show: 3, or 0-2.", show_default="the first")
    ] = None,
    layers: Annotated[str | None, typer.Option(metavar="LIST", help="Only these layers.", show_default="all")] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Heads whose exact numbers are kept, LAYER.HEAD,...; of the others 8 bits.",
            show_default="the strongest moving sink and the 3 strongest",
        ),
    ] = None,
    epsilon: Annotated[
        float,
        typer.Option(metavar="X", help="Tracks begin where a token exceeds the others' mean by so many fair shares."),
    ] = 3.0,
    size: Annotated[
        float, typer.Option(metavar="MB", help="How large the page may be; less is shown, or less exactly, to fit.")
    ] = 12.0,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Write a page that shows a generation step by step: the text, every head, the sinks and how they move.

    One file, which works offline and requests nothing. Needs no model and no torch.
    """
    from sinklens.cli.folders import open_traces
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import print_json, stderr_console
    from sinklens.report.page import fresh_page, write_page
    from sinklens.report.payload import View, estimate_bytes, now

    if not 0 < size < float("inf"):
        raise UsageError(f"--size {size:g}; expected a number of megabytes above 0, e.g. 12")
    view = View(
        samples=parse_numbers("--samples", samples),
        layers=parse_numbers("--layers", layers),
        heads=parse_heads(heads),
        epsilon=epsilon,
        budget=int(size * 1_000_000),
    )
    opened = open_traces(traces)
    path = to or fresh_page()
    console = stderr_console()
    if (estimate := estimate_bytes(opened, view)) > view.budget:
        console.print(
            f"about {show_bytes(estimate)}: the exact heads take more than --size; ask for fewer with --heads"
        )
    display = CountDisplay(console, unit="layer")
    try:
        payload = write_page(
            opened, path, view=view, made=now(), progress=lambda done, total: display.show([], step=done, steps=total)
        )
    finally:
        display.close()
    written = path.stat().st_size
    if json:
        print_json({"page": str(path), "bytes": written, "runs": [_summary(run) for run in payload["runs"]]})
    else:
        for run in payload["runs"]:
            _tell(_summary(run))
        print(f"written to {path} ({show_bytes(written)})")
    if open_page and not _start_browser(path):
        console.print(f"no browser could be started; open {path} yourself")


def parse_heads(text: str | None) -> list[tuple[int, int]] | None:
    """`3.1,5.0` is (3, 1) and (5, 0); None stays None.

    >>> parse_heads("3.1,5.0")
    [(3, 1), (5, 0)]
    """
    if text is None:
        return None
    found = [re.fullmatch(r"\s*(\d+)\.(\d+)\s*", part) for part in text.split(",")]
    if not all(found):
        raise UsageError(f"--heads {text!r} is no list of heads; expected LAYER.HEAD,..., e.g. 3.1,5.0")
    return [(int(match[1]), int(match[2])) for match in found if match]


def _summary(run: dict[str, Any]) -> dict[str, Any]:
    """What of a run is in the page."""
    samples = [
        {
            "sample": one["sample"],
            "steps": one["steps"],
            "tokens": one["keys"],
            "layers": len(one["layers"]),
            "heads": len(one["heads"]),
            "left_out": one["left_out"],
            "exact": [f"{head['layer']}.{head['head']}" for head in one["exact"]],
            "tracks": one["tracks"]["count"],
            "loss": one["loss"],
        }
        for one in run["samples"]
    ]
    return {"name": run["name"], "source": run["source"], "samples": samples}


def _tell(run: dict[str, Any]) -> None:
    from sinklens.cli.output import print_wrapped

    for one in run["samples"]:
        loss = one["loss"]
        print_wrapped(
            f"{run['name']}, sample {one['sample']}: {one['steps']} steps, {one['layers']} layers x {one['heads']} "
            f"heads, {one['tokens']} tokens, {one['tracks']} tracks; exact: {', '.join(one['exact'])}; the others "
            f"within {100 * loss['max_relative']:.2g} % from {loss['relative_from']:.3g} fair shares on, within "
            f"{loss['max_absolute_below']:.2g} below",
            indent=2,
        )
        if any(one["left_out"].values()):
            print(
                f"  left out to fit: {one['left_out']['layers']} layers, {one['left_out']['heads']} heads; "
                "a larger --size or fewer --layers show more"
            )


def _start_browser(path: Path) -> bool:
    import webbrowser

    return webbrowser.open(path.resolve().as_uri())
