"""Parameters that get a gradient from a plain forward and none in the user's own step: the line of the step that cuts it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 6), nn.Linear(6, 4)
        self.judge = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


def judged(step: Any) -> Finding:
    contract = Contract(
        model=Pair,
        batch=((torch.randn(8, 4),), torch.randn(8, 4)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        train_step=step,
    )
    (found,) = contract.check(["weights-update"]).findings
    return found


def adversarial(model: Pair, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    """The encoder learns from the judge alone, and the judge from codes that are cut off by right."""
    codes = torch.tanh(model.encoder(*inputs))
    optimizer.zero_grad()
    model.judge.requires_grad_(False)
    fooled = F.softplus(-model.judge(codes.detach())).mean()
    loss = F.mse_loss(model.decoder(codes.detach()), targets) + 0.5 * fooled
    loss.backward()
    model.judge.requires_grad_(True)
    F.softplus(model.judge(codes.detach())).mean().backward()
    optimizer.step()
    return loss.detach()


def without_gradients(model: Pair, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    with torch.no_grad():
        codes = torch.tanh(model.encoder(*inputs))
    loss = F.mse_loss(model.decoder(codes), targets) + model.judge(codes).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def sound(model: Pair, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    codes = torch.tanh(model.encoder(*inputs))
    optimizer.zero_grad()
    model.judge.requires_grad_(False)
    fooled = F.softplus(-model.judge(codes)).mean()
    loss = F.mse_loss(model.decoder(codes), targets) + 0.5 * fooled
    loss.backward()
    model.judge.requires_grad_(True)
    F.softplus(model.judge(codes.detach())).mean().backward()
    optimizer.step()
    return loss.detach()


def test_a_term_that_is_a_constant_names_the_detach_in_it() -> None:
    found = judged(adversarial)
    assert (found.status, found.code) == ("violated", "weight-static")
    assert {c.name for c in found.culprits if c.kind == "parameter"} == {
        "encoder.weight",
        "encoder.bias",
    }
    assert found.location is not None
    assert found.location.text.startswith("fooled = ")
    assert "detach() cuts the graph" in found.cause


def test_a_region_without_gradients_in_the_step_is_the_line() -> None:
    found = judged(without_gradients)
    assert found.location is not None
    assert found.location.text == "with torch.no_grad():"


def test_a_step_that_trains_every_part_passes() -> None:
    assert judged(sound).status == "passed"


def read_twice(
    order: str, *, optimizers: int = 1, cleared: bool = True, helper: bool = False
) -> Any:
    """Make a step in which the judge and then the encoder are trained, or the other way round, on codes that are cut off."""

    def cut(value: Tensor) -> Tensor:
        return value.detach()  # CUT

    def scored(model: Pair, codes: Tensor, sign: float) -> Tensor:
        return F.softplus(sign * model.judge(codes)).mean()

    def step(model: Pair, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
        codes = torch.tanh(model.encoder(*inputs))
        F.mse_loss(model.decoder(codes.detach()), targets).backward()
        each = optimizer if optimizers > 1 else [optimizer, optimizer]
        each[0].step()
        plain = codes.detach()  # CUT
        if helper:
            plain = cut(codes)
        for who in order:
            for one in each:
                one.zero_grad()
            if who == "j":
                scored(model, plain, 1.0).backward()  # JUDGE
                each[0].step()
                continue
            loss = scored(model, plain, -1.0)  # ENCODER
            loss.backward()
            if cleared:
                model.judge.zero_grad()
            each[1].step()
        return loss.detach()

    return step


def by(step: Any, optimizers: int = 1) -> Finding:
    def make(m: Pair) -> Any:
        parts = [[*m.judge.parameters(), *m.decoder.parameters()], [*m.encoder.parameters()]]
        made = [torch.optim.SGD(part, lr=0.1) for part in parts]
        return made if optimizers > 1 else torch.optim.SGD(m.parameters(), lr=0.1)

    contract = Contract(
        model=Pair,
        batch=((torch.randn(8, 4),), torch.randn(8, 4)),
        optimizer=make,
        train_step=step,
    )
    (found,) = contract.check(["weights-update"]).findings
    assert found.location is not None
    return found


@pytest.mark.parametrize("order", ["je", "ej"])
@pytest.mark.parametrize(("optimizers", "cleared"), [(1, True), (2, True), (2, False)])
def test_the_statement_that_reads_what_another_needs_cut(
    order: str, optimizers: int, cleared: bool
) -> None:
    found = by(read_twice(order, optimizers=optimizers, cleared=cleared), optimizers)
    assert found.code == "weight-static"
    assert found.location.text.endswith("# ENCODER")
    assert "this line reads plain, which line" in found.cause
    assert "for another pass" in found.cause
    assert found.fix.startswith("write codes for plain on line")
    texts = [c.location.text for c in found.culprits if c.kind == "call" and c.location]
    assert [text.partition("# ")[2] for text in texts].count("JUDGE") == 1
    assert any(text.endswith("# CUT") for text in texts)


def test_a_helper_that_cuts_is_no_place_to_write() -> None:
    found = by(read_twice("je", helper=True))
    assert found.location.text.endswith("# ENCODER")
    assert found.fix.startswith("read the value from before line")


def test_passes_that_do_not_tell_name_both_readers_and_blame_none() -> None:
    found = by(read_twice("je", cleared=False))
    assert found.location.text.endswith("# CUT")
    assert "several statements read" in found.cause
    assert "drop .detach()" not in found.fix
    texts = {c.location.text.partition("# ")[2] for c in found.culprits if c.location}
    assert texts >= {"CUT", "JUDGE", "ENCODER"}


def one_pass(model: Pair, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    codes = torch.tanh(model.encoder(*inputs)).detach()  # CUT
    first = F.mse_loss(model.decoder(codes), targets)
    loss = first + model.judge(codes).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_two_readers_of_one_pass_leave_the_detach_to_blame() -> None:
    found = by(one_pass)
    assert found.location.text.endswith("# CUT")
    assert found.fix.startswith("drop .detach()")
    assert "the check passes with it" in found.fix
