"""The axes every array here is made of, and the small records that need no torch.

One word, one meaning, in this order wherever they meet:

    step    forward passes of a generation: denoising steps, or tokens of an autoregressive run
    layer   attention layers in the order the model runs them
    batch   rows of a batch
    head    query heads;  kv_head: key/value heads (fewer under grouped queries)
    query   positions that look
    key     positions that are looked at, in canvas coordinates
    dim     width of a head
    vocab   token ids

`query` and `key` are never both called `seq`: under a KV cache they differ.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What a sampler, an observer or a report must know about a model, read from its config alone."""

    family: str  # "llada", "dream", "mmada", or the model_type of a transformers model
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab_size: int  # rows of the logits; ids at or above it are refused
    causal: bool
    shift: bool = False  # Dream: the output at p predicts position p + 1
    mask_id: int | None = None  # None: not a masked diffusion model
    bos_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None  # end of a chat turn
    pad_id: int | None = None
    max_length: int | None = None  # what the config promises
    learned_positions: bool = False  # True: longer input is an error; False: RoPE goes on, with a warning
    source: str = ""  # folder or hub id it was loaded from
