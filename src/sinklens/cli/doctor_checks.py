"""What `sinklens doctor` looks at beside packages and kernels: each check ends in findings, whatever it meets.

A finding is `ok`, `absent` (nothing is broken, but something cannot be done here, and what to install is said) or
`wrong` (something that sinklens relies on does not work).
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from sinklens.cli.numbers import show_bytes

OK, ABSENT, WRONG = "ok", "absent", "wrong"
SUMS = "SHA256SUMS"  # of the embedded models, as sha256sum writes and checks it


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    part: str  # the heading it stands under
    name: str
    state: str
    says: str
    do: str | None = None  # what to install or to change


def guarded(part: str, name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check; what it dies of is one too."""
    try:
        yield from check()
    except Exception as error:
        yield Finding(part=part, name=name, state=WRONG, says=told(error))


def told(error: Exception) -> str:
    """An error in one line."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def devices() -> Iterator[Finding]:
    """The processor, and every GPU that torch can use."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    says = f"{cores} cores, torch uses {torch.get_num_threads()}{_memory()}"
    yield Finding(part="devices", name="cpu", state=OK, says=says)
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            says = f"{about.name}, {show_bytes(about.total_memory)}, compute capability {about.major}.{about.minor}"
            yield Finding(part="devices", name=f"cuda:{number}", state=OK, says=says)
        return
    built = torch.version.cuda
    if built is None:
        yield Finding(part="devices", name="cuda", state=ABSENT, says="this build of torch has no CUDA")
    else:
        says = f"torch is built for CUDA {built}, but finds no GPU or driver"
        yield Finding(part="devices", name="cuda", state=ABSENT, says=says)


def _memory() -> str:
    try:
        return f"; {show_bytes(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))} of memory"
    except (AttributeError, OSError, ValueError):
        return ""


def sandbox() -> Iterator[Finding]:
    """What programs that a model wrote run in."""
    from sinklens.tasks.sandbox import SandboxError, how, run

    try:
        run([])
    except SandboxError as error:
        says = f"{str(error).split('. Install')[0]}; small_programs and humaneval are not graded"
        do = "install bubblewrap (bwrap), or allow user namespaces"
        yield Finding(part="sandbox", name="sandbox", state=ABSENT, says=says, do=do)
        return
    yield Finding(part="sandbox", name="sandbox", state=OK, says=f"{how()}, tried")


def models() -> Iterator[Finding]:
    """The embedded models, byte by byte, and those that come as a package."""
    from sinklens.models.catalog import EMBEDDED, PACKAGED, ZOO, locate_here

    sums = read_sums(ZOO / SUMS)
    for name in sorted({*EMBEDDED, *(file.split("/")[0] for file in sums)}):
        files = [file for file in sums if file.startswith(f"{name}/")]
        bad = [file for file in files if not (ZOO / file).is_file() or _sum(ZOO / file) != sums[file]]
        if bad or not files:
            says = f"missing or changed: {', '.join(bad) or SUMS}"
            yield Finding(part="models", name=name, state=WRONG, says=says, do="install sinklens again")
        else:
            yield Finding(part="models", name=name, state=OK, says=f"{len(files)} files, as released")
    for name, entry in PACKAGED.items():
        try:
            locate_here(name)
            yield Finding(part="models", name=name, state=OK, says=f"in the package {entry.module}")
        except ValueError:
            yield Finding(part="models", name=name, state=ABSENT, says="comes as a package", do=entry.install)


def read_sums(path: Path) -> dict[str, str]:
    """By file, from lines of sum and file."""
    lines = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines()]
    return {file: digest for digest, file in lines}


def generation() -> Iterator[Finding]:
    """The whole way once: a model is loaded, writes a few tokens, and all its attention is accounted for."""
    import torch

    import sinklens

    model = sinklens.load("tiny-llada", device="cpu")
    with sinklens.observe(model) as seen:
        sinklens.generate(model, "Question: What is 2 + 3?\nAnswer:", sinklens.LLaDASampler(length=4, steps=2, block=4))
    for step in seen.steps:
        given = step.received.sum(-1)  # every query gives 1 to the keys of a head
        if not torch.allclose(given, torch.full_like(given, step.received.shape[-1]), rtol=1e-4):
            says = f"attention of step {step.step} does not add up to its queries"
            yield Finding(part="models", name="observed", state=WRONG, says=says)
            return
    says = f"tiny-llada writes, and its attention adds up at {len(seen.steps)} steps"
    yield Finding(part="models", name="observed", state=OK, says=says)


def _sum(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def folders() -> Iterator[Finding]:
    """Where files go: results here, downloads and compiled kernels into caches."""
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    hub = "downloads of the hub" + (" (HF_HUB_OFFLINE is set)" if HF_HUB_OFFLINE else "")
    triton = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    places = {
        "here": (Path.cwd(), "results, under runs/; choose another folder with --to"),
        "temporary": (Path(tempfile.gettempdir()), "the sandbox; set TMPDIR"),
        "hub cache": (Path(HF_HUB_CACHE), f"{hub}; set HF_HOME"),
    }
    if find_spec("triton") is not None:
        places["triton cache"] = (Path(triton), "compiled kernels; set TRITON_CACHE_DIR")
    for name, (folder, what) in places.items():
        use, _, do = what.partition("; ")
        there = next(path for path in (folder, *folder.parents) if path.exists())
        says = f"{folder}: {use}, {show_bytes(shutil.disk_usage(there).free)} free"
        if _writable(there):
            yield Finding(part="folders", name=name, state=OK, says=says)
        else:
            yield Finding(part="folders", name=name, state=ABSENT, says=f"{folder} cannot be written: {use}", do=do)


def _writable(folder: Path) -> bool:
    """By writing: permission bits say nothing of a disk that is mounted read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
