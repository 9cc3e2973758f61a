"""`labelveil certificates`: a test authority and both parties' certificates."""

from __future__ import annotations

from pathlib import Path

from labelveil.common.config import Section, setting
from labelveil.common.config.answers import Json, print_json
from labelveil.common.config.options import with_options
from labelveil.common.console import stdout
from labelveil.common.errors import ConfigError
from labelveil.common.security.new_keys import SIGNING_KEY, public_path, write_signing_key
from labelveil.common.security.pilot_certificates import (
    FEATURE_PARTY,
    LABEL_PARTY,
    write_certificates,
)


class CertificateOptions(Section):
    """Whose certificates are made, and where."""

    out: Path = setting(..., "Folder to write to; no file is overwritten, and keys stay.")
    label_host: list[str] = setting(
        list,
        "Host name or address under which the features party reaches the labels party, besides"
        " localhost; may be repeated.",
    )
    label_party: str = setting(LABEL_PARTY, "The labels party's name in its certificate.")
    feature_party: str = setting(
        FEATURE_PARTY, "The features party's name, by which the server authorizes it."
    )
    days: int = setting(365, "Days of validity.")
    signing_key: bool = setting(
        False,
        "Make a pair of keys to sign and to verify manifests with, too.",
        flag="--signing-key",
    )


@with_options()
def certificates(options: CertificateOptions, shown: Json) -> None:
    out = options.out
    private = out / SIGNING_KEY
    pair = private, public_path(private)
    signing = [path for path in pair if path.exists()] if options.signing_key else []
    if len(signing) == 1:
        raise ConfigError(
            f"{signing[0]} exists already without its other half; move it away, or choose another"
            " --out"
        )
    kept = [path for path in (out / "join.key", *signing) if path.exists()]
    files = write_certificates(
        out,
        label_hosts=options.label_host,
        label_party=options.label_party,
        feature_party=options.feature_party,
        days=options.days,
    )
    public = None
    if options.signing_key:
        public = public_path(private) if signing else write_signing_key(private)
    made = [*files.all(), *(pair if options.signing_key else ())]
    written = [path for path in made if path not in kept]
    if shown.as_json:
        print_json({"folder": out, "files": len(written), "public_key": public})
        return
    for_both = f"{files.authority.name}, {files.join_secret.name}"
    lines = [
        f"Wrote {len(written)} files to {out}"
        + (f", and kept {', '.join(path.name for path in kept)}:" if kept else ":"),
        f"  labels party    {files.label_party_certificate.name}, {files.label_party_key.name},"
        f" {for_both}",
        f"  features party  {files.feature_party_certificate.name}, {files.feature_party_key.name},"
        f" {for_both}",
    ]
    if public is not None:
        lines += [
            f"  to sign         {private.name} (labels party)",
            f"  to verify       {public.name} (features party)",
        ]
    lines.append("For tests and pilots only: a real deployment brings its own authority.")
    stdout.print("\n".join(lines), highlight=False)
