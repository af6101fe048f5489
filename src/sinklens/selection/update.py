"""One update of a selector: forward, losses, backward, optimizer; and the same as a CUDA graph.

The model is small, so the host, which launches about a thousand kernels an update, is slower than the card. All batches
have one shape: an update is captured once and replayed from then on. What it reads is copied into fixed places first;
the learning rate is one of them, and noise comes from a generator that the graph knows. Batches at alpha = 1 take
another way through the model and have a graph of their own.
"""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.attention.capture import capture
from sinklens.errors import UsageError
from sinklens.selection.channel import AWGN, Channel, Erasure
from sinklens.selection.losses import task_loss
from sinklens.selection.recipe import SelectionRecipe
from sinklens.selection.selector import Selector

WARM = 3  # updates of a kind before it is captured: kernels are chosen there, and the optimizer makes its moments

Losses = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """What an update reads, on the device of the model."""

    images: Float[Tensor, "batch channel height width"]
    labels: Int[Tensor, " batch"]
    alphas: Float[Tensor, "batch budgets"]
    snr: Float[Tensor, " batch"] | None  # dB; None: no noise

    def copied(self) -> "Batch":
        return Batch(
            images=self.images.clone(),
            labels=self.labels.clone(),
            alphas=self.alphas.clone(),
            snr=None if self.snr is None else self.snr.clone(),
        )

    def fill(self, other: "Batch") -> None:
        """Take the values of another."""
        for name in ("images", "labels", "alphas", "snr"):
            mine, new = getattr(self, name), getattr(other, name)
            if mine is not None:
                mine.copy_(new)


class Update:
    """Losses of a batch, still on the device; the weights have moved when they are there."""

    def __init__(self, recipe: SelectionRecipe, selector: Selector, optimizer: torch.optim.Optimizer) -> None:
        self.recipe, self.selector, self.optimizer = recipe, selector, optimizer
        self.device = selector.calibration.device
        self.noise = torch.Generator(self.device)
        self._trained = [value for value in selector.parameters() if value.requires_grad]

    def __call__(self, batch: Batch, *, full: bool, seed: int) -> Losses:
        """full: the batch is at alpha = 1, all of it. seed: of noise, and of patches that are drawn."""
        self.noise.manual_seed(seed)
        return self.run(batch, full)

    def run(self, batch: Batch, full: bool) -> Losses:
        """Nothing in here waits for the card."""
        recipe, selector = self.recipe, self.selector
        with self._precision():
            selected = selector.unchecked(
                batch.images,
                batch.alphas,
                full=full,
                channel=None if full else self._channel(batch),
                generator=self.noise,
            )
        task = task_loss(selected.logits, batch.labels, smoothing=recipe.optimizer.smoothing)
        spent = recipe.budget.of(selected.shares, batch.alphas, channel_gate=selector.channel_gate)
        self.optimizer.zero_grad(set_to_none=True)
        (task + spent).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._trained, recipe.optimizer.clip)
        self.optimizer.step()
        right = (selected.logits.argmax(dim=1) == batch.labels).float().mean()
        return {"task": task.detach(), "budget": spent.detach(), "accuracy": right}

    def _channel(self, batch: Batch) -> Channel | None:
        links: list[Channel] = []
        if batch.snr is not None:
            links.append(AWGN(batch.snr))
        if self.recipe.noise.erasure:
            links.append(Erasure(self.recipe.noise.erasure))
        if not links:
            return None

        def through(symbols: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
            for link in links:
                symbols = link(symbols, generator=generator)
            return symbols

        return through

    def _precision(self) -> Any:
        if self.recipe.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


@runtime_checkable
class Recorder(Protocol):
    """How an update is prepared and captured."""

    def warm(self, run: Callable[[], Losses]) -> Losses:
        """Run it once, as it will be captured."""
        ...

    def record(self, run: Callable[[], Losses], noise: torch.Generator) -> Callable[[], Losses]:
        """What runs it from now on; the losses are overwritten by the next run."""
        ...


class CudaRecorder:
    """CUDA graphs. What is captured must have run on a stream of its own before."""

    def __init__(self) -> None:
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def warm(self, run: Callable[[], Losses]) -> Losses:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            losses = run()
        torch.cuda.current_stream().wait_stream(self._stream)
        return losses

    def record(self, run: Callable[[], Losses], noise: torch.Generator) -> Callable[[], Losses]:
        gc.collect()  # graphs of autograd that nobody needs would bring their streams with them
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(noise)  # its seed and place are read anew in every replay
        try:
            with capture(graph):
                losses = run()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(
                f"the update of this recipe cannot be captured in a CUDA graph ({reason}); set graph = false"
            ) from error

        def replay() -> Losses:
            graph.replay()
            return losses

        return replay


class CapturedUpdate:
    """An update that is captured when it is warm. All batches must have the shape of the first."""

    def __init__(self, update: Update, recorder: Recorder) -> None:
        self._update, self._recorder = update, recorder
        self._places: Batch | None = None
        self._count = {True: 0, False: 0}
        self._replays: dict[bool, Callable[[], Losses]] = {}

    def __call__(self, batch: Batch, *, full: bool, seed: int) -> Losses:
        self._update.noise.manual_seed(seed)
        if self._places is None:
            self._places = batch.copied()
        places = self._places
        places.fill(batch)

        def run() -> Losses:
            return self._update.run(places, full)

        if full not in self._replays:
            self._count[full] += 1
            if self._count[full] <= WARM:
                return self._recorder.warm(run)
            self._replays[full] = self._recorder.record(run, self._update.noise)
        return self._replays[full]()


def update_of(recipe: SelectionRecipe, selector: Selector, optimizer: torch.optim.Optimizer) -> Update | CapturedUpdate:
    """As the recipe asks for it: captured on a CUDA device unless it says `graph = false`."""
    update = Update(recipe, selector, optimizer)
    if not captures(recipe, update.device):
        return update
    if recipe.ranking == "tome":
        raise UsageError(
            "ranking 'tome' merges in as many rounds as a batch needs, which no CUDA graph can; set graph = false"
        )
    return CapturedUpdate(update, CudaRecorder())


def captures(recipe: SelectionRecipe, device: torch.device) -> bool:
    return recipe.graph and device.type == "cuda"
