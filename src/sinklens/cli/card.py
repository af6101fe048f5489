"""`sinklens card`: one page on the sinks of one model, fit to be cited."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.evaluate import length_of, settle_block
from sinklens.cli.folders import check_folder
from sinklens.cli.interrupts import interrupts_end
from sinklens.cli.loading import load_model
from sinklens.cli.numbers import parse_numbers
from sinklens.errors import UsageError
from sinklens.report.card_plan import PLAN, CardPlan, TextPlan, refuse_other

TASK = "word_problems"
TRIED = 16  # problems, of a task that nobody asked for
TRACED = 16  # prompts
CONTEXT = 64  # tokens of a chunk of text that a trace begins with
WORKERS = 4  # threads at most: more of them wait for each other


def card(
    model: options.Model,
    *,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="What it is asked to do.", show_default=TASK)] = None,
    problems: Annotated[int, typer.Option(min=1, metavar="N", help="Problems, or chunks of text.")] = 64,
    split: Annotated[str, typer.Option(metavar="NAME", help="Which problems of the task.")] = "test",
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="The file of a published task.")] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="In place of a task, for a model that does none: how well it predicts this text (nll; elbo for a "
            "diffusion model).",
        ),
    ] = None,
    chunk: Annotated[int, typer.Option(min=4, metavar="N", help="Tokens of a chunk of text; half is context.")] = 256,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What is traced, one prompt a line; .jsonl as for `trace`.",
            show_default="the first problems, or beginnings of chunks",
        ),
    ] = None,
    traced: Annotated[int, typer.Option(min=1, metavar="N", help="How many prompts are traced.")] = TRACED,
    top: Annotated[str, typer.Option(metavar="LIST", help="Keys removed from every head.")] = "1,5,10",
    draws: Annotated[int, typer.Option(min=1, metavar="N", help="Draws of the random keys.")] = 5,
    elbo_draws: Annotated[
        int, typer.Option(min=1, metavar="N", help="Random masks of a chunk of text, for a diffusion model.")
    ] = 128,
    length: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Tokens of an answer.", show_default="64; 256 for gsm8k, 512 for humaneval"
        ),
    ] = None,
    steps: options.Steps = None,
    block: options.Block = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Problems at a time.")] = 32,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random keys and of the trace.")] = 0,
    graph: options.Graph = False,
    unsafe: options.Unsafe = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it goes.", show_default="a new one, runs/card-NAME-N")
    ] = None,
    resume: options.Resume = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Write the card of a model: where its sinks are, how they move, what they do, and what removing them costs.

    A page (card.md, card.html, card.png), a LaTeX table (card.tex) and Parquet tables (docs/cards.md). The same command
    goes on where an earlier one was interrupted; --problems may grow.
    """
    check_folder(to, "card", resume=resume)
    tops = sorted(set(parse_numbers("--top", top) or []))
    if not tops or tops[0] < 1:
        raise UsageError(f"--top {top!r} has a number of keys below 1; expected e.g. 1,5,10")
    if text is not None and data is not None:
        raise UsageError("--text and --data are two ways to measure; give one of them")
    from sinklens.evaluation.answering import Answering
    from sinklens.evaluation.card import cut_text, name_of

    answering = Answering(
        task=task or TASK, split=split, data=None if data is None else str(data), steps=steps, batch=batch, seed=seed,
        length=length_of(task or TASK, length), block=block, graph=graph, unsafe=unsafe,
    )  # fmt: skip
    loaded = load_model(model, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
    answering = settle_block(answering, loaded)
    name, chunks = name_of(loaded), None if text is None else cut_text(loaded, text, count=problems, length=chunk)
    tracing = _tracing(loaded, answering, _prompts(answering, chunks, file=prompts, count=traced))
    plan = CardPlan(
        model=name, trace=tracing.manifest()["fingerprint"], answering=answering,
        text=None if text is None else _text_plan(loaded, text, chunks, draws=elbo_draws), units=problems,
        prompts=len(tracing.prompts), prompts_file=None if prompts is None else Path(prompts).name, tops=tops,
        draws=draws,
    )  # fmt: skip
    folder = to or _fresh(name)
    if task is None and text is None and not (folder / PLAN).exists():
        _refuse_without_skill(loaded, answering, name=name, count=min(TRIED, problems))
    work = _Work(model=loaded, plan=plan, chunks=chunks, elbo_draws=elbo_draws, tracing=tracing, folder=folder)
    document = work.do()
    _print(document, work.folder, as_json=json)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Work:
    """One card, part after part; what is in its folder is not done again."""

    model: Any
    plan: CardPlan
    chunks: Any  # evaluation.card.Chunks; None: problems are answered
    elbo_draws: int  # masks of a chunk, for a diffusion model
    tracing: Any  # recording.plan.Plan
    folder: Path

    def do(self) -> dict[str, Any]:
        """Trace, remove, write."""
        from sinklens.cli.output import prepare_folder
        from sinklens.files import write_json

        refuse_other(self.folder, self.plan)
        prepare_folder(self.folder)
        write_json(self.folder / PLAN, self.plan.document())
        there = f"interrupted: what is finished is in {self.folder}"
        told = f"{there}; the same command with --to {quote(str(self.folder))} goes on"
        with interrupts_end(lambda: told):
            self._trace()
            self._remove()
            return self._write()

    def _trace(self) -> None:
        from sinklens.report.card import TRACE
        from sinklens.run import run_plan
        from sinklens.traces.manifest import MANIFEST

        folder, steps = self.folder / TRACE, self.tracing.steps
        with _display("step") as show:

            def tell(number: int, samples: int, step: int) -> None:
                show(step, max(step, steps), f"tracing [{number + 1}/{samples}] ")

            run_plan(self.tracing, to=folder, resume=(folder / MANIFEST).exists(), progress=tell)

    def _remove(self) -> None:
        from sinklens.evaluation.card import answer_cells, card_conditions, score_cells
        from sinklens.report.card import REMOVAL

        folder, answering = self.folder / REMOVAL, self.plan.answering
        conditions = card_conditions(tops=self.plan.tops, draws=self.plan.draws)
        with _display("batch" if self.chunks is None else "cell") as show:

            def tell(done: int, total: int, doing: str, left: float | None) -> None:
                rest = "" if left is None else f", {_duration(left)} left"
                show(done, total, f"removing ({doing}{rest}) ")

            if self.chunks is None:
                answer_cells(
                    self.model, folder, answering=answering, conditions=conditions, count=self.plan.units, tell=tell
                )
            else:
                score_cells(
                    self.model, folder, chunks=self.chunks, conditions=conditions, seed=answering.seed,
                    elbo_draws=self.elbo_draws, tell=tell,
                )  # fmt: skip

    def _write(self) -> dict[str, Any]:
        from sinklens.report.card import write_card

        with _display("layer") as show:
            return write_card(
                self.folder,
                workers=min(WORKERS, os.cpu_count() or 1),
                progress=lambda done, total: show(done, total, "counting "),
            )


def _refuse_without_skill(model: Any, answering: Any, *, name: str, count: int) -> None:
    """Before hours of work: a model that solves nothing untouched cannot show what removing its sinks costs."""
    from sinklens.cli.output import note
    from sinklens.evaluation.answering import UNMASKED, answer_problems, problems

    note(f"trying {count} problems of {answering.task}")
    rows = answer_problems(model, problems(answering, count), UNMASKED, answering)
    if not any(row["right"] for row in rows):
        raise UsageError(
            f"{name} solves none of the first {len(rows)} problems of {answering.task}, so that what removing sinks "
            f"costs cannot be seen there; give --text FILE to measure how well it predicts a text, another --task, or "
            f"--task {answering.task} for a card all the same"
        )


def _text_plan(model: Any, text: Path, chunks: Any, *, draws: int) -> TextPlan:
    masks = None if model.spec.causal else draws
    return TextPlan(name=text.name, sha256=chunks.sha256, chunk=len(chunks.ids[0]), first=chunks.first, draws=masks)


def _tracing(model: Any, answering: Any, prompts: list[Any]) -> Any:
    """The trace to be made, which knows what it would refuse to go on with."""
    from sinklens.evaluation.answering import sampler_of
    from sinklens.recording.plan import plan_trace

    graph = answering.graph and not model.spec.causal
    return plan_trace(model, prompts, sampler_of(model, answering), seed=answering.seed, graph=graph)


def _prompts(answering: Any, chunks: Any, *, file: str | None, count: int) -> list[Any]:
    """What is traced: from the file, or beginnings of the chunks, or the problems."""
    from sinklens.evaluation.answering import problems
    from sinklens.sampling.prompt_list import Prompt, read_prompt_file

    if file is not None:
        return read_prompt_file(file)[:count]
    if chunks is not None:
        return [Prompt(ids=tuple(ids[: min(CONTEXT, chunks.first)])) for ids in chunks.ids[:count]]
    return [Prompt(text=item.prompt) for item in problems(answering, count)]


def _fresh(name: str) -> Path:
    from sinklens.cli.output import fresh_folder

    return fresh_folder(f"card-{name}")


@contextmanager
def _display(unit: str) -> Iterator[Any]:
    """Progress on stderr."""
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import stderr_console

    display = CountDisplay(stderr_console(), unit=unit)
    try:
        yield lambda step, steps, label: display.show([], step=step, steps=steps, label=label)
    finally:
        display.close()


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _print(document: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    from sinklens.cli.output import print_json
    from sinklens.report.card_formats import identity
    from sinklens.report.card_page import summary, warning

    if as_json:
        print_json({"to": str(folder), **document})
        return
    lines = [identity(document), warning(document), summary(document)]
    print("\n".join(line for line in lines if line))
    print(f"written: {folder / 'card.md'}, card.html, card.png, card.tex, tables/")
