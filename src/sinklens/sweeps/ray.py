"""The same jobs as Ray tasks, on a Ray instance of this machine or on a cluster.

Outcomes come back to this process, which writes them: the machines need no common disk, only sinklens and the models.
A task whose process or machine is lost is begun again by Ray, at most RETRIES times; its outcome is one object, read
once, so that no job is written twice.
"""

import os
import socket
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sinklens.errors import SinklensError, UsageError
from sinklens.sweeps.job import RETRIES, Failure, Job, Outcome, Resources, attempt, describe

PATIENCE = 10.0  # seconds for a cluster to answer


def run_on_ray(
    jobs: Sequence[Job], resources: Resources, *, address: str | None = None
) -> Generator[Outcome, None, None]:
    """Outcomes as they come; closing the iterator cancels what is left.

    address: of a cluster, as `ray.init` takes it; None: the instance this process is connected to, the one that
    RAY_ADDRESS names, or a new one on this machine.
    """
    with _connected(address) as ray:
        task = ray.remote(num_cpus=resources.threads, num_gpus=resources.gpus, max_retries=RETRIES)(attempt)
        _check_resources(ray, resources, grows=address is not None or "RAY_ADDRESS" in os.environ)
        waiting = deque(jobs)
        running: dict[Any, Job] = {}
        try:
            while waiting or running:
                while waiting and len(running) < (resources.workers or len(jobs)):
                    job = waiting.popleft()
                    running[task.remote(job, resources)] = job
                (ref, *_), _ = ray.wait(list(running), num_returns=1)
                yield _outcome(ray, ref, running.pop(ref))
        finally:
            for ref in running:
                ray.cancel(ref, force=True)


def _outcome(ray: Any, ref: Any, job: Job) -> Outcome:
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.WorkerCrashedError as error:
        message = f"the process that ran it ended {RETRIES + 1} times; memory may be short ({_first_line(error)})"
        return Outcome(job=job, failure=Failure(type="WorkerLost", message=message))
    except ray.exceptions.RayError as error:  # no memory, a lost machine, a machine without sinklens, ...
        return Outcome(job=job, failure=describe(error))
    return outcome


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0]


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """The ray module, connected; a connection that was there before stays."""
    ray = _import_ray()
    if ray.is_initialized():
        if address is not None:
            raise UsageError(f"address is {address!r}, and this process is connected to Ray already; leave it out")
        yield ray
        return
    # An instance that is started here tells nobody outside that it was.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # "local", because Ray by itself would look for the cluster that was started here last, which may have ended.
    place = address or os.environ.get("RAY_ADDRESS") or "local"
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if place == "local":
            quiet["include_dashboard"] = False
        else:
            _knock(place)
        ray.init(address=place, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        where = "start Ray here" if place == "local" else f"reach a Ray cluster at {place!r}"
        raise SinklensError(
            f"cannot {where} ({_first_line(error)}); check the address with `ray status`, and RAY_AUTH_TOKEN where the "
            "cluster wants a token, or use --on local"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself tries for minutes to reach a machine that does not answer."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError("Ray is not installed; install sinklens with the extra `ray`, or use --on local") from error
    return ray


def _check_resources(ray: Any, resources: Resources, *, grows: bool) -> None:
    """Ray waits without a word for what no machine has. A cluster may grow by itself; an instance here does not."""
    there = ray.cluster_resources()
    for name, wanted in (("CPU", resources.threads), ("GPU", resources.gpus)):
        if wanted <= there.get(name, 0):
            continue
        lacks = f"a job wants {wanted:g} {name}, and Ray has {there.get(name, 0):g} in all"
        if not grows:
            raise UsageError(f"{lacks}; ask for less, or give the address of a cluster")
        warnings.warn(f"{lacks}; jobs wait until the cluster grows", stacklevel=3)
