"""The folder of a sweep: one Parquet file a finished job, one JSON file a failed one, a manifest.

    sweep.json                  the grid and its jobs: index, fingerprint, what decides the rows
    jobs/FINGERPRINT.parquet    one row a problem; the folder reads as one dataset
    timings/FINGERPRINT.parquet how long it took, where; apart, so that the same job gives the same rows
    errors/FINGERPRINT.json     type, message and traceback of a job that failed last time
    writer.lock                 empty; held by the program that runs the sweep, or shared by those that run one job each

A file is written under a name that readers of Parquet folders pass over, and renamed when it is whole. Several
programs may work on one folder, each on one job (`--job`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sinklens.errors import SinklensError, UsageError
from sinklens.evaluation.answering import ROW
from sinklens.files import write_json, written_whole
from sinklens.locks import refuse_strangers
from sinklens.sweeps.job import Failure, Job, Outcome

FORMAT = "sinklens-sweep"
VERSION = 2  # 2: rows have a source
MANIFEST = "sweep.json"
TIMING: Mapping[str, str] = MappingProxyType(
    {
        "job": "string",
        "model": "string",
        "task": "string",
        "condition": "string",
        "seed": "int64",
        "problems": "int64",
        "batch": "int64",  # problems at a time: fewer than asked for where memory was short
        "seconds": "float64",  # of the whole job, loading included where the process had not done so
        "device": "string",
        "host": "string",
    }
)
NAMED = 3  # jobs that a message names


@dataclass(frozen=True, kw_only=True)
class SweepFolder:
    path: Path

    def claim(self, grid: Mapping[str, Any], jobs: Sequence[Job]) -> None:
        """Make it the folder of these jobs. It may hold some of them already, but no others."""
        self.refuse_other(jobs)
        listed = [
            {"index": index, "fingerprint": job.fingerprint, "label": str(job), **job.as_dict()}
            for index, job in enumerate(jobs)
        ]
        manifest = {"format": FORMAT, "version": VERSION, "grid": dict(grid), "jobs": listed}
        write_json(self.path / MANIFEST, manifest)

    def refuse_other(self, jobs: Sequence[Job]) -> None:
        """Something else than these jobs, or some of them."""
        refuse_strangers(self.path, what="sweep", mark=MANIFEST)
        if not (self.path / MANIFEST).exists():
            return
        wanted = {job.fingerprint for job in jobs}
        others = [job for job in read_manifest(self.path)["jobs"] if job["fingerprint"] not in wanted]
        if others:
            labels = "; ".join(job["label"] for job in others[:NAMED])
            more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
            namesakes = (job.as_dict() for job in jobs if str(job) == others[0]["label"])
            changed = next((f" ({_differences(others[0], namesake)})" for namesake in namesakes), "")
            raise UsageError(
                f"{self.path} holds a sweep with jobs that this grid does not have: {labels}{more}{changed}; a grid "
                "may grow, but not change: give another folder"
            )

    def rows_of(self, job: Job) -> Path:
        return self.path / "jobs" / f"{job.fingerprint}.parquet"

    def error_of(self, job: Job) -> Path:
        return self.path / "errors" / f"{job.fingerprint}.json"

    def is_finished(self, job: Job) -> bool:
        return self.rows_of(job).exists()

    def failure_of(self, job: Job) -> Failure | None:
        """Why it failed when it was last tried; None: it did not, or was not."""
        if self.is_finished(job) or not self.error_of(job).exists():
            return None
        told = json.loads(self.error_of(job).read_text("utf-8"))
        return Failure(type=told["type"], message=told["message"], traceback=told["traceback"])

    def score_of(self, job: Job) -> tuple[int, int]:
        """Right answers, and problems, of a finished job."""
        import pyarrow.parquet as pq

        right = pq.read_table(self.rows_of(job), columns=["right"])["right"].to_pylist()
        return sum(right), len(right)

    def write(self, outcome: Outcome) -> None:
        """Keep what became of a job, in place of what became of it before."""
        job = outcome.job
        if outcome.failure is not None:
            told = {"job": job.fingerprint, "label": str(job), **asdict(outcome.failure)}
            write_json(self.error_of(job), told)
            return
        assert outcome.rows is not None
        named = {"job": job.fingerprint, "model": str(job.model), "task": job.answering.task, "seed": job.seed}
        timing = {**named, "condition": str(job.condition), **outcome.timing}
        self._write_rows(self.path / "timings" / f"{job.fingerprint}.parquet", [timing], timing_schema())
        self._write_rows(self.rows_of(job), outcome.rows, schema())  # last: now it is finished
        self.error_of(job).unlink(missing_ok=True)

    def _write_rows(self, path: Path, rows: Sequence[Mapping[str, Any]], wanted: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        unknown = sorted({name for row in rows for name in row} - set(wanted.names))
        if unknown:
            raise SinklensError(f"rows with columns that no file has: {', '.join(unknown)}; they are not written")
        table = pa.Table.from_pylist(list(rows), schema=wanted)
        with written_whole(path) as temporary:
            pq.write_table(table, temporary)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> str:
    """What decides other rows: `answering.length: 64 there, 32 now`."""
    found = []
    for name, value in new.items():
        if isinstance(value, dict):
            found.append(_differences(old.get(name, {}), value, f"{path}{name}."))
        elif old.get(name) != value:
            found.append(f"{path}{name}: {json.dumps(old.get(name))} there, {json.dumps(value)} now")
    return ", ".join(filter(None, found))


def schema() -> Any:
    """The columns of jobs/: those of every experiment's rows, behind the job's own."""
    # seed null: nothing is drawn; source: a hub model with its commit
    return _schema({"job": "string", "seed": "int64", "source": "string", **ROW})


def timing_schema() -> Any:
    return _schema(TIMING)


def _schema(columns: Mapping[str, str]) -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


def read_manifest(path: Path) -> dict[str, Any]:
    """sweep.json of a folder."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SinklensError(f"{path / MANIFEST} cannot be read ({error}); give another folder") from error
    if not isinstance(manifest, dict) or (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
        raise SinklensError(f"{path / MANIFEST} is of no sweep that this sinklens can read; give another folder")
    return manifest
