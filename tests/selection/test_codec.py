"""The codec: unit power, as many symbols as the rate says, and something to learn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.selection.channel import AWGN, Erasure
from sinklens.selection.codec import Codec, channel_uses, send_uncoded


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("width", "rate", "uses"), [(192, 0.5, 96), (192, 0.25, 48), (192, 0.1, 19), (100, 0.29, 29), (96, 1, 96)]
)
def test_channel_uses(width: int, rate: float, uses: int) -> None:
    assert channel_uses(width, rate) == uses


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, float("nan"), "0.5", True])
def test_a_rate_that_cannot_be_meant_is_refused(rate: object) -> None:
    with pytest.raises(UsageError, match=r"codec rate is .*; expected channel uses per feature, above 0 and at most 1"):
        channel_uses(96, rate)


def test_a_rate_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"rate 0.001 leaves no channel use for a token of width 96; .* 0.01042"):
        Codec(96, 0.001)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.02, 1.0), st.floats(1e-3, 1e3))
def test_every_token_has_unit_power(rate: float, scale: float) -> None:
    symbols = Codec(64, rate).encode(torch.randn(2, 5, 64) * scale)
    assert symbols.shape == (2, 5, channel_uses(64, rate)) and symbols.is_complex()
    torch.testing.assert_close(symbols.abs().square().mean(dim=-1), torch.ones(2, 5), rtol=1e-4, atol=1e-4)


def test_what_a_token_sends_does_not_depend_on_the_others() -> None:
    codec, tokens = Codec(32, 0.5), torch.randn(2, 6, 32)
    torch.testing.assert_close(codec.encode(tokens)[:, :2], codec.encode(tokens[:, :2]))


def test_untrained_at_rate_one_half_the_direction_arrives() -> None:
    codec, tokens = Codec(32, 0.5), torch.randn(2, 6, 32)
    likeness = torch.cosine_similarity(codec(tokens), tokens, dim=-1)
    torch.testing.assert_close(likeness, torch.ones(2, 6))
    noisy = codec(tokens, AWGN(0.0), generator=torch.Generator().manual_seed(0)).detach()
    assert float(torch.cosine_similarity(noisy, tokens, dim=-1).mean()) == pytest.approx(0.5**0.5, abs=0.07)


def test_it_learns_what_a_narrow_channel_lets_through() -> None:
    """Tokens of 4 hidden numbers in 32 features through 3 symbols: 6 real numbers are enough for 4, and a length."""
    basis = torch.randn(4, 32)
    codec = Codec(32, 0.1)
    optimiser = torch.optim.Adam(codec.parameters(), 3e-3)
    assert codec.uses == 3
    errors = []
    for _ in range(250):
        tokens = torch.randn(4, 32, 4) @ basis
        error = (codec(tokens, AWGN(20.0)) - tokens).square().mean() / tokens.square().mean()
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        errors.append(error.item())
    assert errors[0] > 0.7 and sum(errors[-20:]) / 20 < 0.3


def test_costs_are_those_of_its_matrices() -> None:
    codec = Codec(32, 0.25)  # 16 real numbers
    assert codec.encoder_macs == codec.decoder_macs == 32 * 16 + 32 * 32 + 32 * 16
    matrices = sum(p.numel() for p in codec.parameters() if p.dim() == 2)
    assert matrices == codec.encoder_macs + codec.decoder_macs


def test_half_precision_goes_through() -> None:
    codec = Codec(16, 0.5).to(torch.bfloat16)
    tokens = torch.randn(1, 3, 16, dtype=torch.bfloat16)
    assert codec.encode(tokens).dtype == torch.complex64
    assert codec(tokens, AWGN(10.0)).dtype == torch.bfloat16


def test_uncoded_features_get_noise_by_their_own_power() -> None:
    tokens = torch.randn(40, 100, 96) * torch.tensor([0.1, 1.0, 10.0, 100.0]).repeat(10)[:, None, None]
    noise = send_uncoded(tokens, AWGN(10.0), generator=torch.Generator().manual_seed(0)) - tokens
    ratio = noise.square().mean(dim=(1, 2)) / tokens.square().mean(dim=(1, 2))
    torch.testing.assert_close(ratio, torch.full((40,), 0.1), rtol=0.06, atol=0)
    torch.testing.assert_close(send_uncoded(tokens, Erasure(0.0)), tokens)
