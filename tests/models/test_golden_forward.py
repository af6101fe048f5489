"""Native forwards against what the original code computes on the same tiny checkpoints."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sinklens.models.layers import Rotary, rotate
from sinklens.models.load import load

FAMILIES = ("llada", "dream", "mmada")
# float32, maximum absolute difference; the reference was computed by other kernels in another order
LOGITS, QKV, PROBS, OUT, RESIDUAL = 5e-5, 5e-5, 2e-5, 1e-4, 2e-4


class SDPACalls(TorchFunctionMode):
    """What reaches SDPA, one entry a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self.calls.append((*args, kwargs["attn_mask"]))
        return func(*args, **(kwargs or {}))


def difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.double() - theirs.double()).abs().max())


def probabilities(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query.double() @ key.double().mT / query.shape[-1] ** 0.5
    if mask is not None:
        # in float32, where the lowest number swallows what it is added to, as in the original
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores.float() + mask
    return scores.softmax(-1).nan_to_num(0)


@pytest.mark.parametrize("folder", ["llada", "llada_sharded", "dream", "mmada"])
def test_logits(golden: Path, folder: str) -> None:
    vectors = load_file(golden / folder.removesuffix("_sharded") / "vectors.safetensors")
    model = load(golden / folder)
    with torch.no_grad():
        assert difference(model(vectors["input_ids"]), vectors["logits"]) < LOGITS


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_inside_one_forward(golden: Path, family: str) -> None:
    vectors = load_file(golden / family / "vectors.safetensors")
    model = load(golden / family)
    inside: dict[str, Tensor] = {}

    def keep_output(name: str):
        return lambda module, args, output: inside.__setitem__(name, output)

    def keep_input(name: str):
        return lambda module, args: inside.__setitem__(name, args[0])

    for i, block in enumerate(model.blocks):
        block.register_forward_pre_hook(keep_input(f"resid.{i}"))
        block.attention.q.register_forward_hook(keep_output(f"attn.{i}.q_pre"))
        block.attention.k.register_forward_hook(keep_output(f"attn.{i}.k_pre"))
        block.attention.o.register_forward_pre_hook(keep_input(f"attn.{i}.merged"))
    block.register_forward_hook(keep_output(f"resid.{len(model.blocks)}"))
    model.final_norm.register_forward_hook(keep_output("final_norm"))
    with torch.no_grad(), SDPACalls() as sdpa:
        model(vectors["input_ids"])

    assert len(sdpa.calls) == 3
    for i in range(4):
        assert difference(inside[f"resid.{i}"], vectors[f"resid.{i}"]) < RESIDUAL
    assert difference(inside["final_norm"], vectors["final_norm"]) < QKV
    for i, (query, key, value, mask) in enumerate(sdpa.calls):
        assert mask is None
        assert difference(inside[f"attn.{i}.q_pre"], vectors[f"attn.{i}.q_pre"]) < QKV
        assert difference(inside[f"attn.{i}.k_pre"], vectors[f"attn.{i}.k_pre"]) < QKV
        for name, ours in (("q", query), ("k", key), ("v", value)):
            assert difference(ours, vectors[f"attn.{i}.{name}"]) < QKV
        assert difference(probabilities(query, key, None), vectors[f"attn.{i}.probs"]) < PROBS
        merged = vectors[f"attn.{i}.out"].transpose(1, 2).flatten(2)
        assert difference(inside[f"attn.{i}.merged"], merged) < OUT


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding(golden: Path, family: str) -> None:
    vectors = load_file(golden / family / "vectors.safetensors")
    real = vectors["masked.attention_mask"].bool()
    rows = real if family == "dream" else torch.ones_like(real)  # Dream's padded rows are not in the vectors
    model = load(golden / family)
    with torch.no_grad(), SDPACalls() as sdpa:
        logits = model(vectors["masked.input_ids"], vectors["masked.attention_mask"])
    assert difference(logits[rows], vectors["masked.logits"][rows]) < LOGITS
    for i, (query, key, _, mask) in enumerate(sdpa.calls):
        ours = probabilities(query, key, mask).transpose(1, 2)[rows]
        assert difference(ours, vectors[f"masked.attn.{i}.probs"].transpose(1, 2)[rows]) < PROBS


def test_dream_positions_count_from_the_first_token(golden: Path) -> None:
    vectors = load_file(golden / "dream" / "vectors.safetensors")
    model = load(golden / "dream")
    ids, mask = vectors["masked.input_ids"], vectors["masked.attention_mask"]
    with torch.no_grad():
        given = model(ids, mask, position_ids=vectors["masked.position_ids"])
        assert torch.equal(model(ids, mask), given)
        assert not torch.allclose(model(ids, position_ids=vectors["masked.position_ids"] * 3), given)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_of_ones_is_no_mask(golden: Path, family: str) -> None:
    ids = load_file(golden / family / "vectors.safetensors")["input_ids"]
    model = load(golden / family)
    with torch.no_grad(), SDPACalls() as sdpa:
        assert torch.equal(model(ids, torch.ones_like(ids)), model(ids))
    assert all(mask is None for *_, mask in sdpa.calls)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_norm_and_rotation_keep_every_bit(golden: Path, family: str) -> None:
    vectors = load_file(golden / family / "vectors_bf16.safetensors")
    model = load(golden / family, dtype="bfloat16")
    attention = model.blocks[0].attention
    with torch.no_grad():
        normed = model.blocks[0].attention_norm(vectors["layer0.attn_norm_in"])
        assert torch.equal(normed, vectors["layer0.attn_norm_out"])
        length = vectors["input_ids"].shape[1]
        cos, sin = Rotary(model.shape.head_dim, model.shape.rope_theta).at(torch.arange(length)[None], length)
        for name in ("q", "k"):
            before = vectors[f"layer0.{name}_pre"].unflatten(-1, (-1, model.shape.head_dim)).transpose(1, 2)
            ours = rotate(before, cos, sin, full_precision=attention.full_precision)
            assert torch.equal(ours, vectors[f"layer0.{name}"])
            other = rotate(before, cos, sin, full_precision=not attention.full_precision)
            assert not torch.equal(other, ours), "the two rotations must differ, or this test says nothing"


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_logits_are_close(golden: Path, family: str) -> None:
    vectors = load_file(golden / family / "vectors_bf16.safetensors")
    with torch.no_grad():
        logits = load(golden / family, dtype=torch.bfloat16)(vectors["input_ids"])
    assert logits.dtype == torch.bfloat16
    exact = load_file(golden / family / "vectors.safetensors")["logits"]
    # two bfloat16 runs may each be as far from float32 as the stored one is
    assert difference(logits, vectors["logits"]) <= 2 * difference(vectors["logits"], exact)


def test_specs(golden: Path) -> None:
    llada, dream, mmada = (load(golden / family).spec for family in FAMILIES)
    assert (llada.family, llada.mask_id, llada.bos_id) == ("llada", 125, 120)
    assert (llada.eos_id, llada.pad_id, llada.eot_id) == (121, 121, None)
    assert (llada.heads, llada.kv_heads, llada.head_dim, llada.width) == (4, 4, 16, 64)
    assert not llada.shift and not llada.causal and not llada.learned_positions
    assert (dream.family, dream.kv_heads, dream.shift, dream.max_length) == ("dream", 2, True, 131072)
    assert (mmada.family, mmada.mask_id, mmada.vocab_size, mmada.max_length) == ("mmada", 90, 128, 4096)
    assert llada.source == str(golden / "llada")
