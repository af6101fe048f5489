"""Images a second at every budget: does a token that is dropped save time?

Dropped tokens are really taken out (`remove=True`); rows of a batch are padded to the longest of them. The whole model
is alpha = 1. Passes over the same images take turns, so that what else a machine does falls on all budgets alike.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sinklens.evaluation.selection_store import SelectionStore
from sinklens.selection.data import Images
from sinklens.selection.selector import Selector

PASSES = 5


def measure_speed(
    store: SelectionStore,
    selector: Selector,
    images: Images,
    *,
    alphas: Iterable[float],
    batches: Iterable[int] = (1, 64),
    count: int = 128,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Add to a folder what is not there yet for this device."""
    device = selector.calibration.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    there = store.read("speed", ["alpha", "batch", "device"]).to_pylist()
    known = {(row["alpha"], row["batch"], row["device"]) for row in there}
    wanted = [(alpha, batch) for batch in batches for alpha in sorted(set(alphas) | {1.0})]
    missing = [one for one in wanted if (*one, name) not in known]
    if not missing:
        return
    some = images.take(slice(0, count)).to(device)
    found: list[dict[str, Any]] = []
    for turn in range(-1, PASSES):  # the first pass warms up, and is not counted
        for place, (alpha, batch) in enumerate(missing):
            used = some.take(slice(0, min(len(some), 16))) if batch == 1 else some
            seconds, kept = _timed(selector, used, alpha, batch)
            if turn >= 0:
                found.append(
                    {
                        "alpha": alpha, "batch": batch, "pass": turn, "images": len(used),
                        "seconds": seconds, "kept": kept, "device": name, "threads": torch.get_num_threads(),
                    }
                )  # fmt: skip
            progress((turn + 1) * len(missing) + place + 1, (PASSES + 1) * len(missing))
    store.add("speed", name, found)


@torch.no_grad()
def _timed(selector: Selector, images: Images, alpha: float, batch: int) -> tuple[float, float]:
    """Seconds for all of the images, and the mean share kept."""
    parts = list(images.batches(batch))
    _wait(selector)
    begun = time.perf_counter()
    made = [selector(part.images, alpha, remove=True) for part in parts]
    _wait(selector)
    seconds = time.perf_counter() - begun
    kept = torch.cat([one.kept.float().mean(dim=(0, 2)) for one in made])
    return seconds, float(kept.mean())


def _wait(selector: Selector) -> None:
    if selector.calibration.is_cuda:
        torch.cuda.synchronize(selector.calibration.device)
