"""What users' type checkers see; run by ``mypy --strict tests/typing``."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import torch
from torch import nn

from pytest_torchcheck import (
    Batch,
    Contract,
    Finding,
    Floats,
    Labels,
    Location,
    Report,
    assert_updates,
    contract,
    promises,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@contract(inputs="B 4", targets=Labels("B", classes=3), loss=nn.CrossEntropyLoss())
def net() -> nn.Module:
    return nn.Linear(4, 3)


assert_type(net, Contract)


@contract(inputs="B 4", memory=3.5, batchdim=0)  # type: ignore[arg-type, call-arg]
def wrong() -> nn.Module:
    return nn.Linear(4, 3)


@contract  # type: ignore[arg-type]
def without_brackets() -> nn.Module:
    return nn.Linear(4, 3)


report = net.check(["backward"], seed=1)
assert_type(report, Report)
assert_type(report.ok, bool)
for finding in report.findings:
    assert_type(finding, Finding)
    assert_type(finding.location, Location | None)
    assert_type(finding.culprits[0].name, str)

made = Contract(
    model=net.model, inputs=Floats("B 4", low=0.0, high=1.0), promises=(promises.Causal(dim=1),)
)
assert_type(made.promises, tuple[promises.Promise, ...])


def returns_nothing(batch: Batch) -> None:
    assert_type(batch.sizes, dict[str, int])
    assert_updates(nn.Linear(2, 2), ((torch.zeros(1, 2),), torch.zeros(1, 2)), loss=nn.MSELoss())


class Bounded(promises.Promise):
    """A promise of a project's own."""

    def verify(self, subject: object) -> Iterator[Finding]:
        yield Finding(status="passed", summary="within bounds")
