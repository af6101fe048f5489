"""What the host does for a trace of an 8B model, without a card: steps whose numbers are there after a while.

    python benchmarks/trace_host.py [--steps 64] [--step-ms 12.2] [--detail full]

Random arrays of 32 layers, 32 heads and 192 keys come the way they come from a CUDA graph, and are recorded, packed and
written by what `sl.trace` uses. Milliseconds a step of each part alone, on one thread, and of the whole beside a run
that waits for its card. Numbers of one machine with the other cores idle; take them before and after a change.
"""

import argparse
import tempfile
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sinklens as sl
from sinklens.attention.call import Site
from sinklens.attention.observation import Observation, StepObservation
from sinklens.attention.packed import Arrived, Measured, Packed
from sinklens.attention.record import Record
from sinklens.recording.behind import Behind
from sinklens.recording.local import Begin
from sinklens.recording.rows import RowMaker
from sinklens.recording.scribe import Scribe
from sinklens.recording.steps import Recorder
from sinklens.recording.wanted import Wanted
from sinklens.sampling.step import Step
from sinklens.traces.files import SampleFiles
from sinklens.traces.gather import Gathering
from sinklens.traces.joined import JoinedFile
from sinklens.traces.makers import Makers
from sinklens.traces.manifest import GIVEN, MODEL
from sinklens.traces.pack import pack
from sinklens.traces.rows import SampleEnd
from sinklens.traces.storage import Storage
from sinklens.traces.write import TraceWriter
from sinklens.types import ModelSpec

LAYERS, HEADS, KEYS, PROMPT, MASK = 32, 32, 192, 64, 999
DIFFERENT = 24  # steps, before numbers come again


