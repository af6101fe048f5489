"""sinklens as a model of lm-evaluation-harness (the extra `eval`): `--model sinklens --model_args pretrained=NAME`.

    generate_until          the family's sampler, in batches of similar length, ended by the task's stop strings
    loglikelihood           causal models: exact, or under a mask ranked on the whole text (likelihood.py). Diffusion
                            models: the ELBO of elbo.py. Log and results name which
    loglikelihood_rolling   the same over a whole text, in windows of the model's length

Under a mask (mask=sinks:top=5) generation denies the sinks of the step before, a likelihood those of the same input.
What is done is cached request by request, so `--use_cache` of lm-eval goes on where a run was interrupted.
"""

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from tqdm import tqdm

import sinklens
from sinklens.errors import UsageError
from sinklens.evaluation.likelihood import Scorer
from sinklens.evaluation.lm_eval_settings import (
    MAX_TOKENS,
    ModelArguments,
    build_sampler,
    by_settings,
    describe_preset,
    read_arguments,
)
from sinklens.evaluation.writing import Writer
from sinklens.models.catalog import commit_of
from sinklens.models.templates import render_chat
from sinklens.recording.identity import dtype_of

KNOWN = {"until", "do_sample", "temperature", "top_p", "top_k"}  # of what a task says about generation
CONTEXT = 2048  # tokens, of a model that does not say; as lm-eval's own models
log = logging.getLogger("lm_eval.models.sinklens")  # where lm-eval shows it


