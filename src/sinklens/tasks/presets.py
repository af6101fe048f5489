"""The settings that published scores of GSM8K and HumanEval were made with, by model.

As their authors' evaluation pages and scripts state them. `shots` and `prompt` say what the models were given; the
tasks here write the prompts of lm-evaluation-harness's `gsm8k` and `humaneval` (PLAIN), so a preset with another
prompt gives the sampler of a published score, not the score itself. All were run with bfloat16 weights.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.models.catalog import KNOWN

PLAIN, NOT_STATED = "plain", "not stated"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How one model was evaluated on one task."""

    model: str
    task: str
    source: str  # whose evaluation it is
    prompt: str  # PLAIN: as the task here writes it; else in words
    shots: int | None  # None: not stated
    length: int  # tokens to write
    steps: int
    block: int | None = None  # None: a sampler without blocks
    temperature: float = 0.0
    top_p: float | None = None
    confidence_eos_eot_inf: bool = False
    logits_eos_inf: bool = False
    accuracy: float | None = None  # in percent, by that source

    def sampler(self) -> Any:
        """The sampler of these settings: Dream's for models without blocks, else LLaDA's."""
        if self.block is None:
            from sinklens.sampling.dream import DreamSampler

            return DreamSampler(
                steps=self.steps,
                length=self.length,
                alg="entropy",
                alg_temp=0.0,
                temperature=self.temperature,
                top_p=self.top_p,
            )
        from sinklens.sampling.llada import LLaDASampler

        return LLaDASampler(
            steps=self.steps,
            length=self.length,
            block=self.block,
            temperature=self.temperature,
            confidence_eos_eot_inf=self.confidence_eos_eot_inf,
            logits_eos_inf=self.logits_eos_inf,
        )


def published(model: str, task: str) -> tuple[Preset, ...]:
    """The presets of a model on a task, the main one of its authors first.

    model: a name of `sinklens models`, a hub id, or a folder that is called as the model is on the hub.
    """
    model = _known_name(model)
    choose("model with published settings", model, tuple(dict.fromkeys(preset.model for preset in PRESETS)))
    found = tuple(preset for preset in PRESETS if (preset.model, preset.task) == (model, task))
    if not found:
        tasks = sorted({preset.task for preset in PRESETS if preset.model == model})
        raise UsageError(f"no settings of {model} are published for {task!r}; there are some for {', '.join(tasks)}")
    return found


def _known_name(model: str) -> str:
    """The name of `sinklens models`, as far as there is one: a folder is known by what it is called alone."""
    for name, entry in KNOWN.items():
        if model == entry.hub_id or Path(model).name.lower() in (name, entry.hub_id.partition("/")[2].lower()):
            return name
    return model


def _harness(task: str, shots: int, size: int, accuracy: float) -> Preset:
    """LLaDA-8B-Base by its authors in lm-evaluation-harness: one block, a token a step."""
    return Preset(
        model="llada-8b-base",
        task=task,
        source="LLaDA, lm-evaluation-harness",
        prompt=PLAIN,
        shots=shots,
        length=size,
        steps=size,
        block=size,
        accuracy=accuracy,
    )


def _compass(model: str, task: str, size: int, block: int, *, prompt: str, shots: int | None, **others: Any) -> Preset:
    """LLaDA by its authors in OpenCompass; as many steps as tokens."""
    return Preset(
        model=model,
        task=task,
        source="LLaDA, OpenCompass",
        prompt=prompt,
        shots=shots,
        length=size,
        steps=size,
        block=block,
        **others,
    )


def _dream(model: str, task: str, size: int, *, prompt: str, shots: int, temperature: float, top_p: float) -> Preset:
    """Dream by its authors in lm-evaluation-harness: a token a step, the most certain first."""
    return Preset(
        model=model,
        task=task,
        source="Dream, lm-evaluation-harness",
        prompt=prompt,
        shots=shots,
        length=size,
        steps=size,
        temperature=temperature,
        top_p=top_p,
    )


def _fast(task: str, shots: int) -> Preset:
    return Preset(
        model="llada-8b-instruct",
        task=task,
        source="Fast-dLLM, its baseline",
        prompt=NOT_STATED,
        shots=shots,
        length=256,
        steps=256,
        block=32,
    )


_TURNS = "4 worked examples as chat turns"
_COMPLETE = "one chat turn: complete the following python code"

PRESETS = (
    _harness("gsm8k", 5, 1024, 70.3),
    _harness("gsm8k", 5, 512, 70.8),
    _harness("gsm8k", 5, 256, 70.0),
    _compass("llada-8b-base", "gsm8k", 256, 256, prompt="4 worked examples as plain text", shots=4, accuracy=71.9),
    _harness("humaneval", 0, 1024, 35.4),
    _harness("humaneval", 0, 512, 32.9),
    _harness("humaneval", 0, 256, 32.9),
    _compass("llada-8b-base", "humaneval", 256, 256, prompt=NOT_STATED, shots=None, accuracy=34.1),
    _compass(
        "llada-8b-instruct", "gsm8k", 512, 512, prompt=_TURNS, shots=4, confidence_eos_eot_inf=True, accuracy=68.8
    ),
    _compass("llada-8b-instruct", "gsm8k", 256, 8, prompt=_TURNS, shots=4, accuracy=78.9),
    _fast("gsm8k", 5),
    _compass("llada-8b-instruct", "humaneval", 512, 512, prompt=_COMPLETE, shots=0, logits_eos_inf=True, accuracy=47.0),
    _fast("humaneval", 0),
    _compass("llada-1.5", "gsm8k", 256, 16, prompt=_TURNS, shots=4, confidence_eos_eot_inf=True, accuracy=83.6),
    _compass("llada-1.5", "humaneval", 512, 32, prompt=_COMPLETE, shots=0, confidence_eos_eot_inf=True, accuracy=51.2),
    _dream("dream-v0-base-7b", "gsm8k", 256, prompt="gsm8k_cot after bos", shots=8, temperature=0.0, top_p=0.95),
    _dream(
        "dream-v0-base-7b",
        "humaneval",
        512,
        prompt="plain after bos, stop strings ignored",
        shots=0,
        temperature=0.2,
        top_p=0.95,
    ),
    _dream("dream-v0-instruct-7b", "gsm8k", 256, prompt="gsm8k_cot as chat", shots=0, temperature=0.1, top_p=0.9),
    _dream(
        "dream-v0-instruct-7b",
        "humaneval",
        768,
        prompt="humaneval_instruct as chat",
        shots=0,
        temperature=0.1,
        top_p=0.9,
    ),
    Preset(
        model="mmada-8b-mixcot",
        task="gsm8k",
        source="MMaDA, lm-evaluation-harness",
        prompt="an instruction to think, as chat",
        shots=5,
        length=256,
        steps=256,
        block=64,
    ),
)
