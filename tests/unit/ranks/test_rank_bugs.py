"""Seeded bugs are found over real processes, by name and line; their mended twins pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import rank_bugs  # the ranks import it by name, as they would a user's file

from pytest_torchcheck.catalogue import catalogue

if TYPE_CHECKING:
    from pytest_torchcheck.contracts import Contract
    from pytest_torchcheck.findings import Report


def _run(contract: Contract) -> Report:
    names = [
        name
        for name, check in catalogue().items()
        if "ranks" in check.needs and check.missing(contract) is None
    ]
    return contract.check(names)


@pytest.mark.parametrize("name", rank_bugs.BUGS)
def test_seeded_bug_is_found(name: str) -> None:
    contract, expected, named = rank_bugs.BUGS[name]
    report = _run(contract)
    violated = {
        f"{f.check}/{f.code}": f
        for f in report.findings
        if f.status == "violated" and f.root is None
    }
    assert set(violated) == {expected}, report.findings
    finding = violated[expected]
    assert named in finding.summary
    assert all((finding.observed, finding.cause, finding.because, finding.fix))
    assert finding.location is not None
    assert finding.location.file.endswith("rank_bugs.py")


@pytest.mark.parametrize("name", rank_bugs.MENDED)
def test_mended_twin_passes(name: str) -> None:
    report = _run(rank_bugs.MENDED[name])
    assert {f.status for f in report.findings} <= {"passed", "not-applicable"}, report.findings
    assert {f.status for f in report.findings if f.check != "synchronised-statistics"} == {"passed"}
