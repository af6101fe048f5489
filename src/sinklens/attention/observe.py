"""`observe` and `intervene`: look at a model's attention, or change it, while a context is open.

    with observe(model) as seen:
        model(ids)
    seen.fair_share            # [layer, batch, head, key], exact, without a query x key matrix

Nothing about the model's results changes under observation, and nothing stays behind, not even after an exception.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from threading import RLock
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.capture import Beside, capturing
from sinklens.attention.intervener import Intervener, InterventionSettings
from sinklens.attention.measure import GroupRule, Meter, Rules, Shown, Wanted, check_groups, check_maps
from sinklens.attention.observation import Observation, StepObservation
from sinklens.attention.outbox import Outbox
from sinklens.attention.outputs import Projections
from sinklens.attention.packed import Arrived, Packed
from sinklens.attention.seam import Intervention, Kind, Seen, registered
from sinklens.attention.together import logits_of, may_wait
from sinklens.attention.watch import Watch
from sinklens.errors import ObservationError, UsageError, choose
from sinklens.kernels.chunked import SLAB_ELEMENTS
from sinklens.kernels.received import IMPLS

MAP_BYTES = 2**30


class _Observer:
    """A scope that measures every call it is shown."""

    intervention: Intervention | None = None
    wants_lse = True

    def __init__(self, watch: Watch, wanted: Wanted) -> None:
        self.watch, self.wanted = watch, wanted
        self.meter = Meter(wanted)
        self.observation = Observation()
        self._forward = 0  # the watch's number of the forward that `steps[-1]` holds
        self._measured: set[tuple[Kind, int]] = set()  # layers, whatever became of the steps since
        self._beside = Beside()
        self._packed: Packed | None = None  # of the last forward that was captured
        self._step = StepObservation(step=0)  # of the forward under way
        self._owner: nn.Module | None = None  # of the call under way
        self._waiting: list[Shown] = []  # calls of the forward under way, to be measured together
        self._logits = 0  # that they have
        self._patient = not wanted.ranks and not wanted.maps  # a hook may change the output; maps have a limit
        self._settling = RLock()  # another thread may read meanwhile
        self.sees_blocks = False
        self._blocks: list[tuple[str, Tensor]] = []  # of a forward that is captured, whose norms are not taken yet
        watch.on_end = self._end

    def describe(self, call: AttentionCall, owner: nn.Module, kind: Kind) -> AttentionCall:
        self._owner = owner
        return self.watch.describe(call, owner, kind)

    def see(self, seen: Seen) -> None:
        site = seen.incoming.site
        assert site is not None
        if self.wanted.layers is not None and site.kind == "self" and site.layer not in self.wanted.layers:
            return
        call = self.meter.measured(seen)
        step = self.current()
        self._measured.add((site.kind, site.layer))
        shown = Shown(seen=seen, step=self.watch.step(), canvas=self.watch.canvas(call))
        if self._patient and self._owner is not None and may_wait(seen, self._owner):
            with self._settling:
                self._waiting.append(shown)
                self._logits += logits_of(call)
            if self._logits >= SLAB_ELEMENTS:
                self._settle()
            return
        self._settle()
        with self._beside.branch(self.meter.reads(seen), *self._blocks) if capturing() else nullcontext():
            step.calls.extend(self.meter.measure([shown]))
            self._take_norms()

    def _settle(self) -> None:
        """Measure what waits, for the forward under way."""
        with self._settling:
            waiting, self._waiting, self._logits = self._waiting, [], 0
            if waiting:
                self._step.calls.extend(self.meter.measure(waiting))

    def note_block(self, name: str, states: Tensor) -> None:
        """What a block puts out. In a graph its norms are taken beside the next block's attention."""
        self.current()
        self._blocks.append((name, states))
        if not capturing():
            self._take_norms()

    def _take_norms(self) -> None:
        blocks, self._blocks = self._blocks, []
        for name, states in blocks:
            wide = torch.promote_types(states.dtype, torch.float32)  # within the one kernel: no copy is made
            norm = torch.linalg.vector_norm(states, dim=-1, dtype=wide)
            self._step.add_hidden(name, norm.float())

    def current(self) -> StepObservation:
        """The entry of the forward under way."""
        if self._forward != self.watch.forwards:
            self._forward = self.watch.forwards
            self.meter.new_forward()
            self._blocks.clear()
            self._step = StepObservation(step=int(self.watch.step()), settle=self._settle)
            self.observation.steps.append(self._step)
        return self._step

    def _end(self) -> None:
        self._settle()
        if self._forward != self.watch.forwards or not self.observation.steps:
            return
        if capturing():
            self._take_norms()
            self._beside.join()
            self._packed = self.observation.steps.pop().packed()
        else:
            self.observation.steps[-1].pack()

    @property
    def kernels(self) -> tuple[object, ...]:
        """Two observers that have the same launch the same kernels."""
        wanted = self.wanted
        measured = (wanted.maps, wanted.norms, wanted.entropy, wanted.ranks, wanted.layers, wanted.before, wanted.impl)
        return (len(wanted.groups), self.sees_blocks, self.watch.padded, *measured)

    @property
    def projections(self) -> Projections:
        """What has to be known of the model before a forward of it can be captured."""
        return self.meter.outputs.projections

    def prepare(self, projections: Projections) -> bool:
        """Before a capture that no launched forward goes before. False: the model has others by now."""
        return self.meter.outputs.prepare(projections)

    def captured(self) -> "Replayed":
        """After a forward was captured: what to do around every run of the graph."""
        if self._packed is None:
            raise ObservationError(_why_nothing(self.watch, self.wanted))
        self.watch.forwards -= 1  # it has not run
        self._forward = -1
        return Replayed(observer=self, packed=self._packed, rules=self.meter.rules())

    def again(self, step: StepObservation) -> None:
        """The graph has run: one more forward, and what is to be known of it."""
        self.watch.forwards += 1
        self._forward = self.watch.forwards
        self.observation.steps.append(step)

    def check(self) -> None:
        """After the context: something must have been seen, and all that was asked for."""
        self.meter.check()
        if not self._measured:
            raise ObservationError(_why_nothing(self.watch, self.wanted))
        layers = {layer for kind, layer in self._measured if kind == "self"}
        missing = {layer for layer, _ in self.wanted.maps} - layers
        if missing:
            raise ObservationError(
                f"maps asks for layer {min(missing)}; self-attention was observed in layers {sorted(layers)}"
            )


