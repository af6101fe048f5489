"""kill -9 at seeded random moments: whoever goes on ends with what an undisturbed run gives, to the byte.

Half of the moments are drawn over the time that the undisturbed run took, half of them over what it does in its folder:
the process is gone before it opens, renames or removes a file there. SINKLENS_KILLS says how often each is killed.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.commands import COMMANDS, KILLS, Command, Whole, contents, differing, every
from faults.nursery import Ended, Nursery
from sinklens.files import is_unfinished

STRETCH = 0.9  # of the undisturbed time: whoever goes on has less to do


def started_and_killed(
    nursery: Nursery, command: Command, inputs: Path, to: Path, *, whole: Whole, draws: random.Random
) -> tuple[Ended, str]:
    """One run, and how it was to be killed."""
    line = command.line(inputs, to)
    if draws.random() < 0.5:
        run = nursery.start(line, cwd=to.parent, watch=to, kill_at=draws.randint(1, whole.events))
        return run.wait(), "event"
    moment = draws.uniform(0, STRETCH * whole.seconds)
    run = nursery.start(line, cwd=to.parent)
    time.sleep(max(0.0, run.began + moment - time.monotonic()))
    run.kill()
    return run.wait(), "moment"


SHARD = 10  # kills in one test
# Not a whole sweep: it starts a process that imports torch for its jobs, and three kills of it took 37 s on two busy
# cores, where those of one of its jobs take 5. `make test-faults` has it.
QUICK = every("trace", "mask", "evaluate", "compress", "sweep job", "train")


@pytest.mark.faults
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("shard", range(-(-KILLS // SHARD)))
def test_killed_again_and_again(  # noqa: PLR0917 (fixtures)
    shard: int, name: str, nursery: Nursery, inputs: Path, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    command, wanted = COMMANDS[name], whole(name)
    kills = min(SHARD, KILLS - shard * SHARD)
    draws, tally = random.Random(f"{name} {shard}"), Counter[str]()
    while tally["killed"] < kills:
        to = tmp_path / f"{tally['runs']}"
        while True:  # killed again and again, until it is faster than that
            tally["runs"] += 1
            if tally["killed"] < kills:
                ended, how = started_and_killed(nursery, command, inputs, to, whole=wanted, draws=draws)
            else:
                ended, how = nursery.run(command.line(inputs, to), cwd=to.parent), ""
            if not ended.killed:
                break
            tally["killed"] += 1
            tally[how] += 1
            tally["at work"] += to.exists() and any(to.iterdir())
        assert ended.code == 0, ended.stderr
        strange = differing(contents(to), wanted.contents)
        assert not [path for path in strange if not (command.shares and is_unfinished(Path(path)))]
    print(f"{name}: {dict(tally)}; undisturbed: {wanted.seconds:.1f} s, {wanted.idle:.1f} of them before its folder")
    assert tally["killed"] == kills and tally["at work"] >= kills / 3
