"""A checkpoint in one GGUF file, as transformers reads it: the weights are de-quantised once, when they are loaded.

The one such checkpoint here comes as a Python package (catalog.py), so that a real pretrained model can be had where no
model hub can be reached. Config and tokenizer come out of the same file.
"""

from importlib.util import find_spec
from typing import Any

import torch

from sinklens.errors import ModelError
from sinklens.models.catalog import Located
from sinklens.models.fields import Fields
from sinklens.models.huggingface import HuggingFaceModel, folder_tokenizer, read_folder_config

READERS = ("gguf", "accelerate")  # what transformers needs to read such a file


def load_gguf(
    located: Located, *, device: torch.device | str, dtype: torch.dtype | None, attn_implementation: str | None
) -> HuggingFaceModel:
    """The model and its tokenizer. dtype None: float32, in which the weights are de-quantised."""
    from transformers import AutoModelForCausalLM

    refuse_without_readers(located.source)
    file: dict[str, Any] = {"gguf_file": located.gguf, "local_files_only": True}
    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(located.folder),
            dtype=torch.float32 if dtype is None else dtype,
            device_map=device if device == "auto" else {"": device},
            **file,
            **chosen,
        )
        tokenizer = read_tokenizer(located)
    except Exception as error:  # the reader of a damaged file raises whatever its parsing comes to
        raise ModelError(f"transformers cannot load {located.source} from {located.gguf}: {error}") from error
    return HuggingFaceModel(model.eval(), tokenizer=tokenizer, source=located.source)


def read_config(located: Located) -> Any:
    """The config of a checkpoint, from config.json or the head of its GGUF file."""
    from transformers import AutoConfig

    if located.gguf is None:
        return read_folder_config(located.folder)
    refuse_without_readers(located.source)
    return AutoConfig.from_pretrained(str(located.folder), gguf_file=located.gguf, local_files_only=True)


def read_fields(located: Located) -> Fields:
    """What the config says, whichever file it is in."""
    if located.gguf is None:
        return Fields.of_folder(located.folder)
    return Fields(values=read_config(located).to_dict(), path=located.folder / located.gguf)


def read_tokenizer(located: Located) -> Any:
    """The tokenizer; None where there is none."""
    from transformers import AutoTokenizer

    if located.gguf is None:
        return folder_tokenizer(located.folder, False)
    refuse_without_readers(located.source)
    return AutoTokenizer.from_pretrained(str(located.folder), gguf_file=located.gguf, local_files_only=True)


def measure_gguf(located: Located) -> dict[str, Any]:
    """Parameters, bytes and types of the tensors, by the head of the file."""
    refuse_without_readers(located.source)
    from gguf import GGUFReader

    assert located.gguf is not None
    try:
        tensors = GGUFReader(located.folder / located.gguf).tensors
    except Exception as error:  # the reader of a damaged file raises whatever its parsing comes to
        raise ModelError(f"the head of {located.gguf} of {located.source} cannot be read: {error}") from error
    return {
        "parameters": sum(int(tensor.n_elements) for tensor in tensors),
        "bytes": sum(int(tensor.n_bytes) for tensor in tensors),
        "dtypes": sorted({tensor.tensor_type.name for tensor in tensors}),
    }


def refuse_without_readers(source: str) -> None:
    missing = [name for name in READERS if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{source} needs {' and '.join(missing)}, which is not installed; run `pip install {' '.join(missing)}`"
        )
