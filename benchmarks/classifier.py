"""How often the kind of a track is right: `python benchmarks/classifier.py [--heads 2000] [--development]`.

Random heads of known content (tests/sinks/mixtures.py), held out: their ranges and seeds were not used in writing the
classifier. Rows are what a sink was made to do, columns what its track is called; the track of a sink is the one that
shares the most (step, position) cells with it. Missed: none shares any. Spurious: tracks with less than half of their
cells in any sink.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sinklens.sinks.track import track_layer
from sinks.mixtures import DEVELOPMENT, HELD_OUT, KINDS, Mixture, mixture

COLUMNS = (*KINDS, "missed")


def judge(one: Mixture) -> Counter[tuple[str, str]]:
    """(truth, verdict) of every sink of a head, and ("spurious", verdict) of every track without one."""
    counts: Counter[tuple[str, str]] = Counter()
    rows = track_layer(one.layer, one.canvases).tracks.select(["birth", "positions", "kind"]).to_pylist()
    paths = [(np.arange(len(row["positions"])) + row["birth"], np.array(row["positions"])) for row in rows]
    shared = np.array([[(truth.where[steps] == held).sum() for steps, held in paths] for truth in one.truths])
    for index, truth in enumerate(one.truths):
        best = int(shared[index].argmax()) if rows else -1
        found = best >= 0 and shared[index, best] > 0
        counts[truth.kind, rows[best]["kind"] if found else "missed"] += 1
    for index, (row, (steps, _)) in enumerate(zip(rows, paths, strict=True)):
        if 2 * shared[:, index].max() < len(steps):
            counts["spurious", row["kind"]] += 1
    return counts


def show(rows: dict[str, tuple[str, Counter[tuple[str, str]]]]) -> None:
    """A table of verdicts; each row has a name, a truth and its counts."""
    print("| | " + " | ".join(COLUMNS) + " | right |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for name, (kind, counts) in rows.items():
        cells = [counts[kind, verdict] for verdict in COLUMNS]
        right = f"{counts[kind, kind] / max(1, sum(cells)):.2f}" if kind in KINDS else ""
        print(f"| {name} | " + " | ".join(str(cell) for cell in cells) + f" | {right} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=2000)
    parser.add_argument("--development", action="store_true", help="the heads that the thresholds were fixed on")
    chosen = parser.parse_args()
    setting = DEVELOPMENT if chosen.development else HELD_OUT
    by_order: dict[str, Counter[tuple[str, str]]] = {order: Counter() for order in setting.orders}
    for number in range(chosen.heads):
        one = mixture(setting, number)
        by_order[one.order] += judge(one)
    counts = sum(by_order.values(), Counter())
    print(f"{chosen.heads} heads, {'development' if chosen.development else 'held out'}; rows truth, columns verdict\n")
    show({kind: (kind, counts) for kind in (*KINDS, "spurious")})
    total = sum(counts[kind, verdict] for kind in KINDS for verdict in COLUMNS)
    print(f"\nright: {sum(counts[kind, kind] for kind in KINDS)} of {total} sinks")
    print("\nFollowers of the first masked position, by the order of unmasking:\n")
    show({order: ("frontier", counts) for order, counts in by_order.items()})


if __name__ == "__main__":
    main()
