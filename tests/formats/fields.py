"""What the number of each format stands for, as the code has it now, and a digest of that."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
import torch
from pydantic import TypeAdapter

from labelveil.common import formats
from labelveil.common.formats import Format
from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import encode_question
from labelveil.feature_party.export.run import _facts
from labelveil.feature_party.export.torch_module import served_columns
from labelveil.feature_party.groups.boosting import Boosted
from labelveil.feature_party.groups.model import SumsModel
from labelveil.feature_party.groups.saved import SavedSums, SumsFacts
from labelveil.feature_party.join.shards import JoinedShards
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.model.trees import Trees, TreesShape
from labelveil.feature_party.ridge.links import Cube
from labelveil.feature_party.ridge.ridge import Ridge
from labelveil.label_party.config import sections
from labelveil.label_party.events.submitted import Submitted
from labelveil.label_party.store.backup import INDEX_FILE, make_backup
from labelveil.label_party.store.entries import LABELS, Covered, Purchase
from labelveil.label_party.store.purchase import Order
from labelveil.label_party.store.release_store import Store
from labelveil.label_party.store.schema import SCHEMA
from tests.formats.make import GROUPS, LABEL_PARTY, QUESTION, kept, unpack

_NAMES = ("type", "enum", "const", "pattern", "required", "$ref", "format")
_WITHIN = ("properties", "items", "prefixItems", "anyOf", "allOf", "additionalProperties", "$defs")


def digest(format_: Format, folder: Path) -> str:
    """The digest that belongs beside a format's number; an empty folder is for what it takes."""
    said = json.dumps(_STANDS_FOR[format_.name](folder), sort_keys=True)
    return sha256(said.encode()).hexdigest()[:16]


def _release(_: Path) -> Any:
    return _schema(Manifest.model_json_schema())


def _question(_: Path) -> Any:
    return encode_question(QUESTION).hex()


def _groups(_: Path) -> Any:
    return encode_question(GROUPS).hex()


def _store(_: Path) -> Any:
    kinds = {kind.__name__: _fields(kind) for kind in (Purchase, Covered, Submitted)}
    return [[" ".join(statement.split()) for statement in SCHEMA], kinds]


def _terms(folder: Path) -> Any:
    path = folder / "label_party.toml"
    path.write_text(LABEL_PARTY)
    config = sections.load(path)
    order = Order.configured(config, LABELS, config.privacy.charge, config.request())
    return sorted(_paths(order.request))


def _backup(folder: Path) -> Any:
    store = Store(unpack(kept(formats.STORE), folder / "store"))
    path = make_backup(store, folder / "backup.tar", quiet=True).path
    with tarfile.open(path) as archive:
        index = archive.extractfile(INDEX_FILE)
        assert index is not None
        return sorted(json.load(index))


def _models(folder: Path) -> dict[str, Any]:
    models = LabelModels.load(unpack(kept(formats.MODEL), folder / "kept"))
    models.save(folder / "saved")
    saved = {"models": "model.json", "model": "amount/model.json"}
    documents = {
        name: json.loads((folder / "saved" / at).read_text()) for name, at in saved.items()
    }
    return documents | {"export": _facts(models, served_columns(models.encoder))}


def _one(name: str) -> Callable[[Path], Any]:
    return lambda folder: sorted(set(_paths(_models(folder)[name])))


def _sums_model(folder: Path) -> Any:
    table, numbers = pl.DataFrame({"x": [0.5, 1.5]}), dict[str, Any]()
    for field in fields(Ridge)[1:]:
        numbers[field.name] = torch.zeros(1) if field.type == "torch.Tensor" else 0.0
    boosted = Boosted(Trees(TreesShape((0,), (), 1, 1, 1, 1, 0)), 0.0, 0.5)
    model = SumsModel(
        Encoder.fit(table), (Ridge(Cube(0.0, 1.0), **numbers),), Lattice.between(0, 1), boosted
    )
    SavedSums(model, SumsFacts((), 0, 0.0, "", 0, "", "y")).save(folder)
    document = json.loads((folder / "model.json").read_text())
    return [sorted(set(_paths(document))), _fields(Ridge), _fields(TreesShape)]


def _join(_: Path) -> Any:
    return _schema(TypeAdapter(JoinedShards).json_schema())


_STANDS_FOR: dict[str, Callable[[Path], Any]] = {
    formats.RELEASE.name: _release,
    formats.QUESTION.name: _question,
    formats.GROUPS.name: _groups,
    formats.STORE.name: _store,
    formats.TERMS.name: _terms,
    formats.BACKUP.name: _backup,
    formats.MODEL.name: _one("model"),
    formats.MODELS.name: _one("models"),
    formats.SUMS_MODEL.name: _sums_model,
    formats.EXPORT.name: _one("export"),
    formats.JOIN.name: _join,
}


def _fields(kind: Any) -> list[str]:
    return [f"{field.name}: {field.type}" for field in fields(kind)]


def _schema(value: Any) -> Any:
    """Names and types of a JSON schema, without its words and bounds."""
    if isinstance(value, list):
        return [_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: value[name] for name in _NAMES if name in value}
    if "required" in kept:  # in which order members are declared, no byte says
        kept["required"] = sorted(kept["required"])
    for name in _WITHIN:
        inner = value.get(name)
        if name in ("properties", "$defs") and inner:
            kept[name] = {key: _schema(each) for key, each in inner.items()}
        elif inner is not None:
            kept[name] = _schema(inner)
    return kept


def _paths(document: Any, above: str = "") -> Iterator[str]:
    """The members of a document, with those within; an item of a list is as any other."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield f"{above}.{name}"
            yield from _paths(value, f"{above}.{name}")
    elif isinstance(document, list):
        for value in document:
            yield from _paths(value, f"{above}[]")
