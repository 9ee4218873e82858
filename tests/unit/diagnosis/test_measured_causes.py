"""A cause says what was measured, not what is usual for the operation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(9, 4, generator=G), torch.randint(0, 3, (9,), generator=G)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.act(self.body(x)))


class Chosen(Base):
    def act(self, h):
        return torch.where(h > 0, (h * (h > 0)).log(), h)


class Filled(Base):
    def act(self, h):
        roots = h.sqrt()
        return roots.masked_fill(h < 0, 0.0)


class Safe(Base):
    """The argument is made safe first: nothing is wrong."""

    def act(self, h):
        return torch.where(h > 0, torch.where(h > 0, h, 1.0).log(), h)


class Edge(Base):
    """A norm of exact zeros: the derivative itself is not finite, and no result is dropped."""

    def act(self, h):
        return h * (h * 0).square().sum(1, keepdim=True).sqrt()


def gradients(model):
    contract = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy)
    (finding,) = contract.check(["gradients-finite"]).findings
    return finding


@pytest.mark.parametrize(("model", "by"), [(Chosen, "torch.where"), (Filled, "Tensor.masked_fill")])
def test_nan_from_a_branch_that_is_not_chosen_names_the_choice(model, by):
    found = gradients(model)
    assert found.code == "non-finite-gradient"
    assert f"whose result {by}" in found.cause
    assert "derivative of a" not in found.cause
    assert "safe argument" in found.fix


def test_a_safe_argument_passes_and_an_edge_of_the_domain_stays_one():
    assert gradients(Safe).status == "passed"
    assert "derivative of a square root at 0" in gradients(Edge).cause


def two_groups(model):
    return torch.optim.SGD(
        [{"params": model.body.parameters()}, {"params": model.head.parameters()}], lr=0.5
    )


def half_scheduled(model, optimizer, inputs, targets):
    group = optimizer.param_groups[1]
    group["step"] = group.get("step", -1) + 1
    group["lr"] = 0.5 * 0.8 ** group["step"]
    return plain(model, optimizer, inputs, targets)


def plain(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (half_scheduled, "while the rate of group 1 changes"),
        (plain, "the learning rate never changes"),
    ],
)
def test_a_rate_that_changes_in_one_group_is_not_said_never_to_change(step, says):
    contract = Contract(
        model=Safe,
        batch=((X,), Y),
        loss=F.cross_entropy,
        optimizer=two_groups,
        train_step=step,
        promises=(promises.Schedule(lambda n: 0.5 * 0.8**n),),
    )
    (finding,) = contract.check(["schedule"]).findings
    assert finding.code == "schedule-differs"
    assert says in finding.cause


class Sliced(nn.Module):
    """Slices a table of two dimensions along the features: it holds enough positions."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 6, generator=G))

    def forward(self, x):
        return x + self.table[:, 1 : x.shape[1] + 1]


class Short(Sliced):
    def forward(self, x):
        return x + self.table[: x.shape[1]]


def test_a_table_that_holds_what_is_needed_is_not_too_short():
    for model, length, code in ((Sliced, 6, "broadcast-shapes"), (Short, 9, "table-too-short")):
        contract = Contract(model=model, batch=((torch.randn(2, length, 6, generator=G),), None))
        (finding,) = contract.check(["backward"]).findings
        assert finding.code == code, str(finding)


class Attention(nn.Module):
    """Scores over keys, hidden by a mask that may begin too late; the softmax may run over the queries."""

    def __init__(self, dim, first):
        super().__init__()
        self.q, self.k, self.dim, self.first = nn.Linear(6, 6), nn.Linear(6, 6), dim, first

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT
        late = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        return scores.masked_fill(late.triu(self.first), -torch.inf).softmax(self.dim) @ x


@pytest.mark.parametrize(
    ("dim", "first", "cause", "because"),
    [
        (1, 1, "masks along dimension -1, and the softmax runs over dimension -2",
         "along dimension -1 all positions to be hidden are masked; along -2 they get"),
        (2, 3, "masks a part of the positions to be hidden", "2 of 4 entries of a sample that must"),
        (2, 1, "", ""),
    ],
)  # fmt: skip
def test_what_a_mask_leaves_is_measured(dim, first, cause, because):
    x = torch.randn(2, 5, 6, generator=G)
    made = Contract(
        model=lambda: Attention(dim, first), batch=((x,), None), promises=(promises.Causal(),)
    )
    (finding,) = made.check(["causality"]).findings
    assert finding.status == ("violated" if cause else "passed")
    assert cause in finding.cause
    assert because in finding.because
    assert " or " not in finding.cause
    if cause:
        assert "masked_fill" in finding.location.text
