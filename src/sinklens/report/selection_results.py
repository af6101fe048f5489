"""The page of results on token selection, from a folder of models and evaluations.

    python -m sinklens.report.selection_results runs/sel --starts pilots.json --to docs/results/token-selection.md \
        --preface docs/results/token-selection.md

    runs/sel/models/NAME    what `select train` wrote: training.json, log.jsonl, data.json
    runs/sel/eval/NAME      what `select evaluate` wrote: result.json. `reference` is the model that others are compared
                            with, `seed1` another seed of it, `choices` the same model beside choices without a training
                            (where they are not in `reference`); of all others channels and times are shown

Tables, figures and commands come from there alone. What it all means is written by hand, in the preface: a file of its
own, or the page as it is, of which everything before the mark is kept. Figures are put beside the page, in a folder of
its name.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.files import read_text, written_whole
from sinklens.report import selection_sections as sections
from sinklens.report.results_page import place_pictures, words_above
from sinklens.report.selection import FIGURES, NOTE, sentences
from sinklens.report.selection_figures import FIXED, TRAINED, fair_methods, methods_of
from sinklens.report.selection_training import Training, read_trainings, starts_section, training_section
from sinklens.report.style import save_all

TITLE = "# Token selection: one model at every budget\n"
MARK = "<!-- written by sinklens.report.selection_results from here on -->"
REFERENCE, SEED, CHOICES = "reference", "seed1", "choices"
CAPTIONS = {
    "figure_accuracy": "Accuracy against the budget, the patches kept and the multiply-accumulates. Every line but "
    "that of the gates is a model trained with its own choice; hollow points are models for one budget each.",
    "figure_choices": "The same choices without a training of their own, on the backbone that was trained with the "
    "gates.",
    "figure_kept": "Patches kept behind every gate against the budget; and how much images differ.",
    "figure_foreground": "How much of the object is kept behind the last gate, and that over patches kept.",
    "figure_channel": "Accuracy against the channel, for several budgets.",
    "figure_speed": "Images a second with dropped tokens taken out, over those of the whole model.",
}
OTHERS = ("figure_channel", "figure_speed")  # figures of results that are not named here

Result = Mapping[str, Any]


def write_page(folder: Path, to: Path, *, starts: Path | None = None, preface: Path | None = None) -> list[Path]:
    """Write the page and its figures; the paths that were written, the page first."""
    results = read_results(folder / "eval")
    figures = {
        name: place_pictures(partial(_draw, result, _wanted(name, results)), to.with_suffix("") / name, names=CAPTIONS)
        for name, result in results.items()
    }
    shown = {
        (name, path.stem): path.relative_to(to.parent).as_posix() for name, paths in figures.items() for path in paths
    }
    trainings = read_trainings(folder / "models")
    begun = None if starts is None else _read_json(starts)
    parts = [
        words_above(MARK, preface, title=TITLE),
        MARK,
        *page_parts(results, trainings, starts=begun, figures=shown),
    ]
    with written_whole(to) as temporary:
        temporary.write_text("\n".join(part.rstrip() + "\n" for part in parts), "utf-8")
    return [to, *(path for paths in figures.values() for path in paths)]


def read_results(folder: Path) -> dict[str, Result]:
    """The results of a folder of evaluations, by name; the reference first."""
    found = {path.parent.name: _read_json(path) for path in sorted(folder.glob("*/result.json"))}
    if REFERENCE not in found:
        raise UsageError(
            f"{folder / REFERENCE} has no result.json; expected what `sinklens select evaluate --to` wrote"
        )
    return {REFERENCE: found.pop(REFERENCE), **found}


def page_parts(
    results: Mapping[str, Result],
    trainings: Sequence[Training],
    *,
    starts: Mapping[str, Any] | None,
    figures: Mapping[tuple[str, str], str],
) -> Iterator[str]:
    """The page, part by part. figures: paths by result and name."""
    result = results[REFERENCE]

    def figure(name: str, of: str = REFERENCE, *, caption: str = "") -> Iterator[str]:
        if (of, name) in figures:
            yield f"![{CAPTIONS[caption or name]}]({figures[of, name]})\n"

    if trainings:
        yield from ("## What was trained\n", training_section(trainings))
    if starts is not None:
        yield starts_section(starts)
    yield f"## Gates and other choices, each trained so\n\n{_asked(result)}"
    yield from figure("figure_accuracy")
    yield sections.accuracies(result, fair_methods(result))
    yield "Difference to the gates, image by image (below 0: the gates are better):\n"
    yield sections.differences(result, fair_methods(result))
    yield sections.verdicts(result)
    if SEED in results:
        yield from ("## Another seed\n", sections.seeds(result, results[SEED]))
    chosen = CHOICES if CHOICES in results else REFERENCE
    others = [name for name in methods_of(results[chosen]) if name != FIXED and not name.startswith(TRAINED)]
    if len(others) > 1 and (chosen == CHOICES or fair_methods(result) != methods_of(result)):
        yield "## Other choices without a training of their own\n"
        if chosen == CHOICES:
            yield _asked(results[chosen])
        name = "figure_accuracy" if chosen == CHOICES else "figure_choices"
        yield from figure(name, chosen, caption="figure_choices")
        yield sections.accuracies(results[chosen], others)
    yield "## Does the budget hold\n"
    yield "\n".join(f"- {sentence}" for sentence in sentences(result)) + "\n"
    yield from figure("figure_kept")
    yield sections.named_tables(result, ("How much images differ", "More budget, fewer patches"))
    if any(cell["foreground"] for cell in result["cells"]):
        yield "## What is kept: the object\n"
        yield from figure("figure_foreground")
        yield sections.objects(result, fair_methods(result))
    for name, other in results.items():
        if any(cell["level"] is not None for cell in other["cells"]):
            yield f"## Over a channel: {name}\n\n{_asked(other)}"
            yield from figure("figure_channel", name)
            yield sections.channels(other)
    timed = {name: other for name, other in results.items() if other["speed"]}
    if timed:
        yield "## Speed\n"
        for name, other in timed.items():
            yield _command(other)
            yield from figure("figure_speed", name)
            yield sections.named_tables(other, ("Speed, dropped tokens taken out",))
    yield f"## How to read the numbers\n\n{NOTE}\n"


def _wanted(name: str, results: Mapping[str, Result]) -> tuple[str, ...]:
    """Which figures of a result are on the page."""
    if name == REFERENCE:
        return tuple(one for one in CAPTIONS if one != "figure_choices" or CHOICES not in results)
    return ("figure_accuracy",) if name == CHOICES else OTHERS


def _asked(result: Result) -> str:
    return f"{result['images']} test images.\n\n{_command(result)}"


def _command(result: Result) -> str:
    return f"```\n{result['command']}\n```\n" if result["command"] else ""


def _draw(result: Result, names: tuple[str, ...], folder: Path) -> list[Path]:
    return save_all({name: FIGURES[name] for name in names}, result, folder, table="")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError) as error:  # of UTF-8 too
        raise UsageError(f"cannot read {path} ({error}); was it cut short?") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="with models/ and eval/ inside")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the page, such as docs/results/x.md")
    parser.add_argument("--starts", type=Path, metavar="FILE", help="JSON with the losses of short trainings, by start")
    parser.add_argument("--preface", type=Path, metavar="FILE", help="Markdown to put before the tables")
    chosen = parser.parse_args()
    for path in write_page(chosen.folder, chosen.to, starts=chosen.starts, preface=chosen.preface):
        print(path)


if __name__ == "__main__":
    main()
