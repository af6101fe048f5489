"""What a card is to measure, as data: plan.json in its folder, written first.

`decides` holds what decides its numbers, the model's hashes and the traced prompts among it; a folder goes on with the
same, and refuses another before anything in it changes. The number of problems is not among it: it may grow. `told` is
what the page says of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.locks import refuse_strangers

FORMAT = 1
PLAN = "plan.json"


@dataclass(frozen=True, kw_only=True)
class TextPlan:
    """A text that is predicted in place of problems that are answered."""

    name: str  # of the file
    sha256: str
    chunk: int  # tokens
    first: int  # of these, not scored
    draws: int | None  # masks of an ELBO; None: exact


@dataclass(frozen=True, kw_only=True)
class CardPlan:
    """The settings of a card."""

    model: str
    trace: Mapping[str, Any]  # what a trace recognises itself by (recording/plan.py)
    answering: Any  # evaluation.answering.Answering; with a text, of the trace alone
    text: TextPlan | None
    units: int  # problems, or chunks
    prompts: int  # traced
    prompts_file: str | None  # None: they come from the problems or the text
    tops: Sequence[int]  # keys removed
    draws: int  # of random keys

    @property
    def measure(self) -> str:
        if self.text is None:
            return "accuracy"
        return "nll" if self.text.draws is None else "elbo"

    def document(self) -> dict[str, Any]:
        """plan.json."""
        decides: dict[str, Any] = {"top": list(self.tops), "draws": self.draws, "traced": self.prompts}
        decides["model"] = {"name": self.model, **self.trace["model"]}
        decides |= {"device": self.trace["device"], "prompts_sha256": self.trace["prompts"]}
        answering = self.answering.decisive
        if self.text is None:
            decides |= answering
        else:
            decides |= {name: answering[name] for name in ("length", "steps", "block", "seed")}
            decides |= {"text_sha256": self.text.sha256, "chunk": self.text.chunk, "elbo_draws": self.text.draws}
        told = {
            "prompts": self.prompts,
            "prompts_from": self._measured_on() if self.prompts_file is None else self.prompts_file,
            "measured_on": self._measured_on(),
            "answered_by": self._answered_by(),
            "command": self._command(),
        }
        return {"card": FORMAT, "measure": self.measure, "units": self.units, "decides": decides, "told": told}

    def _measured_on(self) -> str:
        if self.text is None:
            return f"{self.answering.task}, split {self.answering.split}"
        return f"{self.text.name} (sha256 {self.text.sha256[:12]})"

    def _answered_by(self) -> str:
        if self.text is None:
            length = self.answering.length
            return (
                f"greedy, {length} tokens, {self.answering.steps or length} steps; sinks of the step before, ranked "
                "before the mask, in each layer and head"
            )
        scored = f"the last {self.text.chunk - self.text.first} of {self.text.chunk} tokens of each chunk"
        if self.text.draws is None:
            return f"{scored}; sinks ranked once by the tokens before these, in each layer and head, keys cached"
        return (
            f"{scored}, {self.text.draws} masks each; sinks ranked in a clean pass over the same input, in each layer "
            "and head"
        )

    def _command(self) -> str:
        """What would make this card again, short of where files lie."""
        answering = self.answering
        said: dict[str, Any] = {"task": answering.task, "split": answering.split, "data": answering.data}
        if self.text is not None:
            said = {"text": self.text.name, "chunk": self.text.chunk, "elbo-draws": self.text.draws}
        elif answering.data is not None:
            said["data"] = Path(answering.data).name
        said |= {"problems": self.units, "prompts": self.prompts_file, "traced": self.prompts}
        said |= {"top": ",".join(map(str, self.tops)), "draws": self.draws}
        said |= {name: getattr(answering, name) for name in ("length", "steps", "block", "batch", "seed")}
        given = [f"--{name} {value}" for name, value in said.items() if value is not None]
        return " ".join([f"sinklens card {self.model}", *given])


def refuse_other(folder: Path, plan: CardPlan) -> None:
    """A folder that holds something else than this card, whole or begun."""
    from sinklens.evaluation.store import differences

    refuse_strangers(folder, what="card", mark=PLAN)
    if (folder / PLAN).exists():
        other = differences(read_plan(folder)["decides"], plan.document()["decides"])
        if other:
            raise UsageError(
                f"{folder} holds another card: {'; '.join(other)}; use the same settings, or write to another folder"
            )


def read_plan(folder: Path) -> dict[str, Any]:
    """What the card of this folder was to measure."""
    try:
        plan = json.loads((folder / PLAN).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder} holds no card: {PLAN} cannot be read ({error}); make one with `sinklens card`"
        ) from None
    if not isinstance(plan, dict) or plan.get("card") != FORMAT:
        raise UsageError(f"{folder / PLAN} is not of a card that this version reads; make it anew with `sinklens card`")
    return plan
