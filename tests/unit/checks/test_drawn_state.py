"""What an instance drew when it was built and does not save, by way of other names too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Sketch(nn.Module):
    """Projects with signs of a basis that is drawn; ``how`` says what becomes of them."""

    def __init__(self, how):
        super().__init__()
        basis, _ = torch.linalg.qr(torch.randn(6, 6))
        column = basis[:, 0].clone()
        if how == "lost":
            self.register_buffer("signs", column.sign(), persistent=False)
        elif how == "saved":
            self.register_buffer("signs", column.sign())
        else:
            self.register_buffer("column", column)
            self.register_buffer("signs", column.sign(), persistent=False)
            self.register_load_state_dict_post_hook(lambda m, _: m.signs.copy_(m.column.sign()))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x * self.signs)


class Ramp(nn.Module):
    """Takes no more than the size of what it draws."""

    def __init__(self):
        super().__init__()
        column = torch.randn(6)
        self.register_buffer("ramp", torch.linspace(-1, 1, column.shape[0]), persistent=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x * self.ramp)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def codes(model):
    batch = torch.randn(4, 6), torch.arange(4) % 3
    made = Contract(model=model, batch=batch, loss=F.cross_entropy)
    found = made.check(["state-dict-roundtrip"]).findings
    return [f.code for f in found if f.status == "violated"]


def test_signs_of_a_drawn_basis_that_are_not_saved():
    assert codes(Sketch("lost")) == ["state-lost"]


@pytest.mark.parametrize("how", ["saved", "hook"])
def test_what_is_saved_computed_again_or_not_drawn_is_sound(how):
    assert codes(Sketch(how)) == []


def test_the_size_alone_of_what_is_drawn_is_sound():
    assert codes(Ramp()) == []