@register_model("sinklens")  # type: ignore[untyped-decorator,unused-ignore]
class SinklensLM(TemplateLM):  # type: ignore[misc,unused-ignore]
    """A model of `sinklens.load`, as lm-eval asks models."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.arguments = read_arguments(given)
        self.model = _load(self.arguments)
        self.tokenizer = self.model.tokenizer
        if self.tokenizer is None:
            raise UsageError(f"{self.model.spec.source} has no tokenizer; lm-eval asks in text")
        if self.arguments.preset is not None:
            log.info(describe_preset(self.arguments.preset))
        self.condition = self.arguments.condition
        self.batch_size = int(self.arguments.batch_size)
        self.writer = Writer(model=self.model, condition=self.condition, seed=int(self.arguments.seed))
        self.scorer: Scorer | None = None  # made with the first likelihood
        self._errors: list[float] = []  # of the ELBOs so far
        self._ignored: set[str] = set()

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> "SinklensLM":
        """What the model arguments say stands above --batch_size and --device, whose defaults lm-eval adds itself: the
        device is a GPU even where there is none."""
        added = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if "device" not in arg_dict and str(added.get("device")).startswith("cuda") and not torch.cuda.is_available():
            log.info("torch sees no GPU here: the model runs on the CPU")
            del added["device"]
        return cls(**(added | dict(arg_dict)))

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> "SinklensLM":
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def eot_token_id(self) -> int:
        ends = (self.model.spec.eos_id, self.tokenizer.eos_token_id, self.model.spec.eot_id)
        return next(token for token in (*ends, 0) if token is not None)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context."""
        begins = (self.tokenizer.bos_token_id, self.model.spec.bos_id)
        return next((token for token in begins if token is not None), self.eot_token_id)

    @property
    def max_length(self) -> int:
        return int(self.arguments.max_length or self.model.spec.max_length or CONTEXT)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """As the tokenizer does it, unless told otherwise; a text that has its beginning already gets no second."""
        special = self.arguments.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and string.startswith(self.tokenizer.decode([self.prefix_token_id])):
            special = False
        options = {} if special is None else {"add_special_tokens": special}
        return list(self.tokenizer.encode(string, **options))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """A text for every (context, generation settings)."""
        found: dict[int, str] = {}
        with tqdm(total=len(requests), desc="sinklens: generate_until", disable=disable_tqdm) as bar:
            for settings, group in by_settings(requests):
                sampler, stops = self._prepare(settings)
                prompts = {n: self._context(requests[n].args[0], room=sampler.length) for n in group}
                order = sorted(group, key=lambda number: -len(prompts[number]))
                for start in range(0, len(order), self.batch_size):
                    some = order[start : start + self.batch_size]
                    asked = [prompts[number] for number in some]
                    texts = self.writer.write(asked, sampler, stops=stops, first=len(found))
                    for number, text in zip(some, texts, strict=True):
                        found[number] = text
                        self.cache_hook.add_partial("generate_until", requests[number].args, text)
                    bar.update(len(some))
        return [found[number] for number in range(len(requests))]

    def _prepare(self, settings: Mapping[str, Any]) -> tuple[Any, list[str]]:
        """The sampler and the stop strings of a request."""
        limits = [name for name in settings if name.startswith("max_") and settings[name] is not None]
        for name in sorted(set(settings) - KNOWN - set(limits) - self._ignored):
            self._ignored.add(name)
            log.warning("generation setting %s=%r has no meaning for sinklens and is ignored", name, settings[name])
        plain = normalize_gen_kwargs(dict(settings), MAX_TOKENS)
        asked: dict[str, Any] = {"max_gen_toks": plain["max_gen_toks"]} if limits else {}
        if plain["do_sample"]:
            asked |= {name: plain[name] for name in ("temperature", "top_p", "top_k") if name in plain}
        return build_sampler(self.model, self.arguments, asked=asked), plain["until"]

    def _context(self, text: str, *, room: int) -> list[int]:
        ids = self.tok_encode(text)
        kept = self.max_length - room
        if kept < 1:
            raise UsageError(
                f"an answer of {room} tokens leaves no room for a context: the model takes {self.max_length}; give a "
                "smaller length, or max_gen_toks"
            )
        if len(ids) > kept:
            log.warning("a context of %d tokens is cut to its last %d", len(ids), kept)
        return ids[-kept:] or [self.prefix_token_id]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        scorer, found = self._scorer(), {}
        pairs = [self._fit(context, continuation) for _, context, continuation in requests]
        kind = f"elbo, {scorer.draws} draws" if scorer.kind == "elbo" else "loglikelihood"
        with tqdm(total=len(pairs), desc=f"sinklens: {kind}", disable=disable_tqdm) as bar:
            for number, one in scorer.score(pairs):
                found[number] = (one.value, one.greedy)
                self._errors += [] if one.error is None else [one.error]
                asked = requests[number][0]
                if asked is not None:  # a window of a text is no request of its own
                    self.cache_hook.add_partial("loglikelihood", asked, found[number])
                bar.update(1)
        return [found[number] for number in range(len(pairs))]

    def _scorer(self) -> Scorer:
        if self.scorer is None:
            draws, seed = int(self.arguments.elbo_draws), int(self.arguments.seed)
            self.scorer = Scorer(
                model=self.model, condition=self.condition, batch=self.batch_size, draws=draws, seed=seed
            )
            if self.scorer.caveat is not None:
                log.warning("%s", self.scorer.caveat)
        return self.scorer

    def _fit(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """The context cut from the left. A causal model is not fed the last token; a diffusion model sees them all."""
        room = self.max_length + self.model.spec.causal - len(continuation)
        if room < 1:
            raise UsageError(
                f"a continuation of {len(continuation)} tokens does not fit into the {self.max_length} of the model; "
                "give max_length if it takes more"
            )
        return context[-room:], continuation

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, each on its own, cut into windows of the model's length that overlap by one token."""
        windows: list[tuple[None, list[int], list[int]]] = []
        counts = []
        for request in requests:
            rolling = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - (not self.model.spec.causal),
                context_len=1,
            )
            disjoint = [(None, *make_disjoint_window(window)) for window in rolling]
            windows += disjoint
            counts.append(len(disjoint))
        values = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        sums = [sum(next(values)[0] for _ in range(count)) for count in counts]
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as text, in the model's own chat format."""
        ours = getattr(self.model, "chat_format", None)
        if ours is None:
            source = str(self.model.spec.source)
            return render_chat(self.tokenizer, chat_history, source=source, add_generation_prompt=add_generation_prompt)
        if not add_generation_prompt:
            raise UsageError("a beginning of the answer (gen_prefix) has no place in this model's chat format")
        return str(ours.render(chat_history))

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        ours = getattr(self.model, "chat_format", None)
        template: str | None = super().chat_template(chat_template) if ours is None else repr(ours)
        return template

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.spec.source).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What stands under `config` in the results. The commit is that of the model that was loaded, whoever did."""
        scorer, source = self.scorer, str(self.model.spec.source)
        commit = commit_of(source) or ""
        info: dict[str, Any] = {
            "model_num_parameters": sum(tensor.numel() for tensor in self.model.parameters()),
            "model_dtype": dtype_of(self.model),
            "model_revision": self.arguments.revision or commit,
            "model_sha": commit,
            "model_source": source,
            "mask": str(self.condition),
            "generation_dose": self.writer.doses.ratio,
        }
        if scorer is not None:
            info["likelihood"] = scorer.kind
            info["likelihood_mask"] = str(scorer.held)
            info["likelihood_dose"] = scorer.doses.ratio
        if scorer is not None and scorer.kind == "elbo":
            info["elbo_draws"] = scorer.draws
            info["elbo_mean_error"] = fmean(self._errors) if self._errors else None
        return info


def _load(arguments: ModelArguments) -> Any:
    if not isinstance(arguments.pretrained, str):
        return arguments.pretrained
    return sinklens.load(
        arguments.pretrained,
        device=arguments.device or "cpu",
        dtype=arguments.dtype,
        revision=arguments.revision,
        trust_remote_code=bool(arguments.trust_remote_code),
    )
