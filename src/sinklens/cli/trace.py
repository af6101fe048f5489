"""`sinklens trace`: generate from prompts, and keep what every token received."""

import shutil
import sys
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.interrupts import interrupts_end
from sinklens.cli.loading import find_model
from sinklens.cli.numbers import parse_maps, parse_numbers, show_bytes
from sinklens.cli.output import fresh_folder, note
from sinklens.cli.prompts import collect_prompts
from sinklens.cli.samplers import SamplerOptions, takes_sampling
from sinklens.errors import UsageError, choose

if TYPE_CHECKING:
    from sinklens.recording.plan import Plan


@takes_sampling
def trace(
    model: options.Model,
    *,
    prompt: options.PromptTexts = None,
    prompt_ids: options.PromptIds = None,
    prompts: options.PromptFile = None,
    chat: options.Chat = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the trace.", show_default="a new one, runs/trace-NAME-N"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Go on with the trace in --to that was interrupted.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Say how large the trace would be, and stop.")
    ] = False,
    detail: Annotated[
        str,
        typer.Option(metavar="NAME", help="full, or sinks: only what exceeds the others' mean by one fair share."),
    ] = "full",
    layers: Annotated[
        str | None, typer.Option(metavar="LIST", help="Layers to keep: 0-3,7.", show_default="all")
    ] = None,
    heads: Annotated[str | None, typer.Option(metavar="LIST", help="Heads to keep.", show_default="all")] = None,
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Keep the attention of every N-th step.")] = 1,
    maps: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Whole attention maps to keep: LAYER.HEAD@STEP,..., e.g. 3.1@38-39."),
    ] = None,
    no_norms: Annotated[
        bool, typer.Option("--no-norms", metavar="", help="Leave out key, value, output and hidden norms.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", metavar="", help="Store float32 as measured, not rounded to 12 bits.")
    ] = False,
    graph: options.Graph = False,
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What figures call it.", show_default="the model's name")
    ] = None,
    sampling: SamplerOptions,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the first prompt; the next one has seed + 1.")] = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Generate from prompts, and keep what every token received at every step, layer and head.

    The folder holds Parquet files and a manifest (docs/traces.md); `sinklens sinks` and `sinklens figures` read it.
    Every prompt is written when it is whole: after Ctrl-C or a kill, --resume goes on, with the same result.
    """
    from sinklens.traces.manifest import DETAILS
    from sinklens.traces.write import refuse_used, refuse_without_trace

    given = collect_prompts(prompt or [], prompt_ids or [], prompts)
    wanted_layers, wanted_heads = parse_numbers("--layers", layers), parse_numbers("--heads", heads)
    wanted_maps = parse_maps(maps)
    choose("detail", detail, DETAILS)
    if to is None and resume:
        raise UsageError("--resume needs --to DIR: the folder of the trace to go on with")
    if to is not None and not dry_run:  # before the weights are loaded
        refuse_without_trace(to) if resume else refuse_used(to)
    found = find_model(model, sampling, revision=revision, trust_remote_code=trust_remote_code)
    from sinklens.recording.plan import plan_trace

    loaded, sampler = found.load(device=device, dtype=dtype)
    plan = plan_trace(
        loaded,
        given,
        sampler,
        seed=seed,
        chat=chat,
        name=name,
        detail=detail,
        every=every,
        maps=wanted_maps,
        norms=not no_norms,
        exact=exact,
        graph=graph,
        layers=wanted_layers,
        heads=wanted_heads,
    )
    folder = to or _fresh_folder(plan)
    size = _announce(plan, folder)
    if dry_run:
        _print({"bytes": size, "samples": len(given), "dry_run": True}, f"about {show_bytes(size)}", as_json=json)
        return
    made = _record(plan, folder, resume=resume)
    on_disk = sum(file.stat().st_size for file in made.path.rglob("*") if file.is_file())
    document = {"trace": str(folder), "samples": len(made.samples), "bytes": on_disk, "manifest": made.manifest}
    shown = f"{folder}: {len(made.samples)} of {len(given)} prompts, {show_bytes(on_disk)}"
    _print(document, f"{shown}\nnext: sinklens sinks {quote(str(folder))}", as_json=json)


def _fresh_folder(plan: "Plan") -> Path:
    from sinklens.recording.identity import short_name

    name = plan.name or short_name(plan.model.spec.source) or plan.model.spec.family
    return fresh_folder(f"trace-{name}")


def _announce(plan: "Plan", folder: Path) -> int:
    """The size to expect, on stderr; a warning where the disk has less room than that."""
    size = plan.estimate()
    place = folder.absolute()
    room = shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists()))
    spec = plan.model.spec
    note(
        f"{len(plan.ids)} prompt{'s' * (len(plan.ids) > 1)}, {plan.steps} steps, {len(plan.wanted.layers)} of "
        f"{spec.layers} layers, {len(plan.wanted.heads)} of {spec.heads} heads: about {show_bytes(size)} in {folder}"
    )
    if size > room.free:
        print(f"warning: only {show_bytes(room.free)} are free there; see --detail, --every, --layers", file=sys.stderr)
    return size


def _record(plan: "Plan", folder: Path, *, resume: bool) -> Any:
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import stderr_console
    from sinklens.run import run_plan
    from sinklens.traces.folder import finished_samples

    display = CountDisplay(stderr_console())

    def show(number: int, samples: int, step: int) -> None:
        display.show([], step=step, steps=max(step, plan.steps), label=f"[{number + 1}/{samples}] ")

    def told() -> str:
        done = len(finished_samples(folder))
        return f"interrupted: {done} of {len(plan.ids)} prompts are in {folder}; --resume goes on"

    with interrupts_end(told), closing(display):
        return run_plan(plan, to=folder, resume=resume, progress=show)


def _print(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    from sinklens.cli.output import print_json

    if as_json:
        print_json(document)
    else:
        print(text)
