"""Frozen parameters that move: by decay of a zero gradient, or as a whole module that was never frozen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.text(x))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def assigned(model):
    for p in model.text.parameters():
        p.grad = torch.zeros_like(p)  # HERE


def emptied(model):
    for p in model.text.parameters():
        p.grad.mul_(0)  # HERE


def dropped(model):
    for p in model.text.parameters():
        p.grad = None


def contract(zeroing, optimizer=adamw):
    def step(model, made, inputs, targets):
        made.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        zeroing(model)
        made.step()
        return loss.detach()

    return Contract(
        model=Net,
        inputs="B 4",
        targets="B 2",
        loss=F.mse_loss,
        optimizer=optimizer,
        train_step=step,
        promises=(promises.Frozen("text.*", reason="pretrained"),),
    )


@pytest.mark.parametrize("zeroing", [assigned, emptied])
def test_decay_moves_what_has_a_gradient_of_zeros(zeroing):
    (found,) = contract(zeroing).check(checks=["frozen-stays"]).causes
    assert found.code == "frozen-moved"
    assert found.location.function == zeroing.__name__
    assert "# HERE" in found.location.text
    assert "weight decay still changes it" in found.cause
    assert "with weight_decay=0 instead of 0.1 it does not change" in found.because


def test_no_gradient_or_no_decay_moves_nothing():
    assert contract(dropped).check(checks=["frozen-stays"]).ok

    def plain(model):
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)

    assert contract(assigned, plain).check(checks=["frozen-stays"]).ok


def test_a_whole_module_is_cited_where_it_is_made():
    (found,) = contract(lambda model: None).check(checks=["frozen-stays"]).causes
    assert "weight decay" not in found.cause
    assert "requires_grad_(False) on text " in found.fix
    assert any(
        c.name == "text" and c.location.text.startswith("self.text = ") for c in found.culprits
    )


def frozen_net(*, thaw=False):
    model = Net()
    model.text.requires_grad_(False)
    if thaw:
        model.requires_grad_(True)  # HERE
    return model


def thawing(model):
    for layer in model.text:
        layer.requires_grad_(True)  # HERE
    return torch.optim.SGD(model.parameters(), lr=0.1)


def thawing_step(model, made, inputs, targets):
    model.text[0].weight.requires_grad = True  # HERE
    made.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    made.step()
    return loss.detach()


def looking_step(model, made, inputs, targets):
    """Switch gradients on to look at them, and off again before the step."""
    model.text.requires_grad_(True)
    made.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    for p in model.text.parameters():
        p.requires_grad, p.grad = False, None
    made.step()
    return loss.detach()


@pytest.mark.parametrize(
    ("fields", "function"),
    [
        ({"optimizer": thawing}, "thawing"),
        ({"train_step": thawing_step}, "thawing_step"),
        ({"model": lambda: frozen_net(thaw=True)}, "frozen_net"),
    ],
)
def test_the_line_that_switches_a_gradient_on_again_is_the_cause(fields, function):
    (found,) = thawed(**fields).check(checks=["frozen-stays"]).causes
    assert "requires_grad is set to True again" in found.cause
    assert found.location.function == function
    assert "# HERE" in found.location.text


def test_a_gradient_that_is_on_only_before_the_step_moves_nothing():
    assert thawed(train_step=looking_step).check(checks=["frozen-stays"]).ok


def thawed(**fields):
    plain = {
        "model": frozen_net,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": F.mse_loss,
        "promises": (promises.Frozen("text.*", reason="pretrained"),),
    }
    return Contract(**{**plain, **fields}, inputs="B 4", targets="B 2")


class Table(nn.Embedding):
    """A table that can be made from a list of words."""

    @staticmethod
    def frozen(weight):
        made = Table(*weight.shape, _weight=weight)
        made.weight.requires_grad_(False)
        return made


class Reader(nn.Module):
    def __init__(self, *, assigned):
        super().__init__()
        weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
        self.words = Table(9, 4)
        if assigned:
            self.words = self.words.frozen(weight)
        else:
            self.words.frozen(weight)  # HERE
        self.head = nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.words(ids).mean(1))


@pytest.mark.parametrize("kept", [False, True])
def test_a_constructor_that_drops_what_a_call_returns(kept):
    made = Contract(
        model=lambda: Reader(assigned=kept),
        batch=((torch.arange(8).view(4, 2),), torch.tensor([0, 1, 0, 1])),
        loss=F.cross_entropy,
        promises=(promises.Frozen("words.*", reason="pretrained"),),
    )
    found = [f for f in made.check(checks=["frozen-stays"]).findings if f.status == "violated"]
    assert bool(found) != kept
    if found:
        assert "# HERE" in found[0].location.text
        assert "static method" in found[0].because


def test_eval_mode_taken_for_freezing_is_the_line() -> None:
    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.student = nn.Linear(4, 2), nn.Linear(4, 2)
            self.teacher.eval()

        def train(self, mode=True):
            super().train(mode)
            self.teacher.eval()
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.student(x) - self.teacher(x)

    contract = Contract(
        model=Distilled,
        batch=((torch.randn(6, 4),), torch.randn(6, 2)),
        loss=nn.functional.mse_loss,
        promises=[promises.Frozen("teacher.*", reason="pretrained")],
    )
    (found,) = contract.check(["frozen-stays"]).findings
    assert found.location is not None
    assert found.location.text == "self.teacher.eval()"
    assert "its parameters still train" in found.cause


class Distils(nn.Module):
    """Holds what it learns from, whose statistics follow the batches unless it stays in eval mode."""

    def __init__(self, stays, graph=False):
        super().__init__()
        self.stays, self.graph = stays, graph
        self.teacher = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        self.teacher.requires_grad_(False)
        self.student = nn.Linear(4, 2)

    def train(self, mode=True):
        super().train(mode)  # HERE
        if self.stays:
            self.teacher.eval()
        return self

    def forward(self, x):
        with torch.set_grad_enabled(self.graph):
            wanted = self.teacher(x)
        return self.student(x), wanted


class Probe(Distils):
    """A head on features of the frozen part; with a trained layer before it, a gradient goes through."""

    def __init__(self, stays, graph=False):
        super().__init__(stays, graph)
        self.before = nn.Linear(4, 4) if graph else nn.Identity()
        self.student = nn.Linear(2, 2)

    def forward(self, x):
        return self.student(self.teacher(self.before(x))), torch.zeros(len(x), 2)


def drifting(stays, graph=False, names=None, kind=Distils, more=()):
    model = kind(stays, graph)
    named = names or tuple(f"teacher.{n}" for n, _ in model.teacher.named_parameters())
    made = Contract(
        model=lambda: kind(stays, graph),
        inputs="B 4",
        loss=lambda output: F.mse_loss(*output),
        optimizer=lambda m: torch.optim.SGD(m.student.parameters(), lr=0.1),
        promises=(promises.Frozen(*named, reason="trained before"), *more),
    )
    return made.check(["frozen-stays"]).findings


@pytest.mark.parametrize(("kind", "graph"), [(Distils, False), (Distils, True), (Probe, False)])
def test_a_part_that_is_frozen_by_its_parameters_and_trains_nothing(kind, graph):
    (finding,) = drifting(stays=False, graph=graph, kind=kind)
    assert (finding.status, finding.code) == ("violated", "frozen-statistics")
    assert finding.location.text.endswith("# HERE")
    assert {"teacher.1.running_mean", "train"} <= {c.name for c in finding.culprits}


@pytest.mark.parametrize(
    ("stays", "graph", "names", "kind"),
    [
        (True, False, None, Distils),
        (False, True, None, Probe),
        (False, False, ("teacher.0.weight",), Distils),
    ],
)
def test_statistics_that_may_follow_the_batches(stays, graph, names, kind):
    assert [f.status for f in drifting(stays, graph, names, kind)] == ["passed"]


def test_statistics_of_a_frozen_part_that_are_said_to_follow_the_batches():
    adapts = promises.MayChange("teacher.1.*", reason="statistics are adapted to the new domain")
    assert [f.status for f in drifting(stays=False, kind=Probe, more=(adapts,))] == ["passed"]


class Jittered(nn.Module):
    """Adds noise of its buffer, and keeps a mean where it is to; the noise may come with the input."""

    def __init__(self, mean, fed=False):
        super().__init__()
        self.layer, self.mean, self.fed = nn.Linear(4, 2), mean, fed
        self.register_buffer("noise", torch.zeros(2))
        self.register_buffer("level", torch.zeros(2))

    def redraw(self):
        self.noise.copy_(torch.randn(2))

    def forward(self, x):
        made = self.layer(torch.randn_like(x) if self.fed else x) + self.noise
        if self.training and self.mean:
            self.level.lerp_(made.detach().mean(0), 0.1)
        return made


class Followed(nn.Module):
    def __init__(self, mean, fed):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 2), Jittered(mean, fed)
        self.teacher.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.student(x), wanted


def redrawn(mean, fed, *names):
    def step(model, optimizer, inputs, targets):
        model.teacher.redraw()
        loss = F.mse_loss(*model(*inputs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    made = Contract(
        model=lambda: Followed(mean, fed),
        inputs="B 4",
        loss=lambda output: F.mse_loss(*output),
        train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.student.parameters(), lr=0.1),
        promises=(promises.Frozen(*names, reason="trained before"),),
    )
    return made.check(["frozen-stays"]).findings


NAMED = ("teacher.layer.weight", "teacher.layer.bias")


@pytest.mark.parametrize("names", [NAMED, ("teacher.*",)])
def test_noise_that_steps_draw_is_no_statistic(names):
    (finding,) = redrawn(False, False, *names)
    assert finding.status == "passed"
    assert "1 more buffers hold noise" in finding.summary


@pytest.mark.parametrize("fed", [False, True], ids=["of data", "of noise"])
@pytest.mark.parametrize("names", [NAMED, ("teacher.*",)])
def test_a_statistic_beside_noise(names, fed):
    (finding,) = redrawn(True, fed, *names)
    assert (finding.status, finding.code) == ("violated", "frozen-statistics")
    assert [c.name for c in finding.culprits if c.kind == "buffer"] == ["teacher.level"]
