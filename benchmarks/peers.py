"""What people use today to get incoming attention (column sums), beside sinklens: time, memory, longest prompt.

    python benchmarks/peers.py --setup                                   # once: .venv-peers/NAME for each peer
    python benchmarks/peers.py [--lengths 256,512,1024] [--limit 4] [--json FILE] [--figure FILE]
    PYTHONPATH=src python3 benchmarks/peers.py --device cuda --model random-1b --limit 24 --lengths 256,...,4096

Every method runs in a process of its own (peers_worker.py). Its ratio is to a plain SDPA forward of the same model in
the same process, in turn; its memory is the peak above that of the plain forward; its difference is the largest one of
its column sums to those of sinklens. kvpress averages over the heads of a kv head; so are ours before comparing. With
--limit, the prompt is doubled until a process takes more than that many GiB: resident memory on a CPU, what torch holds
on a GPU. A peer whose environment is missing is left out, and named.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers_worker import CLOCKS, METHODS, START

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"
PEERS: dict[str, list[str]] = {  # what is installed after torch; the others run in this environment
    "transformer-lens": ["transformer-lens==4.3.0"],
    "nnsight": ["nnsight==0.8.1", "accelerate"],
    "kvpress": ["kvpress==0.5.5", "transformers>=4.56,<5.3", "pandas<3"],
}
RANDOM_1B: dict[str, Any] = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
Rows = list[dict[str, Any]]


def set_up(venvs: Path, names: list[str]) -> None:
    """One environment a peer, the pinned CPU torch first so that no other one is pulled in."""
    for name in (one for one in names if one in PEERS):
        subprocess.run([sys.executable, "-m", "venv", str(venvs / name)], check=True)
        for wanted in ([TORCH], PEERS[name]):
            pip = [str(venvs / name / "bin" / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
            subprocess.run([*pip, *wanted], check=True)
        print(f"{name}: ready", flush=True)


def prepare(name: str, folder: Path, *, device: str) -> None:
    """A checkpoint that every version of transformers reads, with a prompt beside it."""
    if (folder / "prompt.json").exists():
        return
    import torch
    import transformers

    torch.manual_seed(0)
    if name == "random-1b":
        with torch.device(device):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**RANDOM_1B)).to(torch.bfloat16)
        ids = torch.randint(0, RANDOM_1B["vocab_size"], (131072,)).tolist()
        tokenizer = None
    else:
        import sinklens as sl

        loaded: Any = sl.load("smollm2-135m")
        # The model knows that it came from a four-bit file, and refuses to be saved as anything else.
        told = {key: value for key, value in loaded.model.config.to_dict().items() if key != "quantization_config"}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**told))
        model.load_state_dict(loaded.model.state_dict())
        tokenizer = loaded.tokenizer
        lines = (ROOT / "src" / "sinklens" / "training" / "held_out.jsonl").read_text().splitlines()
        ids = tokenizer("\n\n".join(json.loads(line)["text"] for line in lines))["input_ids"]
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    (folder / "prompt.json").write_text(json.dumps(ids))


def command(name: str, chosen: argparse.Namespace, *more: str) -> list[str]:
    python = chosen.venvs / name / "bin" / "python" if name in PEERS else Path(sys.executable)
    worker = str(Path(__file__).with_name("peers_worker.py"))
    return [str(python), worker, name, "--model", str(chosen.folder), "--device", chosen.device, *more]


def offline() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def measure(name: str, chosen: argparse.Namespace) -> None:
    missing = [
        length for length in chosen.lengths.split(",") if not (chosen.keep and saved(chosen, name, length).exists())
    ]
    if not missing:
        return
    for length in missing:  # an older result must not stand in for a run that fails
        saved(chosen, name, length).unlink(missing_ok=True)
    more = ["--out", str(chosen.work), "--lengths", ",".join(missing)]
    more += ["--repeats", str(chosen.repeats), "--clock", chosen.clock]
    done = subprocess.run(command(name, chosen, *more), capture_output=True, text=True, check=False, env=offline())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{name}: stopped with status {done.returncode}: {last}", flush=True)


def saved(chosen: argparse.Namespace, name: str, length: str | int) -> Path:
    return Path(chosen.work / f"{name}-{length}.json")


def difference(chosen: argparse.Namespace, name: str, length: int) -> float | None:
    """The largest difference to sinklens's column sums of the same prompt."""
    ours = chosen.work / f"sinklens-{length}.npy"
    if not ours.exists():
        return None
    mine, theirs = np.load(ours), np.load(saved(chosen, name, length).with_suffix(".npy"))
    grouped = mine.reshape(*theirs.shape[:2], -1, theirs.shape[-1]).mean(2)  # heads of one kv head stand together
    return float(np.abs(grouped - theirs).max())


