"""Weights on disk: every way they can be wrong, and the memory that loading takes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sinklens.errors import ModelError
from sinklens.models.load import load

HEAD = "model.transformer.ff_out.weight"


def test_missing_shard(copied) -> None:
    folder = copied("llada_sharded")
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00003.safetensors of the 3 files.*download"):
        load(folder)


@pytest.mark.parametrize("shard", ["../llada/model.safetensors", "/model.safetensors", "a\\..\\b.safetensors", "x.bin"])
def test_a_shard_outside_the_folder_is_refused(copied, shard: str) -> None:
    folder = copied("llada_sharded")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][HEAD] = shard
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"names the file .*; expected a .safetensors file inside the folder"):
        load(folder)


def test_a_shard_may_be_a_link_out_of_the_folder(copied, golden: Path) -> None:
    folder = copied("llada")
    (folder / "model.safetensors").rename(folder.parent / "blob")
    (folder / "model.safetensors").symlink_to(folder.parent / "blob")  # as in the hub's cache
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(load(folder)(ids), load(golden / "llada")(ids))


def test_index_and_shards_of_different_checkpoints(copied) -> None:
    folder = copied("llada_sharded")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    shards = sorted(set(content["weight_map"].values()))
    content["weight_map"][HEAD] = next(shard for shard in shards if shard != content["weight_map"][HEAD])
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=rf"places {HEAD} in files that do not hold them"):
        load(folder)


def test_index_without_a_map(copied) -> None:
    folder = copied("llada_sharded")
    (folder / "model.safetensors.index.json").write_text('{"metadata": {}}')
    with pytest.raises(ModelError, match="has no weight_map"):
        load(folder)


def test_wrong_shape(copied, rewritten) -> None:
    folder = copied("llada")
    rewritten(folder, lambda tensors: tensors.update({HEAD: torch.zeros(64, 64)}))
    with pytest.raises(ModelError, match=rf"{HEAD} has shape \[64, 64\]; config.json makes it \[128, 64\]"):
        load(folder)


def test_missing_and_extra_tensors(copied, rewritten) -> None:
    folder = copied("dream")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"]
        tensors["model.rotary.inv_freq"] = torch.zeros(8)

    rewritten(folder, change)
    message = "lacks model.norm.weight and holds model.rotary.inv_freq that this model has no place for"
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_long_lists_are_cut(copied) -> None:
    folder = copied("llada", n_layers=2)
    five = r"(model\.transformer\.blocks\.2\.\w+\.weight(, )?){5}"
    with pytest.raises(ModelError, match=rf"holds {five} and 4 more that"):
        load(folder)


@pytest.mark.parametrize("suffix", ["bin", "pt"])
def test_pickle_is_refused(copied, suffix: str) -> None:
    folder = copied("llada")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / f"pytorch_model.{suffix}")
    message = rf"pytorch_model.{suffix}: pickle, which runs code.*convert them to safetensors"
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_no_weights(copied) -> None:
    folder = copied("llada")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no weights; expected model.safetensors, or model.safetensors"):
        load(folder)


@pytest.mark.parametrize("kept", [0, 4, 5000, -1])
def test_truncated_file(copied, kept: int) -> None:
    folder = copied("llada")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"cannot be read as safetensors .* truncated: download it again"):
        load(folder)


def test_mixed_dtypes_need_a_word(copied, rewritten) -> None:
    folder = copied("llada")
    rewritten(folder, lambda tensors: tensors.update({HEAD: tensors[HEAD].half()}))
    with pytest.raises(ModelError, match=r"several dtypes \(F16, F32\); say which dtype to use"):
        load(folder)
    assert {p.dtype for p in load(folder, dtype="float32").parameters()} == {torch.float32}


def test_quantised_tensors_are_refused(copied, rewritten) -> None:
    folder = copied("llada")
    rewritten(folder, lambda tensors: tensors.update({HEAD: tensors[HEAD].to(torch.int8)}))
    with pytest.raises(ModelError, match=rf"{HEAD} is I8; expected one of F64, F32, F16, BF16"):
        load(folder)


def test_dtype_is_the_checkpoints_own_unless_given(copied, rewritten) -> None:
    folder = copied("dream")
    rewritten(folder, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))
    assert {p.dtype for p in load(folder).parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load(folder, dtype=torch.float32).parameters()} == {torch.float32}


def test_the_model_outlives_its_files(copied) -> None:
    folder = copied("llada")
    model = load(folder)
    before = model(torch.arange(10)[None])
    with (folder / "model.safetensors").open("r+b") as file:  # what a mapping would show through
        file.write(b"\0" * (folder / "model.safetensors").stat().st_size)
    shutil.rmtree(folder)
    assert torch.equal(model(torch.arange(10)[None]), before)


MEASURE = """
import sys
from sinklens.models.load import load
import safetensors, torch
load(sys.argv[1])  # a tiny one: everything is imported and warm
def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the high-water mark starts here
model = load(sys.argv[2], dtype=sys.argv[3] if len(sys.argv) > 3 else None)
size = sum(parameter.nbytes for parameter in model.parameters())
print((status("VmHWM") - before) / size)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory_is_below_1_2_times_the_weights(tmp_path: Path, golden: Path, dtype: str) -> None:
    sizes = {"d_model": 512, "n_heads": 8, "n_kv_heads": 8, "n_layers": 16, "mlp_hidden_size": 1536}
    config = json.loads((golden / "llada" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **sizes}))
    from sinklens.models.fields import Fields
    from sinklens.models.llada import plan
    from sinklens.models.native import DiffusionTransformer

    blueprint = plan(tmp_path, Fields.of_folder(tmp_path), "")
    with torch.device("meta"):
        model = DiffusionTransformer(blueprint.shape, blueprint.spec, chat_format=blueprint.chat_format)
    tensors = {blueprint.names[name]: torch.ones(value.shape) for name, value in model.named_parameters()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").stat().st_size > 200e6
    source = Path(__file__).parent.parent.parent / "src"
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(golden / "llada"), str(tmp_path), dtype],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0.95 < float(run.stdout) < 1.2
