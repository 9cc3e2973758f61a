"""`labelveil certificates`: a test authority and both parties' certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.config.answers import Json, print_json
from common.config.options import with_options
from common.console import stdout
from common.release.signature import SIGNING_KEY, write_signing_key
from common.security.pilot_certificates import FEATURE_PARTY, LABEL_PARTY, write_certificates


@with_options()
def certificates(
    shown: Json,
    out: Annotated[Path, typer.Option(help="Folder to write to; no file is overwritten.")],
    label_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or address under which the features party reaches the labels party,"
            " besides localhost; may be repeated."
        ),
    ] = None,
    label_party: Annotated[
        str, typer.Option(help="The labels party's name in its certificate.")
    ] = LABEL_PARTY,
    feature_party: Annotated[
        str, typer.Option(help="The features party's name, by which the server authorizes it.")
    ] = FEATURE_PARTY,
    days: Annotated[int, typer.Option(help="Days of validity.")] = 365,
    signing_key: Annotated[
        bool,
        typer.Option(
            "--signing-key", help="Make a pair of keys to sign and to verify manifests with, too."
        ),
    ] = False,
) -> None:
    """Make certificates for tests and pilots.

    Writes a small authority's certificate, a certificate and a key for each party, and the secret
    under which both hash their event keys. A real deployment brings its own authority: here one
    command sees both parties' keys, and the authority's key is forgotten, so that nothing can be
    renewed or revoked.

    """
    files = write_certificates(
        out,
        label_hosts=label_host or (),
        label_party=label_party,
        feature_party=feature_party,
        days=days,
    )
    private = out / SIGNING_KEY
    public = write_signing_key(private) if signing_key else None
    if shown.as_json:
        print_json({"folder": out, "files": len(files.all()), "public_key": public})
        return
    for_both = f"{files.authority.name}, {files.join_secret.name}"
    stdout.print(f"Wrote {len(files.all())} files to {out}:", highlight=False)
    stdout.print(
        f"  labels party    {files.label_party_certificate.name},"
        f" {files.label_party_key.name}, {for_both}\n"
        f"  features party  {files.feature_party_certificate.name},"
        f" {files.feature_party_key.name}, {for_both}",
        highlight=False,
    )
    if public is not None:
        stdout.print(
            f"  to sign         {private.name} (labels party)\n"
            f"  to verify       {public.name} (features party)",
            highlight=False,
        )
    stdout.print("For tests and pilots only: a real deployment brings its own authority.")
