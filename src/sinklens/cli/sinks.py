"""`sinklens sinks`: who the sinks of a trace are, how they move, and what explains them."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.numbers import parse_numbers

RESULT, TRACKS = "sinks.json", "tracks.parquet"
WORKERS = 4  # threads at most: more of them wait for each other


def sinks(
    traces: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders that `sinklens trace` wrote.")],
    *,
    metric: Annotated[
        str,
        typer.Option(metavar="NAME", help="What a sink is: epsilon, ratio, gu, mass, sigma or top (docs/metrics.md)."),
    ] = "epsilon",
    value: Annotated[
        float | None,
        typer.Option(metavar="X", help="Its threshold.", show_default="the usual one: 3 for epsilon"),
    ] = None,
    reading: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Attention from which queries: received (all), masked, unmasked; last_row in autoregressive traces.",
        ),
    ] = "received",
    min_viewers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="A key that fewer queries may see is never a sink.", show_default="8; 1 for last_row"
        ),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Any of tokens, profile, tracks, depth, events, explained, mechanism, agreement; or all.",
            show_default="all but mechanism and agreement",
        ),
    ] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="LIST", help="Only these prompts: 0-9,12.", show_default="all")
    ] = None,
    layers: Annotated[str | None, typer.Option(metavar="LIST", help="Only these layers.", show_default="all")] = None,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Rows of the table of tokens.")] = 10,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write sinks.json and tracks.parquet into this folder."),
    ] = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Detect, follow and describe the sinks of a trace.

    Shares come with 95 % intervals over prompts, what moves with its value under the null. Needs no model and no torch.
    """
    from sinklens.cli.folders import open_traces, refuse_trace_folder
    from sinklens.cli.output import prepare_folder, print_json, refuse_used_folder
    from sinklens.files import write_json
    from sinklens.sinks.survey import PARTS, USUAL, Question

    named = {None: USUAL, "all": PARTS}
    chosen = named[parts] if parts in named else tuple(part.strip() for part in str(parts).split(","))
    question = Question(metric=metric, value=value, reading=reading, min_viewers=min_viewers, parts=chosen)
    refuse_used_folder(to, RESULT)
    refuse_trace_folder(to, example="sinks")
    opened = open_traces(traces)
    if to is not None:
        prepare_folder(to)
    picked = {"samples": parse_numbers("--samples", samples), "layers": parse_numbers("--layers", layers)}
    entries, tables = [], []
    for trace in opened:
        entry, table = _describe(trace, question, top=tokens, **picked)
        entries.append(entry)
        if table is not None:
            tables.append(_with_trace(table, str(trace.path)))
    document = {"traces": entries}
    if to is not None:
        if tables:
            _write_tracks(to / TRACKS, tables)
        write_json(to / RESULT, document)
    if json:
        print_json(document)
        return
    from sinklens.cli.sink_tables import print_entry

    for entry in entries:
        print_entry(entry)
    if to is not None:
        print(f"written: {to / RESULT}" + (f", {to / TRACKS}" if tables else ""))


def describe_trace(trace: Any, *, parts: tuple[str, ...], top: int = 10) -> dict[str, Any]:
    """The document of one trace with the usual settings, for programs that print it as this command does."""
    from sinklens.sinks.survey import Question

    return _describe(trace, Question(parts=parts), top=top, samples=None, layers=None)[0]


def _describe(trace: Any, question: Any, *, top: int, samples: Any, layers: Any) -> tuple[dict[str, Any], Any]:
    """The document of one trace, and its tracks."""
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import stderr_console
    from sinklens.sinks.document import document, join_tracks
    from sinklens.sinks.survey import survey

    display = CountDisplay(stderr_console(), unit="layer")

    def show(done: int, total: int) -> None:
        display.show([], step=done, steps=total, label=f"{trace.name}: ")

    try:
        found = survey(
            trace, question, samples=samples, layers=layers, workers=min(WORKERS, os.cpu_count() or 1), progress=show
        )
    finally:
        display.close()
    model = trace.manifest["model"]
    head = {
        "trace": str(trace.path),
        "name": trace.name,
        "complete": trace.complete and len(trace.samples) == trace.manifest["samples"],
        "prompts": trace.manifest["samples"],
        "detail": trace.detail,
        "model": {name: model[name] for name in ("family", "causal", "layers", "heads", "kv_heads")},
    }
    tracked = join_tracks(found)
    return head | document(found, layers=model["layers"], top=top), None if tracked is None else tracked.tracks


def _with_trace(table: Any, path: str) -> Any:
    """The tracks of several traces in one table are told apart by their folder."""
    import pyarrow as pa

    return table.add_column(0, "trace", pa.array([path] * len(table), pa.string()))


def _write_tracks(path: Path, tables: list[Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sinklens.files import written_whole

    with written_whole(path) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary, compression="zstd")
