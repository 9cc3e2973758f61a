"""Every line of a CSV file by itself: the fast way, the exact way, and ways that let lines mix."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.csv_files import Dialect
from labelveil.common.errors import DataError
from labelveil.label_party.sources import csv_rows
from labelveil.label_party.sources.anomalies import LINE
from labelveil.label_party.sources.csv_rows import (
    Holds,
    Layout,
    any_rows,
    lines_of_file,
    regular_rows,
    rows_of,
)
from labelveil.label_party.sources.object_stores import Remote
from labelveil.label_party.sources.tables import copy_as_parquet, read_columns
from tests.effort import effort, one_in
from tests.label_party.objects import serving
from tests.label_party.sources.reading import read_events

HEADER = ["key", "amount", "town"]
PIECES = [
    *(b"k1", b"7", b"1.5", b"Bonn", b"K\xc3\xb6ln", b" ", b"", b"", b'""', b'"a"', b'"a,b"'),
    *(b'"a""b"', b'"', b'5" pipe', b'"a"b', b'"a"b"c"', b'"a" ', b"\r", b"\0", b"\xff", b"\x81"),
    *(
        b"\xc3",
        b"\xa9",
        b"\xef\xbb\xbf",
        b'"x\r',
        b"#",
        b"\\",
        b"'",
        b'""x',
        b"a;b",
        b"\xef\xbf\xbd",
    ),
]
ODD = [
    *(b'k,"1,x', b"k,1", b"k,1,x,y", b"k,\xff,x", b'k,1,"x" y', b"k", b'"k', b"", b"\r", b"k,\0,x"),
    *(b"\xef\xbb\xbfk,1,x", b'k,"1\r', b"k,1,x\r\r", b'"",1,x', b",1,x", b'k,"",', b"k;1;x"),
    b"k,1," + b"x" * 70_000,
]
"""Lines of the event k as they should not be."""


ROLES: list[tuple[list[str], Holds]] = [
    (["key"], "labels"),
    (["amount"], "labels"),  # which does not come first
    (["amount", "key"], "both"),
    (["key", "amount", "town"], "both"),
    (["key"], "population"),
]


def layout(
    separator: str = ",",
    encoding: str = "utf-8",
    wanted: list[str] = HEADER,
    roles: tuple[list[str], Holds] = ROLES[0],
) -> Layout:
    naming, holds = roles
    return Layout(HEADER, wanted, naming, Dialect(separator, False, encoding), holds)


def line_by_line(lines: bytes, how: Layout) -> list[tuple[str | None, ...]]:
    return [
        row for line in lines[:-1].split(b"\n") for row in any_rows(line + b"\n", how, 1)[0].rows()
    ]


def generated(seed: int, lines: int) -> bytes:
    draw = random.Random(seed)
    regular = draw.random()
    out = []
    for _ in range(lines):
        if draw.random() < regular:
            text = io.StringIO()
            csv.writer(text, quoting=draw.choice([0, 1])).writerow(
                [draw.choice(["", "a", "1.5", 'x"y', "b,c", "ö"]) for _ in HEADER]
            )
            out.append(text.getvalue().removesuffix("\r\n").encode())
        else:
            cells = draw.choice([3, 3, 3, 2, 4])
            parts = (b"".join(draw.choices(PIECES, k=draw.choice([1, 1, 2]))) for _ in range(cells))
            out.append(b",".join(parts))
    return b"".join(line + draw.choice([b"\n", b"\r\n"]) for line in out)


@pytest.mark.parametrize("encoding", one_in(2, ["utf-8", "cp1252"]))
def test_polars_and_the_line_by_line_reader_agree(encoding: str) -> None:
    fast = 0
    for seed in range(1500):
        wanted = [HEADER, ["key", "amount"], ["town"]][seed % 3]
        how = layout(encoding=encoding, wanted=wanted, roles=ROLES[seed % 7 % 5])
        lines = generated(seed, 1 + seed % 4)
        frame = regular_rows(lines, how)
        if frame is not None:
            fast += 1
            assert frame.rows() == line_by_line(lines, how), lines
    assert fast > 300


@pytest.mark.parametrize("by_line", one_in(2, [1, 64]))
def test_files_are_read_as_each_line_is(by_line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "_BY_LINE_BYTES", by_line)
    for seed in range(effort(20, 600)):
        lines = generated(seed, 40)
        how = layout(roles=ROLES[seed % 5])
        ((frame, _),) = rows_of([lines], how)
        assert frame.select(HEADER).rows() == line_by_line(lines, how), lines
        assert frame[LINE].to_list() == list(range(2, 42))


def others(events: pl.DataFrame) -> list[tuple[object, ...]]:
    return events.filter(pl.col("key").str.starts_with("e")).rows()


def write(path: Path, line: bytes, separator: bytes = b",") -> Path:
    rows = [b"key,amount,town", *(b"e%d,%d.5,t" % (i, i) for i in range(200)), b"k,1,x"]
    rows += [b'"e%d",%d,"t,u"' % (i, i) for i in range(200, 400)]
    rows[201] = line
    path.write_bytes(b"\n".join(rows) + b"\n")
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
@pytest.mark.parametrize("chunk", one_in(2, [700, 1 << 25]))
def test_an_event_with_an_odd_line_changes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, encoding: str
) -> None:
    monkeypatch.setattr(csv_rows, "_CHUNK_BYTES", chunk)
    monkeypatch.setattr(csv_rows, "LONGEST_LINE", 1 << 16)
    dialect = Dialect(encoding=encoding)
    expected = None
    for line in [b"k,1,x", *ODD]:
        path = write(tmp_path / "labels.csv", line)
        events, odd = read_events(path, "key", labels=["amount"], others=["town"], dialect=dialect)
        expected = expected or others(events)
        assert len(expected) == 400
        assert others(events) == expected, line
        assert {place for one in odd for place in one.places} <= {202}
        files, odd_copy = copy_as_parquet(path, HEADER, tmp_path / "copy", ["key"], dialect)
        copied = pl.concat([pl.read_parquet(file) for file in files])
        read, odd_read = read_columns(path, HEADER, ["key"], dialect=dialect)
        assert copied.rows() == read.rows()
        assert odd_copy == odd_read


def test_a_key_in_the_first_column_names_its_event_whatever_follows(tmp_path: Path) -> None:
    for rest in (b'"1,x', b"1", b"1,x,y", b"\xff,x", b'1,"x" y', b"x" * (1 << 20) + b",1", b'"'):
        events, odd = read_events(write(tmp_path / "a.csv", b"k," + rest), "key", labels=["amount"])
        assert events["key"].to_list().count("k") == 1, rest[:20]
        assert odd or rest == b'1,"x" y'  # of a column that is not read


@pytest.mark.parametrize(
    "line", [b"9,1,5,e3", b'"9,e3,x', b"9,e3", b"9,e3,x,y", b'9,e3,"x', b"\xff,e\xff3,x"]
)
def test_a_broken_line_never_names_another_event(line: bytes, tmp_path: Path) -> None:
    rows = [b"amount,key,town", *(b"%d,e%d,t" % (i, i) for i in range(5)), line]
    path = tmp_path / "a.csv"
    path.write_bytes(b"\n".join(rows))
    events, odd = read_events(path, "key", labels=["amount"])
    assert events.select("key", "label").rows() == [(f"e{i}", float(i)) for i in range(5)]
    assert {place for one in odd for place in one.places} == {7}


FRONTS = [b"k,u", b'k,"u', b'"k,u', b'"k",u', b'k,"u,v"', b'"a,k",u', b"k,", b",u", b'k,"u" ']
FRONTS += [
    b'k,"u""v"',
    b'k,u"v',
    b"\xff,u",
    b"k,\xff",
    b"\xef\xbb\xbfk,u",
    b"k,u\r",
    b'"","',
    b"k,\0",
]
"""What a writer may have put in the columns of key and user, public as it is."""
TAILS = [
    b"5,t",
    b"5",
    b"",
    b"1,0,t",
    b'"5,t',
    b'5"',
    b'5,t"',
    b'"5,t"',
    b'"',
    b'""',
    b'5,"t',
    b"\xff,t",
]
TAILS += [
    b",",
    b",,,,,",
    b'5,"a"b',
    b"x" * (1 << 14),
    b"x" * (1 << 16) + b",t",
    b"\0,",
    b"\r",
    b"5,t\r",
]
TAILS += [b'5",7,t', b"5,u2,k2,t", b'5",u2,"k2,t', b'",k2,u2,5,"']
"""What may stand in the columns of a label and a note."""
FRONT_HEADER = ["key", "user", "label", "note"]


def fronts(tail: bytes, front: bytes, wanted: list[str], holds: Holds) -> list[tuple[object, ...]]:
    """What the columns in front say of lines, one of which has this tail."""
    how = Layout(FRONT_HEADER, wanted, ["key", "user"], Dialect(), holds)
    lines = [b"e1,u1,7,t", b'e2,u2,"7","t,t"', front + b"," + tail, b'e3,"u3",8,"t"', b""]
    ((frame, _),) = rows_of([b"\n".join(lines)], how)
    return frame.select(name for name in wanted if name in ("key", "user")).rows()


@pytest.mark.parametrize("wanted", one_in(3, [FRONT_HEADER, ["key", "label"], ["user"]]))
@pytest.mark.parametrize("by_line", one_in(2, [1, 1 << 15]))
def test_no_byte_of_a_label_changes_what_stands_in_front_of_it(
    by_line: int, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "_BY_LINE_BYTES", by_line)
    monkeypatch.setattr(csv_rows, "LONGEST_LINE", 1 << 15)
    for front in FRONTS:
        usual = fronts(TAILS[0], front, wanted, "both")
        assert len(usual) == 4
        for tail in TAILS:
            assert fronts(tail, front, wanted, "both") == usual, (front, tail[:20])
            assert fronts(tail, front, wanted, "labels") == usual, (front, tail[:20])
    draw = random.Random(5)
    for _ in range(effort(20, 600)):
        front = b",".join(b"".join(draw.choices(PIECES, k=draw.choice([1, 2]))) for _ in range(2))
        tail = b"".join(draw.choices([*PIECES, b","], k=draw.randrange(6)))
        usual = fronts(TAILS[0], front, wanted, "both")
        assert fronts(tail, front, wanted, "both") == usual, (front, tail)


@pytest.mark.parametrize("front", [b'k,"u', b'"k,u', b"k,u"])
def test_a_reader_of_quotes_or_of_whole_lines_is_caught(
    front: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins: quotes go on behind the front; a broken line has its key alone."""

    def differ(holds: Holds) -> bool:
        read = [fronts(tail, front, FRONT_HEADER, holds) for tail in TAILS]
        return any(one != read[0] for one in read)

    assert not differ("both")
    monkeypatch.setattr(Layout, "certain", 1)
    assert differ("both")
    assert differ("population")


