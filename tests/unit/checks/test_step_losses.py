"""Losses that a training step computes itself."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

SIZE = 6


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 12)
        self.kind, self.value = nn.Linear(12, 4), nn.Linear(12, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.kind(h), self.value(h)


def check(kind_loss, value_loss):
    def step(model, optimizer, inputs, targets):
        labels, returns = targets
        kind, value = model(*inputs)
        loss = kind_loss(kind, labels) + value_loss(value, returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, 5, generator=generator)
    labels = torch.randint(0, 4, (SIZE,), generator=generator)
    returns = torch.randn(SIZE, generator=generator)
    return (
        Contract(
            model=TwoHeads,
            batch=((x,), (labels, returns)),
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            train_step=step,
        )
        .check(checks=["step-losses"])
        .findings
    )


def right(value, returns):
    return F.mse_loss(value.squeeze(1), returns)


def all_pairs(value, returns):
    return F.mse_loss(value, returns)


def of_probabilities(kind, labels):
    return F.cross_entropy(kind.softmax(-1), labels)


def test_a_sound_step_passes() -> None:
    (found,) = check(F.cross_entropy, right)
    assert found.status == "passed"


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_value_of_b_by_one_against_b_is_found_in_the_step() -> None:
    (found,) = check(F.cross_entropy, all_pairs)
    assert (found.status, found.code) == ("violated", "loss-broadcast")
    assert found.location is not None
    assert found.location.text == "return F.mse_loss(value, returns)"


def test_a_softmax_before_cross_entropy_is_found_in_the_step() -> None:
    (found,) = check(of_probabilities, right)
    assert (found.status, found.code) == ("violated", "double-softmax")


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_two_mistakes_are_two_findings() -> None:
    found = check(of_probabilities, all_pairs)
    assert {f.code for f in found} == {"loss-broadcast", "double-softmax"}


def test_a_step_without_torchs_losses_reads_its_targets() -> None:
    (found,) = check(
        lambda kind, labels: (kind.logsumexp(-1) - kind[range(SIZE), labels]).mean(),
        lambda value, returns: (value[:, 0] - returns).square().mean(),
    )
    assert found.status == "passed"


def squares_of_all_pairs(value, returns):
    return (value - returns).square().mean()


def squares(value, returns):
    return (value.squeeze(1) - returns).square().mean()


def differences_of_pairs(value, returns):
    """A ranking loss: targets are compared with targets, outputs with outputs."""
    gaps = returns[:, None] - returns[None, :]
    scores = value - value.squeeze(1)
    return F.softplus(-gaps.sign() * scores).mean()


def test_differences_without_a_loss_function_are_seen_too():
    (finding,) = check(F.cross_entropy, squares_of_all_pairs)
    assert finding.code == "loss-broadcast"
    assert finding.fix.startswith("write value.squeeze(1) for value on line ")
    assert ", or returns.unsqueeze(1) for returns; tried: the check passes" in finding.fix
    assert finding.location.text == "return (value - returns).square().mean()"
    for sound in (squares, differences_of_pairs):
        (finding,) = check(F.cross_entropy, sound)
        assert finding.status == "passed", finding


@pytest.mark.parametrize("graph", [False, True])
def test_a_derivative_that_a_step_adds_without_its_graph(graph):
    def step(model, optimizer, inputs, targets):
        leaf = inputs[0].detach().requires_grad_()
        kind, value = model(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf, create_graph=graph, retain_graph=True)
        loss = F.cross_entropy(kind, targets)
        loss = loss + 0.1 * (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    (finding,) = (
        Contract(
            model=TwoHeads,
            batch=((torch.randn(SIZE, 5),), torch.arange(SIZE) % 4),
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            train_step=step,
        )
        .check(checks=["step-losses"])
        .findings
    )
    assert finding.status == ("passed" if graph else "violated"), finding
    if not graph:
        assert finding.code == "derivative-without-graph"


def stepping(step, made=None):
    return Contract(
        model=lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)),
        batch=((torch.randn(SIZE, 5),), torch.arange(SIZE) % 4), train_step=step,
        optimizer=made or (lambda model: torch.optim.SGD(model.parameters(), lr=0.1)),
    )  # fmt: skip


def trained(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


def test_a_step_that_gives_the_model_a_tuple_is_told_to_unpack_it():
    def step(model, optimizer, given, targets):
        F.cross_entropy(model(given), targets).backward()

    (finding,) = stepping(step).check(["backward"]).findings
    assert finding.code == "not-a-tensor"
    assert "*given" in finding.fix
    assert "LSTM" not in finding.cause


def test_a_step_that_returns_no_loss_has_no_number_that_falls():
    def step(*given):
        trained(*given)

    (finding,) = stepping(step).check(["overfit"]).findings
    assert finding.status == "inconclusive"
    assert "returns no loss" in finding.summary
    assert "nan" not in finding.summary


def test_what_comes_beside_the_optimizer_is_not_known_to_be_unsaved():
    def made(model):
        return torch.optim.SGD(model.parameters(), lr=0.1), {"done": 0}

    def step(model, pair, inputs, targets):
        optimizer, count = pair
        count["done"] += 1
        optimizer.param_groups[0]["lr"] = 0.1 / count["done"]
        return trained(model, optimizer, inputs, targets)

    (finding,) = stepping(step, made).check(["resume"]).findings
    assert finding.status == "inconclusive"
    assert "optimizer[1]" in finding.summary


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (lambda loss, kind: {"loss": loss.item(), "share": 0.5}, True),
        (lambda loss, kind: SimpleNamespace(loss=loss, logits=kind), True),
        (lambda loss, kind: np.float32(loss.item()), True),
        (lambda loss, kind: {"share": 0.5}, False),
        (lambda loss, kind: (loss.item(), 0.5), False),
        (lambda loss, kind: {"loss": {"kind": loss.item()}}, False),
        (lambda loss, kind: kind, False),
        (lambda loss, kind: torch.empty(0), False),
        (lambda loss, kind: True, False),
        (lambda loss, kind: len(kind), False),
    ],
    ids=[
        "dict",
        "object",
        "numpy",
        "other",
        "tuple",
        "nested",
        "outputs",
        "empty",
        "flag",
        "count",
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_loss_is_read_from_what_a_step_returns_or_is_not_known(answer, read, sign):
    def step(model, optimizer, inputs, targets):
        kind, _ = model(*inputs)
        loss = F.cross_entropy(kind, targets)
        optimizer.zero_grad()
        (sign * loss).backward()
        optimizer.step()
        return answer(loss, kind)

    x = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(2))
    for loss in (None, lambda output, target: F.cross_entropy(output[0], target)):
        (found,) = (
            Contract(
                model=TwoHeads,
                batch=((x,), torch.arange(SIZE) % 4),
                loss=loss,
                optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=0.05),
                train_step=step,
            )
            .check(checks=["overfit"])
            .findings
        )
        assert "nan" not in f"{found.summary} {found.observed}", str(found)
        if loss is None and not read:
            assert "returns no loss" in found.summary
        elif sign > 0:
            assert found.status == "passed", str(found)
        elif read and loss is not None:
            assert found.status == "violated", str(found)


def test_a_step_of_several_passes_whose_loss_takes_whole_batches_only():
    """Representations are made in parts, each with its slopes of the loss of all of them."""

    def loss(output, places):
        return F.cross_entropy(output @ output.detach().T, places)

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        parts = inputs[0].split(3)
        with torch.no_grad():
            made = torch.cat([model(part) for part in parts])
        made = made.requires_grad_()
        value = loss(made, targets)
        value.backward()
        for part, slope in zip(parts, made.grad.split(3), strict=True):
            (model(part) * slope).sum().backward()
        optimizer.step()
        return value.detach()

    torch.manual_seed(0)
    contract = Contract(
        model=lambda: nn.Linear(4, 5),
        batch=((torch.randn(6, 4),), torch.arange(6)),
        loss=loss,
        train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )
    (finding,) = contract.check(["accumulation"]).findings
    assert finding.status == "not-applicable"
