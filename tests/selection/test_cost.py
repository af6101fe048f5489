"""Costs against torch's flop counter on sequences that really are shorter, and against exact figures of DeiT."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vit import images_of, transformers_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sinklens.errors import UsageError
from sinklens.selection.backbone import wrap_backbone
from sinklens.selection.cost import CostShape, backbone_macs, block_macs, rate, selected_macs, side_bits
from sinklens.selection.selector import Gating, Selector
from sinklens.selection.vit import SmallViT, ViTShape

DEIT_TINY = CostShape(width=192, hidden=768, classes=0, values=768, patches=196, blocks=12)


def counted_macs(run: object) -> int:
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()  # type: ignore[operator]
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("kind", ["small", "vit", "deit"])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.6, 1.0])
def test_macs_are_what_torch_counts_on_removed_sequences(kind: str, alpha: float) -> None:
    if kind == "small":
        backbone = SmallViT(ViTShape(image=16, patch=4, width=16, blocks=4, heads=2, mlp=40))
    else:
        model = transformers_model(kind)
        model.set_attn_implementation("eager")
        backbone = wrap_backbone(model)
    selector = Selector(backbone, Gating(gated=(0, 2), split=1), seed=3).eval()
    for image in images_of(3).split(1):
        with torch.no_grad():
            selected = selector(image, alpha, remove=True)
        assert int(selected.macs) == counted_macs(lambda image=image: selector(image, alpha, remove=True))


def test_macs_of_the_published_sizes() -> None:
    assert 12 * block_macs(197, width=192) == 1_224_589_824
    assert backbone_macs(DEIT_TINY) == 1_224_589_824 + 28_901_376  # 1.2535 G
    small = CostShape(width=384, hidden=1536, classes=0, values=768, patches=196, blocks=12)
    assert backbone_macs(small) / 1e9 == pytest.approx(4.598, abs=5e-4)


@pytest.mark.parametrize(
    ("share", "giga", "rates"),
    [
        (1.0, 1.232, (0.1263, 0.0631, 0.0250)),
        (0.8, 0.982, (0.1013, 0.0506, 0.0200)),
        (0.4, 0.521, (0.0513, 0.0256, 0.0101)),
        (0.1, 0.210, (0.0138, 0.0069, 0.0027)),
    ],
)
def test_the_table_of_a_gated_deit(share: float, giga: float, rates: tuple[float, ...]) -> None:
    """All blocks but the first with n = 2 + 196 a tokens, the first with the class token and all patches."""
    tokens = 2 + 196 * share
    assert (block_macs(198, width=192) + 11 * block_macs(tokens, width=192)) / 1e9 == pytest.approx(giga, abs=6e-4)
    sent = torch.tensor([round(tokens)])  # the table has fractions of tokens
    for symbols, rho in zip((96, 48, 19), rates, strict=True):
        assert float(rate(DEIT_TINY, sent, symbols=symbols)) == pytest.approx(rho, abs=0.5 * symbols / 150_528 + 6e-5)


@settings(max_examples=30, deadline=None)
@given(kept=st.lists(st.integers(0, 196), min_size=3, max_size=3).map(lambda counts: sorted(counts, reverse=True)))
def test_selected_macs_are_a_sum_over_blocks(kept: list[int]) -> None:
    gated = (1, 5, 9)
    counts = torch.tensor(kept)[:, None]
    tokens = [197] + [2 + kept[0]] * 4 + [2 + kept[1]] * 4 + [2 + kept[2]] * 3
    expected = 28_901_376 + sum(block_macs(n, width=192) for n in tokens) + 192 * (196 + kept[0] + kept[1])
    assert selected_macs(DEIT_TINY, counts, gated=gated).tolist() == [expected]


@settings(max_examples=40, deadline=None)
@given(patches=st.integers(1, 60), data=st.data())
def test_side_information_is_the_number_of_sets(patches: int, data: st.DataObject) -> None:
    sent = data.draw(st.integers(0, patches))
    expected = math.log2(math.comb(patches, sent)) + math.log2(patches + 1)
    assert float(side_bits(sent, patches)) == pytest.approx(expected, abs=1e-9)


def test_the_rate_counts_side_information_at_capacity() -> None:
    shape = CostShape(width=8, hidden=32, classes=10, values=16, patches=64, blocks=2)
    sent, patches = torch.tensor([12, 66]), torch.tensor([10, 64])
    plain = rate(shape, sent, symbols=4)
    torch.testing.assert_close(plain, torch.tensor([48.0, 264.0], dtype=torch.float64) / 1024)
    bits = side_bits(patches, 64)
    at_zero = rate(shape, sent, symbols=4, patches=patches, snr_db=0.0)  # one bit a use
    torch.testing.assert_close((at_zero - plain) * 1024, bits)
    better = rate(shape, sent, symbols=4, patches=patches, snr_db=20.0)
    torch.testing.assert_close((better - plain) * 1024, bits / math.log2(101))


def test_rates_that_cannot_be_meant() -> None:
    sent = torch.tensor([3])
    with pytest.raises(UsageError, match="symbols is 0; expected at least 1 channel use a token"):
        rate(DEIT_TINY, sent, symbols=0)
    with pytest.raises(UsageError, match="snr_db is nan; expected a finite number of decibels"):
        rate(DEIT_TINY, sent, symbols=1, patches=sent, snr_db=math.nan)
    with pytest.raises(UsageError, match="side information needs both patches and snr_db"):
        rate(DEIT_TINY, sent, symbols=1, snr_db=3.0)
    with pytest.raises(UsageError, match="between 197 and 197 patches of 196 were sent"):
        side_bits(197, 196)
