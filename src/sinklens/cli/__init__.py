"""The command line: parse, one library call, print.

Results go to stdout, progress and errors to stderr. `--json` prints exactly one JSON document on stdout.
Exit codes: 0 done, 1 failed, 2 misused, 130 interrupted. Importing this package loads no torch and no extra.
"""

import sys

from sinklens.cli.interrupts import INTERRUPTED
from sinklens.interrupts import interrupts_deferred

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the program and leave with its exit code."""
    try:
        with interrupts_deferred():
            from sinklens.cli.app import run
        run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
