"""What was trained for the page on token selection: settings, steps, trials and the commands."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from sinklens.errors import UsageError
from sinklens.models.fields import read_json
from sinklens.report.key_norm_tables import markdown
from sinklens.selection.recipe import read_selection_recipe


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run of `select train`, as its folder tells it."""

    name: str
    recipe: Mapping[str, Any]
    last: Mapping[str, Any]  # of its log
    data: str
    redraw: bool

    @property
    def command(self) -> str:
        """What was typed, up to the device and the folder."""
        words = ["sinklens select train", self.recipe["name"], "--data", quote(self.data)]
        words += ["--redraw"] if self.redraw else []
        return " ".join([*words, *(f"--set {quote(one)}" for one in changes(self.recipe))])


def read_trainings(folder: Path) -> list[Training]:
    """The runs of a folder, in the order of their names; none where there are none."""
    found = []
    for path in sorted(folder.glob("*/training.json")):
        about, images = read_json(path), path.with_name("data.json")
        lines = path.with_name("log.jsonl").read_text("utf-8").splitlines()
        if not lines:
            raise UsageError(f"{path.parent} has an empty log.jsonl; was its training cut short?")
        known = read_json(images) if images.is_file() else {}
        found.append(
            Training(
                name=path.parent.name,
                recipe=about["recipe"],
                last=json.loads(lines[-1]),
                data=known.get("data", "fashion"),
                redraw=bool(known.get("redraw", False)),
            )
        )
    return found


def changes(recipe: Mapping[str, Any]) -> list[str]:
    """What differs from the embedded recipe of the same name, as settings."""
    embedded = read_selection_recipe(str(recipe["name"])).as_dict()
    found = []
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            before = embedded.get(key, {})
            found += [f"{key}.{name}={_toml(one)}" for name, one in value.items() if before.get(name) != one]
        elif embedded.get(key) != value:
            found.append(f"{key}={_toml(value)}")
    return found


def training_section(trainings: Sequence[Training]) -> str:
    """A row for every model; what all have in common is said once."""
    steps = {(one.recipe["schedule"]["steps"], one.recipe["schedule"]["batch"]) for one in trainings}
    common = set.intersection(*(set(changes(one.recipe)) for one in trainings))
    rows = []
    for one in trainings:
        own = [change for change in changes(one.recipe) if change not in common and not change.startswith("graph=")]
        schedule = one.recipe["schedule"]
        rows.append(
            [
                one.name,
                ", ".join(f"`{change}`" for change in own),
                f"{schedule['steps']:,} x {schedule['batch']}",
                f"{one.last['task']:.3f}",
                f"{one.last['accuracy']:.3f}",
            ]
        )
    said = "All have the same number of steps" if len(steps) == 1 else "The number of steps differs"
    text = f"{said}. Each is one training; nothing was tuned but how gates start (below). The last columns are means "
    text += "over the last steps that were logged, at the budgets of the training.\n\n"
    text += markdown(("model", "differs in", "steps x images", "task loss", "accuracy in training"), rows)
    return f"{text}\n```\n" + "\n".join(f"{one.command} --to {one.name}" for one in trainings) + "\n```\n"


def starts_section(starts: Mapping[str, Any]) -> str:
    """Losses at the end of short trainings, by where the gates start."""
    losses = starts.get("losses")
    if not isinstance(losses, Mapping) or not losses:
        raise UsageError("the file of --starts has no losses; expected {'losses': {'open': [...], ...}}")
    rows = [
        [name, *(f"{value:.3f}" for value in some), f"{sum(some) / len(some):.3f}"] for name, some in losses.items()
    ]
    seeds = len(next(iter(losses.values())))
    columns = ("gates start", *(f"seed {number}" for number in range(seeds)), "mean")
    steps = {one["step"] for name, one in starts.get("last", {}).items() if name.rpartition("-")[0] in losses}
    length = f", {max(steps)} steps each" if steps else ""
    count = sum(len(some) for some in losses.values())
    said = f"How the gates start was settled beforehand, by the task + budget loss of {count} short trainings{length}. "
    said += "Rankings have no such setting; key norms are there in both directions:"
    return f"{said}\n\n{markdown(columns, rows)}"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
