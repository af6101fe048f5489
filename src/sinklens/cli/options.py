"""The options that commands share, each said once."""

from contextvars import ContextVar
from typing import Annotated

import typer

from sinklens.errors import UsageError

debug_wanted: ContextVar[bool] = ContextVar("sinklens_debug", default=False)  # what this command line says


def _want_debug(wanted: bool) -> bool:
    """Before or behind the command: either sets it, neither unsets it."""
    debug_wanted.set(wanted or debug_wanted.get())
    return wanted


loudness: ContextVar[int] = ContextVar("sinklens_loudness", default=0)  # -1: quiet, 1: verbose


def _want_quiet(wanted: bool) -> bool:
    if wanted:
        _set_loudness(-1)
    return wanted


def _want_verbose(wanted: bool) -> bool:
    if wanted:
        _set_loudness(1)
    return wanted


def _set_loudness(value: int) -> None:
    if loudness.get() == -value:
        raise UsageError("--quiet and --verbose are opposites; give one of them")
    loudness.set(value)


Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", metavar="", callback=_want_quiet, help="On stderr nothing but warnings and errors."),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", metavar="", callback=_want_verbose, help="On stderr what is used, and how long it took."
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", metavar="", callback=_want_debug, help="Show the traceback of an error.")
]


def known_models(incomplete: str) -> list[str]:
    """Names for the shell to complete."""
    from sinklens.models.catalog import EMBEDDED, KNOWN, PACKAGED

    return [name for name in (*EMBEDDED, *PACKAGED, *KNOWN) if name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A folder, a hub id, or a name from `sinklens models`.", autocompletion=known_models
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON document on stdout.")]
PromptTexts = Annotated[list[str] | None, typer.Option("--prompt", metavar="TEXT", help="Text to continue.")]
PromptIds = Annotated[
    list[str] | None, typer.Option("--prompt-ids", metavar="IDS", help="Token ids to continue: 1,2,3.")
]
PromptFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="One prompt a line, - for stdin; .jsonl: objects with prompt, prompt_ids or messages.",
    ),
]
Chat = Annotated[bool, typer.Option("--chat", metavar="", help="Put text into the model's chat format.")]
Revision = Annotated[str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of a hub model.")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="cpu, cuda, cuda:1, or auto: spread over all GPUs (transformers models, needs accelerate).",
        show_default="a GPU where there is one",
    ),
]
Dtype = Annotated[
    str | None, typer.Option(metavar="NAME", help="float32, bfloat16, float16 or float64.", show_default="as stored")
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        metavar="",
        help="Allow a model's own Python code to run (never needed for LLaDA, Dream, MMaDA).",
    ),
]
Graph = Annotated[
    bool, typer.Option("--graph", metavar="", help="Steps as a CUDA graph (diffusion models on a GPU): faster.")
]
Resume = Annotated[  # of commands that go on by themselves; `trace` and `train` want to be told
    bool,
    typer.Option("--resume", metavar="", help="Go on with what is there; the same command does so without it."),
]
Unsafe = Annotated[
    bool, typer.Option("--unsafe", metavar="", help="Run programs that a model wrote without a sandbox.")
]

Length = Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens to generate.", show_default="128")]
Steps = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Denoising steps (LLaDA, MMaDA, Dream).", show_default="as the length"),
]
Block = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Block length (LLaDA, MMaDA).",
        show_default="32 where it divides the length, else the length",
    ),
]
Alg = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="origin, maskgit_plus, topk_margin or entropy (Dream).", show_default="entropy"),
]
Temperature = Annotated[float | None, typer.Option(metavar="X", help="0 is greedy.", show_default="0")]
TopP = Annotated[
    float | None,
    typer.Option(metavar="X", help="Keep the likeliest tokens up to this mass (Dream, autoregressive)."),
]
TopK = Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep this many of the likeliest tokens (Dream).")]
AlgTemp = Annotated[
    float | None, typer.Option(metavar="X", help="Randomness of the order in which positions commit (Dream).")
]
Cfg = Annotated[
    float | None, typer.Option(metavar="X", help="Classifier-free guidance (LLaDA, MMaDA).", show_default="0")
]
Remasking = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="low_confidence or random (LLaDA, MMaDA).", show_default="low_confidence"),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Commit every position that is more confident than this, at least one a step (LLaDA, MMaDA).",
    ),
]
StopAtEos = Annotated[
    bool | None,
    typer.Option("--stop-at-eos", metavar="", help="Stop once the text has ended (LLaDA, MMaDA).", show_default=False),
]
LogitsEosInf = Annotated[
    bool | None, typer.Option("--logits-eos-inf", metavar="", help="Never propose eos (LLaDA).", show_default=False)
]
ConfidenceEosEotInf = Annotated[
    bool | None,
    typer.Option("--confidence-eos-eot-inf", metavar="", help="Commit eos and eot last (LLaDA).", show_default=False),
]
