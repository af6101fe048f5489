"""When sinks emerge: loss, sinks and accuracy over the tokens a model was trained on.

    python -m sinklens.report.training tiny-llama tiny-llada tiny-dream --to docs/images/training

reads the log.jsonl of each folder, or of an embedded model (both stages of one that had two), and writes a PNG and an
SVG. Needs no torch.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.models.catalog import locate
from sinklens.report.style import MARKERS, line_style, panels, save, styled
from sinklens.training.log import LOG, read_stages

TICKS = (20, 50, 100, 200, 500, 1000, 2000)  # million tokens
Entries = Sequence[Mapping[str, Any]]


def log_of(model: str) -> list[dict[str, Any]]:
    """The log of a folder or of an embedded model."""
    folder = locate(model).folder
    entries = read_stages(folder)
    if not entries:
        raise UsageError(f"{folder} has no {LOG}; expected a folder that `sinklens train` wrote, or an embedded model")
    return entries


def main_sink(entry: Mapping[str, Any]) -> float:
    """The largest share of all attention that one token receives in a head of the upper half.

    On natural text: position 0 of a causal model, the greatest of each canvas in a diffusion model.
    """
    sinks = entry["sinks"]
    return float(sinks["text"]["largest"] if "text" in sinks else sinks["largest"])


def draw_training(logs: Mapping[str, Entries], to: Path) -> list[Path]:
    """Three panels: loss on text, the main sink, accuracy on word problems."""
    with styled():
        figure, (losses, sinks, tasks) = panels(3, height=2.5)
        for number, (name, entries) in enumerate(logs.items()):
            style = {**line_style(number), "marker": MARKERS[number], "markersize": 3}
            tokens = [entry["tokens"] / 1e6 for entry in entries]
            losses.plot(tokens, [entry["text_loss"] for entry in entries], label=name, **style)
            sinks.plot(tokens, [main_sink(entry) for entry in entries], **style)
            graded = [entry for entry in entries if "word_problems" in entry]
            where = [entry["tokens"] / 1e6 for entry in graded]
            tasks.plot(where, [entry["word_problems"] for entry in graded], clip_on=False, **style)
        for axis, label in (
            (losses, "loss on text (nats a token;\ndiffusion models: a bound)"),
            (sinks, "largest share of attention on one\ntoken, heads of the upper half"),
            (tasks, "word problems answered right"),
        ):
            axis.set_xscale("log")
            low, high = axis.get_xlim()
            axis.set_xticks([tick for tick in TICKS if low <= tick <= high])
            axis.set_xticks([], minor=True)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.set_xlabel("training tokens (millions)")
            axis.set_ylabel(label)
        losses.set_ylim(0, 6.5)
        sinks.set_ylim(0, 1)
        tasks.set_ylim(0, 1)
        figure.legend(loc="outside lower center", ncols=len(logs), handlelength=3.2)
        return save(figure, to.parent, name=to.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="embedded names, or folders of `sinklens train`")
    parser.add_argument("--to", type=Path, required=True, help="path of the files, without suffix")
    chosen = parser.parse_args()
    logs = {Path(model).name: log_of(model) for model in chosen.models}
    for path in draw_training(logs, chosen.to):
        print(path)


if __name__ == "__main__":
    main()
