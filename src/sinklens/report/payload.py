"""What the explorer's page reads: one or two runs as a JSON document, format 1 (docs/explorer.md).

Of every sample: what stood where at every stored step; the fair shares of all heads in 8 bits (quantise.py); the sinks
as tracks; and of a few heads everything the trace holds, as exact as it holds it. Traces only: no model, no torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sinklens import __version__
from sinklens.errors import UsageError
from sinklens.report.encode import pack, script_json
from sinklens.report.exact_heads import estimate_exact, exact_entries
from sinklens.report.shares import pack_shares
from sinklens.report.survey_heads import Surveyed, survey_sample
from sinklens.sinks.arrays import Canvases, TraceLike, among

FORMAT = 1
BUDGET = 12_000_000  # bytes of a page
RUNS = 2
Progress = Callable[[int, int], None]  # layers done, of how many


@dataclass(frozen=True, kw_only=True)
class View:
    """What of a trace goes into a page."""

    samples: Sequence[int] | None = None  # None: the first
    layers: Sequence[int] | None = None  # None: all
    heads: Sequence[tuple[int, int]] | None = None  # (layer, head) kept exactly; None: four chosen by their sinks
    epsilon: float = 3.0  # of the tracks
    budget: int = BUDGET  # bytes; a page is larger only where the heads asked for are

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise UsageError(f"budget is {self.budget} bytes; expected 1 or more")


def build_payload(
    traces: Sequence[TraceLike], view: View | None = None, *, made: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """The document. made: an ISO date, or None: the same traces then give the same bytes."""
    view = view or View()
    if not 1 <= len(traces) <= RUNS:
        raise UsageError(f"{len(traces)} traces were given; expected one, or two to compare")
    plans = [(trace, _samples(trace, view), among("layers", view.layers, trace.layers)) for trace in traces]
    total = sum(2 * len(samples) * len(layers) for _, samples, layers in plans)
    tell = _Counter(total, progress)
    left, waiting = view.budget, sum(len(samples) for _, samples, _ in plans)
    runs = []
    for trace, samples, layers in plans:
        entries = []
        for sample in samples:
            entries.append(_sample(trace, sample, layers=layers, view=view, budget=left // waiting, tell=tell))
            left, waiting = max(0, left - len(script_json(entries[-1]))), waiting - 1
        runs.append(_run(trace) | {"samples": entries})
    return {"format": FORMAT, "sinklens": __version__, "made": made, "runs": runs}


def estimate_bytes(traces: Sequence[TraceLike], view: View) -> int:
    """About how large the page will be at most: its budget, or what the heads asked for take where that is more."""
    asked = len(view.heads or ())
    return max(view.budget, sum(estimate_exact(trace, _samples(trace, view), heads=asked) for trace in traces))


def now() -> str:
    """The date of a page, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Counter:
    """Counts layers, each read twice."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _samples(trace: TraceLike, view: View) -> list[int]:
    there = among("samples", view.samples, trace.samples)
    return there if view.samples is not None else there[:1]


def _run(trace: TraceLike) -> dict[str, Any]:
    """Whose run it is; a trace in memory knows less about that."""
    manifest = getattr(trace, "manifest", {})
    model = manifest.get("model", {})
    path = getattr(trace, "path", None)
    return {
        "name": trace.name,
        "model": {
            "name": model.get("name", trace.name),
            "family": model.get("family"),
            "causal": trace.causal,
            "layers": model.get("layers", len(trace.layers)),
            "heads": model.get("heads", len(trace.heads)),
            "kv_heads": model.get("kv_heads"),
        },
        "detail": trace.detail,
        "sampler": _sampler(manifest.get("sampler")),
        "source": None if path is None else path.resolve().name,
    }


def _sampler(settings: Any) -> str:
    """LLaDASampler(steps=32, length=32, block=32): what is off or unset is left out."""
    if not settings:
        return ""
    said = [f"{name}={value!r}" for name, value in settings.items() if name != "name" and value not in (None, False)]
    return f"{settings.get('name', 'sampler')}({', '.join(said)})"


def _sample(
    trace: TraceLike, sample: int, *, layers: Sequence[int], view: View, budget: int, tell: Callable[[], None]
) -> dict[str, Any]:
    canvases = trace.canvases(sample)
    found = survey_sample(trace, canvases, layers=layers, epsilon=view.epsilon, tell=tell)
    exact = exact_entries(trace, sample, found, wanted=view.heads, budget=budget // 2)
    final = _final(trace, canvases)
    entry = {"sample": sample} | _canvas(canvases, found, final=final) | {"tracks": found.tracks, "exact": exact}
    rest = max(budget // 4, budget - len(script_json(entry)))  # many exact heads must not starve all others
    return entry | pack_shares(trace, sample, found, exact=exact, budget=rest, tell=tell)


def _final(trace: TraceLike, canvases: Canvases) -> np.ndarray:
    """What stands at every position after the last step; a trace in memory knows what the last step read."""
    final: np.ndarray = canvases.ids[-1].copy()
    if hasattr(trace, "info"):
        ids = trace.info(canvases.sample).ids[: len(final)]
        final[: len(ids)] = ids
    return final


def _canvas(canvases: Canvases, found: Surveyed, *, final: np.ndarray) -> dict[str, Any]:
    """What stood where at the stored steps, and in the end."""
    steps = found.steps
    ids = canvases.ids[steps]
    blocks = canvases.blocks[steps].tolist()
    known = sorted({int(one) for one in np.unique([*ids, final])} - {-1})
    return {
        "prompt_length": canvases.prompt_length,
        "keys": int(ids.shape[1]),
        "steps": len(steps),
        "step_numbers": steps.tolist(),
        "canvas": pack(ids, "i4", delta=0),
        "final": pack(final, "i4"),
        "masked": pack(canvases.masked[steps], "u1"),
        "committed": pack(_committed(canvases, steps), "i4"),
        "block": [None if first < 0 else [first, stop] for first, stop in blocks],
        "tokens": {
            "ids": known,
            "text": [canvases.tokens.get(one) for one in known],
            "class": [canvases.classes.get(one) for one in known],
        },
    }


def _committed(canvases: Canvases, steps: np.ndarray) -> np.ndarray:
    """The index of the first stored step that does not lie before the commit; -1: prompt, len(steps): never."""
    last = len(canvases.committed) - 1 - canvases.committed[::-1].argmax(axis=0)
    index = np.searchsorted(steps, last)
    index = np.where(canvases.committed.any(axis=0), index, len(steps))
    return np.where(np.arange(len(index)) < canvases.prompt_length, -1, index)
