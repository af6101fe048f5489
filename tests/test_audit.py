"""`make lint` runs pip-audit where it can, says in one line where it cannot, and fails for neither."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import audit

MAKEFILE = Path(__file__).parents[1] / "Makefile"


def test_lint_asks_for_it_and_nothing_more() -> None:
    recipe = MAKEFILE.read_text("utf-8").split("\nlint: ")[1].split("\n\n")[0]
    assert recipe.splitlines()[-1] == "\t@$(BIN)/python tests/audit.py"


def test_without_pip_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "find_spec", lambda _: None)
    assert audit.audited() == "pip-audit: not run (not installed; `make audit` installs it)"


SOUND: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}, {"id": "CVE-2"}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([SOUND], "pip-audit: no known vulnerabilities in 1 packages"),
        (
            [SOUND, BAD, UNKNOWN],
            "pip-audit: 2 known vulnerabilities in 2 packages, 1 not known to its service\n"
            "  b 2: PYSEC-1\n  b 2: CVE-2",
        ),
        ([UNKNOWN, UNKNOWN], "pip-audit: not run (its service knows none of 2 packages)"),  # a mirror of files alone
        (None, "pip-audit: not run (ERROR: no connection)"),
    ],
)
def test_what_it_says_is_printed(
    monkeypatch: pytest.MonkeyPatch, found: list[dict[str, Any]] | None, told: str
) -> None:
    monkeypatch.setattr(audit, "find_spec", lambda name: name)
    out = "" if found is None else json.dumps({"dependencies": found, "fixes": []})
    done = SimpleNamespace(returncode=1, stdout=out, stderr="WARNING: slow\nERROR: no connection")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert audit.audited() == told


def test_one_that_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("pip_audit", audit.WHOLE)

    monkeypatch.setattr(audit, "find_spec", lambda name: name)
    monkeypatch.setattr(subprocess, "run", late)
    assert audit.audited() == "pip-audit: not run (not done after 60 seconds; `make audit` waits)"
