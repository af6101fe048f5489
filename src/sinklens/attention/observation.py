"""What an observer has seen: one entry a forward, stacked over layers, and every call as a record."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.attention.packed import HIDDEN, Arrived, Measured, Packed
from sinklens.attention.record import Record
from sinklens.errors import ObservationError

_SUMMED = {"by_group": "received", "expected_by_group": "expected", "viewers_by_group": "viewers"}  # over query groups
_NORMS = "ask for it: observe(model, norms=True)"
_RANKS = "ask for it: observe(model, ranks=True)"
_CONTRIBUTION = (
    "it needs observe(model, norms=True) and the output projection beside the attention, which some models (BERT) keep "
    "elsewhere"
)


class Layers(ABC):
    """Self-attention of one forward, stacked over layers. Subclasses hold the records; every array is derived."""

    @property
    @abstractmethod
    def _records(self) -> list[Record]:
        """Self-attention of the forward, by layer."""

    @property
    def layers(self) -> list[int]:
        """The layer numbers along the first axis of every array."""
        return [record.site.layer for record in self._records]

    @property
    def received(self) -> Float[Tensor, "layer batch head key"]:
        """Attention received: column sums over the queries, raw. Padding is 0."""
        return self._sums("by_group").sum(1)

    @property
    def expected(self) -> Float[Tensor, "layer batch heads_or_1 key"]:
        """What uniform attention under the same mask would give."""
        return self._sums("expected_by_group").sum(1)

    @property
    def viewers(self) -> Float[Tensor, "layer batch heads_or_1 key"]:
        """How many counted queries may see each key."""
        return self._sums("viewers_by_group").sum(1)

    @property
    def fair_share(self) -> Float[Tensor, "layer batch head key"]:
        """Received / expected. 1 is uniform attention; NaN where nobody may look, padding included."""
        return self.received / self.expected

    @property
    def mass(self) -> Float[Tensor, "layer batch head key"]:
        """Received / viewers: comparable between sequences of different length."""
        return self.received / self.viewers

    @property
    def null_mass(self) -> Float[Tensor, "layer batch head"]:
        """What the softmax's null term took (learned sink logits); layers without one have 0."""
        records = self._records
        if all(record.null_mass is None for record in records):
            raise ObservationError("no layer of this model has a null term in its softmax: there is no null_mass")
        zero = torch.zeros_like(records[0].received[..., 0])
        return torch.stack([zero if r.null_mass is None else r.null_mass for r in records])

    @property
    def groups(self) -> Mapping[str, Float[Tensor, "layer batch head key"]]:
        """Attention received from the queries of each group only."""
        return self._by_group("by_group")

    @property
    def group_expected(self) -> Mapping[str, Float[Tensor, "layer batch heads_or_1 key"]]:
        """What uniform attention would give from the queries of each group."""
        return self._by_group("expected_by_group")

    @property
    def group_viewers(self) -> Mapping[str, Float[Tensor, "layer batch heads_or_1 key"]]:
        """How many queries of each group may see each key."""
        return self._by_group("viewers_by_group")

    @property
    def key_norm(self) -> Float[Tensor, "layer batch kv_head key"]:
        return self._own("key_norm", _NORMS)

    @property
    def value_norm(self) -> Float[Tensor, "layer batch kv_head key"]:
        return self._own("value_norm", _NORMS)

    @property
    def contribution(self) -> Float[Tensor, "layer batch head key"]:
        """Received x norm of the value behind the head's output projection."""
        return self._own("output_norm", _CONTRIBUTION, asked="contribution") * self.received

    @property
    def entropy(self) -> Float[Tensor, "layer batch head query"]:
        """Entropy of every attention row, in nats."""
        return self._own("entropy", "ask for it: observe(model, entropy=True)")

    @property
    def output_norm(self) -> Float[Tensor, "layer batch head key"]:
        """Norm of every value behind the head's output projection."""
        return self._own("output_norm", _CONTRIBUTION)

    @property
    def output_rank(self) -> Float[Tensor, "layer batch head"]:
        """Effective rank of what each head puts out over the queries: 1 is the same direction for all."""
        return self._own("output_rank", _RANKS)

    @property
    def output_size(self) -> Float[Tensor, "layer batch head"]:
        """Root mean square over queries of the norm of what each head puts out."""
        return self._own("output_size", _RANKS)

    @property
    def maps(self) -> dict[tuple[int, int], Float[Tensor, "batch query key"]]:
        """The full maps that were asked for, by (layer, head)."""
        return {(r.site.layer, head): values for r in self._records for head, values in r.maps.items()}

    def stacked(self, name: str) -> Tensor | None:
        """A field of the records over all layers, not to be changed; None where one lacks it.

        Sums have one head for all, except where masks differ between heads.
        """
        records = self._records
        values = [getattr(record, name) for record in records]
        if any(value is None for value in values):
            return None
        if name in _SUMMED:
            heads = max(value.shape[2] for value in values)
            if any(value.shape[2] < heads for value in values):
                values = [value.expand(-1, -1, heads, -1) for value in values]
        called = _SUMMED.get(name, name)
        return _stacked(called, [(r.site.module, value) for r, value in zip(records, values, strict=True)])

    def _sums(self, name: str) -> Float[Tensor, "layer group batch heads_or_1 key"]:
        sums = self.stacked(name)
        assert sums is not None
        return sums

    def _by_group(self, name: str) -> dict[str, Tensor]:
        names = self._records[0].group_names
        sums = self._sums(name) if names else None
        return {} if sums is None else {group: sums[:, i].clone() for i, group in enumerate(names)}

    def _own(self, name: str, needs: str, *, asked: str | None = None) -> Tensor:
        """An array of the reader's own."""
        values = self.stacked(name)
        if values is None:
            raise ObservationError(f"{asked or name} was not observed; {needs}")
        return values.clone()