@pytest.mark.parametrize(
    "header", ["key,label,user", "user,label,key", "label,key,user", "x,key,user"]
)
def test_labels_that_name_their_events_have_public_columns_in_front(
    header: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header},label,town\na,b,c,1,x\n".replace("label,label", "label"))
    names = ["key", "user"]
    with pytest.raises(DataError) as refused:
        read_columns(path, names, names, holds="both")
    assert "write key, user in front of all other columns" in str(refused.value)
    with pytest.raises(DataError):
        copy_as_parquet(path, names, tmp_path / "copy", names, holds="both")
    assert read_columns(path, names, names, holds="population")[0].height == 1
    assert read_columns(path, names, names[:1], holds="labels")[0].height == 1


def test_columns_in_front_may_be_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for header in ("key,user,label", "user,key,label", '\ufeff"user","key",label', "user,key"):
        path.write_text(f"{header}\na,b,1\n", encoding="utf-8")
        frame, odd = read_columns(path, ["key", "user"], ["key", "user"], holds="both")
        assert frame.height == 1
        assert bool(odd) == ("label" not in header)


@pytest.mark.parametrize("line", [b'5,e3,"x,k,t"', b'"5,e3",k,t', b'9,e3,"x,y"'])
def test_no_label_in_front_of_a_key_names_another_event(line: bytes, tmp_path: Path) -> None:
    """A cell with a separator in front, and one that takes a cell back behind."""
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"\n".join([b"amount,key,town", *(b"%d,e%d,t" % (i, i) for i in range(5)), line])
    )
    events, odd = read_events(path, "key", labels=["amount"])
    assert events.select("key", "label").rows() == [(f"e{i}", float(i)) for i in range(5)]
    assert "a separator within quotes, where the key is not in the first column" in str(
        next(iter(odd))
    )


