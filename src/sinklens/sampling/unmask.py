"""Which masked positions commit in a step, and with which token: pure functions on logits and confidences.

They follow the released samplers of LLaDA, MMaDA and Dream to the draw: whoever sets torch's generator
first gets the same random numbers in the same order.

A `place` is a position: one that is masked, in row-major order over the batch, or any of a window of the canvas. A
confidence over the canvas is -inf where a position may not commit.
"""

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.distributions import Categorical


def transfer_schedule(masks: int, steps: int) -> list[int]:
    """How many positions a row commits in each step: floor(n / steps), the first n mod steps steps one more."""
    each, more = divmod(masks, steps)
    return [each + (step < more) for step in range(steps)]


def gumbel_noise(shape: torch.Size, device: torch.device) -> Float64[Tensor, "..."]:
    """-ln U for uniform U, drawn in float64: in float32 the rare small U that decide an arg-max are
    missing.
    """
    return -torch.log(torch.rand(shape, dtype=torch.float64, device=device))


def propose_tokens(
    logits: Float[Tensor, "*place vocab"], temperature: float | int, noise: Float64[Tensor, "*place vocab"] | None
) -> Int[Tensor, "*place"]:
    """The token of each row: arg-max, or with temperature t arg-max of exp(l) / noise^t, a draw from
    softmax(l / t).
    """
    if noise is None:
        return logits.argmax(dim=-1)
    return (logits.double().exp() / noise**temperature).argmax(dim=-1)


def token_probability(logits: Float[Tensor, "*place vocab"], tokens: Int[Tensor, "*place"]) -> Float[Tensor, "*place"]:
    """softmax(logits)[token], in the dtype of the logits."""
    return logits.softmax(dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def select_top(confidence: Float[Tensor, "batch position"], count: int) -> Bool[Tensor, "batch position"]:
    """The `count` most confident positions of each row, NaN before all others, never one that may not commit.

    Equal confidences fall as in the originals: a row's topk does not depend on the rows beside it.
    """
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    chosen.scatter_(1, confidence.topk(count).indices, True)
    return chosen & (confidence != -torch.inf)


def select_above(confidence: Float[Tensor, "batch position"], threshold: float | int) -> Bool[Tensor, "batch position"]:
    """Every position above `threshold`, and in each row that has a candidate at least the most confident
    one.
    """
    best = torch.zeros_like(confidence, dtype=torch.bool)
    best.scatter_(1, confidence.argmax(dim=1, keepdim=True), True)
    return (best | (confidence > threshold)) & (confidence > -torch.inf)


def keep_top_p(logits: Float[Tensor, "*place vocab"], top_p: float | int) -> Float[Tensor, "*place vocab"]:
    """Drop what follows once the larger entries' mass exceeds `top_p`; the entry that crosses it stays."""
    ordered, order = logits.sort(dim=-1, descending=True)
    over = ordered.softmax(dim=-1).cumsum(dim=-1) > top_p
    drop = torch.zeros_like(over)
    drop[..., 1:] = over[..., :-1]
    dropped = torch.zeros_like(over).scatter(-1, order, drop)
    return logits.masked_fill(dropped, torch.finfo(logits.dtype).min)


def keep_top_k(logits: Float[Tensor, "*place vocab"], top_k: int) -> Float[Tensor, "*place vocab"]:
    """Drop every logit below the `top_k`-th largest."""
    least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, torch.finfo(logits.dtype).min)


def filtered_probabilities(
    logits: Float[Tensor, "*place vocab"], temperature: float | int, top_p: float | int | None, top_k: int | None
) -> Float[Tensor, "*place vocab"]:
    """softmax after temperature, top_p and top_k, in this order; the filters act at temperature 0 too."""
    if temperature > 0:
        logits = logits / temperature
    if top_p is not None and top_p < 1:
        logits = keep_top_p(logits, top_p)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    return logits.softmax(dim=-1)


def draw_tokens(probabilities: Float[Tensor, "*place vocab"], temperature: float | int) -> Int[Tensor, "*place"]:
    """The most probable token of each row, or with a temperature a categorical draw."""
    if temperature == 0:
        return probabilities.argmax(dim=-1)
    return torch.multinomial(probabilities, num_samples=1).squeeze(-1)


def draw_or_take_best(probabilities: Float[Tensor, "*place vocab"], temperature: float | int) -> Int[Tensor, "*place"]:
    """As `draw_tokens`, but nothing is drawn, and every row takes its most probable token, where torch.distributions
    refuses one of them: its probabilities, rounded to bfloat16 or float16, do not add up to 1 within 1e-6.
    """
    if temperature == 0:
        return probabilities.argmax(dim=-1)
    try:
        tokens: Tensor = Categorical(probs=probabilities, validate_args=True).sample()  # type: ignore[no-untyped-call]
    except ValueError:
        return probabilities.argmax(dim=-1)
    return tokens


def maskgit_plus(
    probabilities: Float[Tensor, "*place vocab"], tokens: Int[Tensor, "*place"]
) -> Float[Tensor, "*place"]:
    """The token's probability."""
    return probabilities.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def topk_margin(probabilities: Float[Tensor, "*place vocab"]) -> Float[Tensor, "*place"]:
    """The largest probability minus the second largest."""
    largest = probabilities.topk(2, dim=-1).values
    return largest[..., 0] - largest[..., 1]


def negative_entropy(probabilities: Float[Tensor, "*place vocab"]) -> Float[Tensor, "*place"]:
    """sum p ln(p + 1e-10); NaN in float16 where a p is 0, for 1e-10 is 0 there too."""
    return (probabilities * torch.log(probabilities + 1e-10)).sum(dim=-1)


def select_drawn(
    confidence: Float[Tensor, "batch position"], count: int, alg_temp: float | int
) -> Bool[Tensor, "batch position"]:
    """`count` positions of each row, drawn without replacement from softmax(confidence / alg_temp)."""
    scores = confidence / alg_temp
    weights = scores.softmax(dim=-1)
    if bool((weights > 0).sum(dim=-1).min() >= count):
        places = torch.multinomial(weights, num_samples=count)
    else:
        # Too few weights survive the softmax for torch.multinomial: the same draw as a race of logarithms.
        places = (scores - gumbel_noise(scores.shape, scores.device).log()).topk(count, dim=-1).indices
    chosen = torch.zeros_like(confidence, dtype=torch.bool).scatter(1, places, True)
    return chosen & (confidence > -torch.inf)
