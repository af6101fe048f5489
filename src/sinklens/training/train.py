"""`train`: from a recipe and a folder of text to a checkpoint, with a log of loss, accuracy and sinks.

A run is a sequence of segments. Each starts from weights alone, rounded as they are on disk, with a fresh optimizer and
a short warm-up; so a run that is killed goes on from its last segment's end and, on a CPU, gives the same bits.
"""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sinklens.errors import UsageError
from sinklens.files import is_step_log, temporary_folder
from sinklens.locks import refuse_strangers, writing_alone
from sinklens.models.catalog import locate
from sinklens.models.fields import read_json
from sinklens.models.load import load
from sinklens.training.checkpoint import (
    BOS,
    CHECKPOINT,
    MASK,
    STATE,
    WEIGHTS,
    read_state,
    read_weights,
    step_of,
    write_checkpoint,
    write_state,
)
from sinklens.training.log import LOG, append_log, read_log, write_log
from sinklens.training.measure import accuracy, autoregressive_sinks, diffusion_sinks, half_written
from sinklens.training.network import Network
from sinklens.training.objectives import Batch, loss_of, masked_diffusion, next_token
from sinklens.training.optimizers import make_optimizers
from sinklens.training.recipe import Recipe
from sinklens.training.rows import HELD_OUT, TEXT, Reader, draws_of, read_tokens, task_pools


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a run spends on measuring itself; none of it touches the weights."""

    problems: int = 128  # of each task, at the end of every segment; 0: none
    rows: int = 64
    unsafe: bool = False  # run generated programs without a sandbox


def train(
    recipe: Recipe,
    *,
    data: Path,
    to: Path,
    device: str = "cpu",
    resume: bool = False,
    effort: Effort | None = None,
    measured: Callable[[dict[str, Any]], None] = lambda entry: None,
    stepped: Callable[[int], None] = lambda step: None,
    workers: int | None = None,
) -> Path:
    """Train, and give the folder of the checkpoint: `to`, which also holds the log."""
    _refuse_strangers(to)
    with writing_alone(to):
        step = _first_step(recipe, to, resume=resume)
        where = torch.device(device)
        network = Network(recipe.shape.transformer(recipe.family), causal=recipe.causal, seed=recipe.seed).to(where)
        if step:
            read_weights(network, to, recipe)
        elif recipe.start is not None:
            read_weights(network, locate(recipe.start).folder, recipe)
        if step == recipe.schedule.steps:
            return to
        reader = _reader(recipe, data, where, workers or min(16, os.cpu_count() or 1))
        run = _Run(
            recipe=recipe,
            network=network,
            reader=reader,
            data=data,
            to=to,
            effort=effort or Effort(),
            measured=measured,
            stepped=stepped,
        )
        while step < recipe.schedule.steps:
            step = run.segment(step)
        return to


def _refuse_strangers(to: Path) -> None:
    """A run that was killed before its first checkpoint was whole leaves some of it, beside a log."""
    begun = is_step_log(to / LOG) and (not (to / WEIGHTS).exists() or step_of(to) is not None)
    refuse_strangers(to, what="training run", mark=STATE, own={LOG, *CHECKPOINT} if begun else ())


def _first_step(recipe: Recipe, to: Path, *, resume: bool) -> int:
    """Where to begin; the log is cut to what lies before."""
    state = read_state(to)
    if state is None:
        if (to / STATE).exists() and read_json(to / STATE).get("fingerprint") != recipe.fingerprint:
            raise UsageError(f"{to} holds a run of another kind or recipe; train this one into another folder")
        write_log(to, [])  # what tells that the folder is ours, should this run be killed early
        return 0
    if not resume:
        raise UsageError(f"{to} holds a run that reached step {state['step']}; add --resume, or choose another folder")
    if state["fingerprint"] != recipe.fingerprint:
        raise UsageError(f"{to} was trained by another recipe; train this one into another folder")
    step = int(state["step"])
    write_state(to, recipe, state={"step": step})  # killed between the two, it may be one segment behind the weights
    write_log(to, [entry for entry in read_log(to) if entry["step"] <= step])
    return step


def _reader(recipe: Recipe, data: Path, device: torch.device, workers: int) -> Reader:
    return Reader(
        recipe.data, read_tokens(data / TEXT), task_pools(recipe.data, data, workers), bos_id=BOS, device=device
    )


class _Run:
    def __init__(
        self,
        *,
        recipe: Recipe,
        network: Network,
        reader: Reader,
        data: Path,
        to: Path,
        effort: Effort,
        measured: Callable[[dict[str, Any]], None],
        stepped: Callable[[int], None],
    ) -> None:
        self.recipe, self.network, self.reader = recipe, network, reader
        self.data, self.to, self.effort = data, to, effort
        self.measured, self.stepped = measured, stepped
        self.device = network.embed.weight.device
        self.loss_of = torch.compile(loss_of, dynamic=False) if self.device.type == "cuda" else loss_of
        self.rotations = {
            length: network.rotation(length) for length in (recipe.data.context, recipe.data.task_context)
        }
        self.held_out = read_tokens(data / HELD_OUT)

    def segment(self, first: int) -> int:
        """Train to the end of the segment that begins at `first`, write it, and give the next step."""
        schedule, setting = self.recipe.schedule, self.recipe.optimizer
        optimizers = make_optimizers(
            self.network,
            setting.name,
            lr=setting.lr,
            matrix_lr=setting.matrix_lr,
            weight_decay=setting.weight_decay,
        )
        highest = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        sums, counted, clock = torch.zeros(2, device=self.device), 0, time.monotonic()
        step = first
        while True:
            for optimizer, rates in zip(optimizers, highest, strict=True):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * schedule.rate(step)
            sums += self.step(step, optimizers)
            step, counted = step + 1, counted + 1
            self.stepped(step)
            if step % schedule.measure_every and not schedule.ends_segment(step):
                continue
            text_loss, task_loss = (sums / counted).tolist()
            seconds = time.monotonic() - clock
            entry = {
                "step": step,
                "tokens": step * self.recipe.data.tokens,
                "text_loss": text_loss,
                "task_loss": task_loss,
                "rate": schedule.rate(step - 1),
                "tokens_per_second": counted * self.recipe.data.tokens / seconds,
            }
            self.log({**entry, **self.measures(step, tasks=schedule.ends_segment(step) and self.effort.problems > 0)})
            if schedule.ends_segment(step):
                self.write(self.to, step)
                read_weights(self.network, self.to, self.recipe)  # rounded, as whoever resumes will find them
                return step
            sums, counted, clock = torch.zeros(2, device=self.device), 0, time.monotonic()

    def step(self, step: int, optimizers: list[torch.optim.Optimizer]) -> torch.Tensor:
        """One update; the losses on text and on tasks, still on the device."""
        losses = []
        for (batch, length), weight in zip(self.batches(step), (1.0, self.recipe.data.task_weight), strict=True):
            with self.precision():
                loss = self.loss_of(self.network, batch, self.rotations[length])
            (weight * loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.optimizer.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses)

    def batches(self, step: int) -> list[tuple[Batch, int]]:
        """Text, then tasks, of one step."""
        recipe = self.recipe
        chosen = draws_of(recipe.seed, step)
        rows = [self.reader.text_rows(chosen), self.reader.task_rows(chosen, whole=recipe.causal)]
        if recipe.causal:
            return [(next_token(ids, importance), ids.shape[1]) for ids, importance in rows]
        masks = draws_of(recipe.seed, step, self.device)
        growing = recipe.anneal * recipe.schedule.steps
        most = min(1.0, 0.1 + 0.9 * (step + 1) / growing) if growing else 1.0
        shift = recipe.family == "dream"
        return [
            (masked_diffusion(ids, importance, mask_id=MASK, shift=shift, draws=masks, most=most), ids.shape[1])
            for ids, importance in rows
        ]

    def precision(self) -> Any:
        """bfloat16 over float32 weights on a GPU; float32 on a CPU, where a run must be repeatable to the bit."""
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def write(self, folder: Path, step: int) -> None:
        write_checkpoint(self.network, folder, self.recipe, tokenizer=self.data, state={"step": step})

    def measures(self, step: int, *, tasks: bool) -> dict[str, Any]:
        """Sinks of the checkpoint that these weights make and, where `tasks` asks for it, its accuracy."""
        with temporary_folder(self.to / "measured") as folder:
            self.write(folder, step)
            model = load(folder, device=self.device, dtype=torch.float32)
        rows = self.effort.rows
        found: dict[str, Any] = {}
        if model.spec.causal:
            found["sinks"] = autoregressive_sinks(model, self.text(rows, 64))
        else:
            canvases = half_written(self.text(rows, 192), mask_id=MASK, prompt=64)
            found["sinks"] = diffusion_sinks(model, canvases)
        for name in self.recipe.data.tasks if tasks else ():
            found[name] = accuracy(
                model, name, split="test", count=self.effort.problems, batch=256, unsafe=self.effort.unsafe
            )["accuracy"]
        return found

    def text(self, rows: int, length: int) -> torch.Tensor:
        """The beginnings of evenly spaced stretches of the held-out text, behind a bos."""
        starts = torch.linspace(0, len(self.held_out) - length, rows).long()
        stream = torch.from_numpy(self.held_out.astype("int64"))
        window = stream[starts[:, None] + torch.arange(length - 1)]
        return torch.nn.functional.pad(window, (1, 0), value=BOS)

    def log(self, entry: dict[str, Any]) -> None:
        append_log(self.to, entry)
        self.measured(entry)
