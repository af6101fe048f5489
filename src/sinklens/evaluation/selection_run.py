"""A selector and what it is held against, image by image, into a folder (selection_store.py).

Batches of images are outermost, so that an experiment that is broken off has the same images in all cells. Baselines
keep as many patches of an image behind every gate as the selector kept of it, at that budget and over that link. What
is there is not done again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sinklens.evaluation.selection_cells import FIXED, GATE, TRAINED, WIRE, Spot
from sinklens.evaluation.selection_controls import CONTROLS, ranked_by, run_controlled
from sinklens.evaluation.selection_experiment import SelectionExperiment
from sinklens.evaluation.selection_rows import KEY, Key
from sinklens.evaluation.selection_store import SelectionStore
from sinklens.selection.baselines import run_ranked
from sinklens.selection.cost import rate, side_bits
from sinklens.selection.data import Images, foreground_share
from sinklens.selection.selector import Selector

MERGED = "tome"


@dataclass(frozen=True, kw_only=True)
class SelectionProgress:
    """How far it is."""

    done: int  # images of all cells, those found included
    total: int
    doing: str


@dataclass(frozen=True, kw_only=True)
class _Method:
    name: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.model}".strip()


Known = dict[Key, dict[int, list[int]]]  # patches kept, by image


def run(
    experiment: SelectionExperiment,
    folder: Path,
    *,
    progress: Callable[[SelectionProgress], None] | None = None,
) -> None:
    """Do what is not in the folder yet."""
    store = SelectionStore(folder)
    with store.claimed(experiment.document()):
        known = _known(store)
        cells = [(spot, method) for spot in experiment.spots for method in _methods(experiment, spot)]
        total, done = len(cells) * len(experiment.images), 0
        for start in range(0, len(experiment.images), experiment.batch):
            numbers = range(start, min(len(experiment.images), start + experiment.batch))
            for spot, method in cells:
                for some in _missing(numbers, known[_key(spot, method)]):
                    rows = _rows(experiment, spot, method, numbers=some, gate=known[_key(spot, _Method(name=GATE))])
                    store.add("rows", f"{method}.{spot}.{some[0]:06d}", rows)
                    known[_key(spot, method)].update({row["image"]: row["kept"] for row in rows})
                done += len(numbers)
                if progress is not None:
                    progress(SelectionProgress(done=done, total=total, doing=f"{method}, {spot}"))


def _methods(experiment: SelectionExperiment, spot: Spot) -> list[_Method]:
    """The gate first: others need its counts. At alpha 1 there is nothing to choose."""
    rankings = experiment.baselines if spot.alpha < 1 else ()
    fixed = [one.name for one in experiment.fixed if one.alpha == spot.alpha]
    return [
        _Method(name=GATE),
        *(_Method(name=name) for name in rankings),
        *(_Method(name=FIXED, model=m) for m in fixed),
        *(_Method(name=TRAINED + one.ranking, model=one.name) for one in experiment.trained if spot.alpha < 1),
    ]


def _key(spot: Spot, method: _Method) -> Key:
    return method.name, method.model, spot.alpha, spot.link.channel, spot.link.level


def _known(store: SelectionStore) -> Known:
    """What is there; counts are kept of the gate alone, which others need them of."""
    found: Known = defaultdict(dict)
    for table in store.tables("rows", [*KEY, "image", "kept"]):
        key = tuple(table[name][0].as_py() for name in KEY)
        images = table["image"].to_pylist()
        counts = table["kept"].to_pylist() if key[0] == GATE else [[]] * len(images)
        found[key].update(zip(images, counts, strict=True))
    return found


def _missing(numbers: range, there: dict[int, list[int]]) -> Iterator[list[int]]:
    """Runs of images one after the other that are not there."""
    lacking = [number for number in numbers if number not in there]
    for _, group in groupby(enumerate(lacking), key=lambda pair: pair[1] - pair[0]):
        yield [number for _, number in group]


@torch.no_grad()
def _rows(
    experiment: SelectionExperiment, spot: Spot, method: _Method, *, numbers: list[int], gate: dict[int, list[int]]
) -> list[dict[str, Any]]:
    selector = experiment.selector
    images = experiment.images.take(slice(numbers[0], numbers[-1] + 1)).to(selector.calibration.device)
    found = _run(experiment, spot, method, images=images, numbers=numbers, gate=gate)
    head = {
        "method": method.name, "model": method.model, "alpha": spot.alpha, "channel": spot.link.channel,
        "level": spot.link.level,
    }  # fmt: skip
    with_mask = method.name == GATE and spot.link.channel == WIRE
    columns = _columns(selector, found, images, whole=spot.alpha == 1) | {"image": numbers}
    if method.name.removeprefix(TRAINED) == MERGED:  # a merged token stands for patches of several places
        columns["recall"] = [None] * len(numbers)
    masks = _packed(found.kept) if with_mask else [None] * len(numbers)
    return [
        head | dict(zip(columns, values, strict=True)) | {"mask": mask}
        for *values, mask in zip(*columns.values(), masks, strict=True)
    ]


def _run(
    experiment: SelectionExperiment,
    spot: Spot,
    method: _Method,
    *,
    images: Images,
    numbers: list[int],
    gate: dict[int, list[int]],
) -> Any:
    """What a method computes of some images, one after the other; `gate` has the counts that the selector kept."""
    selector, device = experiment.selector, images.images.device
    link: dict[str, Any] = {
        "channel": spot.link.made(),
        "generator": torch.Generator(device).manual_seed(_seed(experiment.seed, str(spot.link), numbers[0])),
    }
    if method.name in (GATE, FIXED):
        chosen = next((one.selector for one in experiment.fixed if one.name == method.model), selector)
        return chosen(images.images, spot.alpha, **link)
    counts = torch.tensor([gate[number] for number in numbers], device=device).T
    drawn: dict[str, Any] = {"seed": experiment.seed, "first": numbers[0]}
    if method.name in CONTROLS:
        rank = ranked_by(method.name, images=len(numbers), patches=selector.costs.patches, device=device, **drawn)
        return run_controlled(selector, images.images, spot.alpha, counts=counts, rank=rank, **link)
    if method.name.startswith(TRAINED):
        selector = next(one.selector for one in experiment.trained if one.name == method.model)
    places: dict[str, Any] = {"gated": selector.gated, "split": selector.split, "codec": selector.codec}
    ranking = method.name.removeprefix(TRAINED)
    return run_ranked(selector.backbone, images.images, counts, ranking, **places, **drawn, **link)


def _columns(selector: Selector, found: Any, images: Images, *, whole: bool) -> dict[str, list[Any]]:
    shape = selector.costs
    labels, prediction = images.labels, found.logits.argmax(dim=1)
    kept = found.kept.sum(dim=2)
    told = torch.zeros(len(labels)) if whole else side_bits(kept[selector.channel_gate].cpu(), shape.patches)
    return {
        "label": labels.tolist(),
        "prediction": prediction.tolist(),
        "right": (prediction == labels).tolist(),
        "loss": F.cross_entropy(found.logits.double(), labels, reduction="none").tolist(),
        "kept": kept.T.tolist(),
        "recall": _recall(found.kept, images, selector.backbone.grid),
        "sent": found.sent.tolist(),
        "rate": rate(shape, found.sent, symbols=selector.symbols).tolist(),
        "side_bits": told.tolist(),
        "macs": found.macs.tolist(),
    }


def _recall(kept: Tensor, images: Images, grid: tuple[int, int]) -> list[list[float] | None]:
    """How much of the object's area lies in patches that are kept, behind every gate."""
    if images.foreground is None:
        return [None] * len(images)
    share = foreground_share(images.foreground, grid).double()
    area = share.sum(dim=1)
    found = (kept * share).sum(dim=2) / area
    return [row if whole else None for row, whole in zip(found.T.tolist(), (area > 0).tolist(), strict=True)]


def _packed(kept: Tensor) -> list[bytes]:
    flat = kept.transpose(0, 1).flatten(1).cpu().numpy()
    return [row.tobytes() for row in np.packbits(flat, axis=1)]


def _seed(*parts: object) -> int:
    """Noise by link and image, the same for every method and budget."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:7], "little")
