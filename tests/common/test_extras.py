"""What is installed by name comes from where this distribution came from, not from an index."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

from labelveil.common.extras import install_command

ROOT = Path(__file__).parents[2]
BY_NAME = re.compile(r"\binstall\s+(?:-\S+\s+)*[\"']?labelveil\b")
"""An installation by a bare name, which whoever registers that name on an index would serve."""


def origin(monkeypatch: pytest.MonkeyPatch, record: dict[str, object] | None) -> None:
    text = None if record is None else json.dumps(record)
    monkeypatch.setattr(
        "labelveil.common.extras.distribution", Mock(return_value=Mock(read_text=lambda _: text))
    )


def test_the_command_names_the_folder_that_it_was_installed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    origin(monkeypatch, {"url": folder.as_uri(), "dir_info": {}})
    assert install_command("pld") == f"run: pip install '{folder}[pld]'"
    origin(monkeypatch, {"url": folder.as_uri(), "dir_info": {"editable": True}})
    assert install_command("pld") == f"run: pip install --editable '{folder}[pld]'"


@pytest.mark.parametrize(
    "record", [None, {"url": "https://example.com/a.whl"}, {"url": "file:///absent/folder"}]
)
def test_where_that_is_not_known_it_is_described(
    record: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin(monkeypatch, record)
    assert install_command("pld").endswith("installed from, run: pip install '.[pld]'")


def test_this_environments_command_would_find_the_package() -> None:
    command = install_command("pld")
    folder = re.search(r"'(.+)\[pld\]'", command)
    assert folder is not None
    direct = metadata.distribution("labelveil").read_text("direct_url.json")
    assert direct is None or (Path(folder[1]) / "pyproject.toml").exists()


def test_nothing_tells_anybody_to_install_an_unpublished_name() -> None:
    assert BY_NAME.search("run: pip install 'labelveil[pld]'")
    assert BY_NAME.search("pip install --upgrade labelveil")
    assert BY_NAME.search("install labelveil[pld]")
    assert not BY_NAME.search("pip install './labelveil[pld]'")
    folders = ("common", "label_party", "feature_party", "labelveil", "docs", "deploy")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    texts = [
        p for p in (*files, *ROOT.glob("*.md")) if p.suffix in {".md", ".py", ".toml", ".yaml"}
    ]
    assert len(texts) > 400
    told = [path for path in texts if BY_NAME.search(path.read_text())]
    assert not told
