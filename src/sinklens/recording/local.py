"""A sample on its way into a trace, written by the process that is asked to. No torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from sinklens.recording.rows import RowMaker, StepNumbers
from sinklens.recording.wanted import Wanted
from sinklens.traces.files import Guard
from sinklens.traces.makers import Makers
from sinklens.traces.rows import SampleEnd
from sinklens.traces.sample import SampleWriter
from sinklens.traces.storage import Storage
from sinklens.types import ModelSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Begin:
    """A sample that is to be written."""

    folder: Path
    number: int
    steps: int  # it is likely to have
    manifest: dict[str, Any]
    storage: Storage
    spec: ModelSpec
    wanted: Wanted
    prompt: Int[np.ndarray, " position"]


class LocalSample:
    """A sample that this process writes."""

    def __init__(self, begin: Begin, guard: Guard, makers: Makers | None = None) -> None:
        self._writer = SampleWriter(
            begin.folder,
            begin.number,
            manifest=begin.manifest,
            storage=begin.storage,
            guard=guard,
            makers=makers,
            steps=begin.steps,
        )
        self._maker = RowMaker(begin.spec, begin.wanted, begin.prompt)
        self.whole = False

    def add(self, numbers: StepNumbers) -> None:
        """Arrays of `numbers` may be gone afterwards: whatever waits for its row group is a copy."""
        self._writer.add(self._maker.rows(numbers))

    def end(self, end: SampleEnd) -> None:
        """What is known now; then all of it is on the disk."""
        self._writer.end(end)
        self._writer.close()
        self.whole = True

    def wait(self) -> None:
        """It is whole once it has ended."""

    def abandon(self) -> None:
        self._writer.abandon()
