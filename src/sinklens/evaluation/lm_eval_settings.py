"""What `--model_args` of lm-eval says about a model of sinklens, and the sampler that a request asks for.

Nothing here needs lm-eval.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.evaluation.elbo import DRAWS
from sinklens.models.language_model import LanguageModel
from sinklens.sampling.autoregressive import AutoregressiveSampler
from sinklens.sampling.block_cache import BlockCache
from sinklens.sampling.dream import DreamSampler
from sinklens.sampling.llada import LLaDASampler
from sinklens.tasks.presets import Preset, published

MAX_TOKENS = 256  # of an answer, where neither the task nor the model arguments say; as lm-eval's own models
SAMPLING = (
    "length", "steps", "block", "alg", "temperature", "top_p", "top_k", "alg_temp", "cfg", "remasking", "threshold",
    "stop_at_eos", "logits_eos_inf", "confidence_eos_eot_inf",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """The model arguments. None: the checkpoint's, the task's or the sampler's own."""

    # What comes from callers is annotated as anything, because it is checked here or where it is used, with a message.
    pretrained: Any  # a folder, a hub id, a name from `sinklens models`, or a model that is loaded already
    device: Any = None
    dtype: Any = None
    revision: Any = None
    trust_remote_code: Any = False
    batch_size: Any = 1
    max_batch_size: Any = None  # lm-eval says it; only a number that it searches by itself would need it
    max_length: Any = None  # tokens of context and answer together
    add_bos_token: Any = None  # True, False: in place of what the tokenizer does
    mask: Any = None  # a condition, such as "sinks:top=5,keys=cached"
    mask_top: Any = None  # short for mask="sinks:top=N"
    elbo_draws: Any = DRAWS  # of a diffusion model's likelihood
    seed: Any = 0
    preset: Any = None  # MODEL/TASK: published settings of a sampler (tasks/presets.py); MODEL/TASK/2: the second
    length: Any = None  # the samplers' fields, from here on
    steps: Any = None
    block: Any = None
    alg: Any = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    alg_temp: Any = None
    cfg: Any = None
    remasking: Any = None
    threshold: Any = None
    stop_at_eos: Any = None
    logits_eos_inf: Any = None
    confidence_eos_eot_inf: Any = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "elbo_draws", "max_length"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not str(value).isdigit() or int(value) < 1):
                hint = "; 'auto' is not known here" if str(value).startswith("auto") else ""
                raise UsageError(f"{name} is {value!r}; expected a whole number, 1 or more{hint}")
        if self.mask is not None and self.mask_top is not None:
            raise UsageError(f"mask={self.mask!r} and mask_top={self.mask_top!r}; give one of them")

    @property
    def condition(self) -> Condition:
        """What is done to attention."""
        if self.mask_top is not None:
            return Condition(choose="sinks", top=self.mask_top) if self.mask_top != 0 else Condition()
        return Condition() if self.mask is None else parse_condition(str(self.mask))


def read_arguments(given: Mapping[str, Any]) -> ModelArguments:
    """The arguments by their names; an unknown one is refused, with all there are."""
    accepted = [field.name for field in fields(ModelArguments)]
    for name in given:
        if name not in accepted:
            raise UsageError(f"model argument {name}={given[name]!r}; expected {', '.join(accepted)}")
    if given.get("pretrained") is None:
        raise UsageError(
            "no model; give one with --model_args pretrained=NAME: a folder, a hub id, or a name of `sinklens models`"
        )
    preset = given.get("preset")
    return ModelArguments(**({} if preset is None else _sampling(find_preset(preset))) | dict(given))


def find_preset(text: Any) -> Preset:
    """MODEL/TASK is the first that its authors give, MODEL/TASK/N the N-th."""
    rest, _, last = str(text).rpartition("/")
    number = int(last) if last.isdigit() else 1
    model, _, task = rest.rpartition("/") if last.isdigit() else (rest, "", last)  # a hub id has a slash of its own
    if not model or not task:
        raise UsageError(f"preset={text!r}; expected MODEL/TASK, such as llada-8b-base/gsm8k, or MODEL/TASK/2")
    found = published(model, task)
    if not 1 <= number <= len(found):
        raise UsageError(f"preset={text!r}, but there are {len(found)} of {model} for {task}")
    return found[number - 1]


def describe_preset(text: Any) -> str:
    """For a log: the settings are those of a sampler, the prompts are the task's."""
    preset = find_preset(text)
    return (
        f"sampler as published by {preset.source}, where the prompt was: {preset.prompt}, {preset.shots} shots; "
        "what is asked here is the task's own prompt"
    )


def _sampling(preset: Preset) -> dict[str, Any]:
    """The settings that differ from those of a sampler by default."""
    values = {name: getattr(preset, name, None) for name in SAMPLING}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def build_sampler(model: LanguageModel, arguments: ModelArguments, *, asked: Mapping[str, Any]) -> Any:
    """The sampler of a request. asked: `max_gen_toks`, `temperature`, ... of the task, as far as it says them.

    The model arguments stand above the task, but no answer is longer than the task says.
    """
    kind = _kind(model)
    accepted = {field.name for field in fields(kind)}
    said = {name: value for name in SAMPLING if (value := getattr(arguments, name)) is not None}
    for name, value in said.items():
        if name not in accepted:
            names = ", ".join(other for other in SAMPLING if other in accepted)
            raise UsageError(
                f"model argument {name}={value!r} is no setting of {kind.__name__}, which {model.spec.family!r} "
                f"models use; it takes {names}"
            )
    wanted = {name: asked[name] for name in ("temperature", "top_p", "top_k") if name in asked and name in accepted}
    settings: dict[str, Any] = wanted | said | {"length": _length(arguments, asked.get("max_gen_toks"))}
    if kind is AutoregressiveSampler:
        return kind(**settings, cache=not arguments.condition.recomputes())
    refresh = arguments.condition.refresh
    settings.setdefault("steps", settings["length"])
    settings.setdefault(*(("alg", "entropy") if kind is DreamSampler else ("block", settings["length"])))
    return kind(**settings, cache=None if refresh is None else BlockCache(refresh=refresh))


def _kind(model: LanguageModel) -> Any:
    if model.spec.causal:
        return AutoregressiveSampler
    return DreamSampler if model.spec.shift else LLaDASampler


def _length(arguments: ModelArguments, limit: Any) -> int:
    lengths = [int(value) for value in (arguments.length, limit) if value is not None]
    return min(lengths, default=MAX_TOKENS)


def by_settings(requests: Sequence[Any]) -> Iterator[tuple[Mapping[str, Any], list[int]]]:
    """Requests that are generated alike: their settings, and their numbers."""
    groups: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(repr(sorted(request.args[1].items())), []).append(number)
    for group in groups.values():
        yield requests[group[0]].args[1], group
