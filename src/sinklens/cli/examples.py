"""One or two examples a command: `--help` and docs/cli.md show them, and a test runs them.

Lines that end with a backslash go on in the next one, as in a shell; what follows a # is for people.
"""

from collections.abc import Mapping
from types import MappingProxyType

QUESTION = r"$'Question: Mia has 12 apples. She finds 5. How many?\nAnswer:'"
EXAMPLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "": (
            "sinklens doctor                # what works here, and what to install",
            "sinklens demo --quick          # three small models lose their sinks",
            "sinklens COMMAND --help        # each with examples",
        ),
        "demo": ("sinklens demo --quick", "sinklens demo --to runs/demo"),
        "doctor": ("sinklens doctor", "sinklens doctor --json"),
        "models": ("sinklens models", "sinklens models tiny-llada"),
        "generate": (
            "sinklens generate tiny-llada --length 48 --steps 24 --block 48 \\",
            f"  --prompt {QUESTION}",
            "sinklens generate tiny-llama --prompts questions.txt --batch 8 --json",
        ),
        "trace": (
            "sinklens trace tiny-llada --length 32 --block 32 --to runs/a \\",
            f"  --prompt {QUESTION}",
            "sinklens trace tiny-llada --prompts questions.txt --dry-run",
        ),
        "sinks": ("sinklens sinks runs/a", "sinklens sinks runs/a --parts tokens,depth --json"),
        "figures": (
            "sinklens figures runs/a --to runs/a-figures",
            "sinklens figures runs/a --only 5,table2",
        ),
        "explore": ("sinklens explore runs/a --to runs/a.html", "sinklens explore runs/a runs/b --open"),
        "mask": (
            "sinklens mask tiny-llama --top 0,1 --draws 1 --problems 4",
            "sinklens mask tiny-llada tiny-dream --control random,next --to runs/mask",
        ),
        "compress": (
            "sinklens compress tiny-llama --keep 50% --order low,high --problems 2 \\",
            "  --lengths 256",
            "sinklens compress tiny-llama --task lm --keep 64 --stride 32",
        ),
        "atlas": (
            "sinklens atlas tiny-llama --problems 2 --chunk 64",
            "sinklens atlas tiny-llada --problems 2 --steps 16 --to runs/atlas",
        ),
        "evaluate": (
            "sinklens evaluate tiny-llama --problems 8",
            "sinklens evaluate tiny-llada --problems 8 --mask none --mask sinks:top=1",
        ),
        "lm-eval": (
            "sinklens lm-eval --model_args pretrained=tiny-llama --tasks gsm8k",
            "sinklens lm-eval --model_args pretrained=tiny-llama,mask_top=1 \\",
            "  --tasks gsm8k --limit 20 --output_path runs/gsm8k",
            "sinklens lm-eval run --help    # what the harness takes",
            "sinklens lm-eval ls tasks",
        ),
        "card": (
            "sinklens card tiny-llama --problems 8 --traced 2 --top 1 --draws 1",
            "sinklens card smollm2-135m --text book.txt --to runs/card",
        ),
        "sweep": (
            "sinklens sweep examples/sweep.toml --list",
            "sinklens sweep examples/sweep.toml --workers 2 --to runs/sweep",
        ),
        "train": (
            "python -m sinklens.training.prepare --to corpus      # once",
            "sinklens train tiny-llama --data corpus --set schedule.steps=100",
        ),
        "verify": (
            "sinklens verify llada --reference reference_llada.py",
            "sinklens verify GSAI-ML/LLaDA-8B-Instruct --reference reference_llada.py \\",
            "  --python original/.venv/bin/python --device cuda",
        ),
        "select": ("sinklens select show --help", "sinklens select evaluate --help"),
        "select train": (
            "sinklens select train digits --data digits --to runs/digits",
            "sinklens select train tiny-vit-selection --set schedule.steps=100",
        ),
        "select evaluate": (
            "sinklens select evaluate runs/digits --images 200 --alphas 0.2,0.5",
            "sinklens select evaluate runs/digits --snr -10,0,10",
        ),
        "select show": (
            "sinklens select show runs/digits --images 3 --to runs/maps",
            "sinklens select show runs/digits --image photo.png --fit --open",
        ),
    }
)
