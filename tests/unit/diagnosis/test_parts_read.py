"""Statistics that evaluation reads at another place than training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Grouped(nn.Module):
    """Normalises three groups of channels by parts of one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 9)
        self.register_buffer("variances", torch.ones(9))
        self.head = nn.Linear(9, 3)

    def read(self, start: int) -> torch.Tensor:
        return self.variances[start : start + 3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        scale = torch.tensor([1.0, 3.0, 9.0])
        made, kept = [], []
        for group in range(3):
            part = x[:, 3 * group : 3 * group + 3] * scale[group]
            if self.training:
                now = part.pow(2).mean(0)
                old = self.variances[3 * group : 3 * group + 3]
                kept.append(0.9 * old + 0.1 * now.detach())
            else:
                now = self.read(3 * group)
            made.append(part / (now + 1e-3).sqrt())
        if self.training:
            self.variances.copy_(torch.cat(kept))
        return self.head(torch.cat(made, 1))


class Standing(Grouped):
    def read(self, start: int) -> torch.Tensor:
        return self.variances[0:3]  # HERE


class Shifted(Grouped):
    def read(self, start: int) -> torch.Tensor:
        return self.variances[max(start - 3, 0) :][:3]  # HERE


class Squared(Grouped):
    """Reads the right part, and takes it for something else."""

    def read(self, start: int) -> torch.Tensor:
        return self.variances[start : start + 3].square()


class Split(Grouped):
    """Reads the right parts by another function, squared."""

    def read(self, start: int) -> torch.Tensor:
        return self.variances.split(3)[start // 3].square()


class OneByOne(Grouped):
    """Reads the right entries, one by one, squared."""

    def read(self, start: int) -> torch.Tensor:
        return torch.cat([self.variances[n : n + 1] for n in range(start, start + 3)]).square()


def checked(model: type[Grouped]):
    torch.manual_seed(0)
    contract = Contract(
        model=model,
        batch=((torch.randn(12, 5),), torch.randint(0, 3, (12,))),
        loss=F.cross_entropy,
    )
    (found,) = contract.check(["mode-agreement"]).findings
    return found


@pytest.mark.parametrize("model", [Standing, Shifted])
def test_the_line_that_reads_another_part_is_named(model: type[Grouped]) -> None:
    found = checked(model)
    assert (found.status, found.code) == ("violated", "statistics-biased")
    assert found.location.text.endswith("# HERE")
    assert "another part of variances" in found.cause
    assert "begin at 0, 3, 6" in found.because


@pytest.mark.parametrize("model", [Squared, Split, OneByOne])
def test_other_uses_of_the_right_parts_are_explained_as_before(model: type[Grouped]) -> None:
    found = checked(model)
    assert found.code == "statistics-biased"
    assert "another part" not in found.cause


def test_the_same_parts_pass() -> None:
    assert checked(Grouped).status == "passed"
