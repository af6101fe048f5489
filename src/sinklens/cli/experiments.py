"""An experiment that is watched: how far it is and how long it will take, on stderr; Ctrl-C says how to go on."""

from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from sinklens.cli.interrupts import interrupts_end

if TYPE_CHECKING:
    from sinklens.evaluation.experiment import Experiment, Ran
    from sinklens.evaluation.pace import Progress


def run_watched(experiment: "Experiment", folder: Path) -> "Ran":
    """Run what is not in the folder yet; leaves with the exit code of an interrupt after Ctrl-C."""
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import stderr_console
    from sinklens.evaluation.experiment import run_experiment
    from sinklens.evaluation.store import Store

    _tell_of_short_tasks(experiment)
    kept = Kept(folder, len(Store(folder).finished()))
    display = CountDisplay(stderr_console(), unit="batch")

    def show(now: "Progress") -> None:
        kept.tell()
        left = "" if now.seconds_left is None else f", about {duration(now.seconds_left)} left"
        what = f"{now.doing.model}, {now.doing.task}, {now.doing.condition.label}{left}: "
        display.show([], step=now.done, steps=now.total, label=what)

    with interrupts_end(lambda: batches_kept(folder, len(Store(folder).finished()))), closing(display):
        return run_experiment(experiment, folder, progress=show)


def _tell_of_short_tasks(experiment: "Experiment") -> None:
    """A file ends; tasks made by rule do not."""
    from sinklens.cli.output import note
    from sinklens.evaluation.answering import problems
    from sinklens.tasks import BENCHMARKS

    asked = experiment.problems
    for one in experiment.answerings:
        if one.task in BENCHMARKS and (there := len(problems(one, asked))) < asked:
            said = f"{one.task} has {there:,} problems here, fewer than the {asked:,} asked for: all of them count"
            note(said)


class Kept:
    """What need not be done again; told once, when the folder is known to be of this experiment."""

    def __init__(self, folder: Path, finished: int) -> None:
        self._folder, self._finished = folder, finished

    def tell(self) -> None:
        from sinklens.cli.output import note

        if self._finished:
            note(f"batches that were in {self._folder} already: {self._finished}; what is missing runs")
        self._finished = 0


def batches_kept(folder: Path, finished: int) -> str:
    """What is said after Ctrl-C."""
    again = f"the same command with --to {quote(str(folder))} goes on"
    return f"interrupted: finished batches in {folder}: {finished}; {again}"


def duration(seconds: float) -> str:
    """For people: in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
