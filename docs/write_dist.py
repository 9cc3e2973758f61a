"""Build the archives of a version, with a project page that reads the same anywhere: `make dist`.

Links of the README lead into this repository. A project page has none beside it, so they become
addresses below REPOSITORY, or plain text where that is not given.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = (
    "import sys; from setuptools import build_meta as build; out = sys.argv[1];"
    "build.build_sdist(out); build.build_wheel(out)"
)
PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
PAGES = {"Documentation": "README.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


def project_page(readme: str, repository: str, tag: str) -> str:
    """Return the README with links that hold anywhere."""

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        if "://" in target:
            return found[0]
        return f"[{text}]({repository}/blob/{tag}/{target})" if repository else text

    pictures = rf'\1="{repository}/raw/{tag}/'
    readme = re.sub('(src|srcset)="', pictures, readme) if repository else PICTURE.sub("", readme)
    return re.sub(r"\[([^\[\]]+)\]\(([^)\s]+)\)", link, readme)


def build(out: Path, repository: str = "") -> None:
    """Build source archive and wheel of what is committed into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        archive = subprocess.check_output(["git", "archive", "HEAD"], cwd=ROOT)
        subprocess.run(["tar", "-x"], input=archive, cwd=source, check=True)
        readme, project = source / "README.md", source / "pyproject.toml"
        text = project.read_text("utf-8")
        tag = f"v{tomllib.loads(text)['project']['version']}"
        readme.write_text(project_page(readme.read_text("utf-8"), repository, tag), "utf-8")
        if repository:
            pages = {name: f"{repository}/blob/{tag}/{page}" for name, page in PAGES.items()}
            urls = [f'{name} = "{url}"' for name, url in {"Source": repository, **pages}.items()]
            project.write_text("\n".join([text, "[project.urls]", *urls, ""]), "utf-8")
        command = [sys.executable, "-c", BUILD, str(out.resolve())]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"setuptools builds no archive:\n{done.stderr}")


if __name__ == "__main__":
    build(ROOT / "dist", os.environ.get("REPOSITORY", "").rstrip("/"))
