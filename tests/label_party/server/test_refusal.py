"""Every reason of a refusal is listed: metrics begin with them, and operators look them up."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from labelveil.common.security.pilot_certificates import Authority, Role, issue
from labelveil.label_party.monitoring.calls import REASONS, Telemetry, Traces
from labelveil.label_party.server import handshakes, refusal
from labelveil.label_party.server.run import running
from tests.label_party.conftest import Client, Party

SOURCES = sorted((Path(__file__).parents[3] / "label_party").rglob("*.py"))
MAKERS = {
    "Refusal": (2, ""),
    "_maker": (2, ""),
    "refused": (1, "failed_precondition"),
    "unavailable": (1, "unavailable"),
}
"""Functions that are given a reason, where among their arguments, and what it is by default."""


def reasons(tree: ast.AST) -> Iterator[str]:
    """Yield the reason of each refusal that a module makes; fail where it is no literal."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id not in MAKERS:
            continue
        place, otherwise = MAKERS[node.func.id]
        if otherwise and len(node.args) <= place:
            yield otherwise
        elif len(node.args) <= place:
            code = node.args[0]
            assert isinstance(code, ast.Attribute), ast.unparse(node)
            yield code.attr.lower()
        elif isinstance(node.args[place], ast.Constant):
            yield ast.literal_eval(node.args[place])
        else:  # a maker that passes its own argument on
            assert isinstance(node.args[place], ast.Name), ast.unparse(node)


def test_the_list_is_what_the_code_can_say() -> None:
    said = {reason for path in SOURCES for reason in reasons(ast.parse(path.read_text()))}
    said |= {
        reason
        for name in (*handshakes._REASONS, "CERTIFICATE_VERIFY_FAILED", "ANYTHING_ELSE")
        for detail in ("certificate has expired", "certificate is not yet valid", "self signed")
        if (reason := handshakes.reason_of(f"Handshake failed with error x:{name}: {detail}"))
    }
    assert said == set(REASONS)
    assert len(REASONS) == len(set(REASONS))


def test_an_unlisted_reason_is_seen() -> None:
    tree = ast.parse("Refusal(grpc.StatusCode.ABORTED, 'no')\nrefused('no', 'why')")
    assert list(reasons(tree)) == ["aborted", "why"]


@pytest.mark.parametrize("reason", REASONS)
def test_each_count_begins_at_zero(reason: str) -> None:
    value = Telemetry(Traces()).registry.get_sample_value(
        "label_party_refusals_total", {"reason": reason}
    )
    assert value == 0.0


def said(error: grpc.RpcError) -> tuple[str, str, float | None]:
    """Reason, domain and seconds of a failed call, read by Google's own messages."""
    ((_, data),) = [pair for pair in error.trailing_metadata() if pair[0].endswith("details-bin")]
    status = Status.FromString(data)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    info, retry = ErrorInfo(), RetryInfo()
    after = None
    for detail in status.details:
        if detail.Unpack(retry):
            after = retry.retry_delay.ToTimedelta().total_seconds()
        else:
            assert detail.Unpack(info)
    return info.reason, info.domain, after


def test_a_client_is_told_why_and_when_to_come_again(
    party: Party, connect: Callable[..., Client], authority: Authority
) -> None:
    assert party.release().code == 0
    with running(party.config(server__requests_per_minute=3)) as address:
        client = connect(address)
        stranger = connect(address, issue(authority, Role.CLIENT, ["x.example"]))
        calls = [
            lambda: client.describe(epoch="9"),
            lambda: client.describe("other"),
            lambda: client.channel.unary_unary("/labelveil.v1.Service/Newer")(b"", timeout=300),
            client.describe,
            stranger.describe,
        ]
        answers = []
        for call in calls:
            with pytest.raises(grpc.RpcError) as error:
                call()
            answers.append(said(error.value))
    assert [answer[:2] for answer in answers] == [
        (reason, "labelveil")
        for reason in (
            *("NO_RELEASE", "DATA_SET_NOT_PERMITTED", "NO_SUCH_METHOD"),
            *("TOO_MANY_REQUESTS", "UNKNOWN_CLIENT"),
        )
    ]
    after = [answer[2] for answer in answers]
    assert [seconds is None for seconds in after] == [True, True, True, False, True]
    assert 0 < (after[3] or 0) <= 20  # a third of a minute brings one more


def test_what_may_be_tried_again_says_when_and_nothing_else_does() -> None:
    made = [
        make() for make in vars(refusal).values() if getattr(make, "__name__", "") == "<lambda>"
    ]
    made += [refusal.unavailable("no"), refusal.invalid("no"), refusal.refused("no")]
    again = {one.code for one in made if one.retry_after is not None}
    never = {one.code for one in made if one.retry_after is None}
    status = grpc.StatusCode
    assert again == {
        *(status.RESOURCE_EXHAUSTED, status.DEADLINE_EXCEEDED),
        *(status.INTERNAL, status.UNAVAILABLE),
    }
    assert not again & never
    # others stand in the way for a second, what needs a remedy takes five
    after = {one.reason: one.retry_after for one in made if one.retry_after is not None}
    brief = {"too_many_calls", "incomplete_request", "stalled"}
    assert after == {reason: 1.0 if reason in brief else 5.0 for reason in after}


def test_each_refusal_is_a_sentence_and_a_word() -> None:
    for make in vars(refusal).values():
        if getattr(make, "__name__", "") == "<lambda>":
            made = make()
            assert re.fullmatch(r"[a-z]+(_[a-z]+)*", made.reason)
            assert " " in made.text
