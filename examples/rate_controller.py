"""A rate controller: one selector, a channel that varies, and a bandwidth target that is met in the long run.

Drift plus penalty. In every slot the budget alpha is taken that minimises -V accuracy(SNR, alpha) + Z rho(SNR, alpha);
the virtual queue Z <- max(0, Z + mu (rho - target)) grows while too much is sent. Nothing of the channel's future is
known. Accuracies and rates (with what says which tokens were sent) are looked up at the nearest SNR in the result of

    sinklens select evaluate MODEL --snr -10,-5,0,5,10,15,20 --to runs/channel
    python examples/rate_controller.py runs/channel/result.json --target 0.1
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

Table = dict[float, dict[float, tuple[float, float]]]  # by SNR and alpha: accuracy, rho


def read_table(result: Path) -> Table:
    table: Table = {}
    if not result.is_file():
        raise SystemExit(f"there is no {result}; expected the result.json of `sinklens select evaluate --snr ...`")
    for cell in json.loads(result.read_text("utf-8"))["cells"]:
        if cell["method"] == "gate" and cell["channel"] == "awgn":
            found = cell["accuracy"]["value"], cell["rate"] + cell["side_rate"]
            table.setdefault(cell["level"], {})[cell["alpha"]] = found
    if not table:
        raise SystemExit(f"{result} has no cells with noise; evaluate with --snr -10,0,10")
    return table


def control(table: Table, snrs: Iterable[float], *, target: float, v: float = 1.0, mu: float = 1.0) -> list[float]:
    queue, taken = 0.0, []
    for snr in snrs:
        budgets = at(table, snr)
        taken.append(min(budgets, key=lambda one: -v * budgets[one][0] + queue * budgets[one][1]))
        queue = max(0.0, queue + mu * (budgets[taken[-1]][1] - target))
    return taken


def at(table: Table, snr: float) -> dict[float, tuple[float, float]]:
    return table[min(table, key=lambda level: abs(level - snr))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("result", type=Path)
    parser.add_argument("--target", type=float, default=0.1, help="channel uses per value of the image")
    asked = parser.parse_args()
    table, draws = read_table(asked.result), random.Random(0)
    print("rho: channel uses per value of the image, with what says which tokens were sent")
    for mean in (0.0, 10.0, 20.0):
        snrs = [draws.gauss(mean, 2.5) for _ in range(10_000)]
        taken = control(table, snrs, target=asked.target)
        right, spent = zip(*(at(table, snr)[alpha] for snr, alpha in zip(snrs, taken, strict=True)), strict=True)
        shares = ", ".join(f"{alpha:g}: {n / len(taken):.0%}" for alpha, n in sorted(Counter(taken).items()))
        rho = fmean(spent)
        met = "" if rho <= 1.01 * asked.target else " (not met: the smallest budget takes more)"
        print(f"{mean:3.0f} dB: rho {rho:.4f} of {asked.target:g}{met}, accuracy {fmean(right):.3f}; alpha {shares}")
