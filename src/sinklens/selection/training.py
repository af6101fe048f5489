"""`train`: from a recipe and images to a selector in a folder, with a log.

Every draw (order of the images, budgets, noise) is made from the seed and the step alone, and what is saved holds the
optimizer too. So a run that is killed goes on from where it last saved and, on a CPU, ends with the same bits.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import UsageError
from sinklens.files import append_line, is_step_log, whole_lines, write_json, write_lines
from sinklens.locks import refuse_strangers, writing_alone
from sinklens.models.fields import read_json
from sinklens.selection.backbone import wrap_backbone
from sinklens.selection.calibration import batch_of, calibrate
from sinklens.selection.folder import fill, load_selector, save_selector, tensors_of
from sinklens.selection.losses import draw_alphas
from sinklens.selection.recipe import SelectionRecipe
from sinklens.selection.selector import Selector
from sinklens.selection.state import read_state, write_state
from sinklens.selection.update import Batch, captures, update_of
from sinklens.selection.vit import SmallViT

STATE, ABOUT, LOG = "state.safetensors", "training.json", "log.jsonl"
_FULL, _ORDER, _BUDGET, _NOISE = range(4)  # purposes of draws


def build_selector(recipe: SelectionRecipe) -> Selector:
    """The selector of a recipe before its first step."""
    if recipe.start is None:
        backbone: Any = SmallViT(recipe.shape, seed=recipe.seed)
    else:
        with torch.random.fork_rng(devices=[]):  # a new head is drawn from it
            torch.manual_seed(recipe.seed)
            backbone = wrap_backbone(recipe.start, classes=recipe.shape.classes, revision=recipe.revision)
    return Selector(
        backbone,
        recipe.gating,
        start=recipe.gates,
        ranking=recipe.ranking,
        codec_rate=recipe.codec_rate,
        seed=recipe.seed,
    )


def train(
    recipe: SelectionRecipe,
    data: Any,
    *,
    to: str | Path,
    validation: Any = None,
    device: str | torch.device = "cpu",
    resume: bool = False,
    stepped: Callable[[int, Mapping[str, float]], None] = lambda step, entry: None,
) -> Selector:
    """Train on `data` (images [n, channels, height, width] in [0, 1] or bytes, labels [n]) into the folder `to`.

    data: or a function from the number of an epoch to as many images, for canvases that are new in every epoch.
    validation: what the calibration is measured on; the training images where there is none.
    """
    refuse_others(Path(to))
    selector = build_selector(recipe).to(device)
    run = _Run(recipe, selector, data, to=Path(to))
    with writing_alone(run.to):
        first = _begin(run, resume=resume)
        if first is not None:
            with _matrix_products(recipe.precision):
                run.go(first, stepped)
            run.finish(validation)
    return selector.eval()


def refuse_others(to: Path) -> None:
    """A run that was killed before its first checkpoint was whole leaves a log, and perhaps a state."""
    refuse_strangers(to, what="training run", mark=ABOUT, own={LOG, STATE} if is_step_log(to / LOG) else ())


def _begin(run: "_Run", *, resume: bool) -> int | None:
    """The first step to do, None where all is done; the log is cut to what lies before."""
    to = run.to
    known = read_json(to / ABOUT) if (to / ABOUT).is_file() else None
    if known is None:
        write_lines(to / LOG, [])  # what tells that the folder is ours, should this run be killed early
        return 0
    if known.get("fingerprint") != run.recipe.fingerprint:
        raise UsageError(f"{to} was trained by another recipe; train this one into another folder")
    if not resume:
        raise UsageError(
            f"{to} holds a run that reached step {known['step']}; ask to resume it, or choose another folder"
        )
    if not (to / STATE).is_file():  # finished
        done = load_selector(to)
        run.selector.calibration = done.calibration.to(run.device)
        fill(run.selector, tensors_of(done))
        return None
    step = read_state(to / STATE, run.selector, run.optimizer)
    lines = whole_lines(to / LOG) if (to / LOG).is_file() else []
    write_lines(to / LOG, [line for line in lines if json.loads(line)["step"] <= step])
    return step


class _Run:
    """One training under way."""

    def __init__(self, recipe: SelectionRecipe, selector: Selector, data: Any, *, to: Path) -> None:
        self.recipe, self.selector, self.data, self.to = recipe, selector, data, to
        first = data(0) if callable(data) else data
        _check_data(selector, first)
        self.count = len(first.labels)
        self.device = selector.calibration.device
        self.optimizer = _optimizer(recipe, selector)
        self.update = update_of(recipe, selector, self.optimizer)
        self._epoch, self._images, self._order = -1, first, torch.empty(0, dtype=torch.long)

    def go(self, first: int, stepped: Callable[[int, Mapping[str, float]], None]) -> None:
        """Train to the end, saving on the way."""
        schedule = self.recipe.schedule
        self.selector.train()
        sums: dict[str, Tensor] = {}
        counted, clock = 0, time.monotonic()
        for step in range(first, schedule.steps):
            _set_rate(self.optimizer, self.recipe.optimizer.lr * schedule.rate(step))
            found = self.step(step)
            sums = {key: sums[key] + value if key in sums else value.clone() for key, value in found.items()}
            counted, done = counted + 1, step + 1
            if done % schedule.save_every and done != schedule.steps:
                stepped(done, {})
                continue
            entry = {key: float(value) / counted for key, value in sums.items()}
            entry["images_per_second"] = counted * schedule.batch / (time.monotonic() - clock)
            append_line(self.to / LOG, json.dumps({"step": done, **entry}))
            self.save(done)
            stepped(done, entry)
            sums, counted, clock = {}, 0, time.monotonic()

    def step(self, step: int) -> dict[str, Tensor]:
        """One update; its losses, still on the device."""
        schedule = self.recipe.schedule
        images, labels = self._batch(step)
        full = step < schedule.plain or bool(torch.rand((), generator=self._draws(step, _FULL)) < schedule.full_share)
        alphas, snr = self._alphas(step, full), self._snr(step)
        batch = Batch(
            images=images,
            labels=labels,
            alphas=alphas.to(self.device, non_blocking=True),
            snr=None if snr is None else snr.to(self.device, non_blocking=True),
        )
        return self.update(batch, full=full, seed=self._seed(step, _NOISE))

    def _alphas(self, step: int, full: bool) -> Float[Tensor, "batch budgets"]:
        size = (self.recipe.schedule.batch, self.recipe.gating.budgets)
        if full:
            return torch.ones(size)
        if self.recipe.alpha is not None:
            return torch.full(size, self.recipe.alpha)
        return draw_alphas(*size, generator=self._draws(step, _BUDGET))

    def _snr(self, step: int) -> Float[Tensor, " batch"] | None:
        """dB, one for each image."""
        low, high = self.recipe.noise.snr_low, self.recipe.noise.snr_high
        if low is None or high is None:
            return None
        return low + (high - low) * torch.rand(self.recipe.schedule.batch, generator=self._draws(step, _NOISE))

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a step. An epoch is one permutation, without what does not fill a batch."""
        batch = self.recipe.schedule.batch
        epoch, turn = divmod(step, max(1, self.count // batch))
        if self._epoch != epoch:
            self._epoch = epoch
            self._images = self.data(epoch) if callable(self.data) else self.data
            order = torch.randperm(self.count, generator=self._draws(epoch, _ORDER))
            self._order = order.repeat(-(-batch // self.count)).to(self._images.labels.device)
        return batch_of(self._images, self._order[turn * batch : (turn + 1) * batch], self.device)

    def _draws(self, step: int, purpose: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed(step, purpose))

    def _seed(self, step: int, purpose: int) -> int:
        return (self.recipe.seed * 2**24 + step) * 4 + purpose

    def finish(self, validation: Any) -> None:
        """Calibrate what has one learnt budget, and leave the selector in place of the state."""
        recipe, selector = self.recipe, self.selector.eval()
        if recipe.alpha is None and recipe.gating.budgets == 1 and recipe.ranking is None:
            self._batch(recipe.schedule.steps - 1)  # the images of the last epoch, also after a kill right behind it
            calibrate(selector, self._images if validation is None else validation)
        save_selector(selector, self.to, metadata={"step": str(recipe.schedule.steps)})
        write_json(self.to / ABOUT, self.about(recipe.schedule.steps))
        (self.to / STATE).unlink(missing_ok=True)

    def about(self, step: int) -> dict[str, Any]:
        return {"step": step, "fingerprint": self.recipe.fingerprint, "recipe": self.recipe.as_dict()}

    def save(self, step: int) -> None:
        write_state(self.to / STATE, self.selector, self.optimizer, step=step)
        write_json(self.to / ABOUT, self.about(step))


@contextmanager
def _matrix_products(precision: str) -> Iterator[None]:
    """In TF32 inside, forward and backward, where it is asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _optimizer(recipe: SelectionRecipe, selector: Selector) -> torch.optim.Optimizer:
    """AdamW; decay is for the matrices of backbone and codec alone."""
    decayed, others = [], []
    for name, value in selector.named_parameters():
        if not recipe.optimizer.train_backbone and _is_frozen(name):
            value.requires_grad_(False)
        elif value.dim() > 1 and name.endswith("weight") and not name.startswith("gates."):
            decayed.append(value)
        else:
            others.append(value)
    groups = [
        {"params": decayed, "weight_decay": recipe.optimizer.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    device = selector.calibration.device
    captured = captures(recipe, device)
    lr = torch.tensor(recipe.optimizer.lr, device=device) if captured else recipe.optimizer.lr
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=device.type == "cuda", capturable=captured)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # where a graph reads it
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _is_frozen(name: str) -> bool:
    """With a frozen backbone, its class token and head still learn."""
    return name.startswith("backbone.") and not any(part in name for part in ("cls", "classifier", "distillation"))


def _check_data(selector: Selector, data: Any) -> None:
    labels = data.labels
    if not len(labels):
        raise UsageError("there are no images to train on; expected at least one")
    highest = int(labels.max())
    if highest >= selector.backbone.classes:
        raise UsageError(
            f"the images have labels up to {highest}, the model {selector.backbone.classes} classes; set shape.classes"
        )
