"""transformers' models behind the LanguageModel interface.

`forward` gives logits of whole sequences, `decode` those of new tokens after a KV cache. Causal models take
their positions from the attention mask, so that a left-padded row computes what it computes alone; for others
transformers' own positions stand.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinklens.errors import ModelError, UsageError
from sinklens.models.fields import Fields
from sinklens.models.huggingface_spec import read_spec
from sinklens.models.inputs import check_ids, check_length, positions_of, real_tokens
from sinklens.models.language_model import MEMBERS, Messages
from sinklens.models.layers import MOST_LAYERS
from sinklens.models.templates import render_chat


class HuggingFaceModel(nn.Module):
    """A transformers model; the model itself is `model`."""

    def __init__(self, model: Any, *, tokenizer: Any = None, source: str = "") -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.spec = read_spec(model, tokenizer, source or getattr(model.config, "_name_or_path", ""))
        self._accepts = frozenset(inspect.signature(model.forward).parameters)
        self._warned = False  # of input past spec.max_length

    @property
    def device(self) -> torch.device:
        found: torch.device = self.model.device
        return found

    # What comes from callers is annotated as anything, because it is checked here, with a message.
    def forward(self, ids: Any, attention_mask: Any = None) -> Float[Tensor, "batch query vocab"]:
        """Logits of integer ids [batch, query]; attention_mask, of the same shape, is 0 at padding."""
        arguments = self._arguments(ids, attention_mask, past=0)
        if "use_cache" in self._accepts:
            arguments["use_cache"] = False
        return self._logits(self.model(**arguments))

    def decode(
        self, ids: Any, attention_mask: Any = None, cache: Any = None
    ) -> tuple[Float[Tensor, "batch query vocab"], Any]:
        """Logits of the new `ids` after what is in `cache`, and the cache with them in it.

        `attention_mask` covers cached and new positions: [batch, cached + query].
        """
        if "past_key_values" not in self._accepts:
            raise ModelError(
                f"{type(self.model).__name__} keeps no KV cache; call the model on the whole sequence instead"
            )
        past = 0 if cache is None else int(cache.get_seq_length())
        arguments = self._arguments(ids, attention_mask, past=past)
        output = self.model(**arguments, past_key_values=cache, use_cache=True)
        return self._logits(output), output.past_key_values

    def chat(self, messages: Messages) -> Int[Tensor, " position"]:
        """Prompt ids of a conversation, by the tokenizer's own chat template."""
        source = self.spec.source or "this model"
        if self.tokenizer is None:
            raise ModelError(f"{source} came without tokenizer files, so it cannot chat; give ids")
        if not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(f"the tokenizer of {source} has no chat template; give ids, or text without chat")
        if not messages:
            raise UsageError('no messages; expected at least one, such as {"role": "user", "content": "Hello"}')
        text = render_chat(self.tokenizer, messages, source=source)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if not ids:
            raise ModelError(f"the chat template of {source} renders to no tokens; give ids, or text without chat")
        return torch.tensor(ids, device=self.device)

    def _arguments(self, ids: Any, attention_mask: Any, *, past: int) -> dict[str, Any]:
        check_ids(ids, self.spec.vocab_size)
        batch, length = ids.shape[0], past + ids.shape[1]
        self._warned = check_length(length, self.spec, warned=self._warned)
        what = "ids" if past == 0 else "cached and new positions"
        real = real_tokens(attention_mask, torch.Size((batch, length)), what=what)
        arguments: dict[str, Any] = {"input_ids": ids}
        if real is not None:
            arguments["attention_mask"] = real.long()
            if self.spec.causal and "position_ids" in self._accepts:
                arguments["position_ids"] = positions_of(real)[:, past:]
        return arguments

    def _logits(self, output: Any) -> Float[Tensor, "batch query vocab"]:
        logits: Tensor | None = getattr(output, "logits", None)
        if logits is None:
            raise ModelError(
                f"{type(self.model).__name__} gives no logits: it has no language-model head; use a "
                "checkpoint saved with one, or observe its `model` directly"
            )
        return logits


