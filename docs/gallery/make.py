"""Make the pages of this folder: one question, answered by the three embedded models (`make gallery`)."""

import tempfile
from pathlib import Path

import sinklens as sl
from sinklens.report.page import write_page
from sinklens.tasks import task

HERE = Path(__file__).parent
LENGTH = 64


def main() -> None:
    prompt = next(iter(task("word_problems").items("test"))).prompt
    samplers = {
        "tiny-llama": sl.AutoregressiveSampler(length=LENGTH),
        "tiny-llada": sl.LLaDASampler(steps=LENGTH, length=LENGTH, block=LENGTH),
        "tiny-dream": sl.DreamSampler(steps=LENGTH, length=LENGTH, alg="entropy"),
    }
    with tempfile.TemporaryDirectory() as scratch:
        traces = {
            name: sl.trace(sl.load(name), prompt, sampler, to=Path(scratch) / name)
            for name, sampler in samplers.items()
        }
        for page, names in {
            "llama-and-dream.html": ("tiny-llama", "tiny-dream"),
            "llada.html": ("tiny-llada",),
        }.items():
            write_page([traces[name] for name in names], HERE / page)  # no date: the same models, the same bytes
            print(f"{HERE / page} ({(HERE / page).stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
