"""Rows of the tables as the arrays that analyses read."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.sinks.arrays import Canvases, LayerArrays, Received
from sinklens.traces.schema import ALL, column
from sinklens.traces.unpack import at_positions, check_width, dense, lengths_of, with_rest


def layer_of(
    attention: Any, uniform: Any, extra: Mapping[str, Any], *, layer: int, heads: Sequence[int], width: int
) -> LayerArrays:
    """One layer of one sample from its rows in `attention`, `uniform`, and, in extra, `norms` and `hidden`."""
    check_width(uniform["expected"], width)
    steps = attention["step"].to_numpy()[:: len(heads)]
    if (attention["head"].to_numpy() != np.tile(heads, len(steps))[: attention.num_rows]).any():
        raise ValueError(f"layer {layer} does not have one row for each step and head")
    rows = _uniform_rows(uniform, steps=len(steps), heads=len(heads))
    there = np.arange(width) < lengths_of(uniform["expected"])[rows[:, 0], None]
    seen = {
        name: dense(uniform[name], width, fill=0)[rows]
        for name in uniform.column_names
        if name not in ("step", "head") and _recorded(uniform, name)
    }
    kept = at_positions(attention["position"], width) if "position" in attention.column_names else None
    readings = {
        name.removeprefix("received").removeprefix("_"): _reading(
            attention, name, seen=seen, kept=kept, heads=len(heads)
        )
        for name in attention.column_names
        if name.startswith("received") and _recorded(attention, name)
    }
    norms, hidden = extra.get("norms"), extra.get("hidden")
    return LayerArrays(
        **vars(readings.pop("")),
        layer=layer,
        steps=steps,
        heads=np.array(heads),
        groups=readings,
        kept=None if kept is None else kept.reshape(len(steps), len(heads), width),
        output_norm=_norm(attention, "output_norm", there),
        key_norm=_norm(norms, "key_norm", there),
        value_norm=_norm(norms, "value_norm", there),
        hidden_norm=None if (values := _norm(hidden, "hidden_norm", there)) is None else values[:, 0],
        output_rank=_scalar(attention, "output_rank", len(heads)),
        output_size=_scalar(attention, "output_size", len(heads)),
        null_mass=_scalar(attention, "null_mass", len(heads)),
    )


def canvases_of(steps: Any, tokens: Any, *, sample: int, prompt_length: int, width: int) -> Canvases:
    """Every step of one sample from its rows in `steps` and `tokens`."""
    check_width(steps["canvas"], width)
    blocks = [steps[name].fill_null(-1).to_numpy() for name in ("block_start", "block_stop")]
    ids = tokens["id"].to_pylist()
    texts, classes = (dict(zip(ids, tokens[name].to_pylist(), strict=True)) for name in ("text", "class"))
    return Canvases(
        sample=sample,
        prompt_length=prompt_length,
        ids=dense(steps["canvas"], width, fill=-1, kind=np.int32),
        masked=dense(steps["masked"], width, fill=False, kind=bool),
        committed=at_positions(steps["committed"], width),
        confidence=dense(steps["confidence"], width),
        blocks=np.stack(blocks, axis=1),
        tokens={token: text for token, text in texts.items() if text is not None},
        classes={token: name for token, name in classes.items() if name is not None},
    )


def _recorded(table: Any, name: str) -> bool:
    """A column that was not recorded is null in every row, or has no rows where it may be null."""
    return bool(table[name].null_count == 0 and (table.num_rows or not table.schema.field(name).nullable))


def _uniform_rows(uniform: Any, *, steps: int, heads: int) -> Int[np.ndarray, "step heads_or_1"]:
    """Which row of `uniform` holds for each step and head; a single column where one holds for all heads."""
    order = np.argsort(uniform["step"].to_numpy(), kind="stable")
    for_all = uniform["head"].to_numpy()[order] == ALL
    if not for_all.all():
        order = np.repeat(order, np.where(for_all, heads, 1))
    columns = 1 if for_all.all() else heads
    if len(order) != steps * columns:
        raise ValueError("`uniform` does not cover the rows of `attention`")
    return order.reshape(steps, columns)


def _reading(
    attention: Any, name: str, *, seen: Mapping[str, Any], kept: Bool[np.ndarray, "row key"] | None, heads: int
) -> Received:
    group = name.removeprefix("received_") if name != "received" else None
    expected, viewers = (seen[column(kind, group)] for kind in ("expected", "viewers"))
    steps, _, width = expected.shape
    if kept is None:
        values = dense(attention[name], width)
    else:
        rest = np.nan_to_num(_scalars(attention, column("rest_share", group)))  # null: there is no other key
        rest = rest.reshape(steps, heads, 1) * expected
        rest = np.where(seen["expected"] > 0, rest, np.nan)  # what nobody at all may see is not there
        values = with_rest(attention[name], kept=kept, rest=rest.reshape(steps * heads, width))
    return Received(received=values.reshape(steps, heads, width), expected=expected, viewers=viewers)


def _norm(
    table: Any | None, name: str, there: Bool[np.ndarray, "step key"]
) -> Float[np.ndarray, "step row key"] | None:
    """A list column over the rows of each step; None where it was not recorded, or not asked for."""
    if table is None or name not in table.column_names or not _recorded(table, name):
        return None
    steps, width = there.shape
    if "position" not in table.column_names:
        return dense(table[name], width).reshape(steps, -1, width)
    rest = _scalars(table, f"rest_{name}").reshape(steps, -1, 1)
    filled = np.where(there[:, None], rest, np.nan).reshape(-1, width)
    return with_rest(table[name], kept=at_positions(table["position"], width), rest=filled).reshape(steps, -1, width)


def _scalars(table: Any, name: str) -> Float[np.ndarray, " row"]:
    """A column of numbers; null is NaN."""
    values: np.ndarray = table[name].to_numpy()
    return values.astype(np.float64)


def _scalar(table: Any, name: str, heads: int) -> Float[np.ndarray, "step head"] | None:
    if not _recorded(table, name):
        return None
    values: np.ndarray = table[name].to_numpy()
    return values.reshape(-1, heads)
