"""A left-padded batch gives the tokens of its rows alone."""

from typing import Any

import pytest
from recorded_runs import case
from tiny_causal import tiny_causal

from sinklens.models.load import wrap
from sinklens.sampling.autoregressive import AutoregressiveSampler
from sinklens.sampling.diffusion import DreamSampler, LLaDASampler
from sinklens.sampling.generate import generate


def assert_rows_alone_agree(model: Any, rows: list[list[int]], sampler: Any) -> None:
    together = generate(model, rows, sampler)
    assert together.prompt_length == max(map(len, rows))
    for number, row in enumerate(rows):
        alone = generate(model, row, sampler)
        assert together.ids[number, together.prompt_length :].tolist() == alone.ids[0, len(row) :].tolist()
        assert together.lengths[number] == alone.lengths[0]


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("llada", LLaDASampler(steps=8, length=16, block=8)),
        ("llada", LLaDASampler(steps=8, length=8, block=8, cfg=1.0)),
        ("llada", LLaDASampler(steps=8, length=8, block=4, threshold=0.5)),
        ("mmada", LLaDASampler(steps=16, length=16, block=16)),
        ("mmada", LLaDASampler(steps=8, length=8, block=4, cfg=0.5)),
        ("dream", DreamSampler(steps=8, length=16, alg="entropy")),
        ("dream", DreamSampler(steps=16, length=16, alg="maskgit_plus", top_p=0.9)),
    ],
    ids=["llada", "llada-cfg", "llada-threshold", "mmada", "mmada-cfg", "dream-entropy", "dream-maskgit"],
)
def test_diffusion_rows(checkpoint, family: str, sampler: Any) -> None:
    first, second = case(family, case_name(family)).prompt.tolist()
    assert_rows_alone_agree(checkpoint(family), [first, second[:4], [*second, *first[1:]]], sampler)


def case_name(family: str) -> str:
    return "entropy_steps8" if family == "dream" else "block8_cfg0"


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_autoregressive_rows(kind: str) -> None:
    rows = [[1, 2, 3, 4, 5, 6], [7], [8, 9, 10]]
    assert_rows_alone_agree(wrap(tiny_causal(kind)), rows, AutoregressiveSampler(length=12))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_autoregressive_rows_end_alone(kind: str) -> None:
    rows = [[1, 2, 3, 4, 5, 6], [7], [8, 9, 10]]
    free = generate(wrap(tiny_causal(kind)), rows, AutoregressiveSampler(length=12))
    eos = int(free.ids[1, free.prompt_length + 2])
    model = wrap(tiny_causal(kind, eos_token_id=eos))
    out = generate(model, rows, AutoregressiveSampler(length=12))
    assert out.lengths[1] <= 3
    assert_rows_alone_agree(model, rows, AutoregressiveSampler(length=12))
