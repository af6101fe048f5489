"""The figures of Rulli et al. (arXiv 2510.15731), drawn from traces: `draw_figures` and the list of what there is.

    1       attention received, token index x step, of one head
    3, 9    histogram of scores: all models together, and one panel each
    4, 8    attention maps of one head at consecutive steps: the first trace, and the others
    5       layer x head: score of the main sink, mean over steps
    6a, 6b  masked and unmasked queries have different sinks; a sink that lives for one step
    7       position of the main sink of one head against the step
    10      share of tokens that are not sinks against epsilon
    table2  the tokens most often under a sink

Each is written as PNG, SVG and the numbers behind it as CSV; the table as CSV and LaTeX.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.report import flickers, heatmap, histograms, layers, maps, positions, queries, thresholds, token_table
from sinklens.report.heads import HeadChoice
from sinklens.report.scene import Collector, Drawn, Focus, Model, Sheet, count_reads, models_of, read, stem_of
from sinklens.report.style import styled
from sinklens.sinks.arrays import TraceLike


@dataclass(frozen=True, kw_only=True)
class _Figure:
    title: str
    collector: Callable[[Model, Focus], Collector]
    draw: Callable[[Sheet, Sequence[tuple[Model, Any]]], Drawn]


_FIGURES = {
    "1": _Figure(
        title="Attention received by every token at every step, one head", collector=HeadChoice, draw=heatmap.draw
    ),
    "3": _Figure(
        title="Scores of all tokens, all models", collector=histograms.ScoreCounts, draw=histograms.draw_together
    ),
    "4": _Figure(title="Attention maps at consecutive steps, first model", collector=HeadChoice, draw=maps.draw_first),
    "5": _Figure(title="Score of the main sink by layer and head", collector=layers.MainSinkScores, draw=layers.draw),
    "6a": _Figure(
        title="Different sinks for masked and unmasked queries", collector=queries.SplitChoice, draw=queries.draw
    ),
    "6b": _Figure(title="A sink that lives for one step", collector=flickers.FlickerChoice, draw=flickers.draw),
    "7": _Figure(title="Position of the main sink at every step", collector=HeadChoice, draw=positions.draw),
    "8": _Figure(
        title="Attention maps at consecutive steps, other models", collector=HeadChoice, draw=maps.draw_others
    ),
    "9": _Figure(
        title="Scores of all tokens, model by model", collector=histograms.ScoreCounts, draw=histograms.draw_apart
    ),
    "10": _Figure(
        title="Share of tokens that are not sinks against epsilon",
        collector=thresholds.NotSinks,
        draw=thresholds.draw,
    ),
    "table2": _Figure(
        title="Tokens most often under a sink", collector=token_table.TokensUnderSinks, draw=token_table.draw
    ),
}
IDS = tuple(_FIGURES)
FILES = frozenset(stem_of(id) + suffix for id in IDS for suffix in (".png", ".svg", ".csv", ".tex"))  # of all of them


def draw_figures(
    traces: Sequence[TraceLike],
    to: Path | str,
    *,
    only: Iterable[str] | None = None,
    sample: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    step: int | None = None,
    epsilon: float = 3.0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Drawn]:
    """Draw the figures into the folder `to`, in the order of IDS; what cannot be drawn comes back with a note.

    only: ids of the figures; None: all. sample: the one that figures 1, 4, 6a, 6b, 7 and 8 show; None: the first of
    each trace; the other figures take all samples. layer, head, step: what the figures of a single head show; None:
    chosen by rule, and named in the picture. epsilon: fair shares above the others' mean. progress: called with the
    number of layers read so far and in all.
    """
    wanted = _wanted(only)
    if not 0 < epsilon < float("inf"):
        raise UsageError(f"epsilon is {epsilon}; expected a finite number above 0")
    focus = Focus(layer=layer, head=head, step=step, epsilon=epsilon)
    models = models_of(traces, sample=sample, focus=focus)
    kinds = list(dict.fromkeys(_FIGURES[one].collector for one in wanted))
    collected = [{kind: kind(model, focus) for kind in kinds} for model in models]
    _read_all(models, [list(one.values()) for one in collected], progress)
    drawn = []
    for id in wanted:
        figure = _FIGURES[id]
        sheet = Sheet(id=id, title=figure.title, to=Path(to), focus=focus)
        with styled():
            drawn.append(
                figure.draw(sheet, [(m, one[figure.collector]) for m, one in zip(models, collected, strict=True)])
            )
    return drawn


def _wanted(only: Iterable[str] | None) -> list[str]:
    if only is None:
        return list(IDS)
    asked = [only] if isinstance(only, str) else list(only)
    chosen = {choose("figure", one, IDS) for one in asked}
    if not chosen:
        raise UsageError(f"no figure was asked for; choose from {', '.join(IDS)}, or leave `only` out for all")
    return [one for one in IDS if one in chosen]


def _read_all(
    models: Sequence[Model],
    collectors: Sequence[Sequence[Collector]],
    progress: Callable[[int, int], None] | None,
) -> None:
    total = sum(count_reads(model, mine) for model, mine in zip(models, collectors, strict=True))
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    for model, mine in zip(models, collectors, strict=True):
        read(model, mine, tick=tick)
