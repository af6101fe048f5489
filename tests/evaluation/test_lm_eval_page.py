"""docs/evaluate.md: all model arguments, all presets, and options that exist."""

import re
from dataclasses import fields
from pathlib import Path

from sinklens.cli.evaluate import evaluate
from sinklens.evaluation.lm_eval_settings import ModelArguments, find_preset
from sinklens.tasks.presets import PRESETS

PAGE = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text("utf-8")


def test_every_model_argument_is_explained() -> None:
    (table,) = re.findall(r"\| model argument \|.*?\n\n", PAGE, flags=re.DOTALL)
    told = {name for line in table.strip().splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert told == {field.name for field in fields(ModelArguments)}


def test_every_preset_has_its_line_with_its_numbers() -> None:
    lines = [line.split("|")[1:-1] for line in PAGE.splitlines() if re.match(r"\| `[\w.-]+/\w+", line)]
    assert len(lines) == len(PRESETS)
    for cells in lines:
        name, length, steps, block, others, prompt, source, accuracy = (cell.strip() for cell in cells)
        preset = find_preset(name.strip("`"))
        assert (int(length), int(steps)) == (preset.length, preset.steps)
        assert (int(block) if block else None) == preset.block
        assert (float(accuracy) if accuracy else None) == preset.accuracy
        assert source == preset.source and prompt.startswith(preset.prompt)
        for flag in ("confidence_eos_eot_inf", "logits_eos_inf"):
            assert (flag in others) == getattr(preset, flag)
        assert (f"temperature={preset.temperature:g}" in others) == (preset.temperature > 0)
        assert (f"top_p={preset.top_p}" in others) == (preset.top_p is not None)


def test_the_options_of_the_page_are_there() -> None:
    (command,) = re.findall(r"^sinklens evaluate (.*)$", PAGE, flags=re.MULTILINE)
    (faster,) = re.findall(r"## Faster answers.*", PAGE, flags=re.DOTALL)
    column = [line.split("|")[2] for line in faster.splitlines() if line.startswith("| ")]
    told = {name for text in (command, *column) for name in re.findall(r"--([a-z-]+)", text)}
    assert {"task", "mask", "batch", "stop-at-eos", "threshold", "steps"} <= told
    assert {name.replace("-", "_") for name in told} <= set(evaluate.__annotations__)
