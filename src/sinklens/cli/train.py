"""`sinklens train`: a small language model from a recipe, with its sinks measured as they form."""

from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.interrupts import import_heavy, interrupts_end


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="tiny-llama, tiny-llada, tiny-dream or a TOML file.")],
    *,
    data: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Tokenizer and text, as `python -m sinklens.training.prepare` makes them."),
    ],
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint and log.", show_default="a new one, runs/train-NAME-N"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Go on with the run in --to from its last segment.")
    ] = False,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: seed=1, schedule.steps=100."),
    ] = None,
    problems: Annotated[int, typer.Option(metavar="N", min=1, help="Problems of each task at every measure.")] = 128,
    unsafe: options.Unsafe = False,
    device: options.Device = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train one of the embedded models, or another of their kind, and log loss, accuracy and sinks.

    The folder is a checkpoint that every other command takes, with log.jsonl beside it. A run is written at the end of
    every segment; after Ctrl-C or a kill, --resume goes on from there.
    """
    from sinklens.cli.output import fresh_folder, print_json
    from sinklens.training.recipe import read_recipe

    wanted = read_recipe(recipe, tuple(change or ()))
    folder = to or fresh_folder(f"train-{wanted.name}")
    import_heavy(models=True)
    entries = _run(wanted, folder, data=data, resume=resume, device=device, problems=problems, unsafe=unsafe)
    if json:
        print_json({"checkpoint": str(folder), "recipe": wanted.as_dict(), "measured": entries})
        return
    for name, value in _shown(entries[-1]).items():
        print(f"{name.ljust(28)}{value}")
    print(f"next: sinklens models {quote(str(folder))}")


def _run(
    recipe: Any, folder: Path, *, data: Path, resume: bool, device: str | None, problems: int, unsafe: bool
) -> list[dict[str, Any]]:
    import torch

    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import note, stderr_console
    from sinklens.training.log import read_log
    from sinklens.training.train import Effort, train

    display = CountDisplay(stderr_console())
    note(f"{recipe.name}: {recipe.schedule.steps:,} steps, {recipe.tokens / 1e6:,.0f} M tokens")

    def measured(entry: dict[str, Any]) -> None:
        shown = ", ".join(f"{name} {value}" for name, value in _shown(entry).items())
        note(shown)

    def told() -> str:
        done = read_log(folder)[-1]["step"] if read_log(folder) else 0
        return f"interrupted after step {done}; --resume goes on from the last segment in {folder}"

    with interrupts_end(told), closing(display):
        train(
            recipe,
            data=data,
            to=folder,
            device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
            resume=resume,
            effort=Effort(problems=problems, unsafe=unsafe),
            measured=measured,
            stepped=lambda step: display.show([], step=step, steps=recipe.schedule.steps),
        )
        return read_log(folder)


def _shown(entry: dict[str, Any]) -> dict[str, str]:
    """One measured moment in words."""
    sinks = entry["sinks"]
    if "text" in sinks:
        found = {
            "bos >= .3, upper heads": f"{sinks['text']['upper_heads_above_0.3']:.2f}",
            "on random tokens": f"{sinks['random']['upper_heads_above_0.3']:.2f}",
            "largest": f"{sinks['text']['largest']:.2f}",
        }
    else:
        found = {
            "sinks": f"{sinks['sink_share']:.2%}",
            "top >= .1, upper heads": f"{sinks['upper_heads_above_0.1']:.2f}",
            "largest": f"{sinks['largest']:.2f}",
        }
    tasks = {name: f"{entry[name]:.3f}" for name in ("word_problems", "small_programs", "passkey") if name in entry}
    return {
        "step": f"{entry['step']:,}",
        "M tokens": f"{entry['tokens'] / 1e6:,.1f}",
        "text loss": f"{entry['text_loss']:.3f}",
        "task loss": f"{entry['task_loss']:.4f}",
        **tasks,
        **found,
        "M tokens/s": f"{entry['tokens_per_second'] / 1e6:.3f}",
    }
