"""Every reason of a refusal is listed: metrics begin with them, and operators look them up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from label_party.monitoring.calls import REASONS, Telemetry, Traces
from label_party.server import handshakes

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
