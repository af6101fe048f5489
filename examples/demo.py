"""The demo behind `make demo`: generate with a small masked diffusion model, and show what each layer attends to.

The model is a LLaDA checkpoint of random weights, small enough to come with the tests: it speaks in token ids and has
learned nothing, so what it attends to is an accident of its weights. Every line of code is the one that runs the 8B
models. Prints a table and writes a figure under runs/demo/.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

import sinklens as sl

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "tests" / "data" / "golden" / "llada"
PROMPT = [[17, 42, 8, 99, 23, 64, 5, 71]]
EPSILON = 3.0  # a sink receives this many fair shares more than the others' mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=ROOT / "runs" / "demo", help="folder for the figure")
    parser.add_argument("--steps", type=int, default=32)
    chosen = parser.parse_args()
    console = Console(width=100)
    model = sl.load(CHECKPOINT)
    sampler = sl.LLaDASampler(steps=chosen.steps, length=32, block=16)
    groups = {"masked": lambda step: step.masked}
    with sl.observe(model, groups=groups) as seen:
        out = sl.generate(model, PROMPT, sampler)
    fair = torch.stack([step.fair_share[:, 0] for step in seen.steps])  # [step, layer, head, key]
    console.print(
        f"\n[bold]{model.spec.family}[/bold] of {model.spec.layers} layers and {model.spec.heads} heads, random "
        f"weights: {len(out.ids[0]) - len(PROMPT[0])} tokens denoised in {len(seen.steps)} steps, attention received "
        "by every token measured at each.\n"
    )
    console.print(layers_table(seen, fair, out.ids[0]))
    chosen.to.mkdir(parents=True, exist_ok=True)
    figure = chosen.to / "attention_received.png"
    draw(fair, out, model.spec.mask_id, figure)
    console.print(
        "\nOne fair share is what uniform attention gives; a sink gets three more than other keys.\n"
        "These weights are random: they show that the numbers are there, not what a trained model does."
        f"\nFigure: [bold]{shown(figure)}[/bold]"
        "\nNext: [bold].venv/bin/sinklens generate tests/data/golden/llada --prompt-ids 17,42,8,99 --length 32[/bold]"
    )


def layers_table(seen: sl.Observation, fair: torch.Tensor, ids: torch.Tensor) -> Table:
    table = Table(title="What each layer attends to, over all steps", title_justify="left")
    for name in (
        "layer", "top key", "token", "head", "step", "fair\nshares", "share of\nattention",
        "of it from\nmasked queries", "sinks\na step",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for layer in range(fair.shape[1]):
        here = fair[:, layer]  # [step, head, key]
        step, head, key = (int(i) for i in torch.unravel_index(here.argmax(), here.shape))
        others = (here.sum(-1, keepdim=True) - here) / (here.shape[-1] - 1)
        sinks = (here > others + EPSILON).sum((1, 2)).float().mean()
        record = seen.steps[step]
        masked = record.groups["masked"][layer, 0, head, key] / record.received[layer, 0, head, key]
        table.add_row(
            str(layer),
            str(key),
            str(int(ids[key])),
            str(head),
            str(step),
            f"{here.max():.1f}",
            f"{record.mass[layer, 0, head, key]:.1%}",
            f"{masked:.0%}",
            f"{sinks:.1f}",
        )
    return table


def draw(fair: torch.Tensor, out: sl.Generation, mask_id: int, path: Path) -> None:
    """Attention received, position by step, for the head with the strongest sink; dots where a token is masked."""
    layer, head = (int(i) for i in torch.unravel_index(fair.amax((0, 3)).argmax(), fair.shape[1:3]))
    values = fair[:, layer, head].T
    masked = mask_id == out.canvases[:-1, 0].T
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    image = axes.imshow(values.numpy(), origin="lower", aspect="auto", cmap="cividis", interpolation="nearest")
    positions, steps = torch.nonzero(masked, as_tuple=True)
    axes.scatter(steps.numpy(), positions.numpy(), s=4, color="white", alpha=0.7, label="still masked")
    axes.axhline(out.prompt_length - 0.5, color="white", linewidth=0.8, linestyle="--")
    axes.set(xlabel="denoising step", ylabel="token position (prompt below the line)")
    axes.set_title(f"Attention received in layer {layer}, head {head} (random weights)", loc="left", fontsize=11)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, facecolor="#00224e", labelcolor="white")
    figure.colorbar(image, label="fair shares (1 = uniform attention)")
    figure.savefig(path, dpi=150)


def shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    main()
