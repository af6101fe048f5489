"""What the three families are trained to predict."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.training.network import Network
from sinklens.training.objectives import Batch, loss_of, masked_diffusion, next_token
from training.small import small_recipe

MASK = 2


def rows(count: int, length: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randint(4, 4096, (count, length), generator=torch.Generator().manual_seed(seed))


def masked(ids: torch.Tensor, open_: torch.Tensor, *, shift: bool = False, seed: int = 0, most: float = 1.0) -> Batch:
    return masked_diffusion(ids, open_, mask_id=MASK, shift=shift, draws=torch.Generator().manual_seed(seed), most=most)


def opened(ids: torch.Tensor, start: int = 1) -> torch.Tensor:
    return (torch.arange(ids.shape[1]) >= start).float().expand(ids.shape)


def test_next_token_predicts_what_counts_and_nothing_else() -> None:
    ids = rows(2, 5)
    counted = torch.tensor([[0.0, 1, 1, 1, 1], [0, 1, 1, 0, 0]])
    batch = next_token(ids, counted)
    assert torch.equal(batch.targets.view(2, 4), ids[:, 1:])
    assert batch.where.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    torch.testing.assert_close(batch.weights, torch.tensor([1, 1, 1, 1, 1, 1, 0, 0]) / 6)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), shift=st.booleans(), start=st.integers(1, 20))
def test_masks_fall_on_open_positions_and_the_weights_undo_the_rate(seed: int, shift: bool, start: int) -> None:
    ids = rows(16, 24, seed=seed)
    batch = masked(ids, opened(ids, start), shift=shift, seed=seed)
    hidden = batch.inputs == MASK
    assert not hidden[:, :start].any()
    assert torch.equal(batch.inputs[~hidden], ids[~hidden])
    weighted = batch.weights > 0
    places = batch.where[weighted] + shift
    assert sorted(places.tolist()) == hidden.flatten().nonzero().squeeze(1).tolist()  # each masked place, once
    assert torch.equal(batch.targets, ids.flatten()[batch.where + shift])
    per_row = torch.zeros(16).index_add(0, places // 24, batch.weights[weighted])
    rate = hidden.sum(dim=1) / (24 - start)
    assert bool((per_row[rate == 0] == 0).all())


def test_the_weights_are_one_over_the_rate_over_the_open_positions() -> None:
    """Their sum is one on average: an even spread of rates, each undone."""
    ids = rows(64, 64)
    sums = torch.stack([masked(ids, opened(ids), seed=seed).weights.sum() for seed in range(60)])
    assert float(sums.mean()) == pytest.approx(1.0, abs=0.02)


def test_rates_spread_evenly_up_to_the_highest() -> None:
    ids = rows(200, 200)
    shares = (masked(ids, opened(ids), most=0.5).inputs == MASK).float().mean(dim=1).sort().values
    assert float(shares.max()) < 0.62
    expected = 0.5 * (torch.arange(200) + 0.5) / 200
    assert float((shares - expected).abs().mean()) < 0.02


def test_every_masked_place_has_room() -> None:
    """The number of predicted places is fixed; rates are spread, so it suffices for what the recipes draw."""
    ids = rows(128, 512)
    for seed in range(20):
        batch = masked(ids, opened(ids), seed=seed)
        assert int((batch.weights > 0).sum()) == int((batch.inputs == MASK).sum())


@pytest.mark.parametrize("shift", [False, True])
def test_the_loss_is_the_weighted_cross_entropy(shift: bool) -> None:
    network = Network(small_recipe("llada").shape.transformer("llada"), causal=False, seed=0)
    ids = rows(4, 12)
    batch = masked(ids, opened(ids), shift=shift)
    logits = F.linear(network(batch.inputs, network.rotation(12)), network.embed.weight)
    hidden = batch.inputs == MASK
    spread = torch.arange(4) + torch.rand(1, generator=torch.Generator().manual_seed(0))
    rate = 1e-3 + (1 - 1e-3) * (spread / 4 % 1.0)
    expected = sum(
        F.cross_entropy(logits[row, place - shift], ids[row, place]) / rate[row]
        for row, place in hidden.nonzero().tolist()
    ) / (4 * 11)
    torch.testing.assert_close(loss_of(network, batch, network.rotation(12)), expected)
