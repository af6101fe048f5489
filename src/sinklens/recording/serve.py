"""The process that writes samples for another one (recording/scribe.py). It knows no torch."""

import ctypes
import json
import os
import signal
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from sinklens.recording import wire
from sinklens.recording.local import Begin, LocalSample
from sinklens.recording.rows import AttentionNumbers, StepNumbers
from sinklens.recording.wanted import Wanted
from sinklens.traces.files import warm_up
from sinklens.traces.makers import Makers
from sinklens.traces.rows import SampleEnd
from sinklens.traces.storage import Storage
from sinklens.types import ModelSpec

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
NEVER, LARGE = 2**31 - 1, 2**25  # bytes: what is given back, and what does not come from the heap; as much as it takes


def serve(channel: socket.socket, parent: int) -> None:
    """Write what comes, until nothing does."""
    _keep_memory()
    _end_with(parent)
    makers = Makers(Lock())
    warm_up(makers)
    sample: LocalSample | None = None
    while (message := wire.receive(channel)) is not None:
        try:
            if "begin" in message:
                sample = LocalSample(_begin(**message["begin"]), nullcontext, makers)
            elif sample is not None and "step" in message:
                sample.add(_numbers(**message["step"]))
            elif sample is not None and "end" in message:
                sample.end(SampleEnd(**message["end"]))
                sample = None
                wire.send(channel, {})
        except Exception as error:  # told to the other side, whatever it is
            if sample is not None:
                sample.abandon()
            sample = None  # what follows is of no use
            wire.send(channel, _told(error))


def _begin(*, folder: str, manifest: str, storage: Any, spec: Any, wanted: Any, **plain: Any) -> Begin:
    return Begin(
        folder=Path(folder),
        manifest=json.loads(manifest),
        storage=Storage(**storage),
        spec=ModelSpec(**spec),
        wanted=Wanted(**wanted | {"maps": frozenset(wanted["maps"])}),
        **plain,
    )


def _numbers(*, attention: Any, **plain: Any) -> StepNumbers:
    return StepNumbers(attention=None if attention is None else AttentionNumbers(**attention), **plain)


def _keep_memory() -> None:
    """What was used for one step serves the next: on a virtual machine fresh memory costs more than what is done in it.

    glibc gives large pieces back at once, and pyarrow's own allocators after a while.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_TRIM_THRESHOLD, NEVER)
        mallopt(M_MMAP_THRESHOLD, LARGE)
        pa.set_memory_pool(pa.system_memory_pool())


def _end_with(parent: int) -> None:
    """When the process that started this one ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was over before
        os._exit(0)


def _told(error: Exception) -> dict[str, Any]:
    if isinstance(error, OSError) and error.errno is not None:
        return {"error": "OSError", "told": (error.errno, error.strerror)}
    return {"error": type(error).__name__, "told": (str(error),)}
