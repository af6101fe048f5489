"""Channels: the noise is as strong as the SNR says, erasure hits whom it may, and what cannot be meant is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.selection.channel import AWGN, Erasure, Rayleigh, lost, unit_power

DECIBELS = (-20.0, -10.0, 0.0, 10.0, 20.0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def million_symbols(dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    return unit_power(torch.randn(500, 200, 10, dtype=dtype, generator=seeded(1)))


def decibels(signal: torch.Tensor, noise: torch.Tensor) -> float:
    return 10 * math.log10(float(signal.abs().double().square().sum() / noise.abs().double().square().sum()))


@pytest.mark.parametrize("snr_db", DECIBELS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_awgn_has_the_snr_it_says(snr_db: float, dtype: torch.dtype) -> None:
    symbols = million_symbols(dtype)
    noise = AWGN(snr_db)(symbols, generator=seeded()) - symbols
    assert abs(decibels(symbols, noise) - snr_db) < 0.1
    if dtype.is_complex:  # half of it in each part, and nothing in common
        ratio = noise.real.square().mean() / noise.imag.square().mean()
        assert abs(float(ratio) - 1) < 0.02
        assert abs(float((noise.real * noise.imag).mean() / noise.real.square().mean())) < 0.01


@pytest.mark.parametrize("snr_db", DECIBELS)
def test_rayleigh_has_the_mean_snr_it_says(snr_db: float) -> None:
    symbols = million_symbols()
    received, gains = Rayleigh(snr_db).faded(symbols, generator=seeded())
    assert gains.shape == (500, 200, 1)  # one for all uses of a token
    assert abs(decibels(symbols * gains, received - symbols * gains) - snr_db) < 0.1
    assert abs(decibels(symbols, received - symbols * gains) - snr_db) < 0.1  # the mean gain is 1
    assert abs(float(gains.abs().square().mean()) - 1) < 0.02
    assert abs(float((gains.abs().square() < 0.1).float().mean()) - (1 - math.exp(-0.1))) < 0.005  # exponential


def test_a_receiver_that_knows_the_gain_does_better_than_one_that_does_not() -> None:
    symbols = million_symbols()
    raw, _ = Rayleigh(10.0).faded(symbols, generator=seeded())
    weighed = Rayleigh(10.0)(symbols, generator=seeded())
    # E[noise / (|h|^2 + noise)] over exponential |h|^2 is the least error there is: 0.1 e^0.1 E1(0.1) = 0.2015
    assert float((weighed - symbols).abs().square().mean()) == pytest.approx(0.2015, abs=0.003)
    assert float((raw - symbols).abs().square().mean()) > 1.5


def test_one_snr_for_every_image() -> None:
    symbols = million_symbols()[:3].repeat(1, 50, 1)
    noise = AWGN(torch.tensor([-10.0, 0.0, 10.0]))(symbols, generator=seeded()) - symbols
    for row, snr_db in enumerate((-10.0, 0.0, 10.0)):
        assert abs(decibels(symbols[row], noise[row]) - snr_db) < 0.15
    with pytest.raises(UsageError, match="SNR has 3 entries for 500 images; expected one for each"):
        AWGN(torch.zeros(3))(million_symbols())


@pytest.mark.parametrize("channel", [AWGN, Rayleigh])
@pytest.mark.parametrize("snr_db", [math.nan, math.inf, -math.inf, "10", None, True, torch.tensor([0.0, math.nan])])
def test_an_snr_that_is_no_number_is_refused(channel: type, snr_db: object) -> None:
    with pytest.raises(UsageError, match=r"SNR is .*; expected (a )?finite number"):
        channel(snr_db)


def test_zero_decibels_is_noise_and_a_generator_repeats_it() -> None:
    symbols = million_symbols()[:4]
    first, again = (AWGN(0)(symbols, generator=seeded(5)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, AWGN(0)(symbols, generator=seeded(6)))
    assert float((first - symbols).abs().mean()) > 0.5


def test_real_symbols_do_not_fade() -> None:
    with pytest.raises(UsageError, match=r"a fading channel got symbols of torch.float32; expected complex ones"):
        Rayleigh(0.0)(torch.zeros(1, 2, 3))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.floats(1e-6, 1e6))
def test_unit_power_holds_for_every_token_by_itself(batch: int, tokens: int, uses: int, scale: float) -> None:
    drawn = torch.randn(batch, tokens, uses, dtype=torch.complex64, generator=seeded(uses)) * scale
    power = unit_power(drawn).abs().square().mean(dim=-1)
    torch.testing.assert_close(power, torch.ones(batch, tokens), rtol=1e-4, atol=1e-4)


def test_a_token_of_zeros_stays_one() -> None:
    assert torch.equal(unit_power(torch.zeros(1, 2, 3)), torch.zeros(1, 2, 3))


def test_erasure_is_independent_for_images_and_tokens_and_spares_the_class_token() -> None:
    symbols = torch.ones(4000, 20, 2, dtype=torch.complex64)
    gone = lost(Erasure(0.2)(symbols, generator=seeded()))
    assert not gone[:, 0].any()
    hit = gone[:, 1:].double()
    assert abs(float(hit.mean()) - 0.2) < 0.005
    assert float((hit.mean(dim=0) - 0.2).abs().max()) < 0.03  # every token, and not the same for all images
    correlations = torch.corrcoef(hit.T) - torch.eye(19, dtype=torch.float64)
    assert float(correlations.abs().max()) < 0.08  # 1 / sqrt(4000) = 0.016
    # As many as binomial counts vary: a fixed share of each image would have no spread.
    assert float(hit.sum(dim=1).var()) == pytest.approx(19 * 0.2 * 0.8, rel=0.1)


def test_nobody_is_spared_unless_protected_and_the_ends_hold() -> None:
    symbols = torch.ones(300, 3, 1)
    assert lost(Erasure(0.5, protected=())(symbols, generator=seeded()))[:, 0].any()
    assert torch.equal(Erasure(0.0)(symbols), symbols)
    assert lost(Erasure(1.0)(symbols)).tolist() == [[False, True, True]] * 300


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan, "0.1", True])
def test_an_erasure_probability_that_is_none_is_refused(p: float) -> None:
    with pytest.raises(UsageError, match=r"erasure probability is .*; expected a number from 0 to 1"):
        Erasure(p)
