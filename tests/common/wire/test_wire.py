"""The wire contract: the rules that protos/ follows, checked on the stubs and text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor

from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.common.wire import label_release_pb2_grpc as pb2_grpc

PROTO = Path(__file__).parents[3] / "protos/labelveil/v1/label_release.proto"
FILE = pb2.DESCRIPTOR
ENUMS: list[EnumDescriptor] = list(FILE.enum_types_by_name.values())
MESSAGES: list[Descriptor] = list(FILE.message_types_by_name.values())

DECLARATION = re.compile(
    r"""^(?: (?P<kind>message|enum|service|rpc|oneof) \s+ (?P<name>\w+)
        | (?:repeated\s+|optional\s+)? [\w.]+ \s+ (?P<field>\w+) \s* = \s* \d+ ;
        | (?P<value>[A-Z][A-Z0-9_]*) \s* = \s* \d+ ; )""",
    re.VERBOSE,
)


def declarations(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each name that `text` declares, and whether a comment documents it.

    A comment counts on the line above the declaration or behind it on the same line.
    """
    previous = ""
    for line in map(str.strip, text.splitlines()):
        if match := DECLARATION.match(line):
            name = match["name"] or match["field"] or match["value"]
            yield name, re.search(r"//\s*\S", previous + line) is not None
        previous = line if line.startswith("//") else ""


def declared_names() -> list[str]:
    """Every name in the compiled descriptor that must carry a comment."""
    names = [service.name for service in FILE.services_by_name.values()]
    names += [rpc.name for service in FILE.services_by_name.values() for rpc in service.methods]
    for enum in ENUMS:
        names += [enum.name, *(value.name for value in enum.values)]
    for message in MESSAGES:
        names += [message.name, *(field.name for field in message.fields)]
        names += [oneof.name for oneof in message.oneofs]
    return names


def test_package_is_versioned_and_services_say_so() -> None:
    assert FILE.package == "labelveil.v1"
    assert all(name.endswith("Service") for name in FILE.services_by_name)


def test_no_two_rpcs_share_a_message() -> None:
    rpcs = [rpc for service in FILE.services_by_name.values() for rpc in service.methods]
    assert rpcs
    for rpc in rpcs:
        assert rpc.input_type.name == f"{rpc.name}Request"
        assert rpc.output_type.name == f"{rpc.name}Response"
    used = [m.full_name for rpc in rpcs for m in (rpc.input_type, rpc.output_type)]
    assert len(used) == len(set(used))


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.name)
def test_enum_zero_means_unspecified(enum: EnumDescriptor) -> None:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
    assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
    assert all(value.name.startswith(f"{prefix}_") for value in enum.values)


def test_everything_declared_is_documented() -> None:
    found = list(declarations(PROTO.read_text(encoding="utf-8")))
    # The parser sees exactly what the compiler saw, so nothing can slip past it.
    assert sorted(name for name, _ in found) == sorted(declared_names())
    assert [name for name, documented in found if not documented] == []


@pytest.mark.parametrize(
    "text",
    [
        "// Documented.\nmessage M {\n  string x = 1;\n}",
        "// Documented.\nmessage M {\n\n  string x = 1;  //\n}",
        "// Documented.\nmessage M {\n  // Detached.\n\n  string x = 1;\n}",
    ],
    ids=["missing", "empty", "detached"],
)
def test_an_undocumented_field_is_noticed(text: str) -> None:
    assert list(declarations(text)) == [("M", True), ("x", False)]


def test_a_trailing_comment_counts() -> None:
    assert list(declarations("X_UNSPECIFIED = 0;  // Never sent.")) == [("X_UNSPECIFIED", True)]


def test_packed_fields_stay_packed_bytes() -> None:
    # One message per row, or repeated fields, cost 3 to 1000 times more on the wire.
    response = pb2.FetchReleaseResponse(start_row=7, keys=b"k" * 32, codes=b"\x01\x02")
    assert response.ByteSize() < 32 + 2 + 8
    assert pb2.FetchReleaseResponse.FromString(response.SerializeToString()) == response
    rows = [message for message in MESSAGES if message.name != "Software"]  # a few words, once
    assert not any(field.is_repeated for message in rows for field in message.fields)


def test_a_submission_carries_one_part_at_a_time() -> None:
    request = pb2.SubmitPopulationRequest(header=pb2.PopulationHeader(rows=2))
    assert request.WhichOneof("part") == "header"
    request.keys = b"k" * 16
    assert request.WhichOneof("part") == "keys"
    assert pb2.SubmitPopulationRequest().WhichOneof("part") is None


def test_grpc_stubs_serve_every_rpc() -> None:
    (service,) = FILE.services_by_name.values()
    for rpc in service.methods:
        assert callable(getattr(pb2_grpc.LabelReleaseServiceServicer, rpc.name))
