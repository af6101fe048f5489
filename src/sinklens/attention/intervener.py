"""A scope that changes calls: interventions, those with a memory, and those that may be part of a CUDA graph."""

from typing import Protocol, runtime_checkable

from torch import nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.capture import capturing
from sinklens.attention.seam import Intervention, Kind, Seen
from sinklens.attention.watch import Watch


@runtime_checkable
class InterventionSettings(Protocol):
    """An intervention with a memory, as settings: every context starts a fresh one."""

    def start(self, model: nn.Module) -> Intervention: ...


class Intervener:
    """A scope that changes calls and measures nothing."""

    wants_lse = False

    def __init__(self, watch: Watch, intervention: Intervention) -> None:
        self.watch = watch
        self.intervention: Intervention | None = intervention
        watch.on_end = self._end

    def describe(self, call: AttentionCall, owner: nn.Module, kind: Kind) -> AttentionCall:
        return self.watch.describe(call, owner, kind)

    def see(self, seen: Seen) -> None:
        after = getattr(self.intervention, "see", None)
        if after is not None:  # an intervention may learn from what happened, for the next step
            after(seen)

    def _end(self) -> None:
        if capturing() and isinstance(self.intervention, Capturable):
            self.intervention.join()

    def captured(self) -> "Repeated":
        """After a forward was captured: what to do around every run of the graph."""
        assert isinstance(self.intervention, Capturable)
        self.watch.forwards -= 1  # it has not run
        self.intervention.captured()
        return Repeated(self.watch, self.intervention)


@runtime_checkable
class Capturable(Protocol):
    """An intervention that may be part of a CUDA graph, if `capturable()` says so."""

    def __call__(self, call: AttentionCall) -> AttentionCall: ...

    def capturable(self) -> bool: ...

    def join(self) -> None: ...

    def captured(self) -> None: ...

    def before_replay(self, step: int) -> None: ...

    def after_replay(self, step: int) -> None: ...


class Repeated:
    """An intervention in a forward that the card runs alone."""

    need_a_run = False  # before its first step

    def __init__(self, watch: Watch, intervention: Capturable) -> None:
        self._watch, self._intervention = watch, intervention

    def before(self) -> None:
        self._watch.forwards += 1
        self._intervention.before_replay(int(self._watch.step()))

    def after(self) -> None:
        self._intervention.after_replay(int(self._watch.step()))


def repeats(intervention: object) -> bool:
    """Whether steps under it can be a CUDA graph."""
    return isinstance(intervention, Capturable) and intervention.capturable()