class Replayed:
    """An observer of a forward that the card runs alone: query groups before, copies of what it wrote after."""

    def __init__(self, *, observer: _Observer, packed: Packed, rules: Rules) -> None:
        self._observer, self._rules = observer, rules
        self._outline = packed.outline()  # steps that were read do not hold the graph's memory
        self._outbox = Outbox(packed.stacks)
        self._map_bytes = packed.map_bytes
        self.need_a_run = rules.need_a_run

    def before(self) -> None:
        step = self._observer.watch.step()
        self._observer.meter.count_maps(self._map_bytes, f"step {int(step)}")
        self._rules.fill(step)

    def after(self) -> None:
        """The copies are asked for now and waited for when somebody reads them."""
        parcel = self._outbox.send()
        step, packed = int(self._observer.watch.step()), self._outline
        fetch = lambda: Arrived(packed=packed, stacks=parcel.open(), step=step)  # noqa: E731

        @contextmanager
        def lend() -> Iterator[Arrived]:
            with parcel.lent() as stacks:
                yield Arrived(packed=packed, stacks=stacks, step=step)

        self._observer.again(StepObservation(step=step, fetch=fetch, lend=lend))


@contextmanager
def observe(
    model: nn.Module,
    *,
    attention_mask: Tensor | None = None,
    groups: Mapping[str, GroupRule] | None = None,
    maps: Iterable[tuple[int, int]] = (),
    norms: bool = True,
    entropy: bool = False,
    hidden_norms: bool = False,
    ranks: bool = False,
    layers: Iterable[int] | None = None,
    measure: Literal["after", "before"] = "after",
    impl: str = "auto",
    map_bytes: int = MAP_BYTES,
) -> Iterator[Observation]:
    """Observe the attention of `model`: ours, a transformers model, or any module that calls SDPA.

    attention_mask: 1 for real tokens; by default taken from the model's own call. Padding is counted neither as
        query nor as key.
    groups: up to 8 disjoint groups of queries, each a mask [batch, query] (or over the canvas) or a function of the
        step; `seen.groups[name]` is the attention received from that group.
    maps: (layer, head) pairs whose full attention map is kept, up to `map_bytes` in all.
    norms: key and value norms, and the contribution (received x norm of the value behind the output projection).
    entropy, hidden_norms: entropy of attention rows; norm of the hidden state after each block.
    ranks: effective rank and size of what each head puts out (after interventions, whatever `measure` says).
    layers: only these self-attention layers.
    measure: "after" interventions, what the model really pays; or "before" them.
    impl: "auto", "reference", "chunked" or "triton"; what ran is in every record.
    """
    _check_model(model)
    choose("measure", measure, ("after", "before"))
    choose("impl", impl, IMPLS)
    wanted = Wanted(
        groups=check_groups(groups or {}),
        maps=check_maps(maps, model),
        map_bytes=map_bytes,
        norms=norms,
        entropy=entropy,
        ranks=ranks,
        layers=None if layers is None else frozenset(layers),
        before=measure == "before",
        impl=impl,
    )
    observer = _Observer(Watch(model, attention_mask=attention_mask), wanted)
    with ExitStack() as stack:
        stack.enter_context(registered(model, observer))
        stack.enter_context(observer.watch.doors())
        if hidden_norms:
            stack.enter_context(_hidden_norms(model, observer))
        yield observer.observation
    observer.check()


