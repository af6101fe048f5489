"""The page on interventions: its code runs, and its table of choices is what the settings do."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from interventions.test_controls import CONTROLS
from sinklens.errors import UsageError
from sinklens.interventions.dose import Dose
from sinklens.interventions.flow import Flow
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.plan import ACCEPTED
from sinklens.interventions.stale_step import StaleStep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "interventions.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    """From the root of the repository, as the page says."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
    first, *lines = done.stdout.splitlines()
    sinks, random = map(float, re.findall(r"0\.\d\d", first))
    assert 0 < random < sinks <= 1
    assert len(lines) == 6
    assert lines[0].startswith("0 0 0.000 of 0.")


@pytest.mark.parametrize("causal", [False, True], ids=["diffusion", "autoregressive"])
def test_the_defaults_are_as_the_page_says(causal: bool) -> None:
    plan = MaskSinks(top=1).plan(causal)
    for name in ("rank_by", "queries", "keys"):
        (row,) = re.findall(rf"^\| `{name}`.*$", PAGE.split("## `MaskSinks(top=k)`")[1], flags=re.MULTILINE)[:1]
        cell = row.strip("|").split("|")[2 if causal else 1]
        assert re.findall(r'`"(\w+)"`', cell)[0] == getattr(plan, name)


def test_every_setting_value_and_record_is_on_the_page() -> None:
    rows = PAGE.split("## The other settings")[1].split("Which combinations")[0]
    listed = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", rows, flags=re.MULTILINE)
    named = {name for cell in listed for name in re.findall(r"\w+", cell)}
    assert named | {"rank_by"} == {field.name for field in fields(MaskSinks)}
    for values in ACCEPTED.values():
        assert all(f'"{value}"' in PAGE for value in values)
    for record in (Dose, Flow):
        assert all(f"`{field.name}`" in PAGE for field in fields(record))


@pytest.mark.parametrize("kind", [*(kind for name, kind in CONTROLS.items() if name != "stale"), StaleStep])
def test_every_control_is_on_the_page_with_its_defaults(kind: Any) -> None:
    (written,) = re.findall(rf"^\| `{kind.__name__}\((.*?)\)` \|", PAGE.split("## Controls")[1], flags=re.MULTILINE)
    given = dict(pair.split("=") for pair in written.split(", "))
    assert given.pop("top") in ("k", "1")
    own = {field.name: str(field.default) for field in fields(kind)[len(fields(MaskSinks)) - 1 :]}
    assert given == own


CELLS = [  # which combinations there are: settings, diffusion, autoregressive
    ({"top": 1, "rank_by": "received"}, True, True),
    ({"top": 1, "rank_by": "last_row"}, False, True),
    *(({"top": 1, "source": source}, True, True) for source in ("previous_step", "same_step", "same_input")),
    *(({"top": 1, "measure": measure}, True, True) for measure in ("before", "after", "shadow")),
    *(({"top": 1, "source": s, "prefill": "masked"}, True, True) for s in ("same_step", "same_input")),
    *(({"top": 1, "source": s, "scope": "model"}, True, True) for s in ("previous_step", "same_input")),
    ({"top": 1, "queries": "generated"}, True, True),
    ({"top": 1, "queries": "generated", "keys": "cached"}, True, False),
    *(({"top": 1, "queries": queries}, True, False) for queries in ("block", "masked", "unmasked")),
    ({"top": 1, "queries": "last"}, False, True),
    *(({"top": 1, "keys": "cached", "queries": q}, True, False) for q in ("all", "block", "masked", "unmasked")),
    ({"top": 1, "keys": "cached", "queries": "last"}, False, True),
]


@pytest.mark.parametrize(("settings", "diffusion", "autoregressive"), CELLS, ids=str)
def test_the_table_of_combinations(settings: dict[str, Any], diffusion: bool, autoregressive: bool) -> None:
    for causal, there in ((False, diffusion), (True, autoregressive)):
        if there:
            plan = MaskSinks(**settings).plan(causal)
            assert all(getattr(plan, name) == value for name, value in settings.items() if name != "top")
        else:
            with pytest.raises(UsageError):
                MaskSinks(**settings).plan(causal)


def test_when_fixed_positions_are_masked_from_the_first_step_on() -> None:
    fixed = MaskSinks(positions=[0])
    assert (fixed.plan(False).prefill, fixed.plan(True).prefill) == ("masked", "clean")
    assert MaskSinks(positions=[0], keys="recomputed").plan(True).prefill == "masked"
    assert MaskSinks(top=1, source="same_step").plan(False).prefill == "clean"
