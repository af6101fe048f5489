"""`sinklens generate`: continue prompts with the sampler of the model's family."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.interrupts import INTERRUPTED, import_heavy
from sinklens.cli.prompts import collect_prompts
from sinklens.cli.samplers import SAMPLERS, SamplerOptions, build_sampler
from sinklens.errors import UsageError
from sinklens.models.catalog import Located, locate

RESULT = "result.json"


def generate(
    model: options.Model,
    *,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", metavar="TEXT", help="Text to continue.")] = None,
    prompt_ids: Annotated[
        list[str] | None, typer.Option("--prompt-ids", metavar="IDS", help="Token ids to continue: 1,2,3.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="One prompt a line, - for stdin; .jsonl: objects with prompt, prompt_ids or messages.",
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", metavar="", help="Put text into the model's chat format.")] = False,
    length: options.Length = None,
    steps: options.Steps = None,
    block: options.Block = None,
    alg: options.Alg = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    alg_temp: options.AlgTemp = None,
    cfg: options.Cfg = None,
    remasking: options.Remasking = None,
    threshold: options.Threshold = None,
    stop_at_eos: options.StopAtEos = None,
    logits_eos_inf: options.LogitsEosInf = None,
    confidence_eos_eot_inf: options.ConfidenceEosEotInf = None,
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
    wanted = SamplerOptions(
        length=length,
        steps=steps,
        block=block,
        alg=alg,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        alg_temp=alg_temp,
        cfg=cfg,
        remasking=remasking,
        threshold=threshold,
        stop_at_eos=stop_at_eos,
        logits_eos_inf=logits_eos_inf,
        confidence_eos_eot_inf=confidence_eos_eot_inf,
    )
    given = collect_prompts(prompt or [], prompt_ids or [], prompts)
    _refuse_used_folder(to)
    from sinklens.cli.output import prepare_folder, quiet_unless_terminal

    with quiet_unless_terminal():
        located = locate(model, revision=revision, code=trust_remote_code)
    import_heavy()
    from sinklens.cli.batches import generate_document
    from sinklens.models.load import load
    from sinklens.sampling.rng import read_seed

    # Settings are checked before gigabytes of weights are loaded.
    if seed is not None:
        read_seed(seed + (len(given) - 1) // batch)
    sampler = build_sampler(_read_family(located), wanted)
    if to is not None:
        prepare_folder(to)
    with quiet_unless_terminal():
        loaded = load(
            model,
            device=device or _best_device(),
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
    document = generate_document(loaded, given, sampler, chat=chat, batch=batch, seed=seed, live=not no_live)
    _report(document, to=to, as_json=json)


def _refuse_used_folder(to: Path | None) -> None:
    """Before any work is done: an earlier result is not overwritten."""
    if to is not None and (to / RESULT).exists():
        raise UsageError(f"{to / RESULT} exists; choose another folder for --to, or move it away")
    if to is not None and to.exists() and not to.is_dir():
        raise UsageError(f"--to {to} is a file; give a folder")


def _read_family(located: Located) -> str:
    """The family by config.json alone; a model that cannot be generated from is refused."""
    from sinklens.cli.checkpoint import refuse_what_cannot_speak
    from sinklens.models.fields import Fields

    fields = Fields.of_folder(located.folder)
    refuse_what_cannot_speak(located, fields)
    model_type = str(fields.values.get("model_type"))
    return model_type.lower() if model_type.lower() in SAMPLERS else model_type


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _report(document: dict[str, Any], *, to: Path | None, as_json: bool) -> None:
    """The file first: it is there even if whoever reads stdout has gone."""
    from sinklens.cli.output import print_json, write_json

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
