"""A mark for 'no label' in targets whose loss is a module that no line of the user's calls."""

from __future__ import annotations

import torch
from torch import nn

from pytest_torchcheck import Contract


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(1, 3, 1)

    def forward(self, x):
        return self.head(x)


def found(criterion: nn.Module) -> object:
    maps = torch.randint(0, 3, (2, 4, 4))
    maps[:, 0] = 255
    contract = Contract(model=Segmenter(), batch=((torch.randn(2, 1, 4, 4),), maps), loss=criterion)
    return contract.check(["backward"]).findings[0]


def test_the_line_that_makes_the_criterion_is_named():
    criterion = nn.CrossEntropyLoss()  # made here
    finding = found(criterion)
    assert (finding.status, finding.code) == ("violated", "label-range")
    assert finding.location.text.endswith("# made here")
    assert finding.culprits[0].name == "CrossEntropyLoss"
    assert (
        finding.fix == f"write ignore_index=255 in CrossEntropyLoss on line {finding.location.line}"
    )


def test_a_criterion_that_ignores_the_mark_passes():
    assert found(nn.CrossEntropyLoss(ignore_index=255)).status == "passed"
