"""What moves once and never again, and what only train() freezes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
Y = torch.arange(6) % 3


def told(make, checks, **declared):
    made = Contract(model=make, batch=((X,), Y), loss=F.cross_entropy, **declared)
    return [
        f
        for f in made.check(checks=[checks]).findings
        if f.status in ("violated", "suspicious", "error")
    ]


class Prompted(nn.Module):
    """Encodes its class prompts, once or in each forward."""

    def __init__(self, *, once, frozen=False):
        super().__init__()
        self.words, self.text = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 5)
        self.image = nn.Linear(5, 5)
        self.once, self.classes = once, None
        if frozen:
            self.words.requires_grad_(False)
            self.text.requires_grad_(False)

    def forward(self, x):
        if self.classes is None or not self.once:
            made = self.text(self.words)
            self.classes = made.detach()
        else:
            made = self.classes
        return self.image(x) @ made.mT


def test_a_cached_encoding_trains_its_encoder_once():
    (finding,) = told(lambda: Prompted(once=True), "weights-update")
    assert (finding.status, finding.code) == ("violated", "weight-stops")
    assert finding.culprits[0].name == "classes"
    assert finding.location.text == "self.classes = made.detach()"
    assert {"words", "text.weight", "text.bias"} == set(finding.evidence["parameters"])


def test_encodings_that_are_sound():
    assert not told(lambda: Prompted(once=False), "weights-update")
    assert not told(lambda: Prompted(once=True, frozen=True), "weights-update")


class Routed(nn.Module):
    """The best expert alone runs, and learning changes which it is."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(5, 3) for _ in range(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.calls += 1
        first = int(self.calls) <= 1
        return self.experts[0](x) + self.experts[1 if first else 2](x)


def test_experts_are_chosen_by_the_step():
    assert not told(Routed, "weights-update")


def turns():
    count = [0]

    def step(model, optimizer, inputs, targets):
        parts = [[model[0].weight, model[0].bias], [model[2].weight, model[2].bias]]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        grads = torch.autograd.grad(loss, parts[0] if count[0] % 5 == 0 else parts[1])
        for p, g in zip(parts[0] if count[0] % 5 == 0 else parts[1], grads, strict=True):
            p.grad = g
        count[0] += 1
        optimizer.step()
        return loss.detach()

    return step


def test_parts_that_take_turns():
    assert not told(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), "weights-update",
        train_step=turns(), optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )  # fmt: skip


class Partly(nn.Module):
    """Keeps its stem as it was trained before."""

    def __init__(self, *, early=False):
        super().__init__()
        self.stem, self.head = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)), nn.Linear(8, 3)
        if early:
            self.train()

    def forward(self, x):
        return self.head(self.stem(x))

    def train(self, mode=True):
        super().train(mode)
        self.stem.eval().requires_grad_(False)
        return self


def plain(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def switching(model, optimizer, inputs, targets):
    model.train()
    return plain(model, optimizer, inputs, targets)


@pytest.mark.parametrize(
    ("make", "step", "found"),
    [
        (Partly, plain, True),
        (Partly, switching, False),
        (lambda: Partly(early=True), plain, False),
        (Partly, None, False),
    ],
)
def test_a_stem_that_train_freezes(make, step, found):
    declared = (
        {}
        if step is None
        else {"train_step": step, "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1)}
    )
    told_ = told(
        make, "frozen-stays", promises=(promises.Frozen("stem.*", reason="pretrained"),), **declared
    )
    assert [f.code for f in told_] == ["frozen-by-train"] * found
    # this file calls train() elsewhere: another loop may do so before the first step
    assert all(f.status == "suspicious" for f in told_)


class Ages(nn.Module):
    """Counts its training forwards in a buffer, which says how much of a branch is used."""

    def __init__(self, how, start=0.0):
        super().__init__()
        self.trunk, self.branch, self.how = nn.Linear(5, 3), nn.Linear(5, 3), how
        self.register_buffer("age", torch.full((1,), start))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        self.scale = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        if self.training:
            self.age.add_(1)
        if self.how == "retires":
            return self.trunk(x) + self.branch(x) * (3 - self.age).clamp(min=0.0, max=1.0)
        if self.how == "ramps":
            return self.trunk(x) + self.branch(x) * (self.age / 5).tanh()
        if not self.ready:  # scaled by the first batch
            self.ready.fill_(True)
            with torch.no_grad():
                self.scale.copy_(1 / (self.trunk(x).std(0) + 0.1))
        return self.scale * self.trunk(x) + self.branch(x)


@pytest.mark.parametrize(("how", "start"), [("retires", 0.0), ("ramps", 0.0), ("starts", 5.0)])
def test_a_count_that_a_buffer_keeps_is_no_statistic(how, start):
    found = told(lambda: Ages(how, start), "repeatable-steps")
    if how != "retires":
        assert not found
        return
    assert [(f.status, f.code) for f in found] == [("violated", "weight-stops")]
    assert {"branch.weight", "branch.bias"} == set(found[0].evidence["parameters"])
    assert "age" in found[0].cause
