"""Recipes: read, changed, refused; and the schedule they name."""

from itertools import pairwise
from pathlib import Path

import pytest

from sinklens.errors import UsageError
from sinklens.training.recipe import RECIPES, Schedule, read_recipe, recipe_of


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_recipes_in_the_box_can_be_read(path: Path) -> None:
    recipe = read_recipe(path.stem)
    assert recipe.name == path.stem
    assert recipe == read_recipe(path)
    assert recipe_of(recipe.as_dict(), source="written") == recipe  # what a checkpoint stores is the recipe


def test_the_three_models_share_their_shape_and_their_kinds_of_rows() -> None:
    recipes = [read_recipe(name) for name in ("tiny-llama", "tiny-llada", "tiny-dream")]
    assert len({recipe.shape for recipe in recipes}) == 1
    rows = {(recipe.data.context, recipe.data.task_context, tuple(recipe.data.tasks)) for recipe in recipes}
    assert len(rows) == 1


def test_changes_change_the_fingerprint() -> None:
    plain = read_recipe("tiny-llama")
    changed = read_recipe("tiny-llama", ("schedule.steps=10", "seed=3", "name=other"))
    assert (changed.schedule.steps, changed.seed, changed.name) == (10, 3, "other")
    assert changed.fingerprint != plain.fingerprint
    assert read_recipe("tiny-llama").fingerprint == plain.fingerprint
    assert changed.tokens == 10 * changed.data.tokens


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("schedule.steps", "expected KEY=VALUE"),
        ("schedule.stepz=3", "has no setting stepz; expected some of steps"),
        ("schedule.steps=0", "steps is 0; expected a whole number from 1"),
        ("schedule.steps=many", "steps is 'many'; expected a number"),
        ("optimizer.lr=true", "lr is True; expected a number"),
        ("name.first=x", "name is a single value"),
        ("family=bert", "unknown family 'bert'; expected one of 'llama', 'llada', 'dream'"),
        ("data.tasks={chess = 1.0}", "expected shares of passkey, small_programs, word_problems"),
        ("data.tasks={passkey = 0}", "expected shares above 0"),
        ("shape=3", "shape is 3; expected a table of settings"),
    ],
)
def test_what_cannot_be_meant_is_refused(change: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_recipe("tiny-llama", (change,))


def test_a_recipe_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no recipe 'tiny-bert'; expected a TOML file or one of tiny-dream, tiny-llada"
    ):
        read_recipe("tiny-bert")
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(UsageError, match="is no TOML"):
        read_recipe(tmp_path / "broken.toml")
    (tmp_path / "half.toml").write_text("name = 'half'")
    with pytest.raises(UsageError, match="family"):
        read_recipe(tmp_path / "half.toml")


def test_the_rate_warms_up_stays_and_decays() -> None:
    schedule = Schedule(steps=100, warmup=10, decay_from=0.8, final=0.1, segment=40, rewarm=4, measure_every=50)
    rates = [schedule.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert rates[10:40] == [1.0] * 30
    assert rates[40:45] == [0.25, 0.5, 0.75, 1.0, 1.0]  # a segment begins from weights alone
    assert rates[99] == pytest.approx(0.1)
    assert all(earlier >= later for earlier, later in pairwise(rates[84:]))
    assert [done for done in range(1, 101) if schedule.ends_segment(done)] == [40, 80, 100]
