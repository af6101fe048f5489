"""The selector: masking is removal, alpha = 1 is the backbone, dropped is dropped, gradients reach the gates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vit import KINDS, backbone_of, images_of
from torch import Tensor

import sinklens as sl
from sinklens.errors import ModelError, UsageError
from sinklens.selection.calibration import turned
from sinklens.selection.channel import AWGN, Erasure
from sinklens.selection.folder import load_selector, save_selector
from sinklens.selection.losses import BudgetLoss
from sinklens.selection.selector import Gating, Selected, Selector

ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def selector_of(kind: str = "small", seed: int = 0, **options: Any) -> Selector:
    """Untrained. The first gate keeps about alpha, later ones half, whatever the blocks make of the budget token."""
    codec_rate = options.pop("codec_rate", None)
    selector = Selector(backbone_of(kind), Gating(**options), codec_rate=codec_rate, seed=seed).eval()
    with torch.no_grad():
        selector.gates[0].level.add_(2.0)
        for gate in selector.gates:
            gate.score.weight.mul_(20.0)
        for gate in selector.gates[1:]:
            gate.threshold.mul_(0.05)
            gate.level.fill_(-0.5)
    return selector


def run(selector: Selector, *args: Any, **options: Any) -> Selected:
    with torch.no_grad():
        return selector(*args, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("gated", [None, (0, 1, 2), (2,)])
def test_a_masked_batch_computes_what_removal_computes(kind: str, mode: str, gated: tuple[int, ...] | None) -> None:
    selector = selector_of(kind, mode=mode, gated=gated, split=3)
    images, alphas = images_of(6, seed=5), torch.tensor(ALPHAS)
    masked, removed = run(selector, images, alphas), run(selector, images, alphas, remove=True)
    counts = masked.kept[-1].sum(dim=1)
    assert len(counts.unique()) > 1, "rows of one length would not show what padding does"
    torch.testing.assert_close(masked.logits, removed.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(masked.scores, removed.scores, atol=1e-5, rtol=1e-5)
    for name in ("kept", "sent", "macs"):
        assert torch.equal(getattr(masked, name), getattr(removed, name))
    for i in range(len(images)):  # alone, there is no padding at all
        alone = run(selector, images[i : i + 1], alphas[i : i + 1], remove=True)
        torch.testing.assert_close(alone.logits[0], masked.logits[i], atol=1e-5, rtol=1e-5)
        assert torch.equal(alone.kept[:, 0], masked.kept[:, i])


@pytest.mark.parametrize("kind", KINDS)
def test_at_alpha_1_it_is_the_backbone_to_the_bit(kind: str) -> None:
    selector, images = selector_of(kind), images_of(4)
    with torch.no_grad():
        expected = selector.backbone(images)
    for alpha in (1.0, 1, torch.ones(4)):
        full = run(selector, images, alpha)
        assert torch.equal(full.logits, expected)
        assert full.kept.all() and (full.scores == torch.inf).all() and (full.shares == 1).all()
        assert (full.sent == selector.backbone.prefix + 16).all()
    rows = torch.tensor([1.0, 0.4, 1.0, 0.2])
    mixed, some = run(selector, images, rows), run(selector, images[1::2], rows[1::2])
    with torch.no_grad():
        assert torch.equal(mixed.logits[::2], selector.backbone(images[::2]))
    assert torch.equal(mixed.logits[1::2], some.logits) and torch.equal(mixed.kept[:, 1::2], some.kept)
    assert torch.equal(mixed.macs[1::2], some.macs) and mixed.shares[:, ::2].eq(1).all()


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**20), mode=st.sampled_from(["hard", "soft"]), budgets=st.sampled_from([1, 2]))
def test_masks_are_nested_and_the_first_gate_is_monotone(seed: int, mode: str, budgets: int) -> None:
    selector = selector_of(seed=seed, mode=mode, budgets=budgets)
    images = images_of(2, seed=seed)
    found = [run(selector, images, alpha) for alpha in torch.linspace(0, 0.99, 12).tolist()]
    for selected in found:
        assert (selected.kept[1:] <= selected.kept[:-1]).all()
        assert torch.equal(selected.scores == -torch.inf, _dropped_before(selected.kept))
    first = torch.stack([selected.kept[0] for selected in found])
    assert (first[1:] >= first[:-1]).all()
    assert (first[-1].sum() > first[0].sum()) or torch.equal(first[-1], first[0])


def _dropped_before(kept: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(kept[:1]), ~kept[:-1]))


@pytest.mark.parametrize("kind", ["small", "deit"])
def test_the_tokens_at_the_first_gate_do_not_know_the_budget(kind: str) -> None:
    """The difference of scores between two budgets is one number for all tokens of an image."""
    selector = selector_of(kind, gated=(1, 2))
    low, high = run(selector, images_of(3), 0.2), run(selector, images_of(3), 0.8)
    gaps = high.scores[0] - low.scores[0]
    torch.testing.assert_close(gaps, gaps[:, :1].expand_as(gaps))
    assert (gaps > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("remove", [False, True])
def test_with_every_token_dropped_class_and_budget_token_go_on(kind: str, remove: bool) -> None:
    selector = selector_of(kind)
    with torch.no_grad():
        selector.gates[0].score.bias.fill_(-100.0)
    selected = run(selector, images_of(2), 0.3, remove=remove)
    assert not selected.kept.any() and selected.logits.isfinite().all()
    assert (selected.sent == selector.backbone.prefix + 1).all()
    assert not torch.equal(selected.logits, run(selector, images_of(2), 0.9, remove=remove).logits), "budget is seen"


@pytest.mark.parametrize("kind", ["small", "vit"])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_gradients_reach_gates_and_budget_vectors(kind: str, mode: str) -> None:
    selector = selector_of(kind, mode=mode, budgets=2).train()
    images, alphas = images_of(6, seed=2), torch.tensor(ALPHAS)
    inner = [name for name, _ in selector.named_parameters() if name.startswith(("gates", "budget"))]

    def gradients(loss: Tensor) -> dict[str, float]:
        selector.zero_grad()
        loss.backward()
        return {name: float(selector.get_parameter(name).grad.abs().max()) for name in inner}

    task = gradients(selector(images, alphas, channel_alpha=alphas.flip(0)).logits.square().sum())
    assert all(value > 0 for value in task.values()), task
    selected = selector(images, alphas, channel_alpha=alphas.flip(0))
    both = torch.stack((alphas, alphas.flip(0)), dim=1)
    budget = gradients(BudgetLoss().of(selected.shares, both, channel_gate=selector.channel_gate))
    assert all(value > 0 for value in budget.values()), budget


def test_learning_does_not_change_what_is_computed() -> None:
    """The mask that carries the gradient is the one without."""
    selector, images = selector_of(), images_of(3)
    learning = selector(images, 0.4)
    torch.testing.assert_close(learning.logits.detach(), run(selector, images, 0.4).logits, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(learning.shares.detach(), learning.kept.float().mean(dim=2))


def test_soft_shares_are_masses_and_kept_tokens_are_scaled() -> None:
    selector, images = selector_of(mode="soft", gated=(1,), split=3), images_of(2)
    selected = run(selector, images, 0.5)
    counted = selected.kept[0].float().mean(dim=1)
    assert (selected.shares[0] < counted).all() and (selected.shares > 0).all()
    hard = selector_of(mode="hard", gated=(1,), split=3)
    same = run(hard, images, 0.5)
    assert torch.equal(same.kept, selected.kept) and not torch.allclose(same.logits, selected.logits)


@pytest.mark.parametrize("kind", KINDS)
def test_observers_see_dropped_tokens_as_padding(kind: str) -> None:
    selector, images = selector_of(kind, gated=(1, 2)), images_of(3)
    plain = run(selector, images, 0.4)
    with sl.observe(selector) as seen, torch.no_grad():
        selected = selector(images, 0.4)
    assert torch.equal(plain.logits, selected.logits)
    prefix = selector.backbone.prefix
    assert [call.received.shape[-1] for call in seen.calls] == [prefix + 16, prefix + 17, prefix + 17]
    for gate, call in enumerate(seen.calls[1:]):
        kept = selected.kept[gate]
        received = call.received[:, :, prefix:-1]
        assert (received[~kept[:, None].expand_as(received)] == 0).all()
        assert (received[kept[:, None].expand_as(received)] > 0).all()
        alive = kept.sum(dim=1) + prefix + 1
        torch.testing.assert_close(call.received.sum(dim=-1), alive[:, None].expand(-1, 2).float())
    with sl.observe(selector) as seen, torch.no_grad():
        selector(images, 1.0)
    assert seen.received.shape == (3, 3, 2, prefix + 16)
    words = "remove=True under observe or intervene: removed tokens have no place"
    with pytest.raises(UsageError, match=words), sl.observe(selector):
        selector(images, 0.4, remove=True)


def test_two_budgets() -> None:
    selector, images = selector_of(budgets=2), images_of(4)
    one, two = run(selector, images, 0.4), run(selector, images, 0.4, channel_alpha=0.4)
    assert torch.equal(one.logits, two.logits)
    wider = run(selector, images, 0.4, channel_alpha=0.9)
    assert (wider.kept[0] >= two.kept[0]).all() and not torch.equal(wider.scores, two.scores)
    assert torch.equal(run(selector, images, 1.0).logits, selector.backbone(images))
    assert not torch.equal(run(selector, images, 1.0, channel_alpha=0.5).logits, run(selector, images, 1.0).logits)


@pytest.mark.parametrize("codec_rate", [None, 0.5])
@pytest.mark.parametrize("split", [2, 3])
def test_the_channel_is_met_once_by_what_is_left(codec_rate: float | None, split: int) -> None:
    selector, images = selector_of(split=split, codec_rate=codec_rate), images_of(3)
    seen: list[Tensor] = []

    def wire(symbols: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        seen.append(symbols)
        return symbols

    alone = [run(selector, image, 0.4, channel=wire, remove=True) for image in images.split(1)]
    assert [tokens.shape[1] for tokens in seen] == [int(one.sent) for one in alone]
    assert all(one.sent == one.kept[selector.channel_gate].sum() + 2 for one in alone)
    for tokens in seen:
        torch.testing.assert_close(tokens.abs().square().mean(dim=-1), torch.ones(tokens.shape[:2]))
    batch = run(selector, images, 0.4, channel=wire)
    torch.testing.assert_close(batch.logits, torch.cat([one.logits for one in alone]), atol=1e-5, rtol=1e-5)
    if codec_rate is None:
        torch.testing.assert_close(batch.logits, run(selector, images, 0.4).logits, atol=1e-5, rtol=1e-5)
    assert selector.symbols == 8


def test_noise_changes_logits_and_a_generator_repeats_it() -> None:
    selector, images = selector_of(), images_of(3)

    def noisy(snr: float, alpha: float = 0.4) -> Tensor:
        return run(selector, images, alpha, channel=AWGN(snr), generator=torch.Generator().manual_seed(1)).logits

    clean = run(selector, images, 0.4).logits
    assert torch.equal(noisy(0.0), noisy(0.0)) and not torch.allclose(noisy(0.0), clean, atol=1e-3)
    torch.testing.assert_close(noisy(100.0), clean, atol=1e-3, rtol=1e-3)
    full = run(selector, images, 1.0).logits
    assert not torch.allclose(noisy(0.0, 1.0), full, atol=1e-3)
    torch.testing.assert_close(noisy(100.0, 1.0), full, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("alpha", [0.9, 1.0])
def test_erased_tokens_are_gone(alpha: float) -> None:
    """With all of them lost, what the patches of the server's half were cannot matter: only the class token arrives."""
    selector, images = selector_of(gated=(1,), split=2), images_of(3)
    lost = run(selector, images, alpha, channel=Erasure(1.0))
    assert lost.logits.isfinite().all()
    state = []
    handle = selector.backbone.blocks[1].register_forward_hook(lambda _m, _a, output: state.append(output))
    run(selector, images, alpha)
    handle.remove()
    alone = selector.backbone.blocks[2](state[0][:, :1])
    torch.testing.assert_close(lost.logits, selector.backbone.head(alone), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_gives_back_the_selector(kind: str, tmp_path: Path) -> None:
    selector = selector_of(kind, gated=(1, 2), split=2, mode="soft", codec_rate=0.25)
    selector.calibration = torch.tensor([[0.0, 0.2, 0.6, 1.0], [0.0, 0.1, 0.9, 1.0]])
    save_selector(selector, tmp_path / "saved")
    again = load_selector(tmp_path / "saved")
    images = images_of(3)
    for alpha in (0.35, 1.0):
        assert torch.equal(run(again, images, alpha).logits, run(selector, images, alpha).logits)
    assert again.gating == selector.gating and not again.training
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["config.json", "model.safetensors"]


def test_folders_that_hold_no_selector(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no folder .*; expected the folder of a trained selector, or one of tiny-vit"
    ):
        load_selector(tmp_path / "none")
    with pytest.raises(ModelError, match=r"has no config.json"):
        load_selector(tmp_path)
    save_selector(selector_of(), tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"width": 16', '"width": 32'))
    with pytest.raises(ModelError, match=r"model.safetensors: .* does not fit config.json; do the two belong together"):
        load_selector(tmp_path)
    (tmp_path / "config.json").write_text(config.replace('"mode": "hard"', '"mode": "gumbel"'))
    with pytest.raises(ModelError, match="unknown mode of gates 'gumbel'"):
        load_selector(tmp_path)
    (tmp_path / "config.json").write_text(config.replace("sinklens-selection", "llama"))
    with pytest.raises(ModelError, match="is of a 'llama' model; expected 'sinklens-selection'"):
        load_selector(tmp_path)
    (tmp_path / "config.json").write_text(config)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ModelError, match=r"model.safetensors cannot be read as safetensors"):
        load_selector(tmp_path)


def test_a_calibration_is_a_rising_broken_line() -> None:
    selector = selector_of()
    selector.calibration = torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.2, 1.0]])
    asked = torch.tensor([[0.0], [0.25], [0.5], [0.75], [1.0]])
    torch.testing.assert_close(selector.calibrated(asked), torch.tensor([[0.0], [0.1], [0.2], [0.6], [1.0]]))
    given, found = torch.tensor([0.0, 0.25, 0.5, 0.75]), torch.tensor([0.1, 0.4, 0.3, 0.8])
    expected = torch.tensor([[0.0, 0.1, 0.4, 0.8, 1.0], [0.0, 0.0, 0.25, 0.75, 1.0]])
    torch.testing.assert_close(turned(given, found), expected)


def test_gating_that_cannot_be_meant() -> None:
    for gated in ((), (2, 1), (1, 1), (3,), (-1,)):
        with pytest.raises(UsageError, match=r"gated is .*; expected rising numbers of blocks from 0 to 2"):
            selector_of(gated=gated)
    for split in (1, 4):
        with pytest.raises(UsageError, match=f"split is {split}; expected a block behind the first gate, 2 to 3"):
            selector_of(split=split)
    with pytest.raises(UsageError, match="budgets is 3; expected 1, or 2"):
        selector_of(budgets=3)
