"""What a demo does before it masks anything: answers, traces, what the traces say, figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sinklens
from sinklens.cli.batches import generate_document
from sinklens.cli.demo_folder import FIGURES, PAGE, SINKS, TRACES
from sinklens.cli.demo_workers import problems
from sinklens.cli.live import CountDisplay
from sinklens.cli.output import stderr_console
from sinklens.cli.sinks import describe_trace
from sinklens.evaluation.answering import graded
from sinklens.files import write_json
from sinklens.models.load import Loaded
from sinklens.report.figures import draw_figures
from sinklens.report.page import write_page
from sinklens.sampling.prompt_list import Prompt
from sinklens.sinks.tokens import display
from sinklens.tasks.item import Item
from sinklens.tasks.sandbox import SandboxError
from sinklens.traces.read import Trace
from sinklens.training.measure import answering

DRAWN = ("1", "3", "5", "7", "10", "table2")  # those that need no maps
TOP = 3  # tokens named in the summary


def answer(models: dict[str, Loaded], item: Item, *, length: int, steps: int) -> Iterator[dict[str, Any]]:
    """Each model answers a problem, watched on a terminal."""
    for model_name, model in models.items():
        sampler = answering(model, length=length, steps=steps)
        made = generate_document(model, [Prompt(text=item.prompt)], sampler, chat=False, batch=1, seed=None, live=True)
        if made["interrupted"]:
            raise KeyboardInterrupt
        text = made["results"][0]["text"]
        right, why = _grade(item, text)
        yield {
            "task": item.task,
            "problem": item.index,
            "model": model_name,
            "prompt": item.prompt,
            "text": text,
            "right": right,
            "not_graded": why,
        }


def _grade(item: Item, text: str) -> tuple[bool | None, str | None]:
    """Generated programs run in a sandbox; where there is none, the answer is shown and not graded."""
    try:
        return graded(item.task, [item], [text])[0], None
    except SandboxError as error:
        return None, str(error)


def trace_models(models: dict[str, Loaded], to: Path, *, count: int, length: int, steps: int) -> list[Trace]:
    """Every model on the same word problems, into a folder of its own."""
    prompts = [item.prompt for item in problems("word_problems", count)]
    made = []
    for name, model in models.items():
        display = CountDisplay(stderr_console())

        def show(number: int, samples: int, step: int, name: str = name, display: CountDisplay = display) -> None:
            display.show([], step=step, steps=max(step, steps), label=f"tracing {name} [{number + 1}/{samples}] ")

        sampler = answering(model, length=length, steps=steps)
        try:
            made.append(sinklens.trace(model, prompts, sampler, to=to / TRACES / name, name=name, progress=show))
        finally:
            display.close()
    return made


def summarise(traces: Sequence[Trace], to: Path) -> list[dict[str, Any]]:
    """One row a trace; the whole analysis goes into a file."""
    entries = [describe_trace(trace, parts=("tracks", "tokens")) for trace in traces]
    write_json(to / SINKS, {"traces": entries})
    return [_row(entry) for entry in entries]


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    seen, tracks = entry["overview"], entry["tracks"]
    heads = sum(seen["stored_steps"]) * len(seen["layers"]) * seen["heads"]
    moving = tracks["shares"]["moving"]
    followed = [layer for layer in tracks["depth"]["layers"] if layer["chains"]]
    chains = sum(layer["chains"] for layer in followed)
    drift = sum(layer["velocity"] * layer["chains"] for layer in followed) / chains if chains else None
    return {
        "model": entry["name"],
        "trace": entry["trace"],
        "causal": entry["model"]["causal"],
        "prompts": seen["samples"],
        "steps": sum(seen["stored_steps"]) / seen["samples"],
        "sinks_per_head_and_step": seen["sinks"] / heads,
        "sink_share": seen["sink_share"]["value"],
        "absorbed": seen["absorbed"]["value"],
        "tracks": tracks["tracks"],
        "moving": moving["value"],
        "moving_null": moving["null"],
        "median_lifetime": tracks["lifetimes"]["tracks"]["median"],
        "drift": drift,  # tokens a step, of the tracks that move; above 0: to the right
        "drifting_tracks": chains,
        "top_tokens": [
            {"token": display(row["name"]), "class": row["token_class"], "share": row["share"]}
            for row in entry["tokens"]["tokens"][:TOP]
            if row["sinks"]
        ],
    }


def draw(traces: Sequence[Trace], to: Path) -> list[dict[str, Any]]:
    shown = CountDisplay(stderr_console(), unit="layer")
    try:
        drawn = draw_figures(
            traces,
            to / FIGURES,
            only=DRAWN,
            progress=lambda done, total: shown.show([], step=done, steps=total, label="figures: "),
        )
    finally:
        shown.close()
    return [
        {"id": one.id, "title": one.title, "files": [str(file) for file in one.files], "note": one.note}
        for one in drawn
    ]


def make_page(traces: Sequence[Trace], to: Path) -> None:
    """The first problem in the explorer: the first model, which is autoregressive, beside the last, which is not."""
    write_page([*traces[:1], *traces[1:][-1:]], to / PAGE)