@contextmanager
def intervene(model: nn.Module, intervention: Intervention | InterventionSettings) -> Iterator[Any]:
    """Change every attention call of `model`: `intervention` takes an AttentionCall and returns one.

    Settings such as `MaskSinks(top=1)` start a fresh intervention here. The context's value is the intervention at
    work, with what it records (`doses`).

    >>> def drop_first_key(call):
    ...     return call.keep_keys(call.where_keys() != 0)
    """
    _check_model(model)
    given = intervention
    if isinstance(given, InterventionSettings) and not isinstance(given, type):
        intervention = given.start(model)
    if not callable(intervention) or isinstance(intervention, type):
        raise UsageError(
            f"intervention is {given!r}; expected a function AttentionCall -> AttentionCall, or settings such as "
            "MaskSinks(top=1)"
        )
    scope = Intervener(Watch(model), intervention)
    with registered(model, scope), scope.watch.doors():
        yield intervention
    if scope.watch.forwards and not scope.watch.calls:
        raise ObservationError(_why_nothing(scope.watch, None))


@contextmanager
def _hidden_norms(model: nn.Module, observer: _Observer) -> Iterator[None]:
    blocks = {
        f"{name}.{i}" if name else str(i): block
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and _is_stack(module)
        for i, block in enumerate(module)
    }
    if not blocks:
        raise ObservationError(
            "hidden_norms needs a ModuleList of blocks with attention inside, and this model has none"
        )

    observer.sees_blocks = True

    def note(name: str, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        if isinstance(states, Tensor) and not states.is_nested:
            observer.note_block(name, states.detach())

    with ExitStack() as stack:
        for name, block in blocks.items():
            handle = block.register_forward_hook(lambda _m, _a, output, name=name: note(name, output))
            stack.callback(handle.remove)
        yield


def _is_stack(modules: nn.ModuleList) -> bool:
    """Blocks of a transformer: each holds an attention module."""
    return len(modules) > 0 and all(
        any(
            "attention" in type(part).__name__.lower() or "attn" in type(part).__name__.lower()
            for part in block.modules()
        )
        and not isinstance(block, nn.ModuleList)
        for block in modules
    )


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"expected a model (a torch.nn.Module, or what sinklens.load returns), got {type(model).__name__}"
        )


def _why_nothing(watch: Watch, wanted: Wanted | None) -> str:
    if watch.forwards == 0:
        return "nothing was observed: the model was not run inside the context"
    if wanted is not None and wanted.layers is not None:
        return f"nothing was observed: no self-attention layer is among layers={sorted(wanted.layers)}"
    return (
        f"no attention call was seen in {watch.forwards} forward(s) of {type(watch.model).__name__}: it computes "
        "attention by a kernel called directly (flash_attn, xformers) or by hand (as Bloom, GPT-J and DeBERTa do). "
        'Load the model with attn_implementation="sdpa" where it offers that, or call '
        "torch.nn.functional.scaled_dot_product_attention in it"
    )
