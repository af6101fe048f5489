"""pip-audit in `make lint`, where it can be: installed, and its service within reach. Else one line says why not.

What it finds is printed and fails nothing: a vulnerability that becomes known is no fault of the change at hand. `make
audit` installs pip-audit, and fails. A package that the service does not know counts as not audited.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

ANSWER, WHOLE = 3, 60  # seconds: for its service to answer a question, for all packages
AUDIT = (
    *(sys.executable, "-m", "pip_audit", "--skip-editable", "--format", "json", "--progress-spinner", "off"),
    *("--timeout", str(ANSWER)),
)


def audited() -> str:
    """What to print: the findings, or why there are none."""
    if find_spec("pip_audit") is None:
        return "pip-audit: not run (not installed; `make audit` installs it)"
    try:
        done = subprocess.run(AUDIT, capture_output=True, text=True, timeout=WHOLE, check=False)
        found = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return f"pip-audit: not run (not done after {WHOLE} seconds; `make audit` waits)"
    except ValueError:
        return f"pip-audit: not run ({(done.stderr.strip().splitlines() or ['no word'])[-1]})"
    return "\n".join(_lines(found))


def _lines(found: list[dict[str, Any]]) -> list[str]:
    known = [one for one in found if "skip_reason" not in one]
    if not known:
        return [f"pip-audit: not run (its service knows none of {len(found)} packages)"]
    bad = [f"  {one['name']} {one['version']}: {bug['id']}" for one in known for bug in one["vulns"]]
    rest = f", {len(found) - len(known)} not known to its service" if len(known) < len(found) else ""
    return [f"pip-audit: {len(bad) or 'no'} known vulnerabilities in {len(known)} packages{rest}", *bad]


if __name__ == "__main__":
    print(audited())
