"""`sinklens sweep`: a grid of models, tasks, interventions and seeds, as jobs here or on a Ray cluster."""

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.interrupts import INTERRUPTED, import_heavy
from sinklens.errors import UsageError, choose
from sinklens.interrupts import interrupts_named

if TYPE_CHECKING:
    from sinklens.sweeps.folder import SweepFolder
    from sinklens.sweeps.job import Job, Resources, Running

FAILED = 1


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID", help="A TOML file; docs/sweeps.md shows one.")],
    *,
    on: Annotated[str, typer.Option(metavar="NAME", help="local: processes of this machine; or ray.")] = "local",
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Jobs at once.", show_default="1; with Ray all that fit")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a Ray cluster.", show_default="RAY_ADDRESS, or a new one here"),
    ] = None,
    gpus_per_job: Annotated[float, typer.Option(metavar="X", help="0.5: two jobs share one.")] = 0.0,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads of a job.")] = 1,
    job: Annotated[
        int | None, typer.Option(metavar="I", help="Run this one job in this process, as in a Slurm array.")
    ] = None,
    list_jobs: Annotated[
        bool, typer.Option("--list", metavar="", help="Show the jobs, their numbers and their state, and stop.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Rows, errors, manifest; goes on there.", show_default="runs/sweep-GRID"),
    ] = None,
    device: options.Device = None,
    resume: options.Resume = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Answer the problems of every cell of a grid: models x tasks x interventions x seeds.

    Every job is written when it is whole. The same command again skips finished jobs and tries failed ones again; a
    failed job stops no other, and makes the exit code 1.
    """
    running = _choose_running(on, address=address, job=job, workers=workers)
    import_heavy(models=job is not None)  # which runs here
    from sinklens.locks import writing_alone
    from sinklens.sweeps.folder import SweepFolder
    from sinklens.sweeps.grid import read_grid
    from sinklens.sweeps.job import Resources
    from sinklens.sweeps.presence import refuse_missing
    from sinklens.sweeps.run import left_to_do

    document, jobs = read_grid(grid)
    chosen = _choose_jobs(jobs, job)
    resources = Resources(workers=workers, threads=threads, gpus=gpus_per_job, device=device)
    folder = SweepFolder(path=to or Path("runs") / f"sweep-{grid.stem}")
    if list_jobs:
        _show(folder, jobs, chosen, as_json=json)
        return
    refuse_missing(
        left_to_do(folder, chosen),
        source=str(grid),
        base=resources.base,
        elsewhere=on == "ray" and bool(address or os.environ.get("RAY_ADDRESS")),
    )
    folder.refuse_other(jobs)  # before a lock is put there
    with writing_alone(folder.path, shared=job is not None):
        folder.claim(document, jobs)
        interrupted = _run(folder, chosen, running=running, resources=resources)
    failed = _show(folder, jobs, chosen, as_json=json, interrupted=interrupted)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if failed:
        raise typer.Exit(FAILED)


def _choose_running(on: str, *, address: str | None, job: int | None, workers: int | None) -> "Running":
    """Who runs the jobs; options that would have no effect are refused."""
    choose("--on", on, ("local", "ray"))
    if on != "ray" and address is not None:
        raise UsageError(f"--address {address} is for --on ray; add that, or leave it out")
    if job is not None and (on == "ray" or workers is not None):
        raise UsageError("--job runs one job in this process; leave out --on ray and --workers")
    if job is not None:
        from sinklens.sweeps.run import run_here

        return run_here
    if on == "ray":
        from sinklens.sweeps.ray import run_on_ray

        return partial(run_on_ray, address=address)
    from sinklens.sweeps.local import run_locally

    return run_locally


def _choose_jobs(jobs: "Sequence[Job]", number: int | None) -> "list[Job]":
    if number is None:
        return list(jobs)
    if not 0 <= number < len(jobs):
        raise UsageError(f"--job is {number}; this grid has jobs 0 to {len(jobs) - 1}: --list shows them")
    return [jobs[number]]


def _run(folder: "SweepFolder", jobs: "Sequence[Job]", *, running: "Running", resources: "Resources") -> bool:
    """Run what is left, and tell of it on stderr; whether Ctrl-C ended it."""
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import note, stderr_console
    from sinklens.sweeps.run import left_to_do, run_sweep

    console = stderr_console()
    left = len(left_to_do(folder, jobs))
    skipped = f", {len(jobs) - left} finished before" if left < len(jobs) else ""
    note(f"{left} of {len(jobs)} jobs to run{skipped}; rows go to {folder.path}")
    display, done = CountDisplay(console, unit="job"), 0

    def seen(outcome: Any) -> None:
        nonlocal done
        done += 1
        if outcome.failure is not None:
            console.print(f"failed: {outcome.job}: {outcome.failure.type}: {outcome.failure.message}", markup=False)
        display.show([], step=done, steps=left)

    try:
        with interrupts_named(), redirect_stdout(sys.stderr):  # where Ray says that it lost a process
            run_sweep(folder, jobs, running=running, resources=resources, seen=seen)
    except KeyboardInterrupt:
        return True
    finally:
        display.close()
    return False


def _show(
    folder: "SweepFolder",
    jobs: "Sequence[Job]",
    chosen: "Sequence[Job]",
    *,
    as_json: bool,
    interrupted: bool = False,
) -> int:
    """What is known of the chosen jobs, on stdout; how many of them failed."""
    from sinklens.cli.output import print_json
    from sinklens.sweeps.run import summarise

    wanted = {job.fingerprint for job in chosen}
    states = [state for state in summarise(folder, jobs) if state["fingerprint"] in wanted]
    counts: dict[str, int] = {
        name: sum(state["state"] == name for state in states) for name in ("finished", "failed", "open")
    }
    if as_json:
        print_json({"folder": str(folder.path), "interrupted": interrupted, **counts, "jobs": states})
    else:
        _print_table(states)
        print(f"\n{folder.path}: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))
        if counts["failed"]:
            print(f"why: {folder.path / 'errors'}; the same command tries them again")
    if interrupted:
        done = f"{counts['finished']} of {len(states)} jobs are finished"
        print(f"interrupted: {done}; the same command goes on from there", file=sys.stderr)
    return counts["failed"]


def _print_table(states: Sequence[dict[str, Any]]) -> None:
    from sinklens.cli.output import terminal_width
    from sinklens.report.columns import columns

    header = ("job", "fingerprint", "model", "task", "intervention", "seed", "right", "state")
    table = []
    for state in states:
        right = f"{state['right']}/{state['problems']}" if state["state"] == "finished" else "-"
        seed = "-" if state["seed"] is None else str(state["seed"])
        named = (state["fingerprint"], state["model"], state["task"], state["condition"])
        table.append((str(state["index"]), *named, seed, right, state["state"]))
    print("\n".join(columns(header, table, width=terminal_width())))
