"""`sinklens verify`: is our LLaDA, Dream or MMaDA the original one?"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sinklens.cli import options


def verify(
    model: options.Model,
    *,
    reference: Annotated[
        Path,
        typer.Option(metavar="SCRIPT", help="Runs the original code; docs/verify.md shows how to write one."),
    ],
    python: Annotated[
        str,
        typer.Option(metavar="PATH", help="The Python that runs it.", show_default="the one running sinklens"),
    ] = sys.executable,
    reference_model: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="What the script is told to load.", show_default="the folder of MODEL"),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time the script may take.")] = 3600.0,
    dtype: Annotated[
        str,
        typer.Option(metavar="NAME", help="float32, bfloat16 or float16; canvases are exact in float32 only."),
    ] = "float32",
    device: Annotated[str, typer.Option(metavar="NAME", help="Where both sides compute: cpu, cuda, ...")] = "cpu",
    revision: options.Revision = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the certificate goes.", show_default="runs/verify-NAME"),
    ] = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Compare a model with its original code, and certify the outcome.

    The script is run by its own Python in a subprocess; logits must agree within a stated tolerance, three
    generations token by token. Exit code 1 when they do not, with where they part first.
    """
    from sinklens.cli.interrupts import import_heavy
    from sinklens.cli.output import print_json, quiet_unless_terminal

    import_heavy(models=True)
    from sinklens.verification import Reference
    from sinklens.verification import verify as compare

    folder = to or Path("runs") / f"verify-{Path(model).name or Path(model).resolve().name}"
    asked = Reference(script=reference, python=python, model=reference_model, timeout=timeout)
    with quiet_unless_terminal():
        certificate = compare(model, asked, to=folder, dtype=dtype, device=device, revision=revision)
    if json:
        print_json(certificate)
        return
    logits = certificate["logits"]
    print(f"{certificate['model']} agrees with the reference")
    print(f"logits: largest difference {logits['largest_difference']:.3g}, tolerance {logits['tolerance']:.3g}")
    print(f"canvases: {len(certificate['canvases'])} of {len(certificate['canvases'])} equal")
    print(f"certificate: {folder / 'certificate.json'}")
