"""How time and memory of an observed forward grow with the tokens, and with layers x heads.

    python benchmarks/growth.py [--lengths 128,...,4096] [--json FILE] [--figure FILE]
    PYTHONPATH=src python3 benchmarks/growth.py --device cuda --layers 16 --heads 32 --width 2048 --at 2048 \
        --lengths 256,512,1024,2048,4096,8192,16384,32768

A random Llama (causal, heads of 64; float32 on a CPU, bfloat16 on a GPU) runs plain and observed in turn, warm. The
second pass is the difference of the two medians. An exponent is the slope of a straight line through the logarithms:
over the whole range, and over the last three points, where what grows fastest shows. Layers are multiplied at a fixed
number of heads, heads at a fixed number of layers and a fixed width of the residual stream, both at --at tokens.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers_worker import CLOCKS, compare_peaks, compare_times

VOCABULARY, HEAD = 512, 64
Row = dict[str, Any]
QUANTITIES = {
    "plain_s": "plain, time",
    "observed_s": "observed, time",
    "second_s": "second pass, time",
    "plain_mib": "plain, peak memory",
    "observed_mib": "observed, peak memory",
}
NEGLIGIBLE = 0.10  # of the plain forward


def build(layers: int, heads: int, *, width: int, device: str) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=HEAD, max_position_embeddings=131072,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config)
    return model.to(torch.float32 if device == "cpu" else torch.bfloat16).eval()


def measure(shape: tuple[int, int], lengths: list[int], chosen: argparse.Namespace, *, memory: bool) -> list[Row]:
    """Times, or peaks of memory, of one model at several lengths."""
    import sinklens as sl

    model = build(*shape, width=chosen.width, device=chosen.device)
    rows = []
    for length in lengths:
        ids = torch.randint(0, VOCABULARY, (1, length), device=chosen.device)

        def plain(ids: torch.Tensor = ids) -> None:
            model(ids, logits_to_keep=1, use_cache=False)

        def observed(ids: torch.Tensor = ids) -> torch.Tensor:
            with sl.observe(model, norms=False) as seen:
                plain(ids)
            return seen.received

        if memory:
            found = compare_peaks(plain, observed, device=chosen.device)
        else:
            asked = {"device": chosen.device, "repeats": chosen.repeats, "clock": chosen.clock}
            found = compare_times(plain, observed, **asked)
            found["second_s"] = found["observed_s"] - found["plain_s"]
        rows.append(found | {"layers": shape[0], "heads": shape[1], "length": length})
    return rows


def exponent(rows: list[Row], quantity: str, *, against: str, last: int | None = None) -> float | None:
    """Slope on log-log axes; None where a value is not above 0, so that no line can be drawn."""
    chosen = rows[-last:] if last else rows
    values = np.array([row[quantity] for row in chosen])
    if len(chosen) < 2 or (values <= 0).any():
        return None
    return float(np.polyfit(np.log([row[against] for row in chosen]), np.log(values), 1)[0])


def not_negligible(rows: list[Row]) -> int | None:
    """The shortest length from which on the second pass always takes more than a tenth of the plain forward."""
    found = None
    for row in reversed(rows):
        if row["second_s"] <= NEGLIGIBLE * row["plain_s"]:
            break
        found = int(row["length"])
    return found


def sweep(chosen: argparse.Namespace) -> dict[str, list[Row]]:
    lengths = [int(length) for length in chosen.lengths.split(",")]
    halves = max(1, chosen.layers // 2), max(1, chosen.heads // 2)
    plans: dict[str, list[tuple[tuple[int, int], list[int]]]] = {
        "tokens": [((chosen.layers, chosen.heads), lengths)],
        "layers": [((halves[0] * factor, chosen.heads), [chosen.at]) for factor in (1, 2, 4, 8)],
        "heads": [((chosen.layers, halves[1] * factor), [chosen.at]) for factor in (1, 2, 4, 8)],
    }

    def run(memory: bool) -> dict[str, list[Row]]:
        return {
            name: [row for shape, many in plan for row in measure(shape, many, chosen, memory=memory)]
            for name, plan in plans.items()
        }

    times, peaks = run(memory=False), run(memory=True)  # in this order: see peak_mib
    return {
        name: [
            one | two | {"layers_heads": one["layers"] * one["heads"]}
            for one, two in zip(rows, peaks[name], strict=True)
        ]
        for name, rows in times.items()
    }


def exponents(series: dict[str, list[Row]]) -> dict[str, dict[str, list[float | None]]]:
    """For every series and quantity: over all points, over the last three."""
    axes = {"tokens": "length", "layers": "layers_heads", "heads": "layers_heads"}
    return {
        name: {
            quantity: [exponent(rows, quantity, against=axes[name], last=last) for last in (None, 3)]
            for quantity in QUANTITIES
        }
        for name, rows in series.items()
    }


def show(series: dict[str, list[Row]], slopes: dict[str, dict[str, list[float | None]]]) -> None:
    print("| layers | heads | S | plain ms | observed ms | ratio (lowest to highest) | plain MiB | observed MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for rows in series.values():
        for row in rows:
            spread = f"{row['ratio']:.2f} ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})"
            print(
                f"| {row['layers']} | {row['heads']} | {row['length']} | {row['plain_s'] * 1e3:.4g} "
                f"| {row['observed_s'] * 1e3:.4g} | {spread} | {row['plain_mib']:.4g} | {row['observed_mib']:.4g} |"
            )
    print("\n| exponent (all points / last three) | " + " | ".join(f"against {name}" for name in slopes) + " |")
    print("|---|" + "---|" * len(slopes))
    for quantity, words in QUANTITIES.items():
        cells = (" / ".join("-" if one is None else f"{one:.2f}" for one in slopes[name][quantity]) for name in slopes)
        print(f"| {words} | " + " | ".join(cells) + " |")
    length = not_negligible(series["tokens"])
    where = "at no measured length" if length is None else f"from {length} tokens on"
    print(f"\nThe second pass takes more than {NEGLIGIBLE:.0%} of the plain forward {where}.")


def draw(series: dict[str, list[Row]], slopes: dict[str, dict[str, list[float | None]]], *, at: int, to: Path) -> None:
    from sinklens.report.style import MARKERS, line_style, panels, styled

    def line(axis: Any, rows: list[Row], quantity: str, against: str, *, number: int, label: str) -> None:
        kept = [row for row in rows if row[quantity] > 0]
        look = line_style(number) | {"marker": MARKERS[number], "markersize": 3, "label": label}
        axis.plot([row[against] for row in kept], [row[quantity] for row in kept], **look)

    def named(words: str, name: str, quantity: str) -> str:
        slope = slopes[name][quantity][1]
        return words if slope is None else f"{words}: {slope:.2f}"

    with styled():
        figure, (time, memory, size) = panels(3, height=2.9)
        tokens = series["tokens"]
        for number, name in enumerate(("plain", "observed", "second")):
            words = {"second": "second pass"}.get(name, name)
            line(time, tokens, f"{name}_s", "length", number=number, label=named(words, "tokens", f"{name}_s"))
            if name != "second":
                label = named(words, "tokens", f"{name}_mib")
                line(memory, tokens, f"{name}_mib", "length", number=number, label=label)
        for number, (name, side) in enumerate((n, s) for n in ("layers", "heads") for s in ("plain", "observed")):
            label = named(f"{side}, more {name}", name, f"{side}_s")
            line(size, series[name], f"{side}_s", "layers_heads", number=number, label=label)
        for axis, across, up in (
            (time, "tokens", "time of a forward (s)"),
            (memory, "tokens", "peak memory over weights (MiB)"),
            (size, f"layers x heads ({at} tokens)", "time of a forward (s)"),
        ):
            axis.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
            ticks = sorted({int(x) for drawn in axis.get_lines() for x in drawn.get_xdata()})
            axis.set_xticks(ticks, [str(tick) for tick in ticks], rotation=45)
            axis.set_xticks([], minor=True)
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("")
            axis.legend(loc="upper left", title="exponent, last 3 points", title_fontsize=6, fontsize=6)
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (high / low) ** 0.45)  # room for the legend
        to.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(to, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", default="128,256,512,1024,2048,4096")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--at", type=int, default=512, help="tokens for the sweep over layers and heads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    with torch.no_grad():
        series = sweep(chosen)
    slopes = exponents(series)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chosen.repeats} repeats, {chosen.device}\n")
    show(series, slopes)
    if chosen.json:
        chosen.json.write_text(json.dumps({"series": series, "exponents": slopes}, indent=1))
    if chosen.figure:
        draw(series, slopes, at=chosen.at, to=chosen.figure)


if __name__ == "__main__":
    main()
