"""A layer that never runs is told together with the sibling that is called in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding


class Block(nn.Module):
    def __init__(self, *, slip: bool) -> None:
        super().__init__()
        self.slip = slip
        self.norm1 = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.norm2 = nn.LayerNorm(8)
        self.feed = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.norm1(x))
        if self.slip:
            return x + self.feed(self.norm1(x))  # again
        return x + self.feed(self.norm2(x))


class Stack(nn.Module):
    def __init__(self, *, slip: bool) -> None:
        super().__init__()
        self.slip = slip
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(self.layers[0](x)) if self.slip else torch.tanh(layer(x))  # every time
        return x


class Spare(nn.Module):
    """One encoder for both inputs, and one that is forgotten altogether: nothing runs too often."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 8)
        self.spare = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x)


def _found(model: nn.Module) -> list[Finding]:
    contract = Contract(
        model=model,
        batch=((torch.randn(4, 8),), torch.randn(4, 8)),
        loss=nn.functional.mse_loss,
    )
    report = contract.check(("gradients-exist",))
    return [finding for finding in report.findings if finding.status == "violated"]


def test_second_call_of_a_sibling_is_named() -> None:
    (finding,) = _found(nn.Sequential(Block(slip=True), Block(slip=False)))
    assert "0.norm1 is called 2 times in one forward, 0.norm2 never" in (finding.cause or "")
    place = finding.culprits[-1].location
    assert place is not None
    assert place.text.endswith("# again")
    assert finding.location == place
    assert any("self.norm2 = " in c.location.text for c in finding.culprits if c.location)
    assert not _found(nn.Sequential(Block(slip=False), Block(slip=False)))


def test_first_entry_of_a_list_in_a_loop() -> None:
    (finding,) = _found(Stack(slip=True))
    assert "layers.0 is called 3 times" in (finding.cause or "")
    place = finding.culprits[-1].location
    assert place is not None
    assert place.text.endswith("# every time")
    assert not _found(Stack(slip=False))


def test_nothing_is_said_of_siblings_that_run_once() -> None:
    (finding,) = _found(Spare())
    assert "called" not in (finding.cause or "")


class Corners(nn.Module):
    """Two weights of one shape for two parts of the input."""

    def __init__(self, *, slip: bool) -> None:
        super().__init__()
        self.slip = slip
        self.kernel1 = nn.Parameter(torch.randn(4, 4))
        self.kernel2 = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = x[:, :4] @ self.kernel1
        if self.slip:
            return torch.cat([low, x[:, 4:] @ self.kernel1], 1)  # the other's
        return torch.cat([low, x[:, 4:] @ self.kernel2], 1)


class Forgotten(Corners):
    """One of them is read once, and the other nowhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, :4] @ self.kernel1, x[:, 4:]], 1)


def test_a_parameter_read_in_the_place_of_its_sibling_is_named() -> None:
    (finding,) = _found(Corners(slip=True))
    assert "kernel1 is read on lines" in (finding.cause or "")
    lines = [c.location.text for c in finding.culprits if c.location is not None]
    assert any("the other's" in text for text in lines)
    assert finding.location is not None
    assert "the other's" in finding.location.text
    assert not _found(Corners(slip=False))


def test_a_parameter_without_a_slip_has_no_sibling_to_blame() -> None:
    (finding,) = _found(Forgotten(slip=False))
    assert "is read on lines" not in (finding.cause or "")


class Scaled(nn.Module):
    """Scales its input, mixes it, and is to scale what comes out by numbers of another name."""

    def __init__(self, *, others: bool) -> None:
        super().__init__()
        self.mix, self.others = nn.Linear(8, 8), others
        self.before, self.bias, self.after = (nn.Parameter(torch.randn(8)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.mix(x * self.before)
        h = h + self.bias
        if self.others:  # either of two may stand in its place
            h = torch.tanh(h) + self.bias
        return h * self.before  # the other's


@pytest.mark.parametrize("others", [False, True])
def test_the_one_parameter_of_its_shape_that_is_read_twice_is_named(others: bool) -> None:
    (finding,) = _found(Scaled(others=others))
    assert ("before is read on lines" in (finding.cause or "")) is not others
    if not others:
        assert finding.location.text.endswith("# the other's")


class Ways(nn.Module):
    """Two heads for two halves of the input; how one comes to its half differs."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.order = [0, 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x[:, :4], x[:, 4:]
        if self.way == "variable":
            head = self.heads[0]
            done = [head(low)]
            if len(done) > 1:
                head = self.heads[1]
            return torch.cat([*done, head(high)], 1)
        if self.way == "each":
            done = []
            for half in (low, high):
                head = self.heads[0]  # for each half
                done.append(head(half))
            return torch.cat(done, 1)
        if self.way == "handed":
            return torch.cat([use(self.heads[0], low), use(self.heads[0], high)], 1)
        turns = [self.heads[i] for i in self.order]
        return torch.cat([head(half) for head, half in zip(turns, (low, high), strict=True)], 1)


def use(head: nn.Module, half: torch.Tensor) -> torch.Tensor:
    return head(half)


@pytest.mark.parametrize(
    ("way", "text"), [("variable", "head = self.heads[0]"), ("each", "# for each half")]
)
def test_the_statement_that_gave_a_variable_the_sibling_is_the_place(way: str, text: str) -> None:
    (finding,) = _found(Ways(way))
    assert finding.location is not None
    assert finding.location.text.endswith(text)
    assert f"use heads.1 instead of heads.0 on line {finding.location.line}" in (finding.fix or "")


@pytest.mark.parametrize("way", ["handed", "listed"])
def test_a_call_of_what_was_chosen_elsewhere_is_not_the_place(way: str) -> None:
    (finding,) = _found(Ways(way))
    assert "heads.0 is called 2 times" in (finding.cause or "")
    assert finding.location is not None
    assert "self.heads = " in finding.location.text
