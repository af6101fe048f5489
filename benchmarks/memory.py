"""Peak memory of attention received on a CPU at 16,384 tokens (8 heads of 64): `python benchmarks/memory.py`.

Each implementation runs in a process of its own; the figure is the growth of its peak resident memory over the inputs.
The reference, which holds the whole matrix, is shown at lengths it survives.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_MIB = 600


def extra_mib(impl: str, length: int) -> float:
    command = [sys.executable, str(ROOT / "tests" / "kernels" / "peak.py"), impl, str(length), "8", "64"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def main() -> int:
    print("impl        S      extra MiB")
    for length in (1024, 2048, 4096):
        print(f"reference {length:6d}  {extra_mib('reference', length):9.0f}", flush=True)
    worst = 0.0
    for length in (1024, 2048, 4096, 8192, 16384):
        worst = extra_mib("chunked", length)
        print(f"chunked   {length:6d}  {worst:9.0f}", flush=True)
    print(f"chunked at 16384: {worst:.0f} MiB of {LIMIT_MIB} allowed")
    return 0 if worst <= LIMIT_MIB else 1


if __name__ == "__main__":
    raise SystemExit(main())
