"""Do two sides agree? Logits within a tolerance, canvases exactly.

Logits agree when   max |ours - reference| <= TOLERANCE[dtype] * max(1, max |reference|).
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from sinklens.errors import VerificationError

# Relative to the largest logit. On three-layer models independent implementations differ by 2e-6 in float32
# and by 0.015 in bfloat16; 32 layers add more. float32 takes some thirty times that, the others 16 roundings.
TOLERANCE = {"float32": 5e-5, "bfloat16": 16 * 2.0**-8, "float16": 16 * 2.0**-11}


def compare_logits(
    ours: Float[Tensor, "row position vocab"], theirs: Tensor, *, dtype: str
) -> tuple[dict[str, Any], str | None]:
    """What was compared, and what disagrees, if anything does."""
    if theirs.shape != ours.shape:
        raise VerificationError(f"the reference's logits have shape {list(theirs.shape)}, expected {list(ours.shape)}")
    ours, theirs = ours.double().cpu(), theirs.double()
    for side, logits in (("our", ours), ("the reference's", theirs)):
        if not logits.isfinite().all():
            row, position, token = (~logits.isfinite()).nonzero()[0].tolist()
            raise VerificationError(
                f"{side} logits hold NaN or infinity, first at row {row}, position {position}, id {token}"
            )
    difference = (ours - theirs).abs()
    largest, scale = difference.max().item(), max(1.0, theirs.abs().max().item())
    tolerance = TOLERANCE[dtype] * scale
    compared = {
        "shape": list(ours.shape),
        "largest_difference": largest,
        "scale": scale,
        "tolerance": tolerance,
    }
    if largest <= tolerance:
        return compared, None
    row, position = (difference.amax(-1) > tolerance).nonzero()[0].tolist()
    return compared, (
        f"logits differ by up to {largest:.3g} (tolerance {tolerance:.3g}), first at row {row}, position {position}"
    )


def compare_canvases(
    name: str, ours: Int[Tensor, "step 1 position"], theirs: Tensor
) -> tuple[dict[str, Any], str | None]:
    """`theirs`: the finished canvas [1, position], or the history [step, 1, position], the start included."""
    has_history = theirs.ndim == ours.ndim
    expected = ours.shape if has_history else ours.shape[1:]
    if theirs.shape != expected or theirs.is_floating_point():
        raise VerificationError(
            f"{name} of the reference is {theirs.dtype} of shape {list(theirs.shape)}, expected integers of "
            f"shape {list(ours.shape[1:])} (the result) or {list(ours.shape)} (before and after every step)"
        )
    ours = ours.cpu()
    wrong = (ours if has_history else ours[-1]) != theirs
    compared = {"name": name, "equal": not wrong.any().item(), "history": has_history}
    if compared["equal"]:
        return compared, None
    if has_history:
        step, _, position = wrong.nonzero()[0].tolist()
        where = f"first after step {step}, position {position}"
        mine, other = ours[step, 0, position].item(), theirs[step, 0, position].item()
    else:
        # Without a history, the wrong position that we committed first is the likeliest cause of the others.
        settled = (ours == ours[-1]).int().argmax(0)[0].tolist()
        position = min(wrong[0].nonzero().flatten().tolist(), key=lambda place: settled[place])
        where = f"at position {position}, which we fill in step {settled[position]}"
        mine, other = ours[-1, 0, position].item(), theirs[0, position].item()
    return compared, f"{name} differs {where}: ours {mine}, reference {other}"
