"""Scores of patches by what a backbone already computes; the highest are kept. Keys and attention are those of the last
block that ran, in which all tokens that are left took part.

    random         uniform, by seed, image and patch: nested from gate to gate
    norm           length of the token, the longest kept (RankViT)
    key_norm       length of the key, the shortest kept (what caches keep: much attention goes to short keys)
    key_norm_high  its opposite
    cls            attention that the class token pays to the patch, mean over heads (EViT)
    avit           halting: sigmoid(gamma x_0 - beta) summed over the blocks so far; the lowest kept (A-ViT's score at a
                   fixed budget). Its gradient reaches the features, so that training can teach it
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from sinklens.attention.call import AttentionCall

GAMMA, BETA = 10.0, 5.0  # A-ViT's scale and shift, for a small model


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """What a ranking may look at: the patches that are left, before a gated block."""

    tokens: Float[Tensor, "batch patch width"]
    keys: Float[Tensor, "batch head patch dim"] | None  # in the last block; None: no block ran yet
    attention: Float[Tensor, "batch patch"] | None  # from the class token, mean over heads
    halting: Float[Tensor, "batch patch"]  # summed over the blocks that ran
    draws: Float[Tensor, "batch patch"]  # uniform in [0, 1)


Ranking = Callable[[Look], Tensor]  # Look -> scores [batch, patch]; the highest are kept


def _key_norms(look: Look) -> Tensor:
    assert look.keys is not None
    norms: Tensor = look.keys.float().norm(dim=-1).mean(dim=1)
    return norms


def _attention(look: Look) -> Tensor:
    assert look.attention is not None
    return look.attention


RANKINGS: dict[str, Ranking] = {
    "random": lambda look: look.draws,
    "norm": lambda look: look.tokens.float().norm(dim=-1),
    "key_norm": lambda look: -_key_norms(look),
    "key_norm_high": _key_norms,
    "cls": _attention,
    "avit": lambda look: -look.halting,
}


def class_attention(call: AttentionCall) -> Float[Tensor, "batch key"]:
    """softmax(q_cls k) in float32, mean over heads."""
    query, key = call.query[:, :, :1].float(), call.key.float()
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    logits = (query @ key.transpose(2, 3)) * scale
    if call.mask is not None:
        logits = logits + call.mask[..., :1, :]
    return logits.softmax(dim=-1).mean(dim=1)[:, 0]
