"""What a process of the tests meets: death at a chosen moment, a small disk, no right to write, a clock that goes back.

Each belongs to the process that calls this, which ends soon after: most cannot be taken back.
"""

import ctypes
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")  # audit events; os.replace is os.rename
CANNOT = 77  # exit code: this machine does not let us
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_PRIVATE = (1 << 14) | (1 << 18)  # MS_REC, MS_PRIVATE
_DAC_OVERRIDE = 1  # the capability of root to write where it may not
_CAPABILITIES = 0x20080522  # version 3


@contextmanager
def enduring(
    files: Path,
    watch: str | None,
    *,
    kill_at: int | None = None,
    disk: int | None = None,
    kept: str | None = None,
    unprivileged: bool = False,
    clock: float = 0.0,
    memory: int | None = None,
) -> Iterator[None]:
    """kill_at: SIGKILL before that event in the folder `watch`. disk: `watch` is a disk of so many bytes; what is on it
    is copied to `kept` afterwards. clock: seconds that the wall clock is off. memory: bytes more than now."""
    if disk is not None:
        assert watch is not None
        _mount(watch, disk)
    if watch is not None:
        _count_events(watch, files / "events", kill_at)
    if unprivileged and os.geteuid() == 0:
        _drop_override()
    if clock:
        _set_clock(clock)
    if memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    try:
        yield
    finally:
        if kept is not None:
            assert watch is not None
            shutil.copytree(watch, kept)


def _count_events(folder: str, told: Path, kill_at: int | None) -> None:
    seen = 0
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in EVENTS and isinstance(arguments[0], str | os.PathLike) and folder in str(arguments[0]):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            os.pwrite(descriptor, str(seen).encode(), 0)

    sys.addaudithook(hook)


def _mount(folder: str, size: int) -> None:
    """A file system of `size` bytes in memory, for this process alone."""
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(_NEW_MOUNTS) and libc.unshare(_NEW_MOUNTS | _NEW_USER) == 0:  # the first needs to be root
        for name, text in (("uid_map", f"0 {user} 1"), ("setgroups", "deny"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    Path(folder).mkdir(parents=True, exist_ok=True)
    if libc.mount(b"none", b"/", None, _PRIVATE, None) or libc.mount(
        b"tmpfs", folder.encode(), b"tmpfs", 0, f"size={size}".encode()
    ):
        print(f"cannot mount a small disk here: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
        os._exit(CANNOT)


def _drop_override() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    for place in (0, 1):  # effective, permitted
        data[place] &= ~(1 << _DAC_OVERRIDE)
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def _set_clock(seconds: float) -> None:
    """Ever earlier: each look at the clock shows a moment before the last one."""
    seconds_of, nanoseconds_of, looks = time.time, time.time_ns, iter(range(10**9))
    time.time = lambda: seconds_of() + seconds - next(looks)
    time.time_ns = lambda: nanoseconds_of() + int((seconds - next(looks)) * 1e9)
