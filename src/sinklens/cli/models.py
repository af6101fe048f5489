"""`sinklens models`: the checkpoints that have a name here, or all that a config says about one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options

if TYPE_CHECKING:
    from sinklens.models.catalog import Published


def models(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A folder, a hub id, or a name from the list.",
            autocompletion=options.known_models,
        ),
    ] = None,
    *,
    revision: options.Revision = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """List known models, or describe one by its config and file headers, without loading weights."""
    from sinklens.cli.output import print_json

    if model is None:
        rows = list_models()
        if json:
            print_json({"models": rows})
        else:
            _print_list(rows)
        return
    from sinklens.cli.checkpoint import describe
    from sinklens.cli.output import quiet_unless_terminal

    with quiet_unless_terminal():
        description = describe(model, revision=revision)
    if json:
        print_json(description)
    else:
        _print_description(description)


def list_models() -> list[dict[str, Any]]:
    """The catalog, embedded models first."""
    from sinklens.cli.samplers import sampler_name
    from sinklens.models.catalog import EMBEDDED, KNOWN, PACKAGED, ZOO

    embedded = {name: _published(ZOO / folder) for name, folder in EMBEDDED.items()}
    return [
        {
            "name": name,
            "hub_id": getattr(entry, "hub_id", None),
            "family": entry.family,
            "parameters": entry.parameters,
            "bf16_gigabytes": round(entry.bf16_gigabytes, 1 if entry.bf16_gigabytes >= 0.1 else 3),
            "context": entry.context,
            "sampler": sampler_name(entry.family),
        }
        for name, entry in (*embedded.items(), *PACKAGED.items(), *KNOWN.items())
    ]


def _published(folder: Path) -> "Published":
    """What the config of an embedded model and the header of its weights say, read without numpy or torch."""
    from math import prod

    from sinklens.files import parse_json
    from sinklens.models.catalog import Published
    from sinklens.models.fields import read_json

    config = read_json(folder / "config.json")
    with (folder / "model.safetensors").open("rb") as file:
        header = parse_json(file.read(int.from_bytes(file.read(8), "little")).decode())
    parameters = sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    context = config["max_sequence_length" if "max_sequence_length" in config else "max_position_embeddings"]
    return Published(family=str(config["model_type"]).lower(), parameters=parameters, context=context)


def _print_list(rows: list[dict[str, Any]]) -> None:
    from sinklens.cli.output import terminal_width
    from sinklens.report.columns import columns

    header = ("name", "hub id", "family", "parameters", "GB bf16", "context", "sampler")
    table = [tuple("-" if cell is None else _cell(cell) for cell in row.values()) for row in rows]
    print("\n".join(columns(header, table, width=terminal_width())))
    print("\nAny checkpoint folder or hub id works as well: sinklens models MODEL")


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_description(description: dict[str, Any]) -> None:
    weights = description["weights"]
    lines: dict[str, Any] = {
        "model": description["model"],
        "folder": description["folder"],
        **{name.replace("_", " "): value for name, value in description["spec"].items() if name != "source"},
        "sampler": description["sampler"],
        "tokenizer": description["tokenizer"],
        **({} if weights is None else {"parameters": weights["parameters"]}),
        "weights": _show_weights(weights, description["pickles"]),
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name.ljust(width)}  {_show(value)}")


def _show_weights(weights: dict[str, Any] | None, pickles: list[str]) -> str | None:
    if weights is not None:
        return f"{_size(weights['bytes'])} in {', '.join(weights['dtypes'])}"
    return f"{', '.join(pickles)} (pickle, not loaded)" if pickles else None


def _size(count: int) -> str:
    """Bytes in the unit that keeps the number between 0.1 and 100, three digits of it."""
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB")) if count >= 0.1 * u), (1e3, "kB"))
    return f"{count / unit:.3g} {name}"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else _cell(value)
