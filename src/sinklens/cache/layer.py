"""One layer of a transformers cache that can be cut: entries with their true positions.

It tells its true length, the number of tokens that have come by, whatever was evicted: that is where transformers takes
positions and mask sizes from. Each kv head of each row holds entries of its own; rows with fewer of them are filled up
with entries that nobody sees.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from sinklens.cache.budget import ranked
from sinklens.cache.entries import Entries, QueryStatistics
from sinklens.cache.queries import QuerySums
from sinklens.cache.scores import score
from sinklens.cache.settings import Compression
from sinklens.errors import UsageError


@dataclass(kw_only=True, eq=False)
class Arriving:
    """What is known of the tokens of the forward under way before they are in the cache."""

    real: Bool[Tensor, "batch query"] | None = None  # False: padding; None: all are real
    marked: Bool[Tensor, "batch query"] | None = None  # special or punctuation, for "fastgen"
    wants_received: bool = False
    on_canvas: bool = False  # observers are there: keys are shown where they stand, the evicted ones hidden


class CutLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, and beside each entry its position, whether it is real, and what orders ask for."""

    is_croppable = False
    keys: Any
    values: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seen = 0  # tokens that have come by, padding included
        self.met: Tensor | None = None  # [batch]: those that were real
        self.columns: dict[str, Tensor] = {}  # [batch, kv_head, entry]: position, real, and what the order asks for
        self.whole = True  # every entry is real and may be seen
        self.cut = False  # something was evicted
        self.looked = False  # the schedule has looked at it
        self.is_open = True  # False once the context that masks it has closed
        self.arriving = Arriving()
        self.queries: QuerySums | None = None

    @classmethod
    def of(cls, layer: Any, real: Bool[Tensor, "batch position"] | None) -> "CutLayer":
        """A plain layer taken over with what it holds; `real` tells its padding."""
        made = cls()
        if layer.keys is not None and layer.keys.numel():
            made.arriving = Arriving(real=None if real is None else real[:, : layer.keys.shape[-2]])
            made.update(layer.keys, layer.values)
        return made

    @property
    def held(self) -> int:
        """Entries a head has room for now."""
        return self.columns["position"].shape[-1] if self.columns else 0

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        if not self.columns:
            return 0
        return int(self.keys.nbytes + self.values.nbytes)

    def get_seq_length(self) -> int:
        return self.seen

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.cut and not self.is_open:
            raise UsageError(
                "this cache was cut inside sinklens.compress and needs its masks; go on inside the context, or open "
                "another for it"
            )
        super().update(key_states, value_states, *args, **kwargs)
        self._append(key_states)
        if self.cut and self.arriving.on_canvas:
            return self._on_canvas(self.keys), self._on_canvas(self.values)
        return self.keys, self.values

    def _append(self, key_states: Tensor) -> None:
        rows, heads, new = key_states.shape[:3]
        device, arriving = key_states.device, self.arriving

        def wide(column: Tensor) -> Tensor:
            return column.to(device)[:, None].expand(rows, heads, new)

        positions = torch.arange(self.seen, self.seen + new, dtype=torch.int32, device=device)
        real = torch.ones((rows, new), dtype=torch.bool, device=device)
        if arriving.real is not None:
            real = arriving.real.to(device)
        met = torch.zeros(rows, dtype=torch.int64, device=device) if self.met is None else self.met
        added = {"position": wide(positions[None]), "real": wide(real)}
        if arriving.marked is not None:
            added["marked"] = wide(arriving.marked)
        if arriving.wants_received:
            added["received"] = torch.zeros((rows, heads, new), device=device)
            added["before"] = wide(met[:, None] + real.long().cumsum(1) - real.long())
        self.columns = {
            name: torch.cat([self.columns[name], column], dim=-1) if name in self.columns else column.contiguous()
            for name, column in added.items()
        }
        self.whole = self.whole and (arriving.real is None or bool(real.all()))
        self.met = met + real.sum(1)
        self.seen += new

    def _on_canvas(self, states: Tensor) -> Tensor:
        """Entries where they stand, zeros where one was evicted."""
        where = self.columns["position"].long()[..., None].expand(states.shape)
        canvas = states.new_zeros((*states.shape[:2], self.seen, states.shape[-1]))
        return canvas.scatter(2, where, states)

    def look(
        self,
        compression: Compression,
        number: int,
        *,
        queries: Callable[[], QueryStatistics | None] | None = None,
        ahead: int = 0,
    ) -> None:
        """Cut what the schedule wants cut; `number` is that of the layer, `ahead` as in Compression.left_of."""
        if compression.schedule == "once" and self.looked:
            return
        self.looked = True
        rows = self.columns["real"].shape[0]
        counts = [self.held] * rows if self.whole else self.columns["real"][:, 0].sum(-1).tolist()
        left = [compression.left_of(count, ahead=ahead) for count in counts]
        if left == counts:
            return
        entries = self.entries(number, None if queries is None else queries())
        order = ranked(
            _scores(compression, entries, self.met),
            positions=entries.positions,
            real=entries.real,
            first=compression.first,
            last=max(0, compression.last - ahead),
        )
        self._take(order[..., : max(left)], torch.tensor(left, device=order.device))

    def entries(self, number: int, queries: QueryStatistics | None = None) -> Entries:
        received = self.columns.get("received")
        if received is not None:  # every real query from its own on has seen an entry that is still there
            assert self.met is not None
            received = received / (self.met[:, None, None] - self.columns["before"]).clamp(min=1)
        return Entries(
            layer=number,
            keys=self.keys,
            values=self.values,
            positions=self.columns["position"],
            real=self.columns["real"],
            received=received,
            marked=self.columns.get("marked"),
            queries=queries,
        )

    def _take(self, index: Tensor, left: Int[Tensor, " batch"]) -> None:
        """Keep the entries `index`, best first, of each head; in a row the first `left` of them."""
        index, order = index.sort(dim=-1)
        alive = (order < left[:, None, None]) & self.columns["real"].gather(-1, index)
        self.columns = {name: column.gather(-1, index) for name, column in self.columns.items()}
        self.columns["real"] = alive
        self.keys = _gathered(self.keys, index)
        self.values = _gathered(self.values, index)
        self.whole = bool(alive.all())
        self.cut = True

    def add_received(self, sums: Float[Tensor, "batch kv_head key"]) -> None:
        """Attention that this forward's queries have paid, for the entries as they were shown."""
        if sums.shape[-1] != self.held:  # they were laid out on the canvas
            sums = sums.gather(-1, self.columns["position"].long())
        self.columns["received"] = self.columns["received"] + sums

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.columns:
            self._select_rows(torch.arange(self.keys.shape[0], device=self.keys.device).repeat_interleave(repeats))

    def _select_rows(self, rows: Tensor) -> None:
        if not self.columns:
            return
        rows = rows.to(self.keys.device)
        self.keys, self.values = self.keys[rows], self.values[rows]
        self.columns = {name: column[rows] for name, column in self.columns.items()}
        self.met = None if self.met is None else self.met[rows]
        self.queries = None if self.queries is None else self.queries.select(rows)

    def crop(self, *_: Any, **__: Any) -> None:
        raise UsageError(
            "a cache that sinklens.compress cuts cannot be cropped (what was evicted is gone); assisted decoding does "
            "that, so generate without it"
        )

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]


def _scores(compression: Compression, entries: Entries, met: Tensor | None) -> Tensor:
    if isinstance(compression.order, str):
        return score(compression.order, entries, seed=compression.seed, event=0 if met is None else met)
    scores = compression.order(entries)
    if not isinstance(scores, Tensor) or scores.shape != entries.real.shape or not scores.is_floating_point():
        came = f"{scores.dtype} {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise UsageError(
            f"the order {compression.order_name!r} gave {came}; expected floats [batch, kv_head, entry] = "
            f"{tuple(entries.real.shape)}, the highest to be kept"
        )
    return scores


def _gathered(states: Tensor, index: Tensor) -> Tensor:
    """Whole rows are copied, several times as fast as a gather of single numbers."""
    rows = torch.arange(states.shape[0], device=index.device)[:, None, None]
    heads = torch.arange(states.shape[1], device=index.device)[:, None]
    return states[rows, heads, index]
