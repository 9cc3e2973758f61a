"""What the code of some day wrote is read by that of every later one, or said to be newer."""

from __future__ import annotations

import json
import re
import sqlite3
import tarfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import DataError, ReleaseError
from labelveil.common.formats import (
    BACKUP,
    FORMATS,
    GROUPS,
    JOIN,
    MODEL,
    QUESTION,
    RELEASE,
    STORE,
    TERMS,
    Format,
)
from labelveil.common.guarantees import PureDP
from labelveil.common.release.manifest import FORMAT, Manifest
from labelveil.common.release.question import decode_question, encode_question
from labelveil.common.release.sums import read_sums
from labelveil.common.version import software
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.pipeline.learning import Learning
from labelveil.label_party.commands import cli
from labelveil.label_party.config import sections
from labelveil.label_party.store import seal
from labelveil.label_party.store.account import read_accounts
from labelveil.label_party.store.backup import INDEX_FILE
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.release_store import Store
from labelveil.label_party.store.schema import SCHEMA
from tests.commands import RunCommand
from tests.formats import fields, make
from tests.formats.make import EVENTS, NAMES, SAMPLED, kept, unpack

ROOT = Path(__file__).parents[2]

INSTRUCTION = """what {now} stands for has changed: its digest is {digest}, and was {was}.
Whoever reads it by that number would be misled. In common/formats.py count its number up, set
`oldest` to what is still read and fields="{digest}"; then run `python -m tests.formats`, which
keeps a sample of it, and say in docs/formats.md what is new. (While no version that writes {now} is
published, set its digest alone, remove its sample from tests/formats/kept, and run the same.)"""


def numbers(format_: Format) -> range:
    return range(format_.oldest, format_.number + 1)


READ = [(format_, number) for format_ in SAMPLED for number in numbers(format_)]
ids = {"ids": lambda value: getattr(value, "name", str(value))}


@pytest.mark.parametrize("format_", FORMATS, **ids)
def test_a_number_stands_for_the_same_fields(tmp_path: Path, format_: Format) -> None:
    now = fields.digest(format_, tmp_path)
    changed = INSTRUCTION.format(now=format_, digest=now, was=format_.fields)
    assert now == format_.fields, changed


def test_a_field_more_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wider(Manifest):
        more: int

    monkeypatch.setattr(fields, "Manifest", Wider)
    monkeypatch.setattr(fields, "SCHEMA", (*SCHEMA, "CREATE TABLE more (x)"))
    for format_ in (RELEASE, STORE):
        assert fields.digest(format_, tmp_path) != format_.fields


@pytest.mark.parametrize(("format_", "number"), READ, **ids)
def test_every_number_that_is_read_has_a_sample(format_: Format, number: int) -> None:
    assert kept(format_, number).is_file(), "run python -m tests.formats on the code that writes it"
    assert kept(format_, number).stat().st_size < 40_000


def test_the_page_has_every_format_of_the_code() -> None:
    """With the number that is written."""
    page = (ROOT / "docs" / "formats.md").read_text()
    found = set(map(str, FORMATS))
    for package in ("common", "feature_party", "label_party", "labelveil"):
        for path in (ROOT / package).rglob("*.py"):
            found |= set(re.findall(r'"(labelveil-[a-z-]+/[0-9]+)"', path.read_text()))
    older = {text for format_ in FORMATS for text in format_.read[:-1]}
    missing = [text for text in sorted(found - older) if f"`{text}`" not in page]
    assert not missing
    for format_ in FORMATS:
        if format_.oldest < format_.number:
            assert f"| `{format_}` | {format_.oldest} to {format_.number} |" in page


# --- samples


def test_the_writers_write_the_present_number() -> None:
    assert str(RELEASE) == FORMAT
    assert encode_question(make.QUESTION).startswith(f"{QUESTION}\n".encode())
    assert encode_question(make.GROUPS).startswith(f"{GROUPS}\n".encode())


