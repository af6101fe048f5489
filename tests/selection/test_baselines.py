"""Baselines at equal counts: known answers for every ranking and for merging, in our ViT and in transformers'."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sinklens.attention.observe import observe
from sinklens.errors import UsageError
from sinklens.selection.backbone import wrap_backbone
from sinklens.selection.baselines import BASELINES, run_ranked
from sinklens.selection.channel import AWGN, Erasure
from sinklens.selection.codec import Codec
from sinklens.selection.cost import CostShape, backbone_macs
from sinklens.selection.rankings import RANKINGS, Look
from sinklens.selection.tome import Merged, merge
from sinklens.selection.vit import SmallViT, ViTShape

SHAPE = ViTShape(image=32, patch=8, width=32, blocks=4, heads=2)  # 16 patches


@pytest.fixture(scope="module", params=["small", "transformers"])
def backbone(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    if request.param == "small":
        return SmallViT(SHAPE).eval()
    from transformers import DeiTConfig, DeiTForImageClassification

    config = DeiTConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
        num_channels=1, num_labels=10,
    )  # fmt: skip
    model = DeiTForImageClassification(config).eval()
    with torch.no_grad():  # its class token starts at zero, and would look everywhere alike
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return wrap_backbone(model)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(5, 1, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("ranking", BASELINES)
@torch.no_grad()
def test_counts_are_kept_and_masks_nested(backbone: nn.Module, images: Tensor, ranking: str) -> None:
    counts = torch.tensor([[12, 16, 9, 3, 1], [8, 10, 9, 2, 1], [3, 1, 9, 1, 1]])
    ranked = run_ranked(backbone, images, counts, ranking)
    assert torch.equal(ranked.kept.sum(dim=2), counts)
    assert not (ranked.kept[1:] & ~ranked.kept[:-1]).any()
    assert ranked.sent.tolist() == (backbone.prefix + counts[0]).tolist()  # split at 2: behind the gate of block 1
    assert ranked.logits.isfinite().all()
    # An image gets in a batch what it gets alone: padding is seen by nobody.
    for row in range(5):
        alone = run_ranked(backbone, images[row : row + 1], counts[:, row : row + 1], ranking, first=row)
        torch.testing.assert_close(alone.logits[0], ranked.logits[row], rtol=1e-4, atol=1e-5)
        assert torch.equal(alone.kept[:, 0], ranked.kept[:, row])
        assert int(alone.macs[0]) == int(ranked.macs[row])


@pytest.mark.parametrize("ranking", BASELINES)
@torch.no_grad()
def test_with_all_tokens_a_baseline_is_the_backbone(backbone: nn.Module, images: Tensor, ranking: str) -> None:
    ranked = run_ranked(backbone, images, [16, 16, 16], ranking)
    torch.testing.assert_close(ranked.logits, backbone(images), rtol=1e-4, atol=1e-5)
    assert ranked.macs.unique().tolist() == [backbone_macs(CostShape.of(backbone))]


@torch.no_grad()
def test_nothing_left_but_the_prefix(backbone: nn.Module, images: Tensor) -> None:
    ranked = run_ranked(backbone, images, [0, 0, 0], "norm")
    tokens = backbone.blocks[0](backbone.embed(images))[:, : backbone.prefix]
    for block in list(backbone.blocks)[1:]:
        tokens = block(tokens)
    torch.testing.assert_close(ranked.logits, backbone.head(tokens), rtol=1e-4, atol=1e-5)
    assert run_ranked(backbone, images, [0, 0, 0], "tome").kept.sum(dim=2).unique().tolist() == [1]  # merging ends at 1


@torch.no_grad()
def test_each_ranking_keeps_what_it_says(backbone: nn.Module, images: Tensor) -> None:
    """Against the same quantities as the observer measures them."""
    prefix = backbone.prefix
    with observe(backbone, maps=[(0, 0), (0, 1)]) as seen:
        backbone(images)
    x = backbone.blocks[0](backbone.embed(images))
    key_norms = seen.key_norm[0].mean(dim=1)[:, prefix:]
    attention = (seen.maps[0, 0] + seen.maps[0, 1]) / 2
    expected = {
        "norm": x[:, prefix:].norm(dim=-1),
        "key_norm": -key_norms,
        "key_norm_high": key_norms,
        "cls": attention[:, 0, prefix:],
        "avit": -x[:, prefix:, 0],
    }
    for ranking, scores in expected.items():
        kept = run_ranked(backbone, images, [5], ranking, gated=(1,)).kept[0]
        wanted = torch.zeros_like(kept).scatter(1, scores.topk(5, dim=1).indices, True)
        assert torch.equal(kept, wanted), ranking


def test_ties_go_to_the_first_patch() -> None:
    backbone = SmallViT(SHAPE)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.zero_()
        kept = run_ranked(backbone, torch.zeros(1, 1, 32, 32), [3, 3, 3], "norm").kept
    assert kept[0, 0].nonzero().flatten().tolist() == [0, 1, 2]


@torch.no_grad()
def test_random_is_even_and_by_seed_and_image(images: Tensor) -> None:
    backbone = SmallViT(SHAPE)
    many = torch.zeros(600, 1, 32, 32)
    first = run_ranked(backbone, many, [4, 4, 4], "random", seed=1).kept
    assert torch.equal(first[0], first[2])
    rates = first[0].float().mean(dim=0)
    assert float((rates - 0.25).abs().max()) < 0.07  # standard error 0.018
    assert not torch.equal(first, run_ranked(backbone, many, [4, 4, 4], "random", seed=2).kept)
    later = run_ranked(backbone, many[:100], [4, 4, 4], "random", seed=1, first=500).kept
    assert torch.equal(later, first[:, 500:])


def test_a_halting_score_falls_with_the_first_feature() -> None:
    halting = torch.tensor([[0.2, 0.9, 0.5]], dtype=torch.float64)
    empty = torch.zeros(1, 3, 2)
    look = Look(tokens=empty, keys=None, attention=None, halting=halting, draws=empty[..., 0])
    assert RANKINGS["avit"](look).argsort(descending=True).tolist() == [[0, 2, 1]]


@pytest.mark.parametrize(("ranking", "learns"), [("avit", True), ("norm", False)])
def test_only_the_halting_score_itself_has_a_gradient(ranking: str, learns: bool) -> None:
    """With scores cut off from the gradient, only a baseline that learns from them gets another one."""
    backbone = SmallViT(SHAPE)
    images = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    gradients = []
    for detach in (False, True):
        backbone.zero_grad()
        with pytest.MonkeyPatch.context() as patch:
            if detach:
                score = RANKINGS[ranking]
                patch.setitem(RANKINGS, ranking, lambda look, score=score: score(look).detach())
            run_ranked(backbone, images, [8, 6, 4], ranking).logits.square().sum().backward()
        assert backbone.positions.grad is not None
        gradients.append(backbone.positions.grad.clone())
    assert torch.equal(*gradients) is not learns


PAGE = (Path(__file__).parents[2] / "docs" / "selection-data.md").read_text()


def test_the_code_of_the_page_runs_and_its_table_has_every_baseline() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    exec("\n".join(blocks).replace("limit=100", "limit=4"), names)
    assert torch.equal(names["ranked"].kept.sum(dim=2), names["counts"])
    table = PAGE.split("## Baselines")[1]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)))) == set(
        BASELINES
    )


# Merging


def patches(tokens: Tensor, sizes: Tensor | None = None) -> Merged:
    batch, count = tokens.shape[:2]
    return Merged(
        tokens=tokens,
        keys=tokens.clone(),
        sizes=torch.ones(batch, count) if sizes is None else sizes,
        places=torch.arange(count).expand(batch, -1),
    )


def test_the_most_alike_are_merged_to_their_weighted_mean() -> None:
    tokens = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.1, 2.0], [-1.0, -1.0]]])
    found = merge(patches(tokens, torch.tensor([[1.0, 3.0, 1.0, 2.0]])), torch.tensor([3]))
    # Sets {0, 2} and {1, 3}: 2 is nearest to 1, of which there are three.
    assert found.places.tolist() == [[0, 1, 3]] and found.sizes.tolist() == [[1.0, 4.0, 2.0]]
    torch.testing.assert_close(found.tokens[0, 1], torch.tensor([0.1 / 4, (3 * 1.0 + 2.0) / 4]))
    torch.testing.assert_close(found.tokens[0, [0, 2]], tokens[0, [0, 3]])


def test_sums_and_sizes_are_kept_over_all_rounds_and_rows_have_their_own_counts() -> None:
    tokens = torch.randn(4, 15, 6, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([15, 7, 2, 0])
    found = merge(patches(tokens), counts)
    assert found.left.tolist() == [15, 7, 2, 1]
    torch.testing.assert_close(found.sizes.sum(dim=1), torch.full((4,), 15.0))
    sums = (found.tokens * found.sizes[..., None]).sum(dim=1)
    torch.testing.assert_close(sums, tokens.sum(dim=1), rtol=1e-4, atol=1e-4)
    assert torch.equal(found.tokens[0], tokens[0])


def test_what_is_left_may_be_anywhere() -> None:
    """After an erasure the tokens left may all be in one of the two sets; merging must still come to an end."""
    sizes = torch.tensor([[1.0, 0.0] * 4])
    found = merge(patches(torch.randn(1, 8, 3), sizes), torch.tensor([2]))
    assert found.left.tolist() == [2] and set(found.places[0].tolist()) <= {0, 2, 4, 6}


@torch.no_grad()
def test_merging_equal_tokens_changes_nothing(images: Tensor) -> None:
    """With proportional attention, a token of size two is two equal tokens. Plain dropping is not."""
    backbone = SmallViT(SHAPE, seed=3)
    half = backbone.positions[:, 1::2].clone()
    backbone.positions[:, 1::2], backbone.positions[:, 2::2] = half, half
    twins = images[..., :8].repeat(1, 1, 1, 4)  # with the positions, patches 2i and 2i + 1 are one token twice
    ranked = run_ranked(backbone, twins, [8, 8, 8], "tome")
    torch.testing.assert_close(ranked.logits, backbone(twins), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(run_ranked(backbone, twins, [8, 8, 8], "random").logits, backbone(twins), atol=1e-4)


# Channels and refusals


@pytest.mark.parametrize("ranking", BASELINES)
@torch.no_grad()
def test_channels_between_the_halves(backbone: nn.Module, images: Tensor, ranking: str) -> None:
    clean = run_ranked(backbone, images, [8, 8, 6], ranking)
    quiet = run_ranked(backbone, images, [8, 8, 6], ranking, channel=AWGN(90.0))
    torch.testing.assert_close(quiet.logits, clean.logits, rtol=1e-3, atol=1e-3)
    noisy = run_ranked(backbone, images, [8, 8, 6], ranking, channel=AWGN(-10.0))
    assert not torch.allclose(noisy.logits, clean.logits, atol=1e-3)
    torch.manual_seed(0)
    coded = run_ranked(backbone, images, [8, 8, 6], ranking, channel=AWGN(10.0), codec=Codec(32, 0.5))
    assert coded.logits.isfinite().all()
    emptied = run_ranked(backbone, images, [8, 8, 6], ranking, channel=Erasure(1.0), codec=Codec(32, 0.5))
    assert emptied.sent.unique().tolist() == [8 + backbone.prefix]
    assert not emptied.kept[1:].any() and emptied.logits.isfinite().all()


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([17, 3, 3], r"counts must be 0 to 16 and not rise from gate to gate"),
        ([-1, -1, -1], r"counts must be 0 to 16"),
        ([4, 5, 3], r"not rise from gate to gate: what is dropped stays dropped"),
        ([4, 4], r"counts are \[2\] of torch.int64; expected whole numbers \[3 gates, 5 images\]"),
        ([0.5, 0.5, 0.5], r"of torch.float32; expected whole numbers"),
    ],
)
def test_counts_that_cannot_be_meant(images: Tensor, counts: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_ranked(SmallViT(SHAPE), images, counts, "norm")


def test_unknown_names_and_gates_with_nothing_before_them(images: Tensor) -> None:
    with pytest.raises(UsageError, match=r"unknown baseline 'best'; expected one of 'random', 'norm'"):
        run_ranked(SmallViT(SHAPE), images, [4, 4, 4], "best")
    with pytest.raises(UsageError, match=r"'cls' looks at the block before a gate, and block 0 has none"):
        run_ranked(SmallViT(SHAPE), images, [4], "cls", gated=(0,))
    assert run_ranked(SmallViT(SHAPE), images, [4], "norm", gated=(0,)).kept.sum() == 20
