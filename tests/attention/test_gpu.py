"""On a GPU: the same bits, the log-sum-exp from the kernel SDPA picks, and the definition's numbers."""

from pathlib import Path

import pytest
import torch

import sinklens as sl
from attention.zoo import inputs, rows

pytestmark = pytest.mark.gpu


@pytest.fixture
def wide_llada(golden: Path, tmp_path: Path) -> Path:
    """A LLaDA folder with heads of 64 dims, which fused kernels take, and weights far from uniform attention."""
    import json
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(golden / "llada", tmp_path / "wide")
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    config.update(d_model=256, n_heads=4, n_kv_heads=4, mlp_hidden_size=256)
    (tmp_path / "wide" / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    sizes = {64: 256, 176: 256, 128: 128}
    tensors = {}
    for name, tensor in load_file(golden / "llada" / "model.safetensors").items():
        shape = [sizes[size] for size in tensor.shape]
        wide = torch.randn(shape, generator=generator) * 0.1
        tensors[name] = wide + 1 if "norm" in name or "ln_f" in name else wide
    save_file(tensors, tmp_path / "wide" / "model.safetensors")
    return tmp_path / "wide"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("length", [1, 17, 1024])
def test_bits_and_numbers(wide_llada: Path, dtype: torch.dtype, length: int) -> None:
    model = sl.load(wide_llada, device="cuda", dtype=dtype)
    ids = torch.randint(0, 120, (2, length), device="cuda")
    wanted = [(layer, head) for layer in range(3) for head in range(4)]
    with torch.no_grad():
        plain = model(ids)
        with sl.observe(model, maps=wanted, groups={"even": lambda _: torch.arange(length)[None] % 2 == 0}) as seen:
            observed = model(ids)
    assert torch.equal(plain, observed)
    assert {r.impl for r in seen.calls} == {"triton"}
    if dtype != torch.float32 and length > 1:
        assert {r.kernel for r in seen.calls} <= {"sdpa:cudnn", "sdpa:flash"}
    assert seen.received.device.type == "cpu"
    for layer, head in wanted:
        rows_of_map = seen.maps[layer, head].double()
        got = seen.received[layer, :, head].double()
        # The lse of a fused bf16 kernel comes from logits in float32: relative error far below the dtype's own.
        torch.testing.assert_close(got, rows_of_map.sum(-2), atol=2e-4, rtol=2e-4)
        even = rows_of_map[:, ::2].sum(-2)
        torch.testing.assert_close(seen.groups["even"][layer, :, head].double(), even, atol=2e-4, rtol=2e-4)


def test_padding_on_the_gpu(wide_llada: Path) -> None:
    model = sl.load(wide_llada, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(0, 120, (2, 64), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    with torch.no_grad():
        plain = model(ids, attention_mask=mask)
        with sl.observe(model, maps=[(0, 0)]) as seen:
            observed = model(ids, attention_mask=mask)
    assert torch.equal(plain, observed)
    assert not seen.received[:, 1, :, :9].any()
    expected = (seen.maps[0, 0] * mask.cpu()[:, :, None]).sum(-2) * mask.cpu()
    torch.testing.assert_close(seen.received[0, :, 0], expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("row", [r for r in rows() if r.name != "diffusion_gemma"], ids=lambda r: r.name)
def test_transformers_models_keep_their_bits(row) -> None:  # type: ignore[no-untyped-def]
    for implementation in row.implementations:
        model = row.build(implementation).to("cuda")
        feed = {name: value.to("cuda") for name, value in inputs(row, padded=row.padding is not None).items()}
        with torch.no_grad():
            before = model(**feed)[0]
            with sl.observe(model) as seen:
                during = model(**feed)[0]
        assert torch.equal(before, during)
        assert seen.calls


def test_generation_on_the_gpu(wide_llada: Path) -> None:
    model = sl.load(wide_llada, device="cuda", dtype=torch.bfloat16)
    prompt = torch.randint(3, 100, (2, 9), device="cuda")
    sampler = sl.LLaDASampler(steps=8, length=16, block=8)
    plain = sl.generate(model, prompt, sampler)
    with sl.observe(model) as seen:
        observed = sl.generate(model, prompt, sampler)
    assert torch.equal(plain.ids, observed.ids)
    assert len(seen.steps) == 8
