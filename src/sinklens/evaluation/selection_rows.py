"""The rows of a selection experiment as arrays, cell by cell: a hundred cells of ten thousand images fit in memory."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from sinklens.evaluation.selection_store import SelectionStore

Key = tuple[str, str, float, str, float | None]  # method, model, alpha, channel, level
KEY = ("method", "model", "alpha", "channel", "level")
_NUMBERS = ("image", "right", "loss", "sent", "rate", "side_bits", "macs")


@dataclass(frozen=True, kw_only=True, eq=False)
class CellRows:
    """One cell; images in rising order."""

    image: Int[np.ndarray, " n"]
    right: Float[np.ndarray, " n"]  # 0 or 1
    loss: Float[np.ndarray, " n"]
    sent: Float[np.ndarray, " n"]
    rate: Float[np.ndarray, " n"]
    side_bits: Float[np.ndarray, " n"]
    macs: Float[np.ndarray, " n"]
    kept: Int[np.ndarray, "n gate"]
    recall: Float[np.ndarray, "n gate"]  # NaN where no foreground is known
    mask: UInt8[np.ndarray, "n byte"] | None

    def __len__(self) -> int:
        return len(self.image)

    def in_common(self, other: "CellRows") -> tuple[Int[np.ndarray, " both"], Int[np.ndarray, " both"]]:
        """Where the images that both have stand, in each of them."""
        _, mine, theirs = np.intersect1d(self.image, other.image, assume_unique=True, return_indices=True)
        return mine, theirs

    def masks(self, places: Int[np.ndarray, " some"], *, patches: int) -> Bool[np.ndarray, "some gate patch"]:
        assert self.mask is not None
        gates = self.kept.shape[1]
        bits = np.unpackbits(self.mask[places], axis=1, count=gates * patches).astype(bool)
        masks: np.ndarray = bits.reshape(len(places), gates, patches)
        return masks


def read_cells(store: SelectionStore) -> dict[Key, CellRows]:
    """All cells of a folder; every file of rows has a batch of one of them."""
    parts: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for table in store.tables("rows"):
        key = tuple(table[name][0].as_py() for name in KEY)
        parts[key].append(_arrays(table))
    return {key: _joined(some) for key, some in parts.items()}


def _arrays(table: Any) -> dict[str, Any]:
    found: dict[str, Any] = {name: np.asarray(table[name].to_numpy(), np.float64) for name in _NUMBERS}
    found["kept"] = np.array(table["kept"].to_pylist(), np.int64)
    gates = found["kept"].shape[1]
    recall = [[np.nan] * gates if row is None else row for row in table["recall"].to_pylist()]
    found["recall"] = np.array(recall, np.float64)
    masks = table["mask"].to_pylist()
    found["mask"] = None if masks[0] is None else np.stack([np.frombuffer(one, np.uint8) for one in masks])
    return found


def _joined(parts: list[dict[str, Any]]) -> CellRows:
    order = np.argsort(np.concatenate([part["image"] for part in parts]))

    def column(name: str) -> Any:
        return None if parts[0][name] is None else np.concatenate([part[name] for part in parts])[order]

    values = {name: column(name) for name in parts[0]}
    return CellRows(**values | {"image": values["image"].astype(np.int64)})
