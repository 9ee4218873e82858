"""Each planted bug is found by its check, with its code, culprit and line; its mended twin passes that check."""

from __future__ import annotations

import linecache

import pytest
import torch

from pytest_torchcheck.catalogue import catalogue
from tests.unit.checks import bugs_of_loops  # noqa: F401 - registers its programs
from tests.unit.checks.bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_found_and_explained(name: str) -> None:
    torch.manual_seed(0)
    bug = BUGS[name]
    report = bug.build(True).check([bug.check])
    found = [f for f in report.findings if f.status == bug.status]
    assert bug.code in [f.code for f in found], "\n\n".join(str(f) for f in report.findings)
    finding = next(f for f in found if f.code == bug.code)
    assert all((finding.summary, finding.observed, finding.cause, finding.because, finding.fix)), (
        str(finding)
    )
    assert bug.culprit in {"", *(c.name for c in finding.culprits)}, str(finding)
    if bug.line:
        places = [finding.location, *(c.location for c in finding.culprits)]
        texts = [linecache.getline(p.file, p.line) for p in places if p is not None]
        assert any(bug.line in text for text in texts), f"{texts}\n{finding}"


@pytest.mark.parametrize("name", BUGS)
def test_the_mended_twin_passes(name: str) -> None:
    torch.manual_seed(0)
    bug = BUGS[name]
    report = bug.build(False).check([bug.check])
    wrong = [f for f in report.findings if f.status == "violated" or f.code == "internal-error"]
    assert not wrong, "\n\n".join(str(f) for f in wrong)


def test_every_check_named_here_exists() -> None:
    assert {bug.check for bug in BUGS.values()} <= set(catalogue())
