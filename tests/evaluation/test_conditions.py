"""Conditions: text and back, what is refused, and the interventions they stand for."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sinklens as sl
from sinklens.errors import UsageError
from sinklens.evaluation.conditions import CHOICES, DRAWN, Condition, mixed_seed, parse_condition
from sinklens.evaluation.grid import Grid


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """Of any condition that a family has."""
    choose = draw(st.sampled_from(["none", *CHOICES]))
    if choose == "none":
        return {}
    threshold = choose not in ("mass", "first") and draw(st.booleans())
    budget: dict[str, Any] = {"epsilon": draw(st.floats(0, 1e6))} if threshold else {"top": draw(st.integers(1, 99))}
    return {
        "choose": choose,
        **budget,
        "act": draw(st.sampled_from(["mask", "zero", "mean"])),
        "scope": draw(st.sampled_from([None, "head", "layer", "model"])),
        "keys": draw(st.sampled_from([None, "cached", "recomputed"])),
        "measure": draw(st.sampled_from([None, "before", "after", "shadow"])),
        "draw": draw(st.integers(0, 9)) if choose in DRAWN else 0,
    }


@given(settings())
def test_text_reads_back_as_the_same_condition(given: dict[str, Any]) -> None:
    condition = Condition(**given)
    again = parse_condition(str(condition))
    assert again == condition and again.fingerprint == condition.fingerprint
    assert Condition(**condition.as_dict()) == condition


@given(settings(), settings())
def test_fingerprint_and_text_tell_conditions_apart(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, other = Condition(**first), Condition(**second)
    assert (one == other) == (one.fingerprint == other.fingerprint) == (str(one) == str(other))


def test_labels() -> None:
    labels = {
        "none": "unmasked",
        "unmasked": "unmasked",
        "sinks:top=5": "5 sinks",
        "random:top=5,draw=3": "5 random",
        "sinks:epsilon=3,keys=cached": "eps 3 sinks, cached",
        "sinks:top=1,act=zero,scope=layer": "1 sink, zero value, per layer",
        "sinks: top=1, scope=model, measure=after": "1 sink, whole model, measure after",
        "other_head:top=2": "2 sinks of another head",
        "other_head:top=1": "1 sink of another head",
        "stale:top=1": "1 stale sink",
        "first:top=1": "1 first token",
        "next:top=1": "1 next ranked",
        "sinks:epsilon=1": "eps 1 sinks",
    }
    assert {text: parse_condition(text).label for text in labels} == labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sink:top=1", r"unknown choice of keys in condition 'sink:top=1': 'sink'; expected one of 'none', 'sinks'"),
        ("sinks", "with top=None and epsilon=None; expected one of them: keys a head"),
        ("sinks:top=1,epsilon=3", "with top=1 and epsilon=3.0; expected one of them"),
        ("sinks:top=0", "top is 0; expected a whole number, 1 or more"),
        ("sinks:top=one", "top=one in condition 'sinks:top=one'; expected a number"),
        ("sinks:top=1,top=2", "top stands twice in condition"),
        ("sinks:top", "'top' in condition 'sinks:top'; expected NAME=VALUE with a NAME of top, epsilon, act"),
        ("sinks:top=1,depth=2", "'depth=2' in condition"),
        ("sinks:epsilon=-1", "epsilon is -1.0; expected a finite number, 0 or more"),
        ("mass:epsilon=3", "epsilon=3.0 with choose='mass', which takes a number of keys"),
        ("none:top=1", "choose='none' with top=1: nothing is done"),
        ("sinks:top=1,act=drop", "unknown act 'drop'; expected one of 'mask', 'zero', 'mean'"),
        ("sinks:top=1,scope=all", "unknown scope 'all'; expected one of 'head', 'layer', 'model'"),
        ("sinks:top=1,draw=2", "draw=2 with choose='sinks', whose keys are the same in every draw"),
        ("random:top=1,draw=-1", "draw is -1; expected a number from 0 on"),
        ("sinks:top=1,source=fixed", "source='fixed' needs positions"),
        ("sinks:top=1,prefill=masked", "before step 0 nothing was ranked"),
        ("sinks:top=1,queries=last,rank_by=last_row,keys=all", "unknown keys 'all'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_condition(text)


def test_settings_that_no_family_combines_are_refused_and_those_of_one_are_not() -> None:
    with pytest.raises(UsageError, match=r"queries='generated'.*keys='cached'"):
        # a causal model refuses the queries, a bidirectional one the ranking
        Condition(choose="sinks", top=1, queries="generated", keys="cached", rank_by="last_row")
    assert str(Condition(choose="sinks", top=1, queries="block")) == "sinks:top=1,queries=block"
    assert str(Condition(choose="sinks", top=1, queries="last")) == "sinks:top=1,queries=last"


def test_interventions() -> None:
    assert Condition().intervention(seed=1) is None
    assert parse_condition("sinks:top=5,keys=cached").intervention() == sl.MaskSinks(top=5, keys="cached")
    assert parse_condition("next:epsilon=2").intervention() == sl.NextRanked(epsilon=2.0)
    assert parse_condition("first:top=2").intervention() == sl.FirstToken(top=2)
    zero = parse_condition("sinks:top=1,act=zero,scope=layer").intervention(follow=True)
    assert zero == sl.ZeroValue(of=sl.MaskSinks(top=1, scope="layer"))  # weights stay: there is nothing to follow
    assert parse_condition("stale:top=1,act=mean").intervention() == sl.MeanValue(of=sl.StaleStep(top=1))
    assert parse_condition("sinks:top=1").intervention(follow=True) == sl.MaskSinks(top=1, follow=True)


@pytest.mark.parametrize("choose", DRAWN)
def test_draws_have_seeds_of_their_own_for_each_problem(choose: str) -> None:
    first, second = (Condition(choose=choose, top=2, draw=draw) for draw in (0, 1))
    seeds = [one.intervention(seed=7, problems=(4, 9)).seed for one in (first, second)]  # type: ignore[union-attr]
    assert len({*seeds[0], *seeds[1]}) == 4
    assert first.intervention(seed=7, problems=(9,)).seed == (seeds[0][1],)  # type: ignore[union-attr]
    assert first.intervention(seed=8, problems=(9,)).seed != (seeds[0][1],)  # type: ignore[union-attr]
    assert isinstance(first.intervention(seed=7).seed, int)  # type: ignore[union-attr]


def test_seeds_do_not_run_into_each_other() -> None:
    assert mixed_seed(1, 23) != mixed_seed(12, 3)
    assert 0 <= mixed_seed(0) < 2**63


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("none", False),
        ("sinks:top=1", False),
        ("sinks:top=1,keys=cached", False),
        ("sinks:top=1,keys=recomputed", True),
        ("sinks:top=1,queries=all", True),
        ("random:top=1,queries=last", False),
    ],
)
def test_who_needs_a_run_without_a_cache(text: str, without: bool) -> None:
    assert parse_condition(text).recomputes() is without


def test_the_module_needs_no_torch() -> None:
    modules = "sinklens.evaluation.conditions, sinklens.evaluation.grid"
    code = f"import sys, {modules}; print({{'torch', 'scipy'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_grid_changes_one_thing_at_a_time() -> None:
    grid = Grid(
        tops=(0, 5),
        controls=("random", "next"),
        keys=("cached", "recomputed"),
        acts=("mask", "zero"),
        scopes=("head", "model"),
        epsilons=(3.0,),
        draws=2,
    )
    shared = ["sinks:top=5,act=zero", "sinks:top=5,scope=model", "sinks:epsilon=3"]
    plain = ["none", "sinks:top=5", "random:top=5", "random:top=5,draw=1", "next:top=5"]
    for causal, other in ((True, "recomputed"), (False, "cached")):
        changed = [f"sinks:top=5,keys={other}", f"random:top=5,keys={other}", f"random:top=5,keys={other},draw=1"]
        assert [str(one) for one in grid.cells(causal=causal)] == plain + changed + shared
    assert [str(one) for one in Grid(tops=(0,), controls=()).cells(causal=True)] == ["none"]
    assert len(Grid().cells(causal=False)) == 1 + 3 + 3 * 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"controls": ("sinks",)}, "unknown control 'sinks'; expected one of 'random', 'next'"),
        ({"keys": ("fresh",)}, "unknown keys 'fresh'"),
        ({"acts": ("drop",)}, "unknown act 'drop'"),
        ({"scopes": ("net",)}, "unknown scope 'net'"),
        ({"draws": 0}, "draws is 0; expected at least 1"),
    ],
)
def test_a_grid_of_unknown_names_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Grid(**given)