def load_folder(
    folder: Path,
    fields: Fields,
    *,
    source: str,
    device: torch.device | str,
    dtype: torch.dtype | None,
    trust_remote_code: bool,
    quantization_config: Any,
    attn_implementation: str | None,
) -> HuggingFaceModel:
    """A checkpoint folder through transformers' Auto classes, safetensors only."""
    from sinklens.models.weights import find_tensors

    auto = auto_class(fields, trust_remote_code)
    find_tensors(folder)  # our words for a missing shard, a truncated file or a pickle
    options: dict[str, Any] = {
        "attn_implementation": attn_implementation,
        "quantization_config": quantization_config,
        "device_map": _device_map(device, quantized=quantization_config is not None),
    }
    with told_in_words(source):
        config = _config(folder, trust_remote_code)
        model, info = auto.from_pretrained(
            str(folder),
            config=config,
            dtype="auto" if dtype is None else dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **{name: value for name, value in options.items() if value is not None},
        )
    missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ModelError(
            f"{source} lacks {', '.join(missing[:5])}{more}, which {type(model).__name__} needs; do "
            "config.json and the weights belong together?"
        )
    if options["device_map"] is None:
        model = model.to(device)
    tokenizer = folder_tokenizer(folder, trust_remote_code)
    try:
        return HuggingFaceModel(model.eval(), tokenizer=tokenizer, source=source)
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise cannot_load(source, error) from error


@contextmanager
def told_in_words(source: str) -> Iterator[None]:
    """A config that makes no sense fails wherever transformers first uses it, with whatever that raises."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise cannot_load(source, error) from error


def cannot_load(source: str, error: Exception) -> ModelError:
    """What transformers said of a checkpoint that it could not make a model of."""
    said = str(error).strip() or type(error).__name__
    return ModelError(f"transformers cannot load {source}: {said}; do its files belong together?")


def _config(folder: Path, trust_remote_code: bool) -> Any:
    """Its config, less a flash-attention kernel it remembers of another machine; nothing could observe it."""
    config = read_folder_config(folder, trust_remote_code)
    if "flash" in str(config._attn_implementation):
        config._attn_implementation = None  # transformers chooses
    return config


def read_folder_config(folder: Path, trust_remote_code: bool = False) -> Any:
    """config.json as transformers reads it; one that asks for layers without end is refused before they are made."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)
        layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    except Exception as error:  # it runs the checks of every class of config
        raise cannot_load(str(folder), error) from error
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ModelError(f"{folder / 'config.json'} says {layers} layers; expected at most {MOST_LAYERS}")
    return config


def _device_map(device: torch.device | str, *, quantized: bool) -> Any:
    """None: load on the CPU and move; a device map needs accelerate."""
    from transformers.utils import is_accelerate_available

    if is_accelerate_available():
        return device if device == "auto" else {"": device}
    if device == "auto" or quantized:
        asked = "device 'auto'" if device == "auto" else "quantization_config"
        raise ModelError(f"{asked} needs the accelerate package; install it (pip install accelerate), or name a device")
    return None


def auto_class(fields: Fields, trust_remote_code: bool) -> Any:
    """The Auto class that keeps the head the checkpoint was saved with."""
    import transformers
    from transformers.models.auto import modeling_auto

    model_type, auto_map = fields.text("model_type"), fields.values.get("auto_map") or {}
    if trust_remote_code and auto_map:
        named = [name for name in ("AutoModelForCausalLM", "AutoModelForMaskedLM") if name in auto_map]
        return getattr(transformers, named[0] if named else "AutoModel")
    if model_type not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"{fields.path}: model_type is {model_type!r}, which neither sinklens (llada, Dream, mmada) nor "
            f"transformers {transformers.__version__} knows; update transformers, or bring the model as an "
            f"object with {MEMBERS} (sinklens.models.language_model.LanguageModel)"
        )
    names = fields.values.get("architectures") or []
    if not isinstance(names, list):
        raise ModelError(f"{fields.path}: architectures is {names!r}; expected a list of names of classes")
    heads = {
        "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }
    for auto, mapping in heads.items():
        kept = mapping.get(model_type)
        if (kept in names) if names else kept is not None:
            return getattr(transformers, auto)
    return transformers.AutoModel


def folder_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    """The folder's tokenizer; None when it has no files of one."""
    files = (
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
        "tokenizer.model",
        "spiece.model",
    )
    if not any((folder / name).is_file() for name in files):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelError(
            f"the tokenizer files in {folder} cannot be read ({error}); download them again, or remove them "
            "to work with ids alone"
        ) from error