def joining(folder: Path, secrets: Sequence[bytes] = (make.SECRET,), **keys: Any) -> Learning:
    """The features party's stages over a folder's ``release``; the present secret comes first."""
    table = {"key": NAMES, "x": [number / EVENTS for number in range(EVENTS)]}
    pl.DataFrame(table).write_csv(folder / "features.csv")
    files = [folder / f"secret-{number}" for number in range(len(secrets))]
    for path, secret in zip(files, secrets, strict=True):
        path.write_text(secret.hex())
        path.chmod(0o600)
    settings = {
        "data": {"features": folder / "features.csv", "key": "key"},
        "keys": {"secret_file": files[0], "old_secret_files": files[1:], **keys},
        "release": {"directory": folder / "release"},
        "join": {"directory": folder / "joined"},
    }
    return Learning(FeaturePartyConfig.model_validate(settings), quiet=True)


@pytest.mark.parametrize("number", numbers(RELEASE))
def test_a_kept_release_is_read_and_joined(tmp_path: Path, number: int) -> None:
    folder = unpack(kept(RELEASE, number), tmp_path / "release")
    data = (folder / "manifest.json").read_bytes()
    assert json.loads(data)["format"] == f"{RELEASE.name}/{number}"
    manifest = Manifest.from_bytes(data)
    assert manifest.to_bytes() == data
    assert (manifest.data_set, manifest.epoch, manifest.population.rows) == ("sales", "1", EVENTS)
    assert joining(tmp_path).join().matches.matched == EVENTS


@pytest.mark.parametrize("number", numbers(QUESTION))
def test_a_kept_question_is_read(tmp_path: Path, number: int) -> None:
    data = (unpack(kept(QUESTION, number), tmp_path) / "question.bin").read_bytes()
    asked = decode_question(data, EVENTS)
    np.testing.assert_array_equal(asked.strata, make.STRATA)
    np.testing.assert_array_equal(asked.laws, make.LAWS)
    np.testing.assert_array_equal(asked.grid.points, make.GRID.points)


@pytest.mark.parametrize("number", numbers(GROUPS))
def test_kept_sums_are_read_with_their_question(tmp_path: Path, number: int) -> None:
    sums = read_sums(unpack(kept(GROUPS, number), tmp_path / "sums"))
    assert sums.question.encode() == make.GROUPS.encode()
    assert sums.sums.size == 3
    assert sums.guarantee == PureDP.of(1)


@pytest.mark.parametrize("number", numbers(MODEL))
def test_a_kept_model_predicts_the_same(tmp_path: Path, number: int) -> None:
    folder = unpack(kept(MODEL, number), tmp_path / "model")
    x = [number / EVENTS for number in range(EVENTS)]
    shop = [f"shop {number % 3}" for number in range(EVENTS)]
    table = pl.DataFrame({"key": NAMES, "x": x, "shop": shop})
    predicted = LabelModels.load(folder).predict(table)["prediction"]
    before = pl.read_csv(folder / "predictions.csv")["prediction"]
    np.testing.assert_allclose(predicted, before, rtol=1e-5)


