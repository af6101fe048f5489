"""The straight line: prompts and a sampler through a model, observed, into a trace on disk.

    trace(model, prompts, sampler, to="runs/a")

One prompt after the other: each is a sample of its own, written when it is whole. What is on disk is never done again.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sinklens.recording.behind import Behind
from sinklens.recording.identity import describe_tokens
from sinklens.recording.plan import Plan, plan_trace
from sinklens.recording.rows import StepNumbers
from sinklens.recording.samples import Ended, Sample, sample_of
from sinklens.recording.scribe import Scribe
from sinklens.recording.steps import Recorder
from sinklens.sampling.generate import finish
from sinklens.sampling.step import Sampler
from sinklens.traces.folder import finished_samples
from sinklens.traces.read import Trace, open_trace
from sinklens.traces.rows import SampleEnd
from sinklens.traces.write import TraceWriter

SCRIBE_BYTES = 16 * 2**20  # of a sample: from here on another process writes it, if a card runs the model

Progress = Callable[[int, int, int], None]  # number of the sample, of how many, steps it has done


def trace(
    model: Any,
    prompts: Any,
    sampler: Sampler,
    *,
    to: "str | os.PathLike[str]",
    seed: int = 0,
    chat: bool = False,
    name: str | None = None,
    detail: str = "full",
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    every: int = 1,
    maps: Iterable[Sequence[int]] = (),
    norms: bool = True,
    exact: bool = False,
    graph: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Generate from every prompt and keep what every token received, in the folder `to`.

    prompts: a text, ids, messages, a list of these, or the Path of a text file (one a line) or .jsonl file.
    seed: of the first prompt; the next one has seed + 1. chat: put texts into the model's chat format.
    name: what figures call it; by default the model's.
    detail: "full", or "sinks": only keys that exceed the others' mean by more than one fair share.
    layers, heads, every: keep only these, and the attention of every N-th step only.
    maps: (layer, head, step) whose whole attention map is kept.
    norms: key, value, output and hidden norms too. exact: float32 untouched, not rounded.
    graph: run the steps of a diffusion model as a CUDA graph, as `sl.generate` does; the same trace.
    resume: go on with a trace that was interrupted; the same arguments, the same result.
    """
    plan = plan_trace(
        model,
        prompts,
        sampler,
        seed=seed,
        chat=chat,
        name=name,
        detail=detail,
        layers=layers,
        heads=heads,
        every=every,
        maps=maps,
        norms=norms,
        exact=exact,
        graph=graph,
    )
    return run_plan(plan, to=to, resume=resume, progress=progress)


def run_plan(
    plan: Plan, *, to: "str | os.PathLike[str]", resume: bool = False, progress: Progress | None = None
) -> Trace:
    """Record every sample that is not there yet."""
    to = Path(to)
    settings: dict[str, Any] = {"samples": len(plan.ids), "resume": resume, "exact": plan.wanted.exact}
    elsewhere = wants_scribe(plan) and _something_missing(plan, to, resume=resume)
    with (
        Scribe() if elsewhere else nullcontext() as scribe,  # it starts while the weights are hashed
        TraceWriter.create(to, plan.manifest(), **settings) as writer,
    ):
        _record(plan, writer, scribe, progress)
        if scribe is not None:
            scribe.stop()  # its memory is given back meanwhile
        if not writer.manifest["complete"]:
            writer.finish(_what_computed(open_trace(to)))
    made = open_trace(to)
    _tell_of_maps(plan, made)
    return made


def _tell_of_maps(plan: Plan, made: Trace) -> None:
    """Maps that were asked for at steps which a run did not reach."""
    lengths = {sample: made.info(sample).steps for sample in made.samples} if plan.wanted.maps else {}
    for layer, head, step in sorted(plan.wanted.maps):
        short = [str(sample) for sample, steps in lengths.items() if steps <= step]
        if short:
            where = f"prompt{'s' * (len(short) > 1)} {', '.join(short)}"
            message = f"no map of layer {layer}, head {head} at step {step} in {where}: the run was not that long"
            warnings.warn(message, stacklevel=3)


def _what_computed(recorded: Trace) -> dict[str, Any]:
    """Which implementation summed and which kernels ran, over all samples."""
    used = recorded.table("steps", columns=["impl", "kernel"]).to_pydict()
    return {name: sorted({value for value in used[name] if value is not None}) for name in ("impl", "kernel")}


def wants_scribe(plan: Plan) -> bool:
    """Whether samples are written by another process: where steps are short and much is to be written."""
    short_steps = plan.model.device.type == "cuda" and sys.platform == "linux"
    return short_steps and plan.estimate() >= SCRIBE_BYTES * len(plan.ids)


def _something_missing(plan: Plan, to: Path, *, resume: bool) -> bool:
    """Whether a sample is to be written, as it looks before the folder is ours."""
    there = len(finished_samples(to))
    return there < len(plan.ids) if resume else there == 0


def _record(plan: Plan, writer: TraceWriter, scribe: Scribe | None, progress: Progress | None) -> None:
    """One sample behind the other, each in its place as soon as it is whole."""
    with Ended() as ended:

        def stepped(number: int, of: int, step: int) -> None:
            ended.look()
            if progress is not None:
                progress(number, of, step)

        for number in writer.missing:
            with ended.then(sample_of(plan, number, writer, scribe)) as sample:
                _run(plan, number, sample, stepped)


def _run(plan: Plan, number: int, sample: Sample, progress: Progress) -> None:
    recorder = Recorder(
        plan.model, plan.ids[number], plan.sampler, wanted=plan.wanted, seed=plan.seed + number, graph=plan.graph
    )
    occurring = {*plan.ids[number], *(() if plan.model.spec.mask_id is None else (plan.model.spec.mask_id,))}

    def write(made: AbstractContextManager[StepNumbers]) -> None:
        with made as numbers:
            sample.add(numbers)
            occurring.update(numbers.canvas.tolist())

    with closing(recorder.numbers()) as steps, Behind() as behind:  # whatever happens, the observer is gone afterwards
        for step, made in enumerate(steps):
            behind.do(partial(write, made))
            progress(number, len(plan.ids), step + 1)
    start = len(plan.ids[number])
    canvas = torch.from_numpy(recorder.canvas)[None].to(plan.model.device)
    final, _, text = finish(plan.model, canvas, start, plan.sampler)
    ids = final[0].cpu().numpy().astype(np.int32)
    occurring.update(ids.tolist())
    sample.end(
        SampleEnd(
            prompt=plan.prompts[number].text,
            text=None if text is None else text[0],
            prompt_length=start,
            ids=ids,
            tokens=describe_tokens(plan.model, sorted(occurring)),
        )
    )
