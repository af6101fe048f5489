"""All that the card of an embedded model says, measured: tasks by split, and sinks.

    python -m sinklens.training.evaluate tiny-llada --to card.json

The text is held_out.jsonl: the beginnings of 64 documents that no embedded model was trained on.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinklens.models.load import Loaded, load
from sinklens.training.measure import accuracy, autoregressive_sinks, diffusion_sinks, generation_sinks, half_written

HELD_OUT_TEXT = Path(__file__).parent / "held_out.jsonl"
SPLITS = ("test", "templates", "numbers")
LENGTHS = {"word_problems": 64, "small_programs": 64, "passkey": 16}  # tokens of an answer


def held_out_rows(tokenizer: Any, length: int) -> Int[Tensor, "row position"]:
    """The first `length` tokens of each document, bos included."""
    lines = HELD_OUT_TEXT.read_text("utf-8").splitlines()
    return torch.tensor([tokenizer.encode(json.loads(line)["text"])[:length] for line in lines])


def measure_sinks(model: Loaded, *, batch: int, prompts: int) -> dict[str, Any]:
    """Of one forward and, for a diffusion model, of whole generations from the held-out text."""
    if model.spec.causal:
        return {"forward": autoregressive_sinks(model, held_out_rows(model.tokenizer, 64))}
    rows = held_out_rows(model.tokenizer, 192)
    canvases = half_written(rows, mask_id=model.spec.mask_id or 0, prompt=64)
    return {
        "forward": diffusion_sinks(model, canvases),
        "generation": generation_sinks(model, rows[:prompts, :64], batch=batch),
    }


def evaluate(
    model: Loaded, *, problems: int, prompts: int = 64, batch: int = 64, unsafe: bool = False
) -> Iterator[dict[str, Any]]:
    """The measured part of a card, as far as it is known, after each measurement."""
    sinks = measure_sinks(model, batch=batch, prompts=prompts)
    found: dict[str, Any] = {"model": model.spec.source, "sinks": sinks, "tasks": []}
    yield found
    for split in SPLITS:
        for name, length in LENGTHS.items():
            found["tasks"].append(
                accuracy(model, name, split=split, count=problems, batch=batch, unsafe=unsafe, length=length)
            )
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="an embedded name or a folder")
    parser.add_argument("--to", type=Path, required=True, help="JSON file, written anew after each measurement")
    parser.add_argument("--problems", type=int, default=500, help="of each task and split")
    parser.add_argument("--prompts", type=int, default=64, help="held-out documents that generations start from")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--unsafe", action="store_true", help="run generated programs where there is no sandbox")
    chosen = parser.parse_args()
    model = load(chosen.model, device=chosen.device, dtype="float32")
    settings = {"problems": chosen.problems, "prompts": chosen.prompts, "batch": chosen.batch}
    for found in evaluate(model, unsafe=chosen.unsafe, **settings):
        chosen.to.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        print(found["tasks"][-1] if found["tasks"] else "sinks measured", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
