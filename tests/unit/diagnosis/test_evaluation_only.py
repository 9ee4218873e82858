"""Parameters that evaluation alone reads are told as such, with the condition from which the two modes part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding


class Base(nn.Module):
    """A layer, and a gain that it is to be multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.ones(6))
        self.extra = Extra()


class Extra(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


class Guarded(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.mix(x))
        if self.training:  # of the dropout
            x = F.dropout(x, 0.5)
        if not self.training:  # the wrong way round
            x = x * self.gain
        return x


class Named(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = self.training  # the name
        x = self.extra(self.mix(x))
        if plain:
            return x
        return x * self.gain


class Called(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(x) * self.gain
        return x if self.training else self.after(x)  # on one line

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return self.extra(x)


class Skipped(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(x) * self.gain
        if not self.training:  # around the call
            x = self.extra(x)
        return x


class OneLine(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.mix(x))
        return x if self.training else x * self.gain  # both on one line


class Nowhere(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.mix(x))
        if self.training:
            x = F.dropout(x, 0.5)
        return x


class Both(Base):
    """Evaluation reads one of two, and nothing the other."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.mix(x))
        if not self.training:
            x = x * self.gain
        return x


class Drawn(Base):
    """What a draw decides is no matter of the mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.mix(x))
        if torch.rand(()) < 2.0 * (not self.training):
            x = x * self.gain
        return x


def found(model: type[nn.Module], check: str = "gradients-exist") -> list[Finding]:
    contract = Contract(
        model=model,
        batch=((torch.randn(4, 6),), torch.randn(4, 6)),
        loss=F.mse_loss,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )
    return [f for f in contract.check([check]).findings if f.status == "violated"]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Guarded, "# the wrong way round"),
        (Named, "# the name"),
        (Skipped, "# around the call"),
        (OneLine, "# both on one line"),
    ],
)
@pytest.mark.parametrize("check", ["gradients-exist", "weights-update"])
def test_the_condition_from_which_the_modes_part_is_the_place(
    model: type[nn.Module], text: str, check: str
) -> None:
    (finding,) = found(model, check)
    assert "it is read in evaluation mode only" in (finding.cause or "")
    assert finding.location is not None
    assert finding.location.text.endswith(text)


def test_where_no_condition_is_seen_the_line_that_reads_is_the_place() -> None:
    (finding,) = found(Called)
    assert finding.location is not None
    assert finding.location.text == "return x + self.shift"
    assert "after line" not in (finding.cause or "")


def test_what_nothing_reads_is_not_called_a_matter_of_the_mode() -> None:
    (finding,) = found(Nowhere)
    assert "no operation of the forward reads it" in (finding.cause or "")
    assert "evaluation" not in (finding.cause or "")


def test_of_two_the_one_that_evaluation_reads_is_told_alone() -> None:
    causes = {str(f.evidence["parameters"]): f.cause or "" for f in found(Both)}
    assert "evaluation mode only" in causes["['gain']"]
    assert "evaluation" not in causes["['spare']"]


def test_a_condition_that_also_draws_still_parts_the_modes() -> None:
    (finding,) = found(Drawn)
    assert "it is read in evaluation mode only" in (finding.cause or "")
