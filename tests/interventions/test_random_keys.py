"""The random control: the budget, steps and queries of MaskSinks, and draws that depend on nothing but their place."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinklens as sl
from interventions.rankings import ranking
from interventions.replayed import probed, truth_of
from sinklens.attention.seam import Seen
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.random_keys import RandomKeys

ROWS = [[17, 42, 8, 59, 23, 61], [5, 6], [11, 12, 13, 14]]


def choose(top: int = 2, seed: int = 0, **place: Any) -> Tensor:
    return RandomKeys(top=top, seed=seed).choose(ranking(**place))


def taken(one: Seen) -> np.ndarray:
    """Keys that every query lost, [row, head, query]."""
    return (truth_of(one.incoming).visible & ~truth_of(one.effective).visible).sum(-1)


@pytest.mark.parametrize("name", ["llada", "dream", "llama"])
def test_the_same_steps_queries_and_number_of_keys_as_mask_sinks(golden: Path, llama: Any, name: str) -> None:
    model = sl.wrap(llama) if name == "llama" else sl.load(golden / name)
    sampler: Any = {
        "llada": sl.LLaDASampler(steps=4, length=8, block=8),
        "dream": sl.DreamSampler(steps=4, length=8),
        "llama": sl.AutoregressiveSampler(length=4),
    }[name]
    counts, doses = [], []
    for settings in (MaskSinks(top=2), RandomKeys(top=2)):
        with probed(model, settings) as (lab, seen):
            next(run := sl.steps(model, ROWS, sampler))
            next(run)
        counts.append([taken(one).tolist() for one in seen])
        doses.append(lab.dose)
    assert counts[0] == counts[1]
    assert 2 in np.concatenate([np.ravel(rows) for rows in counts[0]])
    assert 0 < doses[1] < 1
    assert name == "llama" or doses[1] < 0.9 * doses[0]  # random weights: the next row has other favourites


def test_draws_are_made_again_from_seed_step_layer_and_row() -> None:
    assert torch.equal(choose(), choose())
    assert torch.equal(choose(rows=1), choose(rows=4)[:1])  # whatever else is in the batch
    base = choose(rows=8, heads=8)
    others = [choose(rows=8, heads=8, seed=1), choose(rows=8, heads=8, step=1), choose(rows=8, heads=8, layer=1)]
    assert all((other != base).float().mean() > 0.5 for other in others)
    assert len({tuple(pair) for pair in base.reshape(-1, 2).tolist()}) > 20  # rows and heads differ


def test_every_key_is_drawn_equally_often_and_no_key_twice() -> None:
    draws = torch.cat([choose(top=3, rows=1, heads=64, keys=10, step=step) for step in range(200)]).reshape(-1, 3)
    assert all(len(set(row)) == 3 for row in draws.tolist())
    counts = Counter(draws.flatten().tolist())
    expected = draws.numel() / 10
    assert set(counts) == set(range(10))
    # 12,800 draws of 3 in 10: the spread of a count is sqrt(12,800 * .3 * .7), about 52
    assert all(abs(count - expected) < 5 * 52 for count in counts.values())


def test_only_candidates_are_drawn_and_canvas_positions_are_given() -> None:
    some = ranking(rows=1, heads=50, keys=4)
    candidates = torch.tensor([[[True, False, True, False]]])
    place = replace(some, candidates=candidates, positions=torch.tensor([9, 3, 4, 6]))
    drawn = RandomKeys(top=3).choose(place)
    assert drawn.shape == (1, 50, 3)
    assert set(drawn[..., :2].flatten().tolist()) == {9, 4}
    assert set(drawn[..., 2].flatten().tolist()) == {-1}


@pytest.mark.parametrize("name", ["llada", "llama"])
def test_a_run_can_be_repeated(golden: Path, llama: Any, name: str) -> None:
    model: Any = sl.wrap(llama) if name == "llama" else sl.load(golden / name)
    sampler: Any = (
        sl.AutoregressiveSampler(length=8) if name == "llama" else sl.LLaDASampler(steps=6, length=12, block=12)
    )

    def run(seed: int) -> tuple[Any, Any]:
        with sl.intervene(model, RandomKeys(top=4, seed=seed)) as lab:
            return sl.generate(model, ROWS, sampler).ids.tolist(), lab.doses

    assert run(0) == run(0)
    assert run(0)[1] != run(1)[1]
