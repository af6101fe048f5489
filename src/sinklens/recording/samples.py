"""Samples on their way to their place in a trace, written by this process or another one."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NoReturn

import numpy as np

from sinklens.recording.local import Begin, LocalSample
from sinklens.recording.plan import Plan
from sinklens.recording.scribe import Scribe, SentSample
from sinklens.traces.write import TraceWriter

Sample = LocalSample | SentSample


@contextmanager
def sample_of(plan: Plan, number: int, writer: TraceWriter, scribe: Scribe | None) -> Iterator[Sample]:
    """To be written and ended inside the block; behind it, it is whole and in its place."""
    with writer.folder_of(number) as (folder, guard):
        begin = Begin(
            folder=folder,
            number=number,
            steps=plan.steps,
            manifest=writer.manifest,
            storage=writer.storage,
            spec=plan.model.spec,
            wanted=plan.wanted,
            prompt=np.array(plan.ids[number]),
        )
        sample = LocalSample(begin, guard) if scribe is None else scribe.sample(begin, guard)
        try:
            yield sample
            sample.wait()
        except BaseException:
            sample.abandon()
            raise


class Ended:
    """The sample that was ended last, which another process may still write while the next one runs.

    A context: at its end that sample is in its place.
    """

    def __init__(self) -> None:
        self._sample: Sample | None = None
        self._place = ExitStack()  # waits for it, and puts it where it belongs

    @contextmanager
    def then(self, made: AbstractContextManager[Sample]) -> Iterator[Sample]:
        """The next sample. Whatever happens to it, the one before is kept."""
        with ExitStack() as own:
            try:
                sample = own.enter_context(made)
                yield sample
                self._settle()
            except BaseException:
                self._keep()  # before the next one is given up, and the process that writes both with it
                raise
            self._sample, self._place = sample, own.pop_all()
        self.look()

    def look(self) -> None:
        """Put it in its place if that takes no waiting."""
        if self._sample is not None and self._sample.whole:
            self._settle()

    def __enter__(self) -> "Ended":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return self._keep()
        try:
            self._settle()
        except BaseException:
            self._keep()
            raise

    def _settle(self) -> None:
        """Wait until it is whole and in its place. An interrupt while it waits changes nothing."""
        if self._sample is not None:
            try:
                self._sample.wait()
            except Exception as error:  # it will never be
                self._give_up(error)
        self._sample = None
        self._place.close()

    def _keep(self) -> None:
        """The same where something else went wrong, which is the error to be told. An interrupt now gives it up."""
        try:
            self._settle()
        except Exception:
            pass
        except BaseException as interrupt:
            self._give_up(interrupt)

    def _give_up(self, error: BaseException) -> NoReturn:
        self._sample = None
        with self._place:
            raise error
        raise AssertionError("an error passes")
