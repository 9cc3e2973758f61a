"""Accounts: whose budget pays, and how its cap is raised and shown."""

from __future__ import annotations

import json
from typing import Any

from tests.label_party.conftest import Party


def accounts(party: Party, *options: str) -> list[dict[str, Any]]:
    return json.loads(party.run("budget", "--json", *options).out)


def test_a_cap_is_raised_by_the_command_alone_and_shown_for_ever(party: Party) -> None:
    party.release(privacy__total_epsilon=1)
    refused = party.release(data__epoch="2", privacy__total_epsilon=5)
    assert refused.code == 1
    assert "label-party budget raise --to EPSILON --reason TEXT" in refused.err
    assert party.run("budget", "raise", "--to", "0.5", "--reason", "x").code == 1
    assert party.run("budget", "raise", "--to", "2").code == 2  # no reason
    raised = party.run("budget", "raise", "--to", "2", "--reason", "a second year was agreed")
    assert (raised.code, raised.err) == (0, "")
    assert "ε = 2" in raised.out
    assert party.release(data__epoch="2", privacy__total_epsilon=2).code == 0
    shown = party.run("budget").out
    assert "raised to ε = 2" in shown
    assert "a second year was agreed" in shown
    (account,) = accounts(party)
    assert [cap["reason"] for cap in account["caps"]] == ["", "a second year was agreed"]
    assert account["left"]["epsilon"] == "0"


def test_options_before_the_command_are_not_silently_ignored(party: Party) -> None:
    party.release()
    refused = party.run("budget", "--json", "raise", "--to", "9", "--reason", "x")
    assert (refused.code, "put them behind it" in refused.err) == (1, True)
    assert len(accounts(party)[0]["caps"]) == 1
