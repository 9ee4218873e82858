"""Findings as plain data."""

from __future__ import annotations

import json
import math

import pytest

from pytest_torchcheck.findings import Culprit, Finding, Location, Report


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def test_the_json_of_odd_numbers_is_read_by_a_strict_parser() -> None:
    finding = Finding(
        check="gradients-finite",
        code="non-finite-forward",
        status="violated",
        summary="loss is nan",
        culprits=(Culprit(kind="loss", name="loss", location=Location(file="/net.py", line=3)),),
        evidence={"loss": math.nan, "curve": [1.0, math.inf, -math.inf], "deep": {"n": [math.nan]}},
    )
    text = Report(contract="net", findings=(finding,), seconds=0.5).to_json()
    data = json.loads(text, parse_constant=_refuse)
    assert data["findings"][0]["evidence"]["curve"] == [1.0, "Infinity", "-Infinity"]
    (again,) = Report.from_json(text).findings
    assert again.evidence["curve"] == [1.0, math.inf, -math.inf]
    loss = again.evidence["loss"]
    assert isinstance(loss, float)
    assert math.isnan(loss)
    assert again.culprits == finding.culprits


def test_options_of_json_are_passed_on() -> None:
    text = Report(contract="net", findings=()).to_json(indent=None, sort_keys=True)
    assert "\n" not in text
    with pytest.raises(ValueError, match="status must be one of"):
        Finding(status="odd", summary="")  # type: ignore[arg-type]
