"""Hostile weights: headers that lie about their tensors, indexes that point elsewhere, files that are cut short."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sinklens as sl
from fuzz.damage import damaged, damaged_json, mutated, texts
from fuzz.held import fuzzed, held, held_command
from fuzz.sound import fresh
from sinklens.errors import ModelError
from sinklens.models.weights import INDEX, SINGLE
from sinklens.selection.folder import load_selector

FAMILIES = ("llada", "llada", "llama", "selector")
SHAPES = ([], [0], [1], [2**62, 4], [2**63], [-1], [2**32, 2**32], [1] * 300, [8, 8], [128, 8], [1.5], "8", None)
OFFSETS = ([0, 0], [0, 4], [4, 0], [-4, 4], [0, 2**63], [2**63, 2**64], [0, 10**30], [0], [0, 1, 2], "0", None)
DTYPES = ("F32", "BF16", "F64", "BOOL", "I64", "U8", "F8_E4M3", "F4", "C64", "f32", "", None, 7)


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@st.composite
def hostile_files(draw: Any, content: bytes) -> bytes:
    """A safetensors file with a header that lies, or damaged anywhere."""
    header, data = split(content)
    names = [name for name in header if name != "__metadata__"]
    act = draw(st.sampled_from(("lie", "lie", "lie", "overlap", "document", "text", "bytes", "head", "length")))
    if act == "lie":
        entry = header[draw(st.sampled_from(names))]
        key, choices = draw(st.sampled_from((("shape", SHAPES), ("data_offsets", OFFSETS), ("dtype", DTYPES))))
        entry[key] = draw(st.sampled_from(choices))
    elif act == "overlap":
        one, other = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        header[one]["data_offsets"] = header[other]["data_offsets"]
    elif act == "document":
        header = draw(mutated(header, keys=("__metadata__", "", "a\x00b", "\ud800")))
    elif act == "text":
        return joined(draw(damaged_json(header)), data)
    elif act == "bytes":
        return draw(damaged(content))
    elif act == "head":
        return draw(damaged(content[:200])) + content[200:]
    else:
        return struct.pack("<Q", draw(st.integers(0, 2**64 - 1))) + content[8:]
    return joined(header, data)


def load(folder: Path, family: str) -> Any:
    return load_selector(folder) if family == "selector" else sl.load(folder)


@given(family=st.sampled_from(FAMILIES), data=st.data())
@fuzzed(130)
def test_headers(family: str, data: Any, models: dict[str, Path], tmp_path: Path) -> None:
    folder = fresh(models[family], tmp_path / "in" / "model")
    content = data.draw(hostile_files((folder / SINGLE).read_bytes()))
    (folder / SINGLE).write_bytes(content)
    held(lambda: load(folder, family), source=folder, out=tmp_path / "out")


@given(data=st.data())
@fuzzed(20)
def test_headers_described_on_the_command_line(data: Any, models: dict[str, Path], tmp_path: Path) -> None:
    folder = fresh(models["llada"], tmp_path / "in" / "model")
    (folder / SINGLE).write_bytes(data.draw(hostile_files((folder / SINGLE).read_bytes())))
    held_command("models", str(folder), source=folder, out=tmp_path / "out")


def sharded(models: dict[str, Path], target: Path, family: str) -> tuple[Path, dict[str, Any]]:
    """The model in one shard, and its index."""
    folder = fresh(models[family], target)
    (folder / SINGLE).rename(folder / "model-00001-of-00001.safetensors")
    header, _ = split((folder / "model-00001-of-00001.safetensors").read_bytes())
    names = [name for name in header if name != "__metadata__"]
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    return folder, index


@given(family=st.sampled_from(("llada", "llama")), data=st.data())
@fuzzed(60)
def test_indexes(family: str, data: Any, models: dict[str, Path], tmp_path: Path) -> None:
    folder, index = sharded(models, tmp_path / "in" / "model", family)
    (folder / INDEX).write_bytes(data.draw(damaged_json(index)))
    held(lambda: sl.load(folder), source=folder, out=tmp_path / "out")


OUTSIDE = (
    "../outside.safetensors",
    "/etc/passwd",
    "x/../../outside.safetensors",
    "..\\outside.safetensors",
    "C:\\x.safetensors",
)


@example(shard="a\x00b.safetensors")
@example(shard="\ud800.safetensors")
@example(shard="x" * 300 + ".safetensors")
@given(shard=st.sampled_from(OUTSIDE) | texts() | texts().map(lambda text: f"{text}.safetensors"))
@fuzzed(50)
def test_names_of_shards(shard: str, models: dict[str, Path], tmp_path: Path) -> None:
    """One tensor is said to be in a file of that name; the file outside is sound and would load."""
    folder, index = sharded(models, tmp_path / "in" / "model", "llada")
    (folder.parent / "outside.safetensors").write_bytes((folder / "model-00001-of-00001.safetensors").read_bytes())
    index["weight_map"][next(iter(index["weight_map"]))] = shard
    (folder / INDEX).write_text(json.dumps(index))
    outcome = held(lambda: sl.load(folder), source=folder, out=tmp_path / "out")
    assert outcome.error is not None or shard == "model-00001-of-00001.safetensors"


@pytest.mark.parametrize("shard", OUTSIDE)
def test_a_shard_outside_is_refused_by_its_name(shard: str, models: dict[str, Path], tmp_path: Path) -> None:
    folder, index = sharded(models, tmp_path / "in" / "model", "llada")
    index["weight_map"] = dict.fromkeys(index["weight_map"], shard)
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"expected a \.safetensors file inside the folder"):
        sl.load(folder)


def test_a_link_is_read_and_never_written_through(models: dict[str, Path], tmp_path: Path) -> None:
    """Links are how hub caches and people put folders together: they are followed to read, and nothing is written."""
    folder = fresh(models["llada"], tmp_path / "in" / "model")
    target = tmp_path / "elsewhere.safetensors"
    (folder / SINGLE).rename(target)
    (folder / SINGLE).symlink_to(target)
    before = target.read_bytes()
    assert held(lambda: sl.load(folder), source=folder, out=tmp_path / "out").error is None
    assert target.read_bytes() == before
    (folder / SINGLE).unlink()
    (folder / SINGLE).symlink_to("/etc/passwd")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        sl.load(folder)


def test_a_file_cut_short_anywhere(models: dict[str, Path], tmp_path: Path) -> None:
    folder = fresh(models["llada"], tmp_path / "in" / "model")
    content = (folder / SINGLE).read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 1):
        (folder / SINGLE).write_bytes(content[:length])
        error = held(lambda: sl.load(folder), source=folder, out=tmp_path / "out").error
        assert "cannot be read as safetensors" in str(error)
