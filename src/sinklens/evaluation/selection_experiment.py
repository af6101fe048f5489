"""What a selection experiment is made of: a selector, images, and what it is held against."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.evaluation.selection_cells import Spot
from sinklens.evaluation.selection_controls import CONTROLS
from sinklens.recording.identity import describe_versions, hash_weights
from sinklens.selection.baselines import BASELINES, BEHIND_A_BLOCK
from sinklens.selection.cost import backbone_macs
from sinklens.selection.data import Images
from sinklens.selection.selector import Selector
from sinklens.traces.manifest import now

RIVALS = (*BASELINES, *CONTROLS)


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedModel:
    """A selector that was trained for one budget."""

    name: str
    selector: Selector
    alpha: float


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedRanking:
    """A model that was trained with a ranking."""

    name: str
    selector: Selector

    @property
    def ranking(self) -> str:
        assert self.selector.ranking is not None
        return self.selector.ranking


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionExperiment:
    """A model, images, and what is compared on them."""

    selector: Selector
    name: str
    images: Images  # on the CPU
    spots: Sequence[Spot]
    baselines: Sequence[str] = ()
    fixed: Sequence[FixedModel] = ()
    trained: Sequence[TrainedRanking] = ()
    seed: int = 0  # of noise and random rankings
    batch: int = 256
    command: str | None = None

    def __post_init__(self) -> None:
        backbone = self.selector.backbone
        for name in self.baselines:
            choose("baseline", name, RIVALS)
            if name in BEHIND_A_BLOCK and 0 in self.selector.gated:
                raise UsageError(
                    f"baseline {name!r} looks at the block before a gate, and this model has a gate before block 0; "
                    "leave it out"
                )
        if len(self.images) == 0:
            raise UsageError("there are no images to evaluate on; expected at least one")
        if int(self.images.labels.max()) >= backbone.classes:
            raise UsageError(
                f"the images have labels up to {int(self.images.labels.max())}, the model {backbone.classes} classes; "
                "evaluate on the classes that it was trained for"
            )
        if self.selector.ranking is not None:
            raise UsageError(
                f"{self.name} was trained with the ranking {self.selector.ranking!r}; expected a model with gates, to "
                "compare it with (--trained)"
            )
        others: list[FixedModel | TrainedRanking] = [*self.fixed, *self.trained]
        for other in others:
            if other.selector.gated != self.selector.gated or other.selector.split != self.selector.split:
                raise UsageError(
                    f"{other.name} has its gates or its channel at other blocks than the model; give one with the same "
                    "gating"
                )

    def document(self) -> dict[str, Any]:
        """experiment.json. Images, budgets, links and baselines may be added, so they decide nothing."""
        selector, first = self.selector, self.images.take(slice(0, 1))  # says which set it is; more may be added
        pixels = sha256(first.images.contiguous().numpy().tobytes() + first.labels.numpy().tobytes()).hexdigest()
        decisive = {
            "model": {"weights_sha256": hash_weights(selector), "gated": list(selector.gated), "split": selector.split},
            "images": {"name": self.images.name, "first_sha256": pixels},
            "seed": self.seed,
        }
        shape = selector.costs
        return {
            "fingerprint": sha256(dumps(decisive, sort_keys=True).encode()).hexdigest(),
            "model": self.name,
            "backbone": getattr(selector.backbone, "source", None),
            "data": self.images.source,
            "problems": len(self.images),
            "command": self.command,
            "versions": describe_versions(),
            "written": now(),
            "classes": list(self.images.classes),
            "shape": {
                "patches": shape.patches, "image_values": shape.image_values, "macs": backbone_macs(shape),
                "channel_gate": selector.channel_gate, "symbols": selector.symbols, "blocks": shape.blocks,
            },
            "decisive": decisive,
        }  # fmt: skip
