"""Small objects on large cluttered canvases: images in which most patches do not matter, and one knows which do.

On its own black background an object is all that has any energy, so that the largest norms are the object. A canvas
takes that away. From back to front:

    background   a level and a linear gradient
    pieces       windows cut out of other images, at any contrast
    distractor   an object of another class, smaller: whole and see-through (a low contrast), or opaque and cut in half
    object       at a random place and size; its silhouette is the foreground mask
    noise        uniform, over all of it

Everything drawn is a hash of (seed, image number, purpose): an image is the same in any batch, whichever others are
made. Objects are scaled by matrices of linear interpolation, canvas = R o C^T, for a whole batch at once.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from sinklens.errors import UsageError
from sinklens.kernels.hashing import mix, unit

SILHOUETTE = 16 / 255  # what is brighter belongs to the object
# Canvases at a time: on a processor what is in work stays in its caches, on a GPU few kernels are started.
BATCH, GPU_BATCH = 256, 2048

Range = tuple[float | int, float | int]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a canvas is made of. Ranges are drawn from evenly; contrasts multiply brightness alone."""

    size: int = 64  # pixels a side
    object_side: Range = (28.0, 36.0)  # pixels, of the frame that the object came in
    object_contrast: Range = (0.7, 1.0)
    background: Range = (0.0, 0.65)
    gradient: Range = (0.0, 0.5)  # from one side of the canvas to the other
    pieces: int = 5
    piece_side: Range = (0.3, 0.5)  # of the source image
    piece_contrast: Range = (0.5, 1.0)
    distractor_side: Range = (18.0, 24.0)
    distractor_opacity: Range = (0.25, 0.4)
    cut_share: float = 0.5  # of the distractors: opaque, but only one half of it
    noise: Range = (0.02, 0.1)  # amplitude

    def __post_init__(self) -> None:
        if self.object_side[1] > self.size or self.distractor_side[1] > self.size:
            raise UsageError(f"objects of up to {self.object_side[1]:g} pixels do not fit a canvas of {self.size}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Canvases:
    """Finished canvases, and where their objects are."""

    pixels: UInt8[Tensor, "n 1 height width"]
    foreground: Bool[Tensor, "n height width"]


class CanvasMaker:
    """Makes canvases out of a pool of objects, on the device that the pool is on."""

    def __init__(
        self, objects: UInt8[Tensor, "pool height width"], labels: Int[Tensor, " pool"], *, scene: Scene | None = None
    ) -> None:
        self.scene = Scene() if scene is None else scene
        self.labels = labels.long()
        present, self._class = torch.unique(self.labels, return_inverse=True)
        if len(present) < 2:
            raise UsageError(f"canvases need objects of two classes or more, for the distractor; got {len(present)}")
        self._by_class = self._class.argsort(stable=True)
        self._counts = self._class.bincount()
        self._starts = self._counts.cumsum(0) - self._counts
        self.layers = _with_silhouettes(objects)

    def make(self, index: Int[Tensor, " n"], *, seed: int = 0) -> Canvases:
        """The canvases of some objects of the pool; another seed is another canvas for each."""
        index = index.to(self.labels.device)
        parts = [self._batch(part, seed) for part in torch.split(index, GPU_BATCH if index.is_cuda else BATCH)]
        return Canvases(
            pixels=torch.cat([pixels for pixels, _ in parts]), foreground=torch.cat([mask for _, mask in parts])
        )

    def _batch(self, index: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        scene = self.scene
        draws = _Draws(seed, index)
        canvas = _background(draws, scene)
        for _ in range(scene.pieces):
            canvas = _over(canvas, self._piece(draws))
        canvas = _over(canvas, self._distractor(draws, index))
        contrast = draws.between(scene.object_contrast)
        rows, columns = _placed(draws, draws.between(scene.object_side), self.layers.shape[-2:], scene.size)
        layer = _project(rows, self.layers[index], columns)
        canvas = _over(canvas, _dim(layer, contrast))
        amplitude = draws.between(scene.noise)[:, None, None]
        canvas += (2 * draws.pixels(scene.size) - 1) * amplitude
        pixels = (canvas.clamp_(0, 1) * 255).round_().to(torch.uint8)
        return pixels[:, None], layer[:, 1] > 0.5

    def _piece(self, draws: "_Draws") -> Tensor:
        """A window of some image of the pool, of the size it has there when scaled as objects are."""
        scene, source = self.scene, self.layers.shape[-2:]
        chosen = self.layers[(draws.uniform() * len(self.layers)).long()]
        # A frame may lie partly outside: else no piece would come near the edges, and edges would tell nothing.
        rows, columns = _placed(draws, draws.between(scene.object_side), source, scene.size, beyond=0.4)
        for axis, length in ((rows, source[0]), (columns, source[1])):
            side = draws.between(scene.piece_side)
            low = draws.uniform() * (1 - side)
            _keep_window(axis, low * length, (low + side) * length)
        return _dim(_project(rows, chosen, columns), draws.between(scene.piece_contrast))

    def _distractor(self, draws: "_Draws", index: Tensor) -> Tensor:
        scene, source = self.scene, self.layers.shape[-2:]
        classes = len(self._counts)
        other = (self._class[index] + 1 + (draws.uniform() * (classes - 1)).long()) % classes
        member = self._starts[other] + (draws.uniform() * self._counts[other]).long()
        rows, columns = _placed(draws, draws.between(scene.distractor_side), source, scene.size)
        cut = draws.uniform() < scene.cut_share
        second = draws.uniform() < 0.5
        half, all_of_it = source[0] / 2, float(source[0])
        _keep_window(rows, torch.where(cut & second, half, 0.0), torch.where(cut & ~second, half, all_of_it))
        layer = _dim(_project(rows, self.layers[self._by_class[member]], columns), draws.between(scene.object_contrast))
        return layer * torch.where(cut, 1.0, draws.between(scene.distractor_opacity))[:, None, None, None]


class _Draws:
    """Numbers in [0, 1) for a batch of images, one after the other; each depends on seed, image and its turn alone."""

    def __init__(self, seed: int, index: Int[Tensor, " batch"]) -> None:
        self._images = mix(mix(torch.full_like(index, seed)) + index)
        self._turn = 0

    def uniform(self) -> Float[Tensor, " batch"]:
        self._turn += 1
        return unit(mix(self._images + self._turn), bits=24)

    def between(self, limits: Range) -> Float[Tensor, " batch"]:
        return limits[0] + (limits[1] - limits[0]) * self.uniform()

    def pixels(self, size: int) -> Float[Tensor, "batch {size} {size}"]:
        self._turn += 1
        places = torch.arange(size * size, device=self._images.device)
        return unit(mix(mix(self._images + self._turn)[:, None] + places), bits=24).view(-1, size, size)


def _with_silhouettes(objects: Tensor) -> Float[Tensor, "pool 2 height width"]:
    """Brightness inside the silhouette, and the silhouette. Holes of one pixel are closed."""
    values = objects.float() / 255
    inside = F.pad((values > SILHOUETTE).float(), (1, 1, 1, 1))
    grown = F.max_pool2d(inside[:, None], 3, stride=1, padding=1)
    closed = -F.max_pool2d(-grown, 3, stride=1, padding=1)[:, 0, 1:-1, 1:-1]
    return torch.stack((values * closed, closed), dim=1)


def _placed(
    draws: _Draws, side: Tensor, source: torch.Size, size: int, *, beyond: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Interpolation matrices [batch, canvas, source] for rows and columns, at a random place on the canvas.

    beyond: how much of the frame may be outside of it.
    """

    def axis(length: int) -> Tensor:
        start = draws.uniform() * (size - (1 - 2 * beyond) * side) - beyond * side
        return _axis(start, side, length, size)

    return axis(source[0]), axis(source[1])


def _axis(start: Tensor, side: Tensor, source: int, size: int) -> Float[Tensor, "batch canvas source"]:
    pixel = torch.arange(size, device=start.device) + 0.5
    place = (pixel - start[:, None]) * (source / side)[:, None] - 0.5
    return (1 - (place[..., None] - torch.arange(source, device=start.device)).abs_()).clamp_(min=0)


def _keep_window(axis: Tensor, low: Tensor, high: Tensor) -> None:
    place = torch.arange(axis.shape[-1], device=axis.device) + 0.5
    axis *= ((place >= low[:, None]) & (place < high[:, None]))[:, None]


def _project(rows: Tensor, layers: Tensor, columns: Tensor) -> Float[Tensor, "batch 2 canvas canvas"]:
    return rows[:, None] @ layers @ columns.transpose(1, 2)[:, None]


def _dim(layer: Tensor, contrast: Tensor) -> Tensor:
    """Less bright, and as opaque as before."""
    return layer * torch.stack((contrast, torch.ones_like(contrast)), dim=1)[..., None, None]


def _over(canvas: Tensor, layer: Tensor) -> Tensor:
    return (canvas * (1 - layer[:, 1])).add_(layer[:, 0])


def _background(draws: _Draws, scene: Scene) -> Float[Tensor, "batch canvas canvas"]:
    level, slope, angle = draws.between(scene.background), draws.between(scene.gradient), draws.uniform() * 2 * torch.pi
    along = torch.linspace(0, 1, scene.size, device=level.device)
    down, right = angle.sin()[:, None, None] * along[:, None], angle.cos()[:, None, None] * along
    steep = down + right
    # The projection of the canvas on a direction, from 0 to 1 over its four corners.
    low = torch.minimum(angle.sin(), torch.zeros_like(angle)) + torch.minimum(angle.cos(), torch.zeros_like(angle))
    reach = angle.sin().abs() + angle.cos().abs()
    return level[:, None, None] + slope[:, None, None] * (steep - low[:, None, None]) / reach[:, None, None]
