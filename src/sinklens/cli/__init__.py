"""The command line: parse, one library call, print.

Results go to stdout, progress and errors to stderr. `--json` prints exactly one JSON document on stdout.
Exit codes: 0 done, 1 failed, 2 misused, 130 interrupted. Importing this package loads no torch and no extra.
"""

from sinklens.cli.app import app, main

__all__ = ["app", "main"]
