"""Copies of trained weights: which way the steps move them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


class Pair(nn.Module):
    def __init__(self, *, buffers: bool = False) -> None:
        super().__init__()
        self.fast = nn.Linear(5, 4)
        self.slow = copy.deepcopy(self.fast).requires_grad_(False)
        if buffers:
            self.register_buffer("memory", self.fast.weight.detach().clone())
        self.steps = 0

    def forward(self, x):
        return self.fast(x)


def check(update, **made):
    def step(model, optimizer, inputs, targets):
        model.train()
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            update(model)
        return loss

    generator = torch.Generator().manual_seed(0)
    batch = ((torch.randn(6, 5, generator=generator),), torch.randn(6, 4, generator=generator))
    (found,) = (
        Contract(
            model=lambda: Pair(**made),
            batch=batch,
            loss=F.mse_loss,
            optimizer=lambda m: torch.optim.Adam(m.fast.parameters(), lr=1e-2),
            train_step=step,
        )
        .check(checks=["averages-follow"])
        .findings
    )
    return found


def pairs(model):
    return zip(model.slow.parameters(), model.fast.parameters(), strict=True)


def follow(rate):
    def update(model):
        for slow, fast in pairs(model):
            slow.lerp_(fast, rate)

    return update


def away(model):
    for slow, fast in pairs(model):
        slow.mul_(1.001).sub_(fast, alpha=0.001)


def copied_now_and_then(model):
    model.steps += 1
    if model.steps % 2 == 0:
        model.slow.load_state_dict(model.fast.state_dict())


def untouched(model):
    pass


@pytest.mark.parametrize(
    "update",
    [follow(1e-4), follow(0.5), copied_now_and_then],
    ids=["slow average", "fast average", "copied now and then"],
)
def test_copies_that_follow_pass(update) -> None:
    assert check(update).status in ("passed", "not-applicable")


def swapped(decay, first=0):
    def update(model):
        model.steps += 1
        for slow, fast in pairs(model):
            slow.copy_(fast) if model.steps <= first else slow.lerp_(fast, decay)  # SWAPPED

    return update


@pytest.mark.parametrize("decay", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("first", [0, 1])
def test_an_average_that_is_the_latest_weights_is_told(decay, first) -> None:
    found = check(swapped(decay, first))
    assert (found.status, found.code) == ("violated", "average-forgets")
    assert found.location is not None
    assert found.location.text.endswith("# SWAPPED")
    assert f"keeps {1 - decay:.3g} of its value" in found.summary


def warming(model):
    """Keeps min(0.999, (1 + n) / (10 + n)), as averages of short runs do."""
    for slow, fast in pairs(model):
        slow.lerp_(fast, 1 - (1 + model.steps) / (10 + model.steps))
    model.steps += 1


def mean_of_all(model):
    model.steps += 1
    for slow, fast in pairs(model):
        slow.lerp_(fast, 1 / model.steps)


def copied(model):
    model.slow.load_state_dict(model.fast.state_dict())


def rounded(model):
    """A copy in fewer bits."""
    for slow, fast in pairs(model):
        slow.copy_(fast.bfloat16())


def pulled_along(model):
    """The weights go on from where the slow ones are, as in Reptile and Lookahead."""
    for slow, fast in pairs(model):
        slow.lerp_(fast, 0.9)
        fast.copy_(slow)


def before_the_step(model):
    """An average of the weights of the step before."""
    for n, (slow, fast) in enumerate(pairs(model)):
        held = f"held{n}"
        slow.lerp_(getattr(model, held, slow), 0.05)
        setattr(model, held, fast.detach().clone())


@pytest.mark.parametrize(
    "update",
    [warming, mean_of_all, copied, rounded, pulled_along, before_the_step, follow(0.7)],
    ids=lambda update: update.__name__,
)
def test_averages_and_copies_of_other_kinds_keep_what_they_should(update) -> None:
    assert check(update).status in ("passed", "not-applicable")


def test_copies_that_stay_do_not_concern_it() -> None:
    assert check(untouched).status == "not-applicable"


def test_an_average_that_is_pushed_away_is_named_whatever_its_decay() -> None:
    found = check(away)
    assert (found.status, found.code) == ("violated", "average-pushed-away")
    assert {c.name for c in found.culprits} == {"slow.weight", "slow.bias"}
    assert found.location is not None
    assert "alpha=0.001" in found.location.text


def test_buffers_count_as_copies() -> None:
    def update(model):
        model.memory.add_(model.memory - model.fast.weight, alpha=0.01)

    found = check(update, buffers=True)
    assert [c.name for c in found.culprits] == ["memory"]


class Averaged(nn.Module):
    """Trains ``net``; what answers in evaluation, and how the average runs in training, is chosen."""

    def __init__(
        self, *, answers: str = "slow", teaches: bool = False, last: Any = nn.Identity
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4), last()
        )
        self.slow = copy.deepcopy(self.net).requires_grad_(False)
        self.answers, self.teaches = answers, teaches

    def forward(self, x):
        if self.training:
            if self.teaches:
                self.slow(x)
            return self.net(x)
        return getattr(self, self.answers)(x)


def averages(update, **made):
    def step(model, optimizer, inputs, targets):
        model.train()
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(model.slow.parameters(), model.net.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            update(model)
        return loss

    generator = torch.Generator().manual_seed(0)
    batch = ((1 + torch.randn(6, 5, generator=generator),), torch.randn(6, 4, generator=generator))
    contract = Contract(
        model=lambda: Averaged(**made),
        batch=batch,
        loss=F.mse_loss,
        optimizer=lambda m: torch.optim.SGD(m.net.parameters(), lr=1e-2),
        train_step=step,
    )
    (found,) = contract.check(checks=["averages-follow"]).findings
    return found


def copy_buffers(model):
    for slow, fast in zip(model.slow.buffers(), model.net.buffers(), strict=True):
        slow.copy_(fast)


def average_buffers(model):
    for slow, fast in zip(model.slow.buffers(), model.net.buffers(), strict=True):
        slow.copy_(fast if slow.dtype == torch.long else slow.lerp(fast, 0.5))


def test_statistics_that_an_average_leaves_behind_are_named_with_the_loop() -> None:
    found = averages(untouched)
    assert (found.status, found.code) == ("violated", "average-statistics")
    assert "slow.1.running_mean" in {c.name for c in found.culprits}
    assert found.location is not None
    assert "model.slow.parameters()" in found.location.text


def copy_from_itself(model):
    given = dict(model.slow.named_buffers())  # not those of the net
    for name, slow in model.slow.named_buffers():
        slow.copy_(given[name])


def test_statistics_that_are_given_their_own_values_are_told_as_such() -> None:
    found = averages(copy_from_itself)
    assert (found.status, found.code) == ("violated", "average-statistics")
    assert found.location is not None
    assert "slow.copy_(" in found.location.text
    assert "writes the value that it has" in found.cause
    assert any(
        c.location is not None and "not those of the net" in c.location.text for c in found.culprits
    )


@pytest.mark.parametrize("update", [copy_buffers, average_buffers])
def test_statistics_that_are_copied_or_averaged_pass(update) -> None:
    assert averages(update).status == "passed"


def test_an_average_that_runs_in_training_gathers_its_own_statistics() -> None:
    assert averages(untouched, teaches=True).status == "passed"


def test_an_average_that_nothing_reads_needs_no_statistics() -> None:
    assert averages(untouched, answers="net").status == "passed"


class Direction(nn.Module):
    """Projects on a direction that follows the data, a vector of length 1."""

    def __init__(self, *, normalises: bool = False) -> None:
        super().__init__()
        self.normalises = normalises
        self.register_buffer("axis", F.normalize(torch.tensor([1.0, 2.0, -1.0, 0.5]), dim=0))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.axis.copy_(F.normalize(self.axis + x.square().mean(0), dim=0))
        axis = F.normalize(self.axis, dim=0) if self.normalises else self.axis
        return x + (x @ axis)[:, None] * axis


def average_and_normalise(model):
    for slow, fast in zip(model.slow.buffers(), model.net.buffers(), strict=True):
        mean = fast if slow.dtype == torch.long else slow.lerp(fast, 0.5)
        slow.copy_(F.normalize(mean, dim=0) if mean.shape == (4,) else mean)


def test_an_average_of_unit_vectors_is_no_unit_vector() -> None:
    found = averages(average_buffers, last=Direction)
    assert (found.status, found.code) == ("violated", "average-statistics")
    assert [c.name for c in found.culprits] == ["slow.4.axis"]
    assert found.location is not None
    assert "slow.copy_(" in found.location.text


@pytest.mark.parametrize("update", [copy_buffers, average_and_normalise])
def test_unit_vectors_that_are_copied_or_normalised_again_pass(update) -> None:
    assert averages(update, last=Direction).status == "passed"


def test_directions_of_which_no_output_reads_the_length_may_be_averaged() -> None:
    made = averages(average_buffers, last=lambda: Direction(normalises=True))
    assert made.status == "passed", str(made)


class Guided(nn.Module):
    """A student that follows the answers of a teacher, which is to be its average."""

    def __init__(self, teacher) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
        self.teacher = teacher(self.student)

    def forward(self, x):
        return self.student(x)


def guided(teacher, update, *, asks=True, trains_teacher=False):
    def step(model, optimizer, inputs, targets):
        with torch.set_grad_enabled(trains_teacher):
            wanted = model.teacher(inputs[0]) if asks else targets
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs[0] + 0.1), wanted) + F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            update(model)

    torch.manual_seed(0)
    contract = Contract(
        model=lambda: Guided(teacher), batch=((torch.randn(6, 5),), torch.randn(6, 4)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), train_step=step,
    )  # fmt: skip
    (found,) = contract.check(checks=["averages-follow"]).findings
    return found


def follow_slowly(model):
    for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
        slow.mul_(0.99).add_(fast, alpha=0.01)


def replace(model):
    model.teacher.load_state_dict(model.student.state_dict())


def bound(model):
    for p in model.parameters():
        p.clamp_(-0.05, 0.05)


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("teacher", [lambda net: net, nn.Module.eval], ids=["itself", "eval"])
def test_a_teacher_that_is_the_student(teacher, asks):
    found = guided(teacher, follow_slowly, asks=asks)
    assert (found.status, found.code) == ("violated", "average-shared")
    assert found.summary.startswith("teacher and student are the same module")
    assert found.location.text == "self.teacher = teacher(self.student)"


def test_a_target_that_is_replaced_and_shared():
    assert guided(lambda net: net.float(), replace).code == "average-shared"


@pytest.mark.parametrize(
    ("teacher", "update", "given"),
    [
        (copy.deepcopy, follow_slowly, {}),
        (lambda net: net, lambda model: None, {}),  # a student that is its own teacher
        (lambda net: net, bound, {"asks": False}),  # two names, one of which the step never uses
        (lambda net: net, lambda model: None, {"trains_teacher": True}),  # shared by design
    ],
    ids=["copied", "its own teacher", "one name unused", "shared"],
)
def test_modules_under_two_names_that_are_meant(teacher, update, given):
    assert guided(teacher, update, **given).status in ("passed", "not-applicable")


class Shadowed(nn.Module):
    """Keeps the weights of its layer as buffers, copied or not."""

    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)
        for name, value in list(self.body.named_parameters()):
            shadow = value.detach()  # the same memory
            if copied:
                shadow = shadow.clone()
            self.register_buffer(f"average_{name}", shadow)

    def forward(self, x):
        return (
            self.body(x) if self.training else F.linear(x, self.average_weight, self.average_bias)
        )


@pytest.mark.parametrize("copied", [False, True])
def test_a_buffer_that_is_the_memory_of_a_parameter_is_told(copied):
    report = Contract(
        model=lambda: Shadowed(copied=copied), inputs="B 4", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 4}
    ).check(["averages-follow"])  # fmt: skip
    wrong = [f for f in report.findings if f.status == "violated"]
    assert bool(wrong) is not copied
    for found in wrong:
        assert (found.status, found.code) == ("violated", "average-shared")
        assert found.location.text.endswith("# the same memory")
        assert {c.name for c in found.culprits} == {"average_weight", "average_bias"}


class Slow(torch.optim.SGD):
    """Goes back a part of the way to slow weights after each step."""

    def __init__(self, parameters: Any, keep: Any) -> None:
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["slow"] = keep(parameter)  # HERE

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        value = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter]["slow"]
                slow.lerp_(parameter, 0.5)
                parameter.copy_(slow)
        return value


@pytest.mark.parametrize(
    ("keep", "blamed"),
    [(lambda p: p.detach(), True), (lambda p: p.data, True), (lambda p: p.detach().clone(), False)],
    ids=["detached", "data", "copied"],
)
def test_state_of_an_optimizer_that_is_the_parameter_itself(keep: Any, blamed: bool) -> None:
    contract = Contract(
        model=lambda: nn.Linear(4, 2),
        batch=((torch.randn(6, 4),), torch.randn(6, 2)),
        loss=F.mse_loss,
        optimizer=lambda model: Slow(model.parameters(), keep),
    )
    wrong = [f for f in contract.check(["averages-follow"]).findings if f.status == "violated"]
    assert bool(wrong) is blamed
    for found in wrong:
        assert found.code == "average-shared"
        assert found.location is not None
        assert found.location.text.endswith("# HERE")


class Uphill(torch.optim.Optimizer):
    """Takes the gradient a little uphill, and goes back to the weights that it kept."""

    def __init__(self, parameters: Any, *, back: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "reach": 0.05})
        self.back = back

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        for p in parameters:
            self.state[p]["kept"] = p.detach().clone()
            p.add_(p.grad, alpha=0.05)
        closure()
        for p in parameters:
            self.back(p, self.state[p])
            p.add_(p.grad, alpha=-0.1)


def by_memory(parameter: Any, state: Any) -> None:
    parameter.data = state["kept"]


def by_value(parameter: Any, state: Any) -> None:
    parameter.copy_(state["kept"])


@pytest.mark.parametrize("back", [by_memory, by_value])
def test_state_that_each_step_sets_before_it_reads_it_may_become_the_parameter(back: Any) -> None:
    report = Contract(
        model=lambda: nn.Linear(4, 2),
        batch=((torch.randn(6, 4),), torch.randn(6, 2)),
        loss=F.mse_loss,
        optimizer=lambda model: Uphill(model.parameters(), back=back),
    ).check(["averages-follow", "weights-update"])
    assert not [f for f in report.findings if f.status == "violated"]
