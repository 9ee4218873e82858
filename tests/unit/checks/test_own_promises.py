"""What a promise of the project's own raises or yields is the project's, not a defect of this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import Promise
from pytest_torchcheck.verdicts import passed


@dataclass(frozen=True)
class Verifies(Promise):
    """Does what it is given with a subject."""

    way: Any

    def verify(self, subject):
        return self.way(subject)


def raises(subject):
    yield passed("so far")
    return {}["missing"]


def misuses(subject):
    yield passed(str(subject.forward(3).shape))


def calls_wrongly(subject):
    subject.model(torch.randn(2, 3))
    yield passed("never")


def skips(subject):
    pytest.skip("not today")


@pytest.mark.parametrize(
    ("way", "summary"),
    [
        (raises, "verify() of a promise of your own raises KeyError"),
        (misuses, "has no attribute"),
        (skips, "verify() of a promise of your own raises Skipped: not today"),
        (lambda _: None, "Verifies.verify returned nothing; yield findings from"),
        (lambda _: passed("one"), "Verifies.verify returned an object of type Finding; yield"),
        (lambda _: [True], "Verifies.verify yielded an object of type bool; yield findings"),
    ],
)
def test_an_error_of_the_projects_own(way, summary):
    (found,) = found_by(way)
    assert found.status == "violated"
    assert summary in found.summary
    assert "defect of pytest-torchcheck" not in str(found)
    assert found.location is not None
    assert found.location.file == __file__


def found_by(way):
    contract = Contract(
        model=lambda: nn.Linear(4, 2), batch=(torch.randn(5, 4), None), promises=[Verifies(way)]
    )
    return contract.check(["own-promises"]).findings


def test_torchs_own_error_is_explained():
    (found,) = found_by(calls_wrongly)
    assert (found.status, found.code) == ("violated", "matmul-shapes")


def test_findings_are_passed_on():
    (found,) = found_by(lambda _: iter([passed("all is well")]))
    assert (found.status, found.check, found.summary) == ("passed", "own-promises", "all is well")
