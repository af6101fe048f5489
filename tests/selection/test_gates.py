"""Gates: what passes, what gradient comes back, and a threshold that falls with the budget whatever the weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.selection.gates import BudgetToken, Gate, GateStart, hard_step, log_mask, read_budgets


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_hard_step_is_0_or_1_with_the_gradient_of_a_sigmoid() -> None:
    z = torch.tensor([-8.0, -0.5, 0.0, 1e-6, 2.0], requires_grad=True)
    step = hard_step(z)
    assert step.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    (step * weights).sum().backward()
    smooth = z.detach().clone().requires_grad_()
    (torch.sigmoid(smooth) * weights).sum().backward()
    torch.testing.assert_close(z.grad, smooth.grad)


def test_the_log_of_a_mask_and_its_gradient() -> None:
    mask = torch.tensor([1.0, 0.0, 1.0], requires_grad=True)
    bias = log_mask(mask)
    assert bias.tolist() == [0.0, -torch.inf, 0.0]
    torch.softmax(bias, dim=0)[0].backward()
    torch.testing.assert_close(mask.grad, torch.tensor([0.25, 0.0, -0.25]))


def test_the_budget_token_runs_from_low_to_high() -> None:
    token = BudgetToken(6, budgets=2, generator=drawn(0))
    ends = token(torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(ends[0], token.low.sum(dim=0))
    torch.testing.assert_close(ends[1], token.high.sum(dim=0))
    torch.testing.assert_close(ends[2], token.high[0] + token.low[1])
    wide = BudgetToken(4000, generator=drawn(1))
    assert abs(wide.low.detach().std() - 1) < 0.1 and abs(wide.high.detach().mean()) < 0.1


@settings(max_examples=40, deadline=None)
@given(bend=st.floats(-20, 20), alphas=st.lists(st.floats(0, 1, width=32), min_size=2, max_size=20))
def test_places_rise_from_0_to_1_whatever_was_learnt(bend: float, alphas: list[float]) -> None:
    token = BudgetToken(4, generator=drawn(0))
    with torch.no_grad():
        token.bend.fill_(bend)
        places = token.places(torch.tensor([0.0, *sorted(alphas), 0.5, 1.0])[:, None])[:, 0]
    torch.testing.assert_close(places[[0, -2, -1]], torch.tensor([0.0, 0.5, 1.0]), atol=1e-6, rtol=0)
    assert (places[1:-2] >= places[:-3] - 1e-7).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    budgets=st.sampled_from([1, 2]),
    mode=st.sampled_from(["hard", "soft"]),
    scale=st.floats(0.01, 100),
)
def test_the_same_scores_keep_no_less_for_more(seed: int, budgets: int, mode: str, scale: float) -> None:
    generator = drawn(seed)
    token, gate = BudgetToken(8, budgets=budgets, generator=generator), Gate(8, mode=mode, generator=generator)
    with torch.no_grad():
        gate.threshold.mul_(scale)
        gate.level.normal_(generator=generator)
        scores = gate.scores(torch.randn(1, 40, 8, generator=generator)).expand(30, -1)
        alphas = torch.rand(30, budgets, generator=generator).sort(dim=0).values
        mask, z = gate.masks(scores, gate.threshold_at(token, alphas))
    kept = mask > 0
    assert (kept[1:] >= kept[:-1]).all()
    assert (z[1:] >= z[:-1]).all()
    if mode == "hard":
        assert torch.equal(kept, z > 0)


def read_off(gate: Gate, budget: torch.Tensor) -> torch.Tensor:
    return (budget * gate.threshold).sum(dim=-1) + gate.level


def test_a_threshold_is_read_from_the_budget_token() -> None:
    """Where the slope points down by itself, it is u . b + u0; where it points up, the slope is turned round."""
    token, gate = BudgetToken(8, generator=drawn(2)), Gate(8, generator=drawn(3))
    gate.face(token)
    alphas = torch.tensor([[0.0], [0.3], [1.0]])
    torch.testing.assert_close(gate.threshold_at(token, alphas), read_off(gate, token(alphas)))
    with torch.no_grad():
        gate.threshold.neg_()
    turned, plain = gate.threshold_at(token, alphas), read_off(gate, token(alphas))
    torch.testing.assert_close(turned[0], plain[0])
    torch.testing.assert_close(turned - turned[0], plain[0] - plain)


@pytest.mark.parametrize(
    ("start", "ends"),
    [(GateStart(reach=4.0, opening=2.0), [0.0, -4.0]), (GateStart(reach=3.0, opening=-0.5), [2.0, -1.0])],
)
def test_every_gate_faces_the_budget_when_training_begins(start: GateStart, ends: list[float]) -> None:
    for seed in range(20):
        token = BudgetToken(8, budgets=2, generator=drawn(seed))
        gate = Gate(8, start=start, generator=drawn(seed + 100))
        gate.face(token)
        found = gate.threshold_at(token, torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        torch.testing.assert_close(found, torch.tensor(ends), atol=1e-4, rtol=0)


def test_scores_start_with_the_spread_that_is_asked_for() -> None:
    x = torch.randn(1, 400, 64, generator=drawn(0))
    for spread in (0.05, 1.0):
        gates = [Gate(64, start=GateStart(spread=spread), generator=drawn(seed)) for seed in range(20)]
        found = torch.stack([gate.scores(x).detach().std() for gate in gates]).mean()
        assert 0.85 * spread < found < 1.15 * spread


@pytest.mark.parametrize("values", [{"reach": 0.0}, {"spread": -1.0}, {"opening": float("nan")}])
def test_gates_that_cannot_start(values: dict[str, float]) -> None:
    with pytest.raises(
        UsageError, match=r"gates start with reach .* expected finite numbers, reach and spread above 0"
    ):
        GateStart(**values)


def test_soft_masks_are_the_published_ones() -> None:
    gate = Gate(4, mode="soft", generator=drawn(0))
    scores, threshold = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([-0.5])
    mask, z = gate.masks(scores, threshold)
    expected = (torch.sigmoid(scores) - torch.sigmoid(threshold)).clamp(min=0)
    torch.testing.assert_close(mask, expected)
    assert z.tolist() == [[2.5, 0.5, -0.5]] and (mask < 1).all()


def test_scores_do_not_change_with_the_size_of_features() -> None:
    gate, x = Gate(8, generator=drawn(4)), torch.randn(2, 5, 8, generator=drawn(5))
    torch.testing.assert_close(gate.scores(x), gate.scores(1000 * x), atol=1e-4, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gate.scores(x), gate.scores(x.clone())) and gate.scores(x).dtype == torch.float32


def test_budgets_are_read_and_checked() -> None:
    assert read_budgets(0.25, None, batch=2, budgets=1).tolist() == [[0.25], [0.25]]
    assert read_budgets(torch.tensor([0.25, 1]), None, batch=2, budgets=2).tolist() == [[0.25, 0.25], [1.0, 1.0]]
    assert read_budgets(0, 0.5, batch=1, budgets=2).tolist() == [[0.0, 0.5]]
    for alpha, came in ((1.5, "1.5"), (-0.1, "-0.1"), (float("nan"), "nan"), (torch.tensor([0.5, 2.0]), "2")):
        with pytest.raises(UsageError, match=f"alpha is {came}; expected a share of tokens from 0 to 1"):
            read_budgets(alpha, None, batch=2, budgets=1)
    with pytest.raises(UsageError, match="alpha is 'half'; expected a number from 0 to 1, or a tensor"):
        read_budgets("half", None, batch=2, budgets=1)
    with pytest.raises(UsageError, match=r"alpha has shape \[3\]; expected a number, or one for each of 2 images"):
        read_budgets(torch.rand(3), None, batch=2, budgets=1)
    with pytest.raises(UsageError, match="channel_alpha with a model of one budget; leave it out"):
        read_budgets(0.5, 0.5, batch=2, budgets=1)
    with pytest.raises(UsageError, match="channel_alpha is 3; expected a share"):
        read_budgets(0.5, 3.0, batch=2, budgets=2)
    with pytest.raises(UsageError, match="unknown mode of gates 'gumbel'; expected one of 'hard', 'soft'"):
        Gate(4, mode="gumbel")
