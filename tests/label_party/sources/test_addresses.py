"""Addresses: what is read from where, and what no address, error or screen ever holds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.csv_files import Dialect
from labelveil.common.errors import ConfigError, DataError
from labelveil.label_party.sources.addresses import check_address, locate
from labelveil.label_party.sources.databases import Query
from labelveil.label_party.sources.object_stores import Remote
from tests.effort import one_in
from tests.label_party.conftest import Party
from tests.label_party.objects import Objects, serving
from tests.label_party.sources.reading import read_events

PLANTED = "planted-5ecret"
FRAME = pl.DataFrame({"id": [7, 8, 9], "y": [1.5, None, 2.0]})


@pytest.fixture
def objects() -> Iterator[Objects]:
    with serving() as store:
        buffer = io.BytesIO()
        FRAME.write_parquet(buffer)
        for folder in ("", "/bucket"):
            store.contents[f"{folder}/t.parquet"] = buffer.getvalue()
            store.contents[f"{folder}/t.csv"] = FRAME.write_csv().encode()
            store.contents[f"{folder}/t.tsv"] = FRAME.write_csv(separator="\t").encode()
            store.contents[f"{folder}/T.CSV"] = FRAME.write_csv().encode()
            store.contents[f"{folder}/t.bin"] = b"?"
            store.contents[f"{folder}/broken.parquet"] = b"PAR1" + b"x" * 100
        yield store


def test_an_object_of_other_letters_than_utf8_names_no_other_event(objects: Objects) -> None:
    """Read as UTF-8, müller and mäller would be one event."""
    objects.contents["/t.csv"] = "id,y\nmüller,1\nmäller,2\n".encode("cp1252")
    source = Remote(f"{objects.address}/t.csv")
    with pytest.raises(DataError, match="save it as UTF-8"):
        read_events(source, "id", labels=["y"], dialect=Dialect(encoding="cp1252"))
    read, odd = read_events(source, "id", labels=["y"])
    assert read.is_empty()
    assert odd


def _check(source: Remote) -> None:
    dialect = Dialect("\t" if source.address.endswith(".tsv") else ",")
    read, _ = read_events(source, "id", labels=["y"], dialect=dialect)
    assert read["key"].to_list() == ["7", "8", "9"]
    assert read["label"].to_list() == [1.5, None, 2.0]


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.tsv", "T.CSV"])
def test_objects_over_http_read_as_files_do(objects: Objects, name: str) -> None:
    _check(Remote(f"{objects.address}/{name}"))


@pytest.mark.parametrize("name", ["nothing.parquet", "broken.parquet", "t.bin", "nothing.csv"])
def test_an_unreadable_object_is_one_line(objects: Objects, name: str) -> None:
    with pytest.raises(DataError) as caught:
        read_events(Remote(f"{objects.address}/{name}"), "id")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def _credentials(path: Path, objects: Objects, key: str = "AKPLANTED") -> Path:
    path.write_text(
        f'aws_access_key_id = "{key}"\naws_secret_access_key = "{PLANTED}"\n'
        f'aws_endpoint_url = "{objects.address}"\naws_region = "us-east-1"\n'
        'aws_allow_http = "true"\nmax_retries = 0\n'
    )
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_s3_reads_with_a_credentials_file(objects: Objects, name: str, tmp_path: Path) -> None:
    objects.login = "AKPLANTED"
    _check(Remote(f"s3://bucket/{name}", _credentials(tmp_path / "c.toml", objects)))
    assert objects.refused == 0


def test_s3_refusals_tell_no_credentials(objects: Objects, tmp_path: Path) -> None:
    objects.login = "AKPLANTED"
    wrong = Remote("s3://bucket/t.parquet", _credentials(tmp_path / "c.toml", objects, "AKWRONG"))
    with pytest.raises(DataError, match="not readable with these credentials") as caught:
        read_events(wrong, "id")
    assert objects.refused > 0
    assert PLANTED not in str(caught.value)
    assert "AKWRONG" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_credentials_files_are_private_and_say_what_is_wrong(
    objects: Objects, tmp_path: Path
) -> None:
    path = _credentials(tmp_path / "c.toml", objects)
    for mode in (0o644, 0o660, 0o604):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            read_events(Remote("s3://bucket/t.csv", path), "id")
    path.chmod(0o600)
    for text in (f"password = {PLANTED}", f'key = ["{PLANTED}"]', f"{PLANTED}"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="must hold lines") as caught:
            read_events(Remote("s3://bucket/t.csv", path), "id")
        assert PLANTED not in str(caught.value)
    path.write_text(f'max_retries = "{PLANTED}"')  # the driver's own error shows it
    with pytest.raises(DataError, match="cannot be read") as option:
        read_events(Remote("s3://bucket/t.csv", path), "id")
    assert PLANTED not in str(option.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_events(Remote("s3://bucket/t.csv", tmp_path / "nothing"), "id")


CREDENTIALS = [
    f"postgresql://me:{PLANTED}@host/db",
    f"postgresql://me:{PLANTED}/x@host/db",
    f"postgres://host/db?password={PLANTED}",
    f"postgresql://host/db?p%61ssword={PLANTED}",
    f"postgresql://host/db?sslpassword={PLANTED}",
    f"postgresql:/me:{PLANTED}@host/db",
    f"mysql://me:{PLANTED}@host/db",
    f"s3://AK:{PLANTED}@bucket/t.csv",
    f"https://{PLANTED}@host/t.csv",
    f"https://host/t.csv?X-Amz-Signature={PLANTED}",
    f"https://host/t.csv?{PLANTED}",
    f"az://container/t.csv#sig={PLANTED}",
    f"host=h dbname=d password={PLANTED}",
    f"postgresql://[{PLANTED}/db",
    f"postgresql://me/{PLANTED}@host/db",
    f"postgresql://host/db?sslmode=require&pass={PLANTED}",
    f"postgresql://host/db#{PLANTED}",
]


@pytest.mark.parametrize("address", CREDENTIALS)
def test_credentials_are_found_wherever_they_stand_in_an_address(address: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_address(address)
    assert PLANTED not in str(refused.value)


@pytest.mark.parametrize("address", one_in(3, CREDENTIALS))
def test_credentials_in_an_address_are_refused_and_not_repeated(
    party: Party, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = party.folder / "label_party.toml"
    text = config.read_text()
    config.write_text(text.replace('labels = "labels.csv"', f'labels = "{address}"'))
    errors = [party.release().error]
    config.write_text(text)
    errors.append(party.run("release", "--labels", address).error)
    errors.append(party.run("release", "--population", address).error)
    errors.append(party.run("release", "--set", f"data.labels={address}").error)
    errors.append(party.run("init", "--config", "new.toml", "--labels", address).error)
    for error in errors:
        assert PLANTED not in error
        assert "[data]" in error
    assert party.nothing_left()


def test_labels_do_not_travel_in_the_clear() -> None:
    with pytest.raises(ConfigError, match="in the clear"):
        check_address("http://example.com/t.csv")
    assert check_address("http://127.0.0.1:8080/t.csv") == "http://127.0.0.1:8080/t.csv"


def test_places_are_distinguished() -> None:
    assert check_address("a/b.csv") == Path("a/b.csv")
    assert locate(Path("a.csv"), None, None) == Path("a.csv")
    for address in ("s3://bucket/a.csv", "abfss://container@account.dfs.core.windows.net/a.csv"):
        assert locate(check_address(address), None, None) == Remote(address)
    for address in ("ftp://host/a.csv", "s3:/bucket/a.csv", "mysql://host/db"):
        with pytest.raises(ConfigError, match=r"must begin with one of .*sqlite://.*s3://"):
            check_address(address)
    with pytest.raises(ConfigError, match="in what follows its '\\?'"):
        check_address("s3://bucket/a.csv?")
    database = check_address("postgresql://me@/db?host=/run/pg&sslmode=verify-full")
    assert locate(database, "SELECT 1", None) == Query(str(database), "SELECT 1")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data__labels": "sqlite:///e.db"}, "set [data] labels_query"),
        ({"data__labels_query": "SELECT"}, "labels_query has no effect"),
        ({"data__population_query": "SELECT"}, "population_query has no effect"),
        ({"data__labels": "sqlite:///e.db", "data__labels_query": "SELECT 1"}, "does not exist"),
    ],
)
def test_queries_and_databases_belong_together(
    party: Party, settings: dict[str, str], words: str
) -> None:
    assert words in party.release(**settings).error
    assert party.nothing_left()
