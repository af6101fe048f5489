"""Generation that ends with a stop string, as benchmarks ask for it.

What is decided stays: a causal model appends, and a denoising step fills in masks alone. So a row whose text up to its
first mask holds a stop string has its result, and a run in which all rows have theirs can end. The result is the same
as that of the whole run, cut at the stop string.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from sinklens.models.language_model import LanguageModel
from sinklens.sampling.special_ids import stop_ids
from sinklens.sampling.step import Sampler, Step


def cut_at(text: str, stops: Sequence[str]) -> str:
    """What stands before the first stop string.

    >>> cut_at("12 apples. Question: and", ["Question:", " and"])
    '12 apples. '
    """
    return min((text.split(stop, 1)[0] for stop in stops if stop), key=len, default=text)


@dataclass(frozen=True, kw_only=True)
class UntilStop:
    """A sampler whose run ends when every row has written one of `stops`, or has ended by itself."""

    sampler: Any  # of any kind
    stops: tuple[str, ...]

    @property
    def length(self) -> int:
        return int(self.sampler.length)

    @property
    def eos_id(self) -> int | None:
        eos: int | None = getattr(self.sampler, "eos_id", None)
        return eos

    def run(
        self,
        model: LanguageModel,
        prompt: Int[Tensor, "batch prompt"],
        attention_mask: Int[Tensor, "batch prompt"] | None = None,
    ) -> Iterator[Step]:
        """The steps of the sampler, up to the one that decides the last row."""
        ends = set(stop_ids(model.spec, self.eos_id))
        # A token is at least a byte long; those that decode to nothing only delay the end.
        tail = max((len(stop.encode()) for stop in self.stops), default=0) + 1
        read = [0] * prompt.shape[0]  # tokens of each row that were looked at
        open_rows = set(range(prompt.shape[0]))
        for step in self.sampler.run(model, prompt, attention_mask):
            yield step
            written = step.canvas[:, prompt.shape[1] :].tolist()
            for row in sorted(open_rows):
                decided = _decided(written[row], model.spec.mask_id)
                new, seen = decided[max(0, read[row] - tail) :], len(decided) > read[row]
                read[row] = len(decided)
                if seen and (not ends.isdisjoint(new) or self._stopped(model, new)):
                    open_rows.discard(row)
            if not open_rows:
                return

    def _stopped(self, model: LanguageModel, ids: list[int]) -> bool:
        text = model.tokenizer.decode(ids, skip_special_tokens=True)
        return any(stop in text for stop in self.stops)


def _decided(ids: list[int], mask_id: int | None) -> list[int]:
    """Up to the first mask."""
    return ids[: ids.index(mask_id)] if mask_id in ids else ids


def until_stop(sampler: Sampler, stops: Sequence[str]) -> Sampler:
    """The sampler itself where nothing stops it."""
    wanted = tuple(stop for stop in stops if stop)
    return UntilStop(sampler=sampler, stops=wanted) if wanted else sampler