def _stacked(name: str, values: list[tuple[str, Tensor]]) -> Tensor:
    """Values of several layers on a new first axis, or an error that says where to find them one by one."""
    if len({value.shape for _, value in values}) > 1:
        rows = ", ".join(f"{layer} {list(value.shape)}" for layer, value in values)
        raise ObservationError(
            f"layers differ in shape, so {name} cannot be stacked: {rows}. Use .calls, one record a call"
        )
    return torch.stack([value for _, value in values])


class StepObservation(Layers):
    """One forward."""

    def __init__(
        self,
        *,
        step: int,
        fetch: Callable[[], Arrived] | None = None,
        settle: Callable[[], None] | None = None,
        lend: "Callable[[], AbstractContextManager[Arrived]] | None" = None,
    ) -> None:
        """`fetch`: how its numbers are got, once somebody asks. `settle`: adds calls that have yet to be measured.

        `lend`: numbers for a while, where that takes less.
        """
        self.step, self._lend = step, lend
        self._measured, self._fetch, self._settle = Measured(), fetch, settle
        self._arrived: Arrived | None = None

    @contextmanager
    def lent(self) -> "Iterator[StepObservation]":
        """The same for somebody who reads it at once and keeps nothing of it."""
        if self._lend is None or self._fetch is None:
            yield self
            return
        with self._lend() as arrived:
            yield StepObservation(step=self.step, fetch=lambda: arrived)

    @property
    def calls(self) -> list[Record]:
        """Every attention call, in the order they ran, self and cross."""
        return self._got().calls

    @property
    def outline(self) -> list[Record]:
        """The same for what they say beside numbers, which may be of another forward of the same shape."""
        arrived = self._arrive()
        return self.calls if arrived is None else arrived.packed.measured.calls

    @property
    def hidden(self) -> dict[str, Tensor]:
        """Norm of what each block puts out."""
        return self._got().hidden

    @property
    def blocks(self) -> int:
        """How many blocks there are norms of."""
        arrived = self._arrive()
        return len(self.hidden if arrived is None else arrived.packed.measured.hidden)

    def add_hidden(self, block: str, norm: Float[Tensor, "batch query"]) -> None:
        """One more block has run; it may do so several times (ALBERT)."""
        hidden = self._measured.hidden
        turn = sum(other.split("#")[0] == block for other in hidden)
        hidden[f"{block}#{turn}" if turn else block] = norm

    @property
    def _records(self) -> list[Record]:
        records = sorted((r for r in self.calls if r.site.kind == "self"), key=lambda r: r.site.layer)
        if not records:
            raise ObservationError("no self-attention was observed in this forward; see .calls for cross-attention")
        return records

    @property
    def hidden_norm(self) -> Float[Tensor, "layer batch query"]:
        """Norm of the hidden state after each block."""
        arrived = self._arrive()
        if arrived is not None and (whole := arrived.whole(HIDDEN)) is not None:
            return whole.clone()
        if not self.hidden:
            raise ObservationError("hidden_norm was not observed; ask for it: observe(model, hidden_norms=True)")
        return _stacked("hidden_norm", list(self.hidden.items())).clone()

    def stacked(self, name: str) -> Tensor | None:
        """As of any forward, at once where all layers have come as one array."""
        arrived = self._arrive()
        whole = None if arrived is None else arrived.whole(name)
        return super().stacked(name) if whole is None else whole

    def __repr__(self) -> str:
        return f"StepObservation(step {self.step}, {len(self.calls)} attention calls)"

    def pack(self) -> None:
        """Bring the arrays to host memory, one copy for all layers of one kind and shape."""
        packed = self.packed()
        self._settle = None
        if packed.stacks:
            self._arrived, self._measured = packed.on_host(step=self.step), Measured()

    def packed(self) -> Packed:
        """The arrays where they are, alike ones stacked."""
        return Packed.of(self._got())

    def _arrive(self) -> Arrived | None:
        fetch = self._fetch
        if fetch is not None:
            self._arrived, self._fetch = fetch(), None
        return self._arrived

    def _got(self) -> Measured:
        if self._settle is not None:
            self._settle()
        arrived = self._arrive()
        return self._measured if arrived is None else arrived.measured


@dataclass(kw_only=True, eq=False, repr=False)
class Observation(Layers):
    """Everything one observer has seen. With one forward its arrays are here; with several, in `steps`."""

    steps: list[StepObservation] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[StepObservation]:
        return iter(self.steps)

    @property
    def calls(self) -> list[Record]:
        """Every attention call, in the order they ran."""
        return [record for step in self.steps for record in step.calls]

    @property
    def hidden_norm(self) -> Float[Tensor, "layer batch query"]:
        return self._only().hidden_norm

    @property
    def _records(self) -> list[Record]:
        return self._only()._records

    def __repr__(self) -> str:
        return f"Observation({len(self.steps)} forwards, {len(self.calls)} attention calls)"

    def _only(self) -> StepObservation:
        if not self.steps:
            raise ObservationError("nothing has been observed yet: run the model inside the context first")
        if len(self.steps) > 1:
            raise ObservationError(
                f"{len(self.steps)} forwards were observed, so there is no single array; "
                "use .steps[i].received (one entry a forward) or .calls"
            )
        return self.steps[0]
