"""The demo behind `make demo`: generate with two small masked diffusion models, and follow what they attend to.

The models are a LLaDA and a Dream checkpoint of random weights, small enough to come with the tests: they speak in
token ids and have learned nothing, so what they attend to is an accident of their weights. Every line of code is the
one that runs the 7B and 8B models. Writes traces and a figure under runs/demo/ and prints what `sinklens sinks` prints.
"""

import argparse
import shutil
from pathlib import Path

import sinklens as sl
from sinklens.cli.sink_tables import print_entry, shown_path
from sinklens.cli.sinks import describe_trace
from sinklens.report.figures import draw_figures

ROOT = Path(__file__).parents[1]
CHECKPOINTS = ROOT / "tests" / "data" / "golden"
PROMPTS = [[17, 42, 8, 99, 23, 64, 5, 71], [5, 6, 7, 8, 9, 10, 11, 12], [90, 3, 77, 14, 61, 28, 45, 33]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=ROOT / "runs" / "demo", help="folder for traces and figures")
    parser.add_argument("--length", type=int, default=64, help="tokens to generate, one a step")
    chosen = parser.parse_args()
    samplers = {
        "llada": sl.LLaDASampler(steps=chosen.length, length=chosen.length, block=chosen.length // 2),
        "dream": sl.DreamSampler(steps=chosen.length, length=chosen.length, alg="entropy"),
    }
    traces = []
    for family, sampler in samplers.items():
        folder = chosen.to / family
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier demo
        traces.append(sl.trace(sl.load(CHECKPOINTS / family), PROMPTS, sampler, to=folder, name=f"random {family}"))
    for trace in traces:
        print_entry(describe_trace(trace, parts=("tracks", "tokens", "events")))
        print()
    (figure,) = draw_figures(traces, chosen.to, only=["1"])
    print(
        "A sink receives three fair shares more than the other tokens; one fair share is what uniform attention gives."
    )
    print("These weights are random: they show that the numbers are there, not what a trained model does.")
    print(f"Figure: {shown_path(str(figure.files[0]))}")
    print(f"Next: .venv/bin/sinklens sinks {shown_path(str(traces[0].path))} --parts all")


if __name__ == "__main__":
    main()