def test_keys_of_bytes_that_are_no_text_are_never_equal(tmp_path: Path) -> None:
    keys = [b"a\xff", b"a\xfe", b"a\xef\xbf\xbd", b"a\0", b"a"]
    path = tmp_path / "a.csv"
    path.write_bytes(b"key\n" + b"\n".join(keys))
    events, odd = read_events(path, "key")
    assert events["key"].to_list() == ["a\N{REPLACEMENT CHARACTER}", "a"]
    assert [(one.reason, one.places) for one in odd] == [
        ("bytes that are no utf-8", (2, 3)),
        ("no key, so that the row names no event", (2, 3, 5)),
    ]


def test_a_line_too_long_takes_no_memory_and_no_other_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "_CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr(csv_rows, "LONGEST_LINE", 1 << 13)
    path = tmp_path / "a.csv"
    path.write_bytes(b"key,amount,town\na,1,x\nb,2," + b"y" * (1 << 20) + b"\nc,3,z\n\n\r\n\n")
    parts = list(lines_of_file(path))
    assert max(map(len, parts)) < 1 << 15
    events, _ = read_events(path, "key", labels=["amount"])
    assert events.select("key", "label").rows() == [("a", 1.0), ("b", None), ("c", 3.0)]


def test_a_line_is_read_up_to_its_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "LONGEST_LINE", 40)
    path, keys = tmp_path / "a.csv", ["k" * 40, "l" * 41, "m" * 35, "n" * 36]
    rows = "".join(f"{key},2,yz\n" for key in keys)
    path.write_text(f"key,amount,{'t' * 29}\n{rows}")
    events, _ = read_events(path, "key", labels=["amount"])
    found = events.select("key", "label").rows()
    assert found == [(keys[0], None), (keys[2], 2.0), (keys[3], None)]
    path.write_text(f"key,amount,{'t' * 30}\n{rows}")
    with pytest.raises(DataError, match="no header in"):
        read_events(path, "key", labels=["amount"])
    path.write_text("key,amount\n\n\r\n")
    events, odd = read_events(path, "key", labels=["amount"])
    assert (events.height, [*odd]) == (0, [])


