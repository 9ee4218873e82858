"""What a run keeps of its items: small, by contract, in the order of collection."""

from __future__ import annotations

import json
from typing import Any

from pytest_torchcheck.plugin.kept import Kept


def _text(node: str, case: str) -> str:
    return json.dumps({"node": node, "case": case, "findings": ["torchcheck " * 40]})


def _cases(kept: Kept, order: dict[str, int]) -> list[tuple[str, list[str]]]:
    def case(record: dict[str, Any]) -> str:
        return str(record["case"])

    return [(node, [case(record) for _, record in found]) for node, found in kept.by_node(order)]


def test_contracts_come_in_the_order_of_collection_however_their_items_end() -> None:
    """Workers of xdist finish items of many contracts in turns."""
    nodes = [f"t.py::c{index}" for index in range(9)]
    ids = [(node, f"{node}::{case}") for node in nodes for case in "abc"]
    order = {nodeid: place for place, (_, nodeid) in enumerate(ids)}
    kept = Kept()
    for node, nodeid in sorted(ids, key=lambda one: one[1][::-1]):
        kept.add(nodeid, "call", _text(node, nodeid[-1]))
    assert _cases(kept, order) == [(node, ["a", "b", "c"]) for node in nodes]


def test_a_second_attempt_replaces_the_first_wherever_that_is_kept() -> None:
    """The first may have been packed, and the second may say nothing."""
    kept = Kept()
    for index in range(9):
        kept.add(f"c{index}::a", "setup", _text(f"c{index}", "setup"))
        kept.add(f"c{index}::a", "call", _text(f"c{index}", "first"))
    for index in (1, 2):
        kept.forget(f"c{index}::a")
    kept.add("c1::a", "call", _text("c1", "second"))
    assert "c2::a" not in kept.ids
    found = dict(_cases(kept, {}))
    assert found["c0"] == ["setup", "first"]
    assert found["c1"] == ["second"]
    assert "c2" not in found


def test_a_lone_surrogate_in_a_message_survives_packing() -> None:
    kept = Kept()
    for index in range(9):
        kept.add(f"c{index}::\udcff", "call", json.dumps({"node": f"c{index}", "case": "\udcff"}))
    assert dict(_cases(kept, {}))["c0"] == ["\udcff"]


def test_what_contracts_found_is_packed() -> None:
    """Of what many contracts found, less than a tenth of the text is held."""
    kept, whole = Kept(), 0
    for index in range(40):
        for case in range(50):
            text = _text(f"c{index}", f"check-{case}")
            whole += len(text)
            kept.add(f"c{index}::{case}", "call", text)
    held = sum(len(one) for many in kept._packed.values() for one in many)
    assert held < whole / 10
