"""Two trainings into one folder, and a log that lost its end."""

from pathlib import Path

import pytest

from sinklens.errors import SinklensError
from sinklens.locks import writing_alone
from sinklens.selection.data import load_images
from sinklens.selection.recipe import SelectionRecipe, selection_recipe_of
from sinklens.selection.training import LOG, train


def recipe_of() -> SelectionRecipe:
    return selection_recipe_of(
        {
            "name": "small",
            "shape": {"image": 8, "patch": 2, "width": 16, "blocks": 3, "heads": 2},
            "gating": {"split": 2},
            "schedule": {"steps": 6, "batch": 8, "warmup": 2, "save_every": 2},
        },
        source="test",
    )


def test_a_second_training_is_refused(tmp_path: Path) -> None:
    images = load_images("digits", limit=40)
    with writing_alone(tmp_path), pytest.raises(SinklensError, match="writ"):
        train(recipe_of(), images, to=tmp_path)
    train(recipe_of(), images, to=tmp_path)


@pytest.mark.parametrize("rest", ['{"step": 5, "ta', None])
def test_a_torn_log_is_mended(rest: str | None, tmp_path: Path) -> None:
    images = load_images("digits", limit=40)

    def kill(step: int, entry: object) -> None:
        if step == 5:
            raise KeyboardInterrupt

    whole = train(recipe_of(), images, to=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(recipe_of(), images, to=tmp_path / "killed", stepped=kill)
    log = tmp_path / "killed" / LOG
    log.unlink() if rest is None else log.write_text(log.read_text() + rest)
    resumed = train(recipe_of(), images, to=tmp_path / "killed", resume=True)
    assert len(log.read_text().splitlines()) == (1 if rest is None else 3)
    for name, value in whole.state_dict().items():
        assert bool((resumed.state_dict()[name] == value).all()), name