@pytest.mark.parametrize(
    ("data", "encoding", "part"),
    [
        ("key,amount\na,1\n".encode("utf-16"), "utf-8", "UTF-16"),
        (b"key,amount\ra,1\r", "utf-8", "in CR alone; save it with line feeds"),
        (b"key,Stra\xdfe\na,1\n", "utf-8", "no header in"),
        (b'key,"amount\na,1\n', "utf-8", "no header in"),
        (b"key,key\na,1\n", "utf-8", "several columns 'key'"),
        (b"key;amount\na;1\n", "utf-8", "no column 'key'"),
    ],
)
def test_what_is_refused_is_in_the_header(
    data: bytes, encoding: str, part: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    with pytest.raises(DataError, match=part):
        read_events(path, "key", dialect=Dialect(encoding=encoding))


def test_decimal_commas_are_configured(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("key;amount;Straße\na;1,5;ß\nb;2.5;ß\nc;1.234,5;ß\nd;3;ß\n".encode("cp1252"))
    dialect = Dialect(";", True, "cp1252")
    events, odd = read_events(path, "key", labels=["amount"], others=["Straße"], dialect=dialect)
    assert events["label"].to_list() == [1.5, None, None, 3.0]
    assert events["column Straße"].to_list() == ["ß"] * 4
    assert [one.places for one in odd] == [(3, 4)]


@pytest.mark.slow
def test_an_object_in_a_store_reads_as_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with serving() as store:
        for line in ODD:
            write(path, line)
            store.contents["/a.csv"] = path.read_bytes()
            here = read_events(path, "key", labels=["amount"], others=["town"])
            there = read_events(
                Remote(f"{store.address}/a.csv"), "key", labels=["amount"], others=["town"]
            )
            assert here[0].equals(there[0]), line
            assert here[1] == there[1], line


def sniffing(path: Path) -> pl.DataFrame:
    """A twin: one byte that is no UTF-8 decides how all are read."""
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    return pl.read_csv(text.encode(), infer_schema=False, truncate_ragged_lines=True)


def quoting(path: Path) -> pl.DataFrame:
    """A twin: a quote takes the lines that follow."""
    rows = list(csv.reader(io.StringIO(path.read_bytes().decode("latin-1")), strict=False))
    return pl.DataFrame([[*row, "", "", ""][:3] for row in rows[1:]], HEADER, orient="row")


def from_the_right(path: Path) -> pl.DataFrame:
    """A twin: of a line with too many cells it takes the last for the key's."""
    rows = [line.split(b",")[-3:] for line in path.read_bytes().split(b"\n")[1:-1]]
    cells = [[cell.decode("latin-1") for cell in (row + [b""] * 3)[:3]] for row in rows]
    return pl.DataFrame(cells, HEADER, orient="row")


@pytest.mark.parametrize(
    ("twin", "line"),
    [
        (sniffing, b"k,1,\xff"),
        (quoting, b'k,1,"x'),
        (from_the_right, b"k,e3,1,x"),
    ],
)
def test_readers_that_let_lines_mix_are_caught(
    twin: Callable[[Path], pl.DataFrame], line: bytes, tmp_path: Path
) -> None:
    def rest(text: bytes) -> list[tuple[object, ...]]:
        lines = [b"key,amount,town", "e1,1,Köln".encode(), text, b"e3,3,Bonn", b"e4,4,Ulm", b""]
        path = tmp_path / "a.csv"
        path.write_bytes(b"\n".join(lines))
        return others(twin(path))

    assert rest(b"k,1,x") != rest(line)
