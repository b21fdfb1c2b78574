"""assay seal: a run signed with one's own key, or a seal checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.meter import metered
from assay.cli.options import Debug
from assay.cli.printing import console, say
from assay.errors import AssayError

SHOWN = 20
"""Broken links that are told one by one."""


def seal(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="The run to seal.", show_default=False)] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="PEM: the private key to seal with, or the public one to check with."
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="PATH", help="The model's file or folder, byte by byte.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="PATH", help="The data's file or folder, byte by byte.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="BUNDLE", help="Judge this seal, or a model.sig, instead.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="With --check: the run, if the seal does not lie in its folder."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Sign a run with your own key, or check what somebody sealed. No network is used.

    The seal holds digests of every file of the run and, where they are given, of the model and the data. With --model,
    seal/model.sig is what `model_signing verify key` reads; seal/bom.cdx.json is a CycloneDX bill of materials.
    An encrypted key's passphrase is asked for, or taken from ASSAY_KEY_PASSPHRASE.

    With --check, ends with 0 if the seal is whole, 1 if something broke, 2 for bad input. Whether the numbers are
    right is another question: assay verify.

    Example: assay seal runs/20260301-120000-fashion-cnn --key key.pem --model model.pt2

    Example: assay seal --check runs/20260301-120000-fashion-cnn --key key.pub --model model.pt2
    """
    from assay.jobs.seal import check as judge
    from assay.jobs.seal import seal as sign
    from assay.store.envelope import NEW_KEY

    if key is None:
        raise AssayError(f"A seal needs --key; make one with: {NEW_KEY} (its public half: openssl pkey -pubout)")
    if check is None:
        if run is None or against is not None:
            raise AssayError("Say what to seal: assay seal RUN --key FILE; --run goes with --check.")
        with metered() as meter:
            made = sign(run, key, model=model, data=data, passphrase=passphrase, doing=meter.doing)
        say(console(), f"sealed {_counted(made.counts)} with the key {made.signer[:16]}")
        if "model" not in made.counts:
            say(console(), "the model's bytes are not sealed, only Assay's fingerprint of it: --model seals them")
        typer.echo(made.bundle)
        return
    if run is not None:
        raise AssayError(f"With --check, say --run {str(run)!r}: RUN alone is a run to seal.")
    with metered() as meter:
        done = judge(check, key, run=against, model=model, data=data, doing=meter.doing)
    to = console()
    for link in done.broken[:SHOWN]:
        say(to, f"broken: {link}")
    if len(done.broken) > SHOWN:
        say(to, f"and {len(done.broken) - SHOWN} more")
    for part in done.unseen:
        say(to, f"the {part} is sealed too, and was not compared: give --{part}")
    when = f", sealed {done.when}" if done.when else ""
    what = f"the signature is of the key {done.signer[:16]}{when}; compared {_counted(done.counts)}"
    say(to, f"broken: {len(done.broken)} of its links" if done.broken else f"whole: {what}")
    raise typer.Exit(1 if done.broken else 0)


def _counted(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{n} {'file' if n == 1 else 'files'} of the {part}" for part, n in counts.items())


def passphrase() -> str | None:
    if not sys.stdin.isatty():
        return None
    given: str = typer.prompt("Passphrase of the key", hide_input=True, err=True)
    return given
