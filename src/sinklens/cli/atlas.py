"""`sinklens atlas`: are low norms of keys and values followed by high attention, in this model?"""

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.folders import check_folder
from sinklens.cli.interrupts import interrupts_end
from sinklens.cli.loading import load_model
from sinklens.errors import UsageError

if TYPE_CHECKING:
    from sinklens.evaluation.atlas import Atlas

CHUNK, CONTEXT, LENGTH = 256, 64, 64  # tokens: of a causal chunk, of a prompt cut from a text, of an answer
HELD_OUT = "the text that comes with sinklens"


def atlas(
    model: options.Model,
    *,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plain text that chunks or prompts are cut from.",
            show_default=f"causal: {HELD_OUT}; diffusion: word problems",
        ),
    ] = None,
    problems: Annotated[int, typer.Option(min=1, metavar="N", help="Chunks or prompts; may grow in a rerun.")] = 16,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=16,
            metavar="N",
            help="Tokens of a chunk; of a prompt that is cut from a text.",
            show_default=f"{CHUNK}; {CONTEXT}",
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens to generate (diffusion).", show_default=str(LENGTH)),
    ] = None,
    steps: options.Steps = None,
    block: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Block length (LLaDA, MMaDA).", show_default="the length")
    ] = None,
    peak_keys: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Low-norm keys a head whose peaks are zeroed (causal).", show_default="8"
        ),
    ] = None,
    peak_dims: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Peaks of each of them (causal).", show_default="3")
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Draws of what is zeroed beside them (causal).", show_default="5"),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of random orders and draws.")] = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it goes.", show_default="a new one, runs/atlas-NAME-N")
    ] = None,
    resume: options.Resume = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Measure whether low norms of keys and values are followed by high attention: a figure, a page, Parquet tables.

    A causal model reads chunks of text, and the next query's attention is held against key norms, layer by layer and
    head by head. A diffusion model generates, and every step is measured, for prompt, committed and masked tokens. The
    same command goes on where an earlier one was interrupted. docs/atlas.md says what each number is.
    """
    check_folder(to, "atlas", resume=resume)
    causal_only = {"--peak-keys": peak_keys, "--peak-dims": peak_dims, "--draws": draws}
    diffusion_only = {"--length": length, "--steps": steps, "--block": block}
    if seed < 0:
        raise UsageError(f"--seed {seed}; expected 0 or more")
    loaded = load_model(model, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
    if loaded.spec.causal:
        _refuse(diffusion_only, "generates with a diffusion model", loaded)
        probe = {"keys": peak_keys, "dims": peak_dims, "draws": draws}
        work = _causal(loaded, text=text, count=problems, tokens=chunk or CHUNK, probe=probe, seed=seed)
    else:
        _refuse(causal_only, "edits the cache of a causal model", loaded)
        if text is None and chunk is not None:
            raise UsageError(f"--chunk {chunk} cuts prompts from a text; give one with --text, or leave it out")
        sampling = {"length": length or LENGTH, "steps": steps, "block": block}
        work = _diffusion(loaded, text=text, count=problems, tokens=chunk or CONTEXT, sampling=sampling, seed=seed)
    folder = to or _fresh(work.decides["model"]["name"])
    _run(work, folder)
    _report(folder, units=problems, as_json=json)


def _refuse(options_given: Mapping[str, Any], what: str, model: Any) -> None:
    said = [name for name, value in options_given.items() if value is not None]
    if said:
        raise UsageError(
            f"{', '.join(said)} {what}, but the family of {model.spec.source} is {model.spec.family!r}; leave "
            f"{'it' if len(said) == 1 else 'them'} out"
        )


def _causal(
    model: Any, *, text: Path | None, count: int, tokens: int, probe: Mapping[str, int | None], seed: int
) -> "Atlas":
    from sinklens.evaluation.atlas import causal_atlas
    from sinklens.evaluation.peaks import Probe

    given = {name: value for name, value in probe.items() if value is not None}
    units, source = _cut(model, text, count=count, tokens=tokens)
    told = {"source": source, "setting": f"{tokens} tokens each", "command": _command()}
    return causal_atlas(model, units, probe=Probe(seed=seed, **given), seed=seed, told=told)


def _diffusion(
    model: Any, *, text: Path | None, count: int, tokens: int, sampling: Mapping[str, int | None], seed: int
) -> "Atlas":
    from sinklens.evaluation.atlas import diffusion_atlas
    from sinklens.evaluation.greedy import greedy_sampler

    sampler: Any = greedy_sampler(model, **sampling)  # type: ignore[arg-type]
    if text is not None:
        units, source = _cut(model, text, count=count, tokens=tokens)
    else:
        units, source = _problems(model, count), "word_problems, split test"
    setting = f"{sampler.length} tokens generated behind each, greedy, {sampler.steps} steps"
    told = {"source": source, "setting": setting, "command": _command()}
    return diffusion_atlas(model, units, sampler, seed=seed, told=told)


def _cut(model: Any, path: Path | None, *, count: int, tokens: int) -> tuple[list[list[int]], str]:
    """Pieces of `tokens` tokens, bos first where the model has one; and where they come from."""
    from sinklens.evaluation.texts import cut_chunks, read_text

    if path is None:
        words, source = _held_out(), HELD_OUT
    else:
        words, digest = read_text(path)
        source = f"{path.name} (sha256 {digest[:12]})"
    front = [] if model.spec.bos_id is None else [model.spec.bos_id]
    pieces = cut_chunks(model.tokenizer, words, chunks=count, length=tokens - len(front))
    return [[*front, *piece] for piece in pieces.tolist()], source


def _held_out() -> str:
    """One page: its documents are short, and chunks run across them."""
    import json

    from sinklens.training.evaluate import HELD_OUT_TEXT

    lines = HELD_OUT_TEXT.read_text("utf-8").splitlines()
    return "\n\n".join(json.loads(line)["text"] for line in lines)


def _problems(model: Any, count: int) -> list[list[int]]:
    from sinklens.evaluation.answering import Answering, problems
    from sinklens.sampling.prompt_list import Prompt, encode_prompt

    items = problems(Answering(task="word_problems"), count)
    return [encode_prompt(model, Prompt(text=item.prompt), chat=False) for item in items]


def _command() -> str:
    return join(["sinklens", *sys.argv[1:]])


def _fresh(name: str) -> Path:
    from sinklens.cli.output import fresh_folder

    return fresh_folder(f"atlas-{name}")


def _run(work: "Atlas", folder: Path) -> None:
    """Watched; Ctrl-C keeps the units that are finished."""
    from sinklens.cli.experiments import duration
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import prepare_folder, stderr_console
    from sinklens.evaluation.atlas import refuse_other, run_atlas

    refuse_other(folder, work.document())
    prepare_folder(folder)
    display = CountDisplay(stderr_console(), unit="unit")

    def tell(done: int, total: int, left: float | None) -> None:
        rest = "" if left is None else f", about {duration(left)} left"
        display.show([], step=done, steps=total, label=f"measuring{rest}: ")

    told = f"interrupted: finished units are in {folder}; the same command with --to {quote(str(folder))} goes on"
    with interrupts_end(lambda: told), closing(display):
        run_atlas(work, folder, tell=tell)


def _report(folder: Path, *, units: int, as_json: bool) -> None:
    from sinklens.cli.output import print_json, print_wrapped
    from sinklens.evaluation.atlas_result import write_result
    from sinklens.report.atlas_page import HOLDS, write_atlas

    document = write_result(folder, units=units)
    written = write_atlas(document, folder)
    if as_json:
        print_json({"to": str(folder), **document})
        return
    for one in document["findings"]:
        print_wrapped(f"{HOLDS[one['holds']]}: {one['claim']}", indent=4)
        print_wrapped(f"    {one['says']}", indent=4)
    print(f"\nwritten: {written[0]}, {written[1].name}, {written[2].name}, result.json and tables")
