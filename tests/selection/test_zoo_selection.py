"""The embedded selector: it is what its recipe says, spends what it is asked to, and `select show` draws it at once."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from sinklens.cli import main
from sinklens.models.catalog import ZOO
from sinklens.selection.data import FASHION, load_images
from sinklens.selection.folder import load_selector
from sinklens.selection.recipe import read_selection_recipe

NAME = "tiny-vit-selection"


def test_the_weights_are_of_the_embedded_recipe() -> None:
    about = json.loads((ZOO / NAME / "training.json").read_text())
    recipe = read_selection_recipe(NAME)
    assert about["fingerprint"] == recipe.fingerprint and about["step"] == recipe.schedule.steps


def test_show_needs_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(
            ["select", "show", "--images", "2", "--alphas", "0.1,1", "--to", str(tmp_path / "shown"), "--device", "cpu"]
        )
    assert not end.value.code
    names = sorted(path.name for path in (tmp_path / "shown").iterdir())
    assert len(names) == 3 and names[-1] == "page.html"


@pytest.mark.skipif(not FASHION.is_dir(), reason="Fashion-MNIST is not installed; run `make fashion`")
def test_the_budget_is_met_on_test_images() -> None:
    selector, test = load_selector(NAME), load_images("fashion", split="test", limit=300, size=64)
    right, kept = {}, []
    with torch.no_grad():
        for alpha in (0.1, 0.3, 0.5, 0.7, 0.95, 1.0):
            found = selector(test.images, alpha)
            assert abs(float(found.shares.mean()) - alpha) < 0.05
            right[alpha] = float((found.logits.argmax(1) == test.labels).float().mean())
            kept.append(found.kept.sum(dim=2))
    assert right[1.0] > 0.65 and right[0.3] > right[1.0] - 0.13, right  # ten classes; 0.709 and 0.636 of all 10 000
    for less, more in pairwise(kept):
        assert bool((more[0] >= less[0]).all())  # at the first gate, for every image
        assert float((more < less).float().mean()) <= 0.01