@pytest.fixture
def label_party(run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, in a folder with the samples' tables and configurations."""
    monkeypatch.chdir(tmp_path)
    make.write_tables()
    return partial(run_command, cli.main)


def spent() -> float:
    (account,) = read_accounts(sections.load(Path("label_party.toml")))
    return account.spent.epsilon if account.spent else 0.0  # type: ignore[attr-defined]


def version_of(ledger: Path) -> int:
    with closing(sqlite3.connect(ledger)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize("number", numbers(STORE))
def test_a_kept_store_is_read_and_goes_on(label_party: Any, tmp_path: Path, number: int) -> None:
    store = unpack(kept(STORE, number), tmp_path / "label_store")
    ledger, before = store / "ledger.sqlite", files_of(store)
    assert spent() == pytest.approx(2, rel=1e-12)
    asked = [f"--set={setting}" for setting in make.ASKED]
    for arguments in ([], asked):  # what was sold is there, free, and nothing of it changes
        again = label_party("release", *arguments)
        assert again.code == 0, again
        assert "already released" in again.out
        assert "--epoch" not in again.out + again.err
    assert (files_of(store), version_of(ledger)) == (before, number)
    other = label_party("release", "--data-set", "others")
    assert "have paid from account 'sales'" in other.err  # its events are known as spent
    third = label_party("release", "--epoch", "3", "--epsilon", "1")
    assert third.code == 0, third
    assert spent() == pytest.approx(3, rel=1e-12)
    assert version_of(ledger) == STORE.number
    with Ledger(ledger) as opened:
        assert [charge.epoch for charge in opened.charges()] == ["1", "2", "3"]


def files_of(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("number", numbers(BACKUP))
def test_a_kept_backup_is_restored(label_party: Any, tmp_path: Path, number: int) -> None:
    archive = unpack(kept(BACKUP, number), tmp_path / "backup") / "store.tar"
    done = label_party("restore", str(archive), "--nothing-since")
    assert done.code == 0, done
    assert spent() == pytest.approx(2, rel=1e-12)
    assert version_of(tmp_path / "label_store" / "ledger.sqlite") == STORE.number


# --- skew

HOSTILE = [
    *("0", "-1", "01", "+2", "2.0", "18446744073709551616", "9" * 5000, "two", "", "2 ", "2\n"),
    "\u0662",  # a digit, and none of ours
]


def stated(format_: Format, number: object) -> str:
    return f"{format_.name}/{number}"


@pytest.mark.parametrize("number", HOSTILE)
def test_no_number_is_read_that_nobody_writes(number: str) -> None:
    for format_ in FORMATS:
        for text in (stated(format_, number), number, b"", 2, 2**64, True, None, [], {}):
            with pytest.raises(DataError) as error:
                format_.check(text, "it", DataError)
            line = str(error.value)
            assert f"must have {format_}" in line
            assert line.isprintable()
            assert len(line) < 200


@pytest.mark.parametrize("format_", FORMATS, **ids)
def test_a_newer_number_says_who_must_update_and_to_what(format_: Format) -> None:
    newer = stated(format_, format_.number + 1)
    for maker, to in (
        ("labelveil/9.1", "to labelveil/9.1 or newer"),
        ("labelveil/9\nroot", "to a version that reads it"),
        (None, "to a version that reads it"),
        (["labelveil/9.1"], "to a version that reads it"),
    ):
        with pytest.raises(DataError) as error:
            format_.check(newer, "it", DataError, update="X must update", made_by=maker)
        line = str(error.value)
        assert line.startswith(f"it has format {newer}, which is newer than labelveil/")
        assert line.endswith(f"({format_.known}): X must update {to}")


@pytest.mark.parametrize(("maker", "by"), [("labelveil/0.3", ", made by labelveil/0.3"), (3, "")])
def test_an_older_number_says_what_made_it(maker: object, by: str) -> None:
    with pytest.raises(DataError) as error:
        BACKUP.check("labelveil-backup/1", "it", DataError, made_by=maker, older="use that")
    line = f"it has format labelveil-backup/1{by}, which {software()} reads no more"
    assert str(error.value) == f"{line} (labelveil-backup/2): use that"


def changed(data: bytes, **members: Any) -> bytes:
    """A document with other members, in canonical form."""
    document = json.loads(data) | members
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.fixture
def newest(tmp_path: Path) -> bytes:
    return (unpack(kept(RELEASE), tmp_path / "release") / "manifest.json").read_bytes()


def test_a_newer_manifest_is_one_line_whatever_else_it_says(newest: bytes) -> None:
    number = RELEASE.number + 1
    newer = changed(newest, format=stated(RELEASE, number), software="labelveil/9.0", more=1)
    with pytest.raises(ReleaseError) as error:
        Manifest.from_bytes(newer, "the features party")
    line = str(error.value)
    assert f"labelveil-release/{number}, which is newer" in line
    assert line.endswith("the features party must update labelveil to labelveil/9.0 or newer")
    assert "Extra" not in line


def test_what_is_optional_is_skipped_and_nothing_else(newest: bytes) -> None:
    more = {"a later member": [1, {"with": None}]}
    read = Manifest.from_bytes(changed(newest, optional=more))
    assert read.population == Manifest.from_bytes(newest).population
    wrong: dict[str, Any]
    for wrong in ({"optional": {}}, {"optional": [1]}, {"more": 1}, {"optional": None}):
        with pytest.raises(ReleaseError):
            Manifest.from_bytes(changed(newest, **wrong))
    first = json.loads(newest)["population"] | {}
    del first["secret_check"]
    old = changed(newest, format="labelveil-release/1", population=first)
    assert Manifest.from_bytes(old).population.secret_check is None
    for wrong in ({"optional": more}, {"population": first | {"secret_check": None}}):
        with pytest.raises(ReleaseError):
            Manifest.from_bytes(changed(old, **wrong))
    with pytest.raises(ReleaseError, match="secret_check is missing"):
        Manifest.from_bytes(changed(newest, population=first))


def test_an_earlier_form_of_format_1_says_so(newest: bytes) -> None:
    document = json.loads(newest)
    del document["strata"], document["population"]["secret_check"]
    old = changed(json.dumps(document).encode(), format="labelveil-release/1")
    with pytest.raises(ReleaseError) as error:
        Manifest.from_bytes(old)
    assert "strata: Field required; format 1 had several forms" in str(error.value)
    assert str(error.value).endswith(f"reads it: {document['software']}")


def test_a_newer_question_asks_the_labels_party_to_update() -> None:
    data = encode_question(make.QUESTION).replace(b"/2\n", b"/3\n", 1)
    with pytest.raises(ReleaseError, match="the labels party must update labelveil"):
        decode_question(data, EVENTS)
    for line in (b"labelveil-question/", b"labelveil-question/2", b"labelveil-question/-1\n"):
        with pytest.raises(ReleaseError):
            decode_question(line + data, EVENTS)


@pytest.mark.parametrize("document", ["model.json", "amount/model.json"])
def test_a_newer_model_is_one_line(tmp_path: Path, document: str) -> None:
    path = unpack(kept(MODEL), tmp_path / "model") / document
    data = json.loads(path.read_text())
    name, _, number = data["format"].partition("/")
    made = {"format": f"{name}/{int(number) + 1}", "software": "labelveil/9.0", "more": 1}
    path.write_text(json.dumps(data | made))
    with pytest.raises(DataError, match=r"update labelveil here to labelveil/9\.0 or newer"):
        LabelModels.load(tmp_path / "model")
    path.write_text(json.dumps({"format": data["format"]}))  # damaged, or an older form
    with pytest.raises(DataError, match="is damaged"):
        LabelModels.load(tmp_path / "model")


def test_a_newer_join_is_not_replaced(tmp_path: Path) -> None:
    unpack(kept(RELEASE), tmp_path / "release")
    joined = joining(tmp_path).join()
    path = joined.directory / "join.json"
    document = json.loads(path.read_text())
    assert document["format"] == str(JOIN)
    newer = {"format": stated(JOIN, JOIN.number + 1), "software": "labelveil/9.0"}
    path.write_text(json.dumps(document | newer))
    with pytest.raises(DataError, match=r"newer.*\[join\] directory.*labelveil/9.0"):
        joining(tmp_path).join()
    path.write_text(json.dumps({"content": document["content"]}))  # of an older version
    assert joining(tmp_path).join().matches == joined.matches
    assert json.loads(path.read_text())["format"] == str(JOIN)


def test_a_newer_store_is_left_as_it_is(label_party: Any, tmp_path: Path) -> None:
    """Whatever its tables are, and whoever made it."""
    store = unpack(kept(STORE), tmp_path / "label_store")
    with closing(sqlite3.connect(store / "ledger.sqlite")) as database, database:
        database.execute("CREATE TABLE more (x)")
        database.execute(f"PRAGMA user_version = {STORE.number + 1}")
    before = files_of(store)
    for command in (["release"], ["release", "--epoch", "9"], ["budget"], ["backup", "--to", "b"]):
        refused = label_party(*command)
        assert refused.code == 1
        assert f"labelveil-store/{STORE.number + 1}, which is newer" in refused.err
        assert "nothing was spent; the labels party must update labelveil" in refused.err
    assert files_of(store) == before


def test_a_store_of_an_earlier_form_is_refused_and_sells_nothing_again(
    label_party: Any, tmp_path: Path
) -> None:
    store = unpack(kept(STORE, 1), tmp_path / "label_store")
    with closing(sqlite3.connect(store / "ledger.sqlite")) as database, database:
        database.execute("ALTER TABLE charges ADD COLUMN covered_events INTEGER")
    for command in (["release"], ["budget"], ["release", "--epoch", "9"]):
        refused = label_party(*command)
        assert refused.code == 1
        assert "labelveil-store/1 in a form that is read no more" in refused.err
        assert "--epoch" not in refused.err
        assert "nothing was spent" in refused.err


def test_a_newer_backup_is_told_from_a_damaged_one(label_party: Any, tmp_path: Path) -> None:
    archive = unpack(kept(BACKUP), tmp_path / "backup") / "store.tar"
    newer = {"format": stated(BACKUP, BACKUP.number + 1), "software": "labelveil/9.0"}
    with tarfile.open(archive) as old, tarfile.open(tmp_path / "new.tar", "w") as new:
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            data = content.read()
            data = changed(data, **newer) if member.name == INDEX_FILE else data
            member.size = len(data)
            new.addfile(member, BytesIO(data))
        new.addfile(tarfile.TarInfo("something new"))
    refused = label_party("restore", "new.tar", "--nothing-since")
    assert refused.code == 1
    assert "nothing was restored; the labels party must update labelveil to labelveil/9.0" in (
        refused.err
    )
    assert not (tmp_path / "label_store" / "ledger.sqlite").exists()


# --- what was sold by another version


@pytest.fixture
def sold(label_party: Any, tmp_path: Path) -> Path:
    return unpack(kept(STORE), tmp_path / "label_store")


def edited(store: Path, change: Callable[[dict[str, Any]], None], epoch: str = "1") -> None:
    """Change a charge's request, as another version would have written it, and seal it."""
    ledger = store / "ledger.sqlite"
    with closing(sqlite3.connect(ledger)) as database, database:
        text, name = "SELECT request FROM charges WHERE epoch = ?", (epoch,)
        request = json.loads(database.execute(text, name).fetchone()[0])
        change(request)
        guard = database.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'committed_charges_stay'"
        ).fetchone()[0]
        database.execute("DROP TRIGGER committed_charges_stay")
        database.execute(
            "UPDATE charges SET request = ? WHERE epoch = ?",
            (json.dumps(request, sort_keys=True), epoch),
        )
        database.execute(guard)
    seal.adopt(ledger)


def test_a_sold_epoch_is_found_though_versions_ask_for_other_terms(
    label_party: Any, sold: Path
) -> None:
    def older(request: dict[str, Any]) -> None:
        del request["format"], request["duplicates"]
        request["no longer asked"] = {"a": 1}

    edited(sold, older)
    found = label_party("release")
    assert found.code == 0, found
    assert "already released" in found.out
    changed = label_party("release", "--epsilon", "0.5")  # that was asked by both, and is another
    assert changed.code == 1
    assert "guarantee.epsilon was" in changed.err
    assert "restore that setting" in changed.err
    assert "--epoch" not in changed.err
    assert spent() == pytest.approx(2, rel=1e-12)


def test_terms_of_this_version_are_compared_to_the_last(label_party: Any, sold: Path) -> None:
    def present(request: dict[str, Any]) -> None:
        request["format"] = str(TERMS)
        del request["duplicates"]

    edited(sold, present)
    refused = label_party("release")
    assert refused.code == 1
    assert "duplicates was none" in refused.err
    assert "privacy.prior_share was 0.125 and is none now" in refused.err


def test_a_sold_release_of_another_form_is_found_and_served(
    label_party: Any, tmp_path: Path, sold: Path
) -> None:
    """Its manifest cannot be read here; its bytes are what was sold."""
    folder = sold / "releases" / "sales" / "1"
    document = json.loads((folder / "manifest.json").read_text())
    del document["strata"], document["population"]["secret_check"]
    old = changed(json.dumps(document).encode(), format="labelveil-release/1")
    (folder / "manifest.json").write_bytes(old)
    ledger = sold / "ledger.sqlite"
    with closing(sqlite3.connect(ledger)) as database, database:
        name = "committed_charges_stay"
        guard = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,))
        text: str = guard.fetchone()[0]
        database.execute(f"DROP TRIGGER {name}")
        digest = sha256(old).hexdigest()
        database.execute("UPDATE charges SET digest = ? WHERE epoch = '1'", (digest,))
        database.execute(text)
    seal.adopt(ledger)
    found = label_party("release")
    assert found.code == 0, found
    assert "already released: data set 'sales', epoch '1'" in found.out
    assert "serving the same bytes, nothing spent" in found.out
    assert "--epoch" not in found.out + found.err
    assert json.loads(label_party("release", "--json").out)["existed"] is True
    assert Store(sold).open_release(sold_as(sold)).rows == EVENTS  # as the server opens it
    assert spent() == pytest.approx(2, rel=1e-12)


def sold_as(store: Path) -> Any:
    with Store(store).read_ledger() as ledger:
        return ledger.committed("sales", "1")
