"""transformers models: the same logits as transformers gives, cached decoding, and every refusal."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from sinklens.errors import ModelError, UsageError
from sinklens.models.huggingface import HuggingFaceModel
from sinklens.models.language_model import LanguageModel
from sinklens.models.load import load, wrap

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.tensor([[5, 9, 14, 2, 77, 31, 8, 60], [3, 3, 90, 41, 7, 22, 11, 95]])


def llama(**fields):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SMALL, intermediate_size=48, num_key_value_heads=2, max_position_embeddings=64, **fields
    )
    return transformers.LlamaForCausalLM(config).eval()


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    config.bos_token_id = config.eos_token_id = 95
    return transformers.GPT2LMHeadModel(config).eval()


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, intermediate_size=48, max_position_embeddings=16)
    return transformers.BertForMaskedLM(config).eval()


MODELS = {"llama": llama, "gpt2": gpt2, "bert": bert}


@pytest.fixture
def saved(tmp_path: Path):
    def save(model) -> Path:
        folder = tmp_path / "saved"
        model.save_pretrained(folder)
        return folder

    return save


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_transformers_own(saved, name: str) -> None:
    original = MODELS[name]()
    model = load(saved(original))
    assert isinstance(model, LanguageModel)
    assert type(model.model) is type(original)
    with torch.no_grad():
        assert torch.equal(model(IDS), original(IDS).logits)
        mask = torch.ones_like(IDS)
        mask[0, 5:] = 0
        ours, theirs = model(IDS, mask), original(IDS, attention_mask=mask).logits
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=1e-6, rtol=0)


def test_specs(saved) -> None:
    spec = load(saved(llama(eos_token_id=[7, 8]))).spec
    assert (spec.family, spec.layers, spec.heads, spec.kv_heads, spec.head_dim) == ("llama", 2, 4, 2, 8)
    assert (spec.causal, spec.mask_id, spec.eos_id, spec.vocab_size) == (True, None, 7, 96)
    assert (spec.max_length, spec.learned_positions) == (64, False)
    spec = wrap(gpt2()).spec
    assert (spec.causal, spec.max_length, spec.learned_positions) == (True, 16, True)
    spec = wrap(bert()).spec
    assert (spec.family, spec.causal, spec.max_length, spec.learned_positions) == ("bert", False, 16, True)


def test_positions_that_roberta_and_opt_reserve() -> None:
    roberta = transformers.RobertaConfig(**SMALL, max_position_embeddings=18, intermediate_size=48)
    assert wrap(transformers.RobertaForMaskedLM(roberta)).spec.max_length == 16
    opt = transformers.OPTConfig(
        **SMALL,
        ffn_dim=48,
        max_position_embeddings=16,
        word_embed_proj_dim=32,
        bos_token_id=1,
        eos_token_id=1,
    )
    model = wrap(transformers.OPTForCausalLM(opt).eval())
    assert model.spec.max_length == 16
    assert model(torch.arange(16)[None]).shape == (1, 16, 96)


def test_resized_embeddings_count() -> None:
    model = llama()
    model.resize_token_embeddings(100, mean_resizing=False)
    assert wrap(model)(torch.tensor([[99]])).shape == (1, 1, 100)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_left_padded_row_computes_what_it_computes_alone(name: str) -> None:
    model = wrap(MODELS[name]())
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.long), IDS), dim=1)
    mask = (torch.arange(11) >= 3).long().expand(2, -1)
    with torch.no_grad():
        torch.testing.assert_close(model(padded, mask)[:, 3:], model(IDS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_decoding_with_a_cache_equals_the_full_forward(name: str) -> None:
    model = wrap(MODELS[name]())
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0  # left padding
    with torch.no_grad():
        full = model(IDS, mask)
        logits, cache = model.decode(IDS[:, :5], mask[:, :5])
        parts = [logits]
        for i in range(5, 8):
            logits, cache = model.decode(IDS[:, i : i + 1], mask[:, : i + 1], cache)
            parts.append(logits)
    assert cache.get_seq_length() == 8
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], full[mask.bool()], atol=1e-5, rtol=0)


def test_decoding_without_a_mask() -> None:
    model = wrap(llama())
    with torch.no_grad():
        _, cache = model.decode(IDS[:, :5])
        logits, _ = model.decode(IDS[:, 5:], None, cache)
        torch.testing.assert_close(logits, model(IDS)[:, 5:], atol=1e-5, rtol=0)


def test_a_mask_must_cover_the_cache() -> None:
    model = wrap(llama())
    _, cache = model.decode(IDS[:, :5])
    with pytest.raises(UsageError, match=r"shape \[2, 1\]; expected that of the cached and new positions, \[2, 6\]"):
        model.decode(IDS[:, 5:6], torch.ones(2, 1, dtype=torch.long), cache)


def test_masked_models_keep_no_cache() -> None:
    model = wrap(transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(vocab_size=96, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
    ))  # fmt: skip
    with pytest.raises(ModelError, match="DistilBertForMaskedLM keeps no KV cache"):
        model.decode(IDS)


def test_longer_than_a_learned_table_is_an_error() -> None:
    model = wrap(gpt2())
    assert model(torch.zeros(1, 16, dtype=torch.long)).shape == (1, 16, 96)
    with pytest.raises(UsageError, match="17 positions; gpt2 has a learned table of 16: shorten the input"):
        model(torch.zeros(1, 17, dtype=torch.long))
    _, cache = model.decode(torch.zeros(1, 16, dtype=torch.long))
    with pytest.raises(UsageError, match="17 positions"):
        model.decode(torch.zeros(1, 1, dtype=torch.long), None, cache)


def test_longer_than_rotary_positions_promise_is_a_warning() -> None:
    model = wrap(llama())
    with pytest.warns(UserWarning, match="70 positions; the config of this llama model promises 64"):
        model(torch.zeros(1, 70, dtype=torch.long))
    model(torch.zeros(1, 70, dtype=torch.long))


def test_ids_are_checked() -> None:
    with pytest.raises(UsageError, match="this model accepts 0 to 95"):
        wrap(llama())(torch.tensor([[96]]))


def test_dtype_as_stored_or_as_asked(saved) -> None:
    folder = saved(llama().bfloat16())
    assert load(folder)(IDS).dtype == torch.bfloat16
    assert load(folder, dtype="float32")(IDS).dtype == torch.float32


def test_a_model_without_a_head(saved) -> None:
    model = load(saved(llama().model))
    assert type(model.model).__name__ == "LlamaModel"
    with pytest.raises(ModelError, match="LlamaModel gives no logits: it has no language-model head"):
        model(IDS)


def test_without_architectures_the_first_head_that_fits(saved) -> None:
    folder = saved(bert())
    edit(folder, architectures=None)
    model = load(folder)
    assert model(IDS).shape == (2, 8, 96)
    assert not model.spec.causal


def edit(folder: Path, **fields) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(fields)
    (folder / "config.json").write_text(json.dumps(config))


def test_custom_code_is_not_run_unasked(saved) -> None:
    folder = saved(llama())
    (folder / "modeling_other.py").write_text("raise SystemExit('ran')")
    edit(folder, model_type="other", auto_map={"AutoModelForCausalLM": "modeling_other.Other"})
    with pytest.raises(ModelError, match=r"names code of its own \(auto_map\).*allow it \(trust_remote_code\)"):
        load(folder)


def test_custom_code_runs_when_asked(saved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    original = llama()
    folder = saved(original)
    (folder / "modeling_mine.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class MineConfig(LlamaConfig):\n    model_type = 'mine'\n"
        "class Mine(LlamaForCausalLM):\n    config_class = MineConfig\n"
    )
    auto_map = {"AutoConfig": "modeling_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.Mine"}
    edit(folder, model_type="mine", auto_map=auto_map, architectures=["Mine"])
    model = load(folder, trust_remote_code=True)
    with torch.no_grad():
        assert torch.equal(model(IDS), original(IDS).logits)
    assert type(model.model).__name__ == "Mine"


def test_unknown_model_type(saved) -> None:
    folder = saved(llama())
    edit(folder, model_type="other")
    members = "an object with spec, tokenizer, device and __call__"
    with pytest.raises(
        ModelError, match=rf"model_type is 'other', which neither sinklens .* nor transformers.*{members}"
    ):
        load(folder)
    edit(folder, model_type=None)
    with pytest.raises(ModelError, match="model_type is None"):
        load(folder)


def test_pickle_is_refused(saved) -> None:
    folder = saved(llama())
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"pytorch_model.bin: pickle, which runs code"):
        load(folder)


def test_missing_tensors_are_not_made_up(saved) -> None:
    folder = saved(llama())
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks model.norm.weight, which LlamaForCausalLM needs"):
        load(folder)


def test_wrong_shape(saved) -> None:
    folder = saved(llama())
    edit(folder, intermediate_size=40)
    with pytest.raises(ModelError, match="transformers cannot load"):
        load(folder)


def test_flash_attention_that_a_config_remembers(saved) -> None:
    folder = saved(llama())
    edit(folder, _attn_implementation="flash_attention_2")
    assert load(folder).model.config._attn_implementation == "sdpa"
    assert load(folder, attn_implementation="eager").model.config._attn_implementation == "eager"


@pytest.mark.skipif(transformers.utils.is_accelerate_available(), reason="accelerate is here")
def test_spreading_needs_accelerate(saved) -> None:
    folder = saved(llama())
    with pytest.raises(ModelError, match="device 'auto' needs the accelerate package"):
        load(folder, device="auto")
    with pytest.raises(ModelError, match="quantization_config needs the accelerate package"):
        load(folder, quantization_config=transformers.BitsAndBytesConfig(load_in_8bit=True))


def test_chat_is_the_tokenizers_own(saved) -> None:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    folder = saved(llama())
    assert load(folder).tokenizer is None
    with pytest.raises(ModelError, match="came without tokenizer files"):
        load(folder).chat([{"role": "user", "content": "ab"}])
    tokenizer = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate("abcdefgsru:Ċ")}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained(folder)
    with pytest.raises(ModelError, match="has no chat template"):
        load(folder).chat([{"role": "user", "content": "ab"}])
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}gr:"
    fast.save_pretrained(folder)
    model = load(folder)
    assert model.tokenizer.decode(model.chat([{"role": "user", "content": "ab"}])) == "user:ab\ngr:"
    with pytest.raises(UsageError, match="no messages"):
        model.chat([])


def test_wrap(golden: Path) -> None:
    raw = llama()
    assert isinstance(wrap(raw), HuggingFaceModel)
    assert wrap(raw).model is raw
    native = load(golden / "llada")
    assert wrap(native) is native
    with pytest.raises(UsageError, match="this model brings its own tokenizer"):
        wrap(native, tokenizer=object())
    with pytest.raises(
        UsageError,
        match=r"a Linear is no language model \(it has no spec, tokenizer, device\); expected a transformers",
    ):
        wrap(torch.nn.Linear(2, 2))
