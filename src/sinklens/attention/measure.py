"""From one attention call to its numbers: attention received, uniform attention, norms, entropy, chosen maps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from sinklens.attention.call import AttentionCall, Site
from sinklens.attention.canvas import Canvas
from sinklens.attention.capture import capturing
from sinklens.attention.clock import StepNumber
from sinklens.attention.outputs import OutputMeter
from sinklens.attention.record import Record
from sinklens.attention.seam import Seen, same_scores
from sinklens.attention.together import alike, apart, joined
from sinklens.errors import ObservationError, UsageError
from sinklens.kernels.received import MOST_GROUPS, Received, received_of
from sinklens.kernels.reference import probabilities
from sinklens.kernels.scores import Scores
from sinklens.kernels.uniform import Uniform, uniform

GroupRule = Tensor | Callable[[StepNumber], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Wanted:
    """What is to be seen, said up front."""

    groups: Mapping[str, GroupRule]
    maps: frozenset[tuple[int, int]]
    map_bytes: int
    norms: bool
    entropy: bool
    ranks: bool
    layers: frozenset[int] | None
    before: bool  # measure the incoming call, not the intervened one
    impl: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """A call that is to be measured."""

    seen: Seen
    step: StepNumber
    canvas: int | None  # how wide the canvas is, where the call has lost its tail


class Meter:
    """Measures calls, and keeps between the layers of one forward what they share: query groups, uniform attention."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._mapped_bytes = 0
        self._overlaps: dict[str, Tensor] = {}  # groups: whether they did at some run of a graph
        self._codes: dict[tuple[object, ...], Tensor] = {}
        self._grouped: list[tuple[Tensor, AttentionCall]] = []  # while a forward is captured: the codes of its calls
        self._uniform: list[tuple[tuple[object, ...], tuple[Tensor | None, ...], Uniform]] = []
        self.outputs = OutputMeter()

    def new_forward(self) -> None:
        self._codes.clear()
        self._uniform.clear()

    def reads(self, seen: Seen) -> tuple[Tensor | None, ...]:
        """What of a call is measured, and must not be overwritten before: a layer's queries and keys are large."""
        call = self.measured(seen)
        read = (call.query, call.key, call.mask, call.sink_logits, call.real_keys, call.real_queries, seen.forward.lse)
        return (*read, call.value if self.wanted.norms else None, seen.forward.output if self.wanted.ranks else None)

    def measured(self, seen: Seen) -> AttentionCall:
        """The call before or after interventions, as was asked for."""
        return seen.incoming if self.wanted.before else seen.effective

    @torch.no_grad()
    def measure(self, shown: Sequence[Shown]) -> list[Record]:
        """The numbers of calls of one forward, in float32 whatever autocast says."""
        calls = [self.measured(one.seen) for one in shown]
        with torch.autocast(calls[0].query.device.type, enabled=False):
            results = self._received(shown, calls)
            return [self._record(*each) for each in zip(shown, calls, results, strict=True)]

    def _received(self, shown: Sequence[Shown], calls: Sequence[AttentionCall]) -> list[Received]:
        shared = [self._shared(call, one.step) for one, call in zip(shown, calls, strict=True)]
        if len(calls) > 1 and alike(calls, shared):
            codes, expected = shared[0]
            return apart(self._sums(joined(calls), codes.repeat(len(calls), 1), expected), len(calls))
        found = []
        for one, call, (codes, expected) in zip(shown, calls, shared, strict=True):
            lse = one.seen.forward.lse if same_scores(one.seen.effective, call) else None
            found.append(self._sums(call.scores, codes, expected, lse=lse))
        return found

    def _sums(self, scores: Scores, codes: Tensor, expected: Uniform, *, lse: Tensor | None = None) -> Received:
        return received_of(
            scores,
            codes=codes,
            groups=len(self.wanted.groups) + 1,
            entropy=self.wanted.entropy,
            lse=lse,
            expected=expected,
            impl=self.wanted.impl,
        )

    def _record(self, shown: Shown, call: AttentionCall, result: Received) -> Record:
        place, site, forward = Canvas.of(call, shown.canvas), call.site, shown.seen.forward
        assert site is not None
        norms = self.outputs.norms(call) if self.wanted.norms else None
        rank, size = self.outputs.rank_and_size(call, forward.output) if self.wanted.ranks else (None, None)
        return Record(
            site=site,
            by_group=place.hide_padding(result.sums.by_group),
            expected_by_group=place.hide_padding(result.uniform.by_group),
            viewers_by_group=place.hide_padding(result.uniform.viewers_by_group),
            group_names=tuple(self.wanted.groups),
            queries=call.query.shape[2],
            impl=result.impl,
            kernel=forward.kernel,
            null_mass=result.sums.null_mass,
            entropy=result.sums.entropy,
            key_norm=None if norms is None else place.put(norms.key),
            value_norm=None if norms is None else place.put(norms.value),
            output_norm=None if norms is None else place.put_or_none(norms.output),
            output_rank=rank,
            output_size=size,
            maps=self._maps(call, site, place),
        )

    def _shared(self, call: AttentionCall, step: StepNumber) -> tuple[Tensor, Uniform]:
        codes = self._query_codes(call, step)
        batch, heads, queries, _ = call.query.shape
        shape = (batch, heads, queries, call.key.shape[2], call.is_causal)
        tensors = (call.mask, codes)
        for known_shape, known_tensors, known in self._uniform:  # tensors are held, so identity is sound
            if known_shape == shape and all(a is b for a, b in zip(known_tensors, tensors, strict=True)):
                return codes, known
        expected = uniform(
            codes,
            groups=len(self.wanted.groups) + 1,
            heads=heads,
            keys=call.key.shape[2],
            mask=call.mask,
            is_causal=call.is_causal,
        )
        if len(self._uniform) > 8:  # masks made anew in every layer: do not hold them all
            self._uniform.clear()
        self._uniform.append((shape, tensors, expected))
        return codes, expected

    def _query_codes(self, call: AttentionCall, step: StepNumber) -> Int[Tensor, "batch query"]:
        """The group of every query; the rest has the last number, padding -1."""
        batch, queries = call.query.shape[0], call.query.shape[2]
        assert call.site is not None
        key = (batch, queries, call.key.shape[2], call.site.kind, call.real_queries is None)
        if key in self._codes and call.real_queries is None:
            return self._codes[key]
        if capturing():
            return self._static_codes(key, call)
        codes = self._coded(call, step, check=True)
        same = self._codes.get(key)
        if same is not None and torch.equal(same, codes):
            return same
        self._codes[key] = codes
        return codes

    def _coded(self, call: AttentionCall, step: StepNumber, *, check: bool) -> Int[Tensor, "batch query"]:
        assert call.site is not None
        rest = len(self.wanted.groups)
        shape = (call.query.shape[0], call.query.shape[2])
        codes = torch.full(shape, rest, dtype=torch.int32, device=call.query.device)
        if call.site.kind == "self":
            where = call.where_queries() if self.wanted.groups else None
            for number, (name, rule) in enumerate(self.wanted.groups.items()):
                members = _members(name, rule, step, where, codes)
                if number:
                    self._note_overlap(name, (members & (codes != rest)).any(), at_once=check)
                codes = torch.where(members, number, codes)
        return codes if call.real_queries is None else torch.where(call.real_queries, codes, -1)

    def _note_overlap(self, name: str, overlaps: Bool[Tensor, ""], *, at_once: bool) -> None:
        if at_once:
            _refuse_overlap(name, overlaps)
        else:  # a card is not waited for
            self._overlaps[name] = overlaps | self._overlaps.get(name, overlaps)

    def check(self) -> None:
        """What could not be checked at every run of a graph."""
        for name, overlaps in self._overlaps.items():
            _refuse_overlap(name, overlaps)

    def _static_codes(self, key: tuple[object, ...], call: AttentionCall) -> Int[Tensor, "batch query"]:
        """A place that the graph reads and that `rules` fills before every run; calls of one shape share it."""
        if key not in self._codes:
            shape = (call.query.shape[0], call.query.shape[2])
            self._codes[key] = torch.empty(shape, dtype=torch.int32, device=call.query.device)
            self._grouped.append((self._codes[key], call.outline()))
        return self._codes[key]

    def rules(self) -> "Rules":
        """Of the forward that was captured last."""
        places, self._grouped = self._grouped, []
        return Rules(self, places)

    def count_maps(self, size: int, where: str) -> None:
        """So many bytes more; refused where they are over the limit."""
        self._mapped_bytes += size
        if self._mapped_bytes > self.wanted.map_bytes:
            raise ObservationError(
                f"the maps asked for take {self._mapped_bytes:,} bytes by {where}, over the limit of "
                f"{self.wanted.map_bytes:,}; ask for fewer maps, or raise map_bytes"
            )

    def _maps(self, call: AttentionCall, site: Site, place: Canvas) -> dict[int, Tensor]:
        heads = sorted(head for layer, head in self.wanted.maps if layer == site.layer)
        if not heads or site.kind == "cross":
            return {}
        batch, all_heads, queries, _ = call.query.shape
        if heads[-1] >= all_heads:
            raise UsageError(f"maps asks for head {heads[-1]} of layer {site.layer}, which has {all_heads} heads")
        if not capturing():  # nothing is run: every run of the graph is counted
            where = f"layer {site.layer} of step {int(site.step)} ({batch} x {queries} x {place.width} floats a head)"
            self.count_maps(4 * len(heads) * batch * queries * place.width, where)
        shared = all_heads // call.key.shape[1]
        mask = call.mask
        if mask is not None and mask.dim() == 4 and mask.shape[1] > 1:
            mask = _heads(mask, heads)
        few = Scores(
            query=_heads(call.query, heads),
            key=_heads(call.key, [head // shared for head in heads]),
            mask=mask,
            is_causal=call.is_causal,
            scale=call.scale,
            softcap=call.softcap,
            sink_logits=None if call.sink_logits is None else _heads(call.sink_logits[None], heads)[0],
        )
        weights, _ = probabilities(few, dtype=torch.float32)
        return {head: place.put(weights[:, i]) for i, head in enumerate(heads)}


class Rules:
    """What fills the query groups of a captured forward, for a step. The first time it checks; else `Meter.check`."""

    def __init__(self, meter: Meter, places: list[tuple[Tensor, AttentionCall]]) -> None:
        self._meter, self._places = meter, places
        self._checked = False
        # Where padding is known to the graph alone, it has to run before queries can be told apart.
        self.need_a_run = any(call.real_queries is not None for _, call in places)

    def fill(self, step: StepNumber) -> None:
        for codes, call in self._places:
            codes.copy_(self._meter._coded(call, step, check=not self._checked))
        self._checked = True


def _refuse_overlap(name: str, overlaps: Bool[Tensor, ""]) -> None:
    if bool(overlaps):
        raise UsageError(
            f"query group {name!r} overlaps an earlier one; groups must be disjoint (each query is counted once, so "
            "that the sums of the groups add up to the total)"
        )


def _heads(values: Shaped[Tensor, "batch heads *rest"], heads: list[int]) -> Shaped[Tensor, "batch chosen *rest"]:
    """Some heads. Not by an index, which would be copied to the card: a graph allows none of that."""
    return torch.stack([values[:, head] for head in heads], dim=1)


def _members(
    name: str, rule: GroupRule, step: StepNumber, where: Tensor | None, codes: Tensor
) -> Bool[Tensor, "batch query"]:
    """Which queries belong to a group: a mask over the queries, or over the canvas."""
    assert where is not None
    members = rule if isinstance(rule, Tensor) else rule(step)
    if not isinstance(members, Tensor) or members.is_floating_point():
        kind = members.dtype if isinstance(members, Tensor) else type(members).__name__
        raise UsageError(
            f"group {name!r} gave {kind} at step {int(step)}; expected a boolean tensor [batch, query] "
            "(step.masked is known under a diffusion sampler only)"
        )
    members = members.to(device=codes.device, dtype=torch.bool)
    batch, queries = codes.shape
    if members.dim() == 1:
        members = members[None]
    if members.shape[-1] != queries:
        if members.shape[-1] <= int(where.max()):
            raise UsageError(
                f"group {name!r} covers {members.shape[-1]} positions; expected [batch, query] with {queries} "
                f"queries, or the canvas up to position {int(where.max())}"
            )
        members = members[:, where]
    members = members[:batch].expand(batch, queries)
    return members


def check_groups(groups: Mapping[str, GroupRule]) -> dict[str, GroupRule]:
    """Groups as asked for, refused where they cannot be meant."""
    if not isinstance(groups, Mapping):
        raise UsageError(f"groups is {groups!r}; expected {{name: mask or function of the step}}")
    if len(groups) > MOST_GROUPS:
        raise UsageError(f"{len(groups)} query groups; at most {MOST_GROUPS} are accepted in one pass")
    for name, rule in groups.items():
        if not isinstance(rule, Tensor) and not callable(rule):
            raise UsageError(
                f"group {name!r} is a {type(rule).__name__}; expected a boolean tensor [batch, query] or a function "
                "of the step"
            )
    return dict(groups)


def check_maps(maps: Iterable[tuple[int, int]], model: object) -> frozenset[tuple[int, int]]:
    """(layer, head) pairs; refused at once where the model says how many it has."""
    try:
        pairs = frozenset((int(layer), int(head)) for layer, head in maps)
    except TypeError:
        raise UsageError(f"maps is {maps!r}; expected (layer, head) pairs such as [(3, 1)]") from None
    spec = getattr(model, "spec", None)
    for layer, head in pairs:
        if spec is not None and not (0 <= layer < spec.layers and 0 <= head < spec.heads):
            raise UsageError(
                f"maps asks for layer {layer}, head {head}; the model has {spec.layers} layers of {spec.heads} heads"
            )
    return pairs