class Card:
    """Gives the numbers of a step, as an outbox does."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        shapes = {
            "by_group": (3, 1, HEADS, KEYS),
            "key_norm": (1, HEADS, KEYS),
            "value_norm": (1, HEADS, KEYS),
            "output_norm": (1, HEADS, KEYS),
            "output_rank": (1, HEADS),
            "output_size": (1, HEADS),
            "hidden": (1, KEYS),
        }
        uniform = {name: torch.ones(LAYERS, 3, 1, 1, KEYS) for name in ("expected_by_group", "viewers_by_group")}
        self._runs = [
            uniform | {name: torch.rand(LAYERS, *shape, generator=draws) for name, shape in shapes.items()}
            for _ in range(DIFFERENT)
        ]
        names = list(self._runs[0])
        layers = [{name: self._runs[0][name][i] for name in names if name != "hidden"} for i in range(LAYERS)]
        known = {"group_names": ("masked", "unmasked"), "queries": KEYS, "impl": "triton", "kernel": "flash"}
        calls = [Record(site=Site(step=0, layer=i, module=str(i)), **known, **layer) for i, layer in enumerate(layers)]
        self._packed = Packed(
            measured=Measured(calls=calls, hidden={str(i): self._runs[0]["hidden"][i] for i in range(LAYERS)}),
            stacks=list(self._runs[0].values()),
            places=[[(name, str(i) if name == "hidden" else i) for i in range(LAYERS)] for name in names],
        )

    def fetch(self, step: int) -> Arrived:
        stacks = [array.clone() for array in self._runs[step % DIFFERENT].values()]
        return Arrived(packed=self._packed, stacks=stacks, step=step)


class Shape:
    """A model that is never called."""

    spec = ModelSpec(
        family="llada",
        layers=LAYERS,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=128,
        width=4096,
        vocab_size=MASK + 1,
        causal=False,
        mask_id=MASK,
    )
    tokenizer, device = None, torch.device("cpu")

    def __call__(self, ids: Any, attention_mask: Any = None) -> Any:
        raise AssertionError("nothing computes here")


class Run(Recorder):
    """A recorder whose run is a card that takes its time."""

    def __init__(self, card: Card, *, steps: int, seconds: float) -> None:
        wanted = Wanted(layers=tuple(range(LAYERS)), heads=tuple(range(HEADS)))
        never = sl.LLaDASampler(steps=1, length=1, block=1)
        super().__init__(Shape(), [MASK] * KEYS, never, wanted=wanted, seed=None)
        self._run = self._steps(card, steps, seconds)
        self._observation = Observation()

    def maker(self) -> RowMaker:
        return RowMaker(self.model.spec, self.wanted, self.canvas)

    def _observer(self) -> Observation:
        return self._observation

    def _steps(self, card: Card, steps: int, seconds: float) -> Any:
        for index in range(steps):
            time.sleep(seconds)
            step = StepObservation(step=index, fetch=lambda index=index: card.fetch(index))
            self._observation.steps.append(step)
            canvas, committed = torch.full((1, KEYS), MASK), torch.zeros(1, KEYS, dtype=torch.bool)
            canvas[0, : PROMPT + index + 1], committed[0, PROMPT + index] = 5, True
            yield Step(index=index, canvas=canvas, committed=committed, confidence=torch.rand(1, KEYS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=12.2)
    parser.add_argument("--detail", default="full", choices=("full", "sinks"))
    chosen = parser.parse_args()
    if not 0 < chosen.steps <= KEYS - PROMPT:
        parser.error(f"--steps is {chosen.steps}; from 1 to {KEYS - PROMPT}")
    card = Card()
    with tempfile.TemporaryDirectory() as scratch:
        if chosen.detail == "full":
            parts(card, min(20, chosen.steps), Path(scratch))
        whole(card, 4, 0.0, Path(scratch) / "warm", detail=chosen.detail)
        took = whole(card, chosen.steps, chosen.step_ms / 1000, Path(scratch) / "trace", detail=chosen.detail)
        size = sum(file.stat().st_size for file in (Path(scratch) / "trace").rglob("*") if file.is_file())
    shown = f"{1000 * took / chosen.steps:.1f} ms a step, of which the card {chosen.step_ms}; {size / 1e6:.0f} MB"
    print(f"whole: {shown}")
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(2):
            folder = Path(scratch) / str(turn)
            took, tails = sent(card, chosen.steps, chosen.step_ms / 1000, folder, detail=chosen.detail)
            shown = ", ".join(f"{1000 * tail:.0f}" for tail in tails)
            each = f"{500 * took / chosen.steps:.1f} ms a step"
            print(
                f"two samples by another process: {each}; behind the last step of the first and the second: {shown} ms"
            )


def parts(card: Card, steps: int, folder: Path) -> None:
    """Each alone, nothing beside it."""
    run = Run(card, steps=steps, seconds=0)
    made, maker = list(run.numbers()), run.maker()
    rows, took = timed(lambda: [written(each, maker.rows) for each in made], steps)
    print(f"rows of a step: {took:.1f} ms")
    storage = Storage.of(exact=False)
    gathering = Gathering()
    for _ in range(3):  # the third time in the memory of the first
        filled = lambda: [  # noqa: E731
            gathering.add(step, pack(row.attention, kept=None, model_heads=HEADS)) for step, row in enumerate(rows)
        ]
        _, took = timed(filled, steps)
        groups = list(gathering.take())
    print(f"gathered: {took:.1f} ms")
    waiting: list[Any] = []
    with ExitStack() as stack:
        makers = Makers()
        stack.callback(makers.close)
        makers.make = lambda work, *_, **__: waiting.append(work)
        kind = {"sample": 0, "causal": False, "detail": "full", "storage": storage}
        files = SampleFiles(folder, **kind, guard=nullcontext, makers=makers)
        for table, part in groups:
            files.write(table, part)
        made, took = timed(lambda: [work(nullcontext()) for work in waiting], steps)
        print(f"row groups: {took:.1f} ms on one core, {len(groups)} parts")
        file = JoinedFile(folder / "joined.parquet")
        same = [part for part, (table, _) in zip(made, groups, strict=True) if table == "attention"]
        _, took = timed(lambda: [file.append(part, nullcontext()) for part in same], steps)
        file.abandon()
    print(f"those of attention joined: {took:.1f} ms")


def whole(card: Card, steps: int, seconds: float, folder: Path, *, detail: str) -> float:
    """Seconds from the first step to the last file."""
    names = {"causal": False, "layers": LAYERS, "heads": HEADS, "kv_heads": HEADS}
    manifest = dict.fromkeys(GIVEN, 1) | {"detail": detail, "model": dict.fromkeys(MODEL, "card") | names}
    began = time.perf_counter()
    with TraceWriter.create(folder, manifest, samples=1) as writer, writer.sample(0) as sample:
        run = Run(card, steps=steps, seconds=seconds)
        maker = run.maker()
        with Behind() as behind:
            for made in run.numbers():
                behind.do(lambda made=made: written(made, lambda numbers: sample.add(maker.rows(numbers))))
        ids = run.canvas.astype(np.int32)
        sample.end(SampleEnd(prompt=None, text=None, prompt_length=PROMPT, ids=ids, tokens={}))
    return time.perf_counter() - began


def sent(card: Card, steps: int, seconds: float, folder: Path, *, detail: str) -> tuple[float, list[float]]:
    """Two samples, by another process; seconds from the first step to the last file, and behind each last step."""
    names = {"causal": False, "layers": LAYERS, "heads": HEADS, "kv_heads": HEADS}
    tails = []
    with Scribe() as scribe:
        for number in range(2):
            place = folder / str(number)
            place.mkdir(parents=True)
            run = Run(card, steps=steps, seconds=seconds)
            begin = Begin(
                folder=place, number=number, steps=steps, manifest={"detail": detail, "model": names},
                storage=Storage.of(exact=False), spec=Shape.spec, wanted=run.wanted, prompt=run.canvas,
            )  # fmt: skip
            sample = scribe.sample(begin, nullcontext)
            if number == 0:
                time.sleep(1.0)  # it has started
                began = time.perf_counter()
            with Behind() as behind:
                for made in run.numbers():
                    behind.do(lambda made=made, sample=sample: written(made, sample.add))
                last = time.perf_counter()
            ids = run.canvas.astype(np.int32)
            sample.end(SampleEnd(prompt=None, text=None, prompt_length=PROMPT, ids=ids, tokens={}))
            if number == 1:
                sample.wait()
            tails.append(time.perf_counter() - last)
        return time.perf_counter() - began, tails


def written(made: Any, write: Any) -> Any:
    with made as numbers:
        return write(numbers)


def timed(work: Any, steps: int) -> tuple[Any, float]:
    """What it gives, and milliseconds a step."""
    began = time.perf_counter()
    given = work()
    return given, 1000 * (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main()
