"""What a fix says to write can be written there: its calls and names are those of the line, its sizes those declared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

CLASSES: dict[str, Any] = {"targets": Labels("B", classes=3), "loss": F.cross_entropy}


def only(contract: Contract, check: str) -> Any:
    (finding,) = contract.check([check]).causes
    return finding


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.off, self.head = nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        self.off.train()
        return self.head(self.off(self.body(x)))


class Calls(Drops):
    def forward(self, x: torch.Tensor) -> Any:
        return self.head(F.dropout(self.body(x), 0.3))


class Attends(Drops):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x).view(-1, 1, 4, 4)
        return self.head(F.scaled_dot_product_attention(h, h, h, dropout_p=0.3).flatten(1))


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        (Drops, "leave off in the mode that model.eval() sets"),
        (Calls, "pass training=self.training to F.dropout"),
        (Attends, "pass dropout_p=0.0 to F.scaled_dot_product_attention unless self.training"),
    ],
)
def test_dropout_is_turned_off_where_it_is_turned_on(model: Any, fix: str) -> None:
    finding = only(Contract(model=model, inputs="B 6", **CLASSES), "eval-determinism")
    assert finding.fix.startswith(fix)


class Flattened(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x).flatten(1))


class Averaged(Flattened):
    def __init__(self) -> None:
        super().__init__(4)
        self.head = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x).mean(1))


class Long(Flattened):
    def __init__(self) -> None:
        super().__init__(4)
        self.head = nn.Linear(20, 3)


class Cut(Flattened):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x)
        h = h.view(len(x), 2, 11)
        return self.head(h.mean(1))


def test_an_edit_that_fits_the_drawn_sizes_alone_is_left_out() -> None:
    declared: dict[str, Any] = {"inputs": "B T 5", "sizes": {"T": (4, 9)}, **CLASSES}
    fits = only(Contract(model=Averaged, **declared), "backward")
    assert fits.edit.new.strip() == "self.head = nn.Linear(4, 3)"
    drawn = only(Contract(model=Long, **declared), "backward")
    assert (drawn.code, drawn.edit) == ("matmul-shapes", None)
    assert drawn.fix.startswith("if the model is right, declare T=5 (tried: the forward runs); ")


def test_a_view_is_given_sizes_by_the_shape_of_its_operand() -> None:
    contract = Contract(model=lambda: Cut(11), inputs="B T 5", sizes={"T": (4, 9)}, **CLASSES)
    finding = only(contract, "backward")
    assert finding.fix.startswith(
        "choose sizes with the product h.numel(), written by its shape, on line"
    )
