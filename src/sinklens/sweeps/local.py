"""Jobs in processes of this machine, each with its own model and threads.

The processes are spawned, fed over a pipe one job at a time, and only compute: whoever reads the outcomes writes them.
A process that is lost (killed, out of memory, crashed) takes nothing with it but the time of its job, which is begun
again in a new one, at most RETRIES times.
"""

import os
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from typing import Any

from sinklens.errors import UsageError
from sinklens.sweeps.job import RETRIES, Failure, Job, Outcome, Resources, attempt


@dataclass(kw_only=True)
class _Task:
    job: Job
    lost: int = 0  # processes that ended while they had it


@dataclass(frozen=True, kw_only=True, eq=False)
class _Worker:
    number: int
    process: Any
    pipe: Any
    task: _Task


def run_locally(jobs: Sequence[Job], resources: Resources) -> Generator[Outcome, None, None]:
    """Outcomes as they come; closing the iterator ends the processes."""
    waiting = deque(_Task(job=job) for job in jobs)
    busy: dict[Any, _Worker] = {}
    free: list[_Worker] = []
    count = min(resources.workers or 1, len(jobs))
    numbers = set(range(count))
    for number in numbers:
        gpus_of(number, resources.gpus)  # refused now, not in each job
    try:
        while waiting or busy:
            while waiting and len(busy) < count:
                worker = free.pop() if free else None
                taken = {other.number for other in (*busy.values(), *free)}
                number = worker.number if worker else min(numbers - taken)
                begun = _give(waiting.popleft(), worker, number, resources)
                busy[begun.pipe] = begun
            for pipe in connection.wait(list(busy)):
                worker = busy.pop(pipe)
                try:
                    outcome: Outcome | None = worker.pipe.recv()
                except (EOFError, OSError):
                    outcome = _lose(worker, waiting)
                else:
                    free.append(worker)
                if outcome is not None:
                    yield outcome
    finally:
        for worker in (*busy.values(), *free):
            worker.process.terminate()
        for worker in (*busy.values(), *free):
            worker.process.join()
            worker.pipe.close()


def _give(task: _Task, worker: _Worker | None, number: int, resources: Resources) -> _Worker:
    """Send a job to a free process, or to a new one."""
    if worker is not None:
        try:
            worker.pipe.send(task.job)
        except OSError:  # it ended while it had nothing to do
            _bury(worker)
        else:
            return _Worker(number=number, process=worker.process, pipe=worker.pipe, task=task)
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, resources), daemon=True)
    with _environment(OMP_NUM_THREADS=str(resources.threads), CUDA_VISIBLE_DEVICES=gpus_of(number, resources.gpus)):
        process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    with suppress(OSError):  # it ended already: the pipe tells whoever waits for it
        ours.send(task.job)
    return _Worker(number=number, process=process, pipe=ours, task=task)


def _bury(worker: _Worker) -> None:
    worker.process.join()
    worker.pipe.close()


def _lose(worker: _Worker, waiting: deque[_Task]) -> Outcome | None:
    """The process ended with a job: back to the queue, or the end of that job."""
    _bury(worker)
    task = worker.task
    task.lost += 1
    if task.lost <= RETRIES:
        waiting.appendleft(task)
        return None
    code = worker.process.exitcode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    message = f"the process that ran it ended {task.lost} times, the last time with {how}; memory may be short"
    return Outcome(job=task.job, failure=Failure(type="WorkerLost", message=message))


@contextmanager
def _environment(**wanted: str | None) -> Iterator[None]:
    """What a process that starts inside finds; None: as it is here. Set here because torch reads it while it loads."""
    before = {name: os.environ.get(name) for name, value in wanted.items() if value is not None}
    os.environ.update({name: value for name, value in wanted.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(pipe: Any, resources: Resources) -> None:
    """A process: jobs in, outcomes out, until the other end is gone.

    Ctrl-C reaches every process of a terminal, and the first one decides what becomes of it. It also does the talking.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        try:
            pipe.send(attempt(pipe.recv(), resources))
        except (EOFError, OSError):
            return


def gpus_of(number: int, share: float) -> str | None:
    """CUDA_VISIBLE_DEVICES of the process of that number, when each job takes `share` GPUs; None: leave it.

    >>> gpus_of(3, 0.5), gpus_of(1, 2)
    ('1', '2,3')
    """
    if not share:
        return None
    each = max(1, int(share))
    first = number * each if share >= 1 else number // int(1 / share)
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return ",".join(str(first + place) for place in range(each))
    names = [name.strip() for name in named.split(",") if name.strip()]
    if first + each > len(names):
        raise UsageError(
            f"{number + 1} workers with {share:g} GPUs each, and CUDA_VISIBLE_DEVICES names {len(names)}; "
            "use fewer workers"
        )
    return ",".join(names[first : first + each])
