"""Write a trace: sample after sample, each whole or not there at all.

A sample is written to `samples/00000.part`, its files are flushed to the disk, and the folder is renamed. Killed at any
moment, the trace holds every sample that was finished, and a resume writes the others.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Any

from sinklens.errors import TraceError, UsageError
from sinklens.files import PART, sync
from sinklens.locks import Lock, refuse_strangers
from sinklens.traces.files import Guard
from sinklens.traces.folder import begun_samples, finished_samples, remove_parts, sample_folder, samples_folder
from sinklens.traces.manifest import (
    MANIFEST,
    new_manifest,
    now,
    read_manifest,
    refuse_different,
    save_manifest,
)
from sinklens.traces.sample import SampleWriter
from sinklens.traces.storage import Storage

FULL_DISK = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class TraceWriter:
    """A trace being written: `create` it, write every sample of `missing`, `finish`.

    with TraceWriter.create(folder, manifest, samples=8) as writer:
        for number in writer.missing:
            with writer.sample(number) as sample:
                sample.add(StepRows(...))
                sample.end(SampleEnd(...))
        writer.finish({"impl": "chunked"})
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], *, storage: Storage, lock: Lock) -> None:
        self.folder = folder
        self.manifest = manifest
        self.storage = storage
        self._lock = lock

    @classmethod
    def create(
        cls, folder: str | Path, manifest: Mapping[str, Any], *, samples: int, resume: bool = False, exact: bool = False
    ) -> "TraceWriter":
        """Begin a trace of so many samples, or go on with one: `resume` needs the same settings as before.

        exact: store every float32 as it came, not rounded.
        """
        folder, storage = Path(folder), Storage.of(exact=exact)
        new = new_manifest(manifest, samples=samples, storage=storage.as_manifest())
        if resume:
            refuse_without_trace(folder)
        with _writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not resume:
                refuse_used(folder)  # before a lock is put there
            lock = Lock(folder, error=TraceError)
            try:
                writer = cls(folder, new, storage=storage, lock=lock)
                writer._go_on() if resume else writer._begin()
            except BaseException:
                lock.release()
                raise
        return writer

    @property
    def finished(self) -> list[int]:
        """The samples that are on the disk."""
        return [sample for sample in finished_samples(self.folder) if sample < self.manifest["samples"]]

    @property
    def missing(self) -> list[int]:
        """The samples still to be written."""
        done = set(self.finished)
        return [sample for sample in range(self.manifest["samples"]) if sample not in done]

    @contextmanager
    def sample(self, number: int) -> Iterator[SampleWriter]:
        """Write one sample. It is there when the block ends; an exception that passes leaves nothing of it."""
        with self.folder_of(number) as (part, guard):
            writing = SampleWriter(part, number, manifest=self.manifest, storage=self.storage, guard=guard)
            try:
                yield writing
                if not writing.ended:
                    raise UsageError(
                        f"sample {number} has no end; call sample.end(SampleEnd(...)) behind its last step"
                    )
                writing.close()
            except BaseException:
                writing.abandon()
                raise

    @contextmanager
    def folder_of(self, number: int) -> Iterator[tuple[Path, Guard]]:
        """For whoever writes the files of a sample: where to, and what to put around whatever touches the disk.

        The folder has its name when the block ends; an exception that passes leaves nothing of it.
        """
        if number not in self.missing:
            raise UsageError(f"sample {number} is not missing; to be written are {self.missing or 'none'}")
        final = sample_folder(self.folder, number)
        part = final.with_name(final.name + PART)
        try:
            with self._writing(number):
                part.mkdir()
            yield part, lambda: self._writing(number)
            with self._writing(number):
                os.rename(part, final)
                sync(final.parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def finish(self, extra: Mapping[str, Any] | None = None) -> None:
        """Say in the manifest that all samples are there, with what was learned on the way, and let others write."""
        if self.missing:
            raise UsageError(f"samples {self.missing} are not written yet; write them before finish()")
        done = self.manifest | dict(extra or {}) | {"complete": True, "finished": now()}
        with _writing_to(self.folder):
            save_manifest(self.folder, done)
        self.manifest = done
        self.close()

    def close(self) -> None:
        """Let others write. What is finished stays; the rest can be resumed."""
        self._lock.release()

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        refuse_used(self.folder)
        save_manifest(self.folder, self.manifest)
        samples_folder(self.folder).mkdir(exist_ok=True)
        remove_parts(self.folder)

    def _go_on(self) -> None:
        old = read_manifest(self.folder)
        refuse_different(self.folder, old, self.manifest)
        self.manifest = old
        samples_folder(self.folder).mkdir(exist_ok=True)
        remove_parts(self.folder)
        if self.missing:
            resumed = [*old.get("resumed", []), now()]
            self.manifest = old | {"complete": False, "finished": None, "resumed": resumed}
            save_manifest(self.folder, self.manifest)

    @contextmanager
    def _writing(self, sample: int) -> Iterator[None]:
        """A disk that refuses is an error that says what is kept."""
        try:
            yield
        except OSError as error:
            raise TraceError(
                f"cannot write sample {sample} to {self.folder} ({error.strerror or error}): finished samples are "
                f"kept; {_advice(error, self.folder)}"
            ) from error


def refuse_without_trace(folder: Path) -> None:
    """Where one is to be resumed."""
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"there is nothing to resume in {folder}: no trace is there; leave resume out to begin one")


def refuse_used(folder: Path) -> None:
    """A trace is begun where nothing is, or nothing but the beginning of one. Of one that is there it is said whether
    it can be resumed or is complete."""
    there = finished_samples(folder)
    if not there or not (folder / MANIFEST).exists():
        refuse_strangers(folder, what="trace", own=_beginning(folder))
        return
    old = read_manifest(folder)
    held, place = f"({len(there)} of {old['samples']} samples)", quote(str(folder))
    if old["complete"]:
        raise UsageError(
            f"{folder} already holds a trace that is complete {held}: `sinklens sinks {place}` describes it, `sinklens "
            f"explore {place}` shows it; write a new one to another folder"
        )
    raise UsageError(
        f"{folder} already holds a trace that is not complete {held}; go on with it by the same command and --resume "
        "(resume=True), or write to another folder"
    )


def _beginning(folder: Path) -> set[str]:
    """What a writer that was killed before its first sample was whole has left: names that others use too."""
    own, inside = set(), samples_folder(folder)
    with suppress(TraceError):
        read_manifest(folder)
        own.add(MANIFEST)
    begun = begun_samples(folder)
    if inside.is_dir() and all(path in begun or path.name.startswith(".") for path in inside.iterdir()):
        own.add(inside.name)
    return own


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TraceError(f"cannot write to {folder} ({error.strerror or error}); {_advice(error, folder)}") from error


def _advice(error: OSError, folder: Path) -> str:
    if error.errno not in FULL_DISK:
        return "see to that and resume, or write to another folder"
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    return f"{free / 2**20:,.0f} MiB are free on that disk; make room and resume"
