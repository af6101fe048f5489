"""`sinklens figures`: the paper's figures and its table of tokens, from traces alone."""

from pathlib import Path
from typing import Annotated

import typer

from sinklens.cli import options


def figures(
    traces: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders that `sinklens trace` wrote.")],
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the files go; only earlier figures may be there.",
            show_default="a new one, runs/figures-N",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only these: 1, 3, 4, 5, 6a, 6b, 7, 8, 9, 10, table2.", show_default="all"),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(metavar="N", help="The prompt that figures 1, 4, 6, 7, 8 show.", show_default="the first"),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="Layer of the figures of one head.", show_default="by rule")
    ] = None,
    head: Annotated[int | None, typer.Option(metavar="N", help="Its head.", show_default="by rule")] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="Step of the figures of one head.", show_default="by rule")
    ] = None,
    epsilon: Annotated[
        float, typer.Option(metavar="X", help="A sink exceeds the others' mean by so many fair shares.")
    ] = 3.0,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Draw the paper's figures: PNG and SVG, the numbers behind each as CSV, tables as CSV and LaTeX.

    Several traces share a figure where the paper puts several models into one. What a trace does not hold is left out,
    and said. Needs no model and no torch.
    """
    from sinklens.cli.folders import open_traces, refuse_trace_folder
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import fresh_folder, prepare_folder, print_json, print_wrapped, stderr_console
    from sinklens.locks import refuse_strangers
    from sinklens.report.figures import FILES, draw_figures

    refuse_trace_folder(to, example="figures")
    opened = open_traces(traces)
    folder = to or fresh_folder("figures")
    refuse_strangers(folder, what="figures", own=FILES)  # earlier ones are drawn anew
    prepare_folder(folder)
    display = CountDisplay(stderr_console(), unit="layer")
    try:
        drawn = draw_figures(
            opened,
            folder,
            only=None if only is None else [one.strip() for one in only.split(",")],
            sample=sample,
            layer=layer,
            head=head,
            step=step,
            epsilon=epsilon,
            progress=lambda done, total: display.show([], step=done, steps=total),
        )
    finally:
        display.close()
    if json:
        entries = [
            {"id": one.id, "title": one.title, "files": [str(file) for file in one.files], "note": one.note}
            for one in drawn
        ]
        print_json({"to": str(folder), "figures": entries})
        return
    for one in drawn:
        files = ", ".join(file.name for file in one.files) or "not drawn"
        print_wrapped(f"{one.id:>6}  {one.title}: {files}", indent=8)
        if one.note:
            print_wrapped(f"        {one.note}", indent=8)
    print(f"written to {folder}")
