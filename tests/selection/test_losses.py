"""Budget losses on known answers, and the draws of budgets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.selection.losses import BudgetLoss, draw_alphas, task_loss

SHARES = torch.tensor([[0.5, 0.9], [0.3, 0.7]])  # 2 gates, 2 images
ALPHAS = torch.tensor([[0.4], [0.8]])


@pytest.mark.parametrize(
    ("kind", "per", "gates", "expected"),
    [
        ("squared", "image", "each", 0.01),
        ("one_sided", "image", "each", 0.005),
        ("margin", "image", "each", 0.08),
        ("squared", "image", "mean", 0.0),
        ("squared", "bin", "each", 0.01),  # one image a bin: as per image
        ("one_sided", "bin", "each", 0.005),
    ],
)
def test_the_compute_budget(kind: str, per: str, gates: str, expected: float) -> None:
    loss = BudgetLoss(kind=kind, per=per, gates=gates, compute=1.0, channel=0.0, margin=0.02, bins=10)
    assert float(loss.of(SHARES, ALPHAS, channel_gate=0)) == pytest.approx(expected, abs=1e-7)


def test_the_channel_budget_looks_at_one_gate_and_at_its_own_alpha() -> None:
    loss = BudgetLoss(per="image", compute=0.0, channel=3.0)
    assert float(loss.of(SHARES, ALPHAS, channel_gate=1)) == pytest.approx(3 * 0.01)
    both = torch.tensor([[0.4, 0.3], [0.8, 0.2]])
    assert float(loss.of(SHARES, both, channel_gate=1)) == pytest.approx(3 * 0.25 / 2)
    total = BudgetLoss(per="image", compute=2.0, channel=3.0)
    assert float(total.of(SHARES, both, channel_gate=1)) == pytest.approx(2 * 0.01 + 3 * 0.25 / 2)


def test_images_of_one_bin_share_a_budget() -> None:
    """One spends more, one less: nothing to punish. Per image there would be."""
    shares, alphas = torch.tensor([[0.2, 0.8, 0.9]]), torch.tensor([[0.5], [0.5], [0.95]])
    weights = {"compute": 1.0, "channel": 0.0, "bins": 2}
    shared = BudgetLoss(per="bin", **weights).of(shares[:, :2], alphas[:2], channel_gate=0)
    assert float(shared) == pytest.approx(0.0, abs=1e-7)
    alone = BudgetLoss(per="image", **weights).of(shares[:, :2], alphas[:2], channel_gate=0)
    assert float(alone) == pytest.approx(0.09)
    # All three in the upper bin: mean share 0.6333, mean alpha 0.65.
    all_of_them = BudgetLoss(per="bin", **weights).of(shares, alphas, channel_gate=0)
    assert float(all_of_them) == pytest.approx((0.65 - 1.9 / 3) ** 2, rel=1e-4)


@settings(max_examples=50, deadline=None)
@given(
    kind=st.sampled_from(["squared", "one_sided", "margin"]),
    per=st.sampled_from(["image", "bin"]),
    seed=st.integers(0, 2**31),
)
def test_a_budget_that_is_met_costs_nothing_and_gradients_point_to_it(kind: str, per: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    alphas = draw_alphas(8, 1, generator=generator)
    loss = BudgetLoss(kind=kind, per=per)
    assert float(loss.of(alphas.T.expand(3, -1), alphas, channel_gate=1)) == pytest.approx(0.0, abs=1e-6)
    over = (alphas.T + 0.1).expand(3, -1).clone().requires_grad_()
    value = loss.of(over, alphas, channel_gate=1)
    value.backward()
    assert value.detach() > 0 and over.grad is not None and (over.grad > 0).all()


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 70), budgets=st.sampled_from([1, 2]), seed=st.integers(0, 2**31))
def test_budgets_are_drawn_one_in_each_stratum(batch: int, budgets: int, seed: int) -> None:
    alphas = draw_alphas(batch, budgets, generator=torch.Generator().manual_seed(seed))
    strata = (alphas.double() * batch).floor().sort(dim=0).values
    assert (alphas >= 0).all() and (alphas <= 1).all()
    assert (strata - torch.arange(batch)[:, None]).abs().max() <= 1  # an edge may be rounded over


def test_settings_and_labels_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="unknown kind of budget loss 'l1'; expected one of 'squared'"):
        BudgetLoss(kind="l1")
    with pytest.raises(UsageError, match="unknown per 'batch'; expected one of 'image', 'bin'"):
        BudgetLoss(per="batch")
    with pytest.raises(UsageError, match=r"compute is -1.0; expected a number from 0"):
        BudgetLoss(compute=-1.0)
    with pytest.raises(UsageError, match="bins is 0; expected at least 1"):
        BudgetLoss(bins=0)
    with pytest.raises(
        UsageError, match=r"labels are torch.int64 \[3\]; expected whole numbers, one for each of 2 images"
    ):
        task_loss(torch.zeros(2, 4), torch.zeros(3, dtype=torch.long))
    assert float(task_loss(torch.zeros(2, 4), torch.tensor([0, 3]))) == pytest.approx(1.386294, rel=1e-5)
