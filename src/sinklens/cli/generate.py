"""`sinklens generate`: continue prompts with the sampler of the model's family."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.interrupts import INTERRUPTED
from sinklens.cli.loading import find_model
from sinklens.cli.output import refuse_used_folder
from sinklens.cli.prompts import collect_prompts
from sinklens.cli.samplers import SamplerOptions, takes_sampling

RESULT = "result.json"


@takes_sampling
def generate(
    model: options.Model,
    *,
    prompt: options.PromptTexts = None,
    prompt_ids: options.PromptIds = None,
    prompts: options.PromptFile = None,
    chat: options.Chat = False,
    sampling: SamplerOptions,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Seed of the first batch, 0 to 2^64 - 1; the next one has seed + 1. No effect at temperature 0, "
            "unless remasking, alg or alg-temp draw.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts that run at once.")] = 1,
    device: options.Device = None,
    dtype: options.Dtype = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Also write result.json into this folder.")] = None,
    json: options.Json = False,
    no_live: Annotated[
        bool, typer.Option("--no-live", metavar="", help="Do not draw the canvas while it fills.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Continue prompts, and watch the canvas fill in.

    The sampler follows from the model: LLaDA's for LLaDA and MMaDA, Dream's for Dream, token by token for
    causal models. Ctrl-C prints what is there (masked positions as ░; with --json, the document so far) and leaves
    with code 130.
    """
    given = collect_prompts(prompt or [], prompt_ids or [], prompts)
    refuse_used_folder(to, RESULT)
    opened = find_model(model, sampling, revision=revision, trust_remote_code=trust_remote_code)
    from sinklens.cli.batches import generate_document
    from sinklens.cli.output import prepare_folder
    from sinklens.sampling.rng import read_seed

    # Settings are checked before gigabytes of weights are loaded.
    if seed is not None:
        read_seed(seed + (len(given) - 1) // batch)
    if to is not None:
        prepare_folder(to)
    loaded, sampler = opened.load(device=device, dtype=dtype)
    document = generate_document(loaded, given, sampler, chat=chat, batch=batch, seed=seed, live=not no_live)
    _report(document, to=to, as_json=json)


def _report(document: dict[str, Any], *, to: Path | None, as_json: bool) -> None:
    """The file first: it is there even if whoever reads stdout has gone."""
    from sinklens.cli.output import print_json
    from sinklens.files import write_json

    if to is not None:
        write_json(to / RESULT, document)
    if as_json:
        print_json(document)
    else:
        _print_rows(document["results"], several=document["prompts"] > 1, mask_id=document["mask_id"])
    if document["interrupted"]:
        where = f"; written to {to / RESULT}" if to is not None else ""
        print(f"interrupted: this is the canvas so far{where}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _print_rows(rows: list[dict[str, Any]], *, several: bool, mask_id: int | None) -> None:
    from sinklens.cli.live import MASK_BLOCK

    for number, row in enumerate(rows, 1):
        if several:
            print(f"[{number}]")
        ids = " ".join(MASK_BLOCK if token == mask_id else str(token) for token in row["ids"])
        print(ids if row["text"] is None else row["text"])