def fits(name: str, length: int, chosen: argparse.Namespace) -> bool | None:
    """Whether one observed forward stays inside the limit on a CPU; None where it took longer than --patience."""
    more = ("--once", str(length))
    started = time.monotonic()
    with subprocess.Popen(
        command(name, chosen, *more), env=offline(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            time.sleep(0.02)
            if resident_gib(process.pid) > chosen.limit:
                process.kill()
                return False
            if time.monotonic() - started > chosen.patience:
                process.kill()
                return None
    if process.returncode:
        raise RuntimeError(f"{name} at {length} tokens ended with status {process.returncode}; run it by hand: {more}")
    return True


def resident_gib(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):  # it has just ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def longest(name: str, chosen: argparse.Namespace) -> str:
    """The longest prompt that fits, by doubling, in words."""
    if chosen.device != "cpu":
        return climbed(name, chosen)
    length = START
    while length <= chosen.longest:
        answer = fits(name, length, chosen)
        if answer is None:
            return f"not known ({length} took over {chosen.patience:.0f} s)"
        if not answer:
            return str(length // 2) if length > START else f"under {START}"
        length *= 2
    return f"at least {length // 2}"


def climbed(name: str, chosen: argparse.Namespace) -> str:
    """As `longest`, of a process that tries all lengths itself; peers print more than the answer, and before it."""
    more = command(name, chosen, "--climb", str(chosen.longest), "--limit", str(chosen.limit))
    try:
        done = subprocess.run(more, capture_output=True, text=True, check=False, env=offline(), timeout=chosen.patience)
    except subprocess.TimeoutExpired:
        return f"not known (took over {chosen.patience:.0f} s)"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"not known: stopped with status {done.returncode}: {last}"
    return done.stdout.strip().splitlines()[-1]


def collect(names: list[str], chosen: argparse.Namespace) -> Rows:
    rows = []
    for name in names:
        for length in map(int, chosen.lengths.split(",")):
            if saved(chosen, name, length).exists():
                row = json.loads(saved(chosen, name, length).read_text())
                rows.append(row | {"difference": difference(chosen, name, length)})
    return rows


def show(rows: Rows, limits: dict[str, str], chosen: argparse.Namespace) -> None:
    print("| method | S | plain s | observed s | ratio (lowest to highest) | extra MiB | difference |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        apart = "" if row["difference"] is None else f"{row['difference']:.1g}"
        spread = f"{row['ratio']:.2f} ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})"
        print(
            f"| {row['method']} | {row['length']} | {row['plain_s']:.3g} | {row['observed_s']:.3g} | {spread} "
            f"| {row['extra_mib']:.0f} | {apart} |"
        )
    if limits:
        print(f"\n| method | longest prompt in {chosen.limit:g} GiB |\n|---|---|")
        for name, words in limits.items():
            print(f"| {name} | {words} |")
    print()
    for name, versions in {row["method"]: row["versions"] for row in rows}.items():
        print(f"{name}: " + ", ".join(f"{package} {number}" for package, number in versions.items()))


def draw(rows: Rows, to: Path) -> None:
    """Time and extra memory against the length of the prompt, both axes logarithmic."""
    from sinklens.report.style import MARKERS, line_style, panels, styled

    with styled():
        figure, (ratio, memory) = panels(2, height=2.6)
        for number, name in enumerate(dict.fromkeys(row["method"] for row in rows)):
            mine = [row for row in rows if row["method"] == name]
            lengths = [row["length"] for row in mine]
            style = line_style(number) | {"marker": MARKERS[number], "markersize": 3.5}
            ratio.plot(lengths, [row["observed_s"] / row["plain_s"] for row in mine], label=name, **style)
            above = [row for row in mine if row["extra_mib"] > 0]  # below lies noise, which has no logarithm
            memory.plot([row["length"] for row in above], [row["extra_mib"] for row in above], **style)
        for axis, label in ((ratio, "time / plain SDPA forward"), (memory, "peak memory above plain (MiB)")):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(
                sorted({row["length"] for row in rows}), sorted({str(row["length"]) for row in rows}, key=int)
            )
            axis.set_xlabel("tokens")
            axis.set_ylabel(label)
            axis.yaxis.set_major_formatter("{x:g}")
        ratio.yaxis.set_minor_formatter("{x:g}")  # less than a decade
        figure.legend(loc="outside lower center", ncols=3)
        to.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(to, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="make the environments, and nothing else")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-peers")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--model", choices=("smollm2-135m", "random-1b"), default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lengths", default="256,512,1024")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: on a machine shared with others")
    parser.add_argument("--limit", type=float, help="GiB; look for the longest prompt inside it")
    parser.add_argument("--longest", type=int, default=8192, help="tokens to try at most")
    parser.add_argument("--patience", type=float, default=240.0, help="seconds for one try, on a GPU for all")
    parser.add_argument("--work", type=Path, help="results of every method; runs/peers/MODEL by default")
    parser.add_argument("--keep", action="store_true", help="measure only what is not in that folder yet")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    names = chosen.methods.split(",")
    if chosen.setup:
        return set_up(chosen.venvs, names)
    there = [name for name in names if name not in PEERS or (chosen.venvs / name / "bin" / "python").exists()]
    for name in set(names) - set(there):
        print(f"{name}: left out, no environment; run with --setup")
    chosen.work = chosen.work or ROOT / "runs" / "peers" / chosen.model
    chosen.folder = chosen.work / "model"
    chosen.folder.mkdir(parents=True, exist_ok=True)
    prepare(chosen.model, chosen.folder, device=chosen.device)
    for name in there:
        measure(name, chosen)
    limits = {} if chosen.limit is None else {name: longest(name, chosen) for name in there}
    rows = collect(there, chosen)
    show(rows, limits, chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps({"rows": rows, "longest": limits, "limit_gib": chosen.limit}, indent=1))
    if chosen.figure:
        draw(rows, chosen.figure)


if __name__ == "__main__":
    main()
