"""What a checkpoint must hold besides model, optimizer and schedule: scaler, generators, the place in the data."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loop_bugs import Net, task
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.loop.resume import measure
from pytest_torchcheck.subject import Subject


class Scaler(torch.amp.GradScaler):
    """As GradScaler, but its scale counts after rounding, and changes in every step."""

    def __init__(self, saves: bool = True) -> None:
        super().__init__("cpu", init_scale=3.0, growth_factor=1.7, growth_interval=1)
        self.saves = saves

    def state_dict(self) -> dict[str, Any]:
        found = super().state_dict()
        return found if self.saves else {**found, "scale": 3.0}


def scaled(saves: bool = True) -> Any:
    scaler = Scaler(saves)

    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return train_step


def weighted(next_weight: Any, *held: Any) -> Any:
    """Return a step whose loss depends on a number that it takes from elsewhere."""

    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets) * next_weight(*held)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step


def noisy() -> Any:
    generator = torch.Generator().manual_seed(5)

    def draw() -> float:
        return 1.0 + float(torch.rand((), generator=generator))

    return weighted(draw)


class Curriculum:
    """Counts the steps; says its state where it is asked."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self) -> float:
        self.seen += 1
        return 1.0 + self.seen


class Saved(Curriculum):
    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def counted(kind: type[Curriculum]) -> Any:
    parts = {"curriculum": kind()}
    return weighted(lambda: parts["curriculum"]())


def streamed() -> Any:
    stream = itertools.cycle([1.0, 2.0, 3.0, 5.0, 7.0])
    return weighted(lambda: next(stream))


def unused() -> Any:
    history: list[float] = []

    def note() -> float:
        history.append(1.0)
        return 1.0

    return weighted(note)


def finding(train_step: Any) -> Any:
    (found,) = Contract(**task(Net(), train_step)).check(["resume"]).findings
    return found


@pytest.mark.parametrize(
    ("train_step", "piece"),
    [(scaled(), "scaler"), (noisy(), "generator"), (counted(Saved), "parts['curriculum']")],
    ids=["scaler", "generator", "own"],
)
def test_what_has_a_state_is_saved_and_restored(train_step: Any, piece: str) -> None:
    found = finding(train_step)
    assert found.status == "passed"
    assert found.summary.endswith(f"saved: model, optimizer, {piece}")
    contract = Contract(**task(Net(), train_step))
    subject = Subject(contract)
    try:
        assert measure(subject).differing == ()
    finally:
        subject.close()


def test_a_state_that_is_not_enough_is_named() -> None:
    found = finding(scaled(saves=False))
    assert found.code == "resume-differs"
    assert "are not enough to continue from" in str(found)


def test_a_state_that_cannot_be_saved_is_named_and_shown_to_matter() -> None:
    found = finding(counted(Curriculum))
    assert (found.status, found.code) == ("inconclusive", "state-in-closure")
    assert "parts['curriculum'].seen" in found.summary
    assert (
        "a resumed run differs without it, and equals the uninterrupted one with it"
        in found.summary
    )


def test_a_place_in_the_data_is_named() -> None:
    found = finding(streamed())
    assert (found.status, found.code) == ("inconclusive", "data-order")
    assert "an iterator (stream)" in found.summary


def test_a_state_that_changes_nothing_is_no_matter() -> None:
    assert finding(unused()).status == "passed"


class Rounded(torch.optim.SGD):
    """Momentum that comes back from a checkpoint a little larger."""

    def __init__(self, parameters: Any, larger: float) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.larger = larger

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["momentum_buffer"].mul_(1 + self.larger)


@pytest.mark.parametrize(("larger", "status"), [(2e-7, "suspicious"), (1e-3, "violated")])
def test_a_resumed_run_that_differs_in_its_last_bits_may_be_right(
    larger: float, status: str
) -> None:
    contract = Contract(
        model=Net, batch=((torch.randn(8, 6),), torch.arange(8) % 3), loss=F.cross_entropy,
        optimizer=lambda model: Rounded(model.parameters(), larger),
    )  # fmt: skip
    (found,) = contract.check(["resume"]).findings
    assert found.status == status, str(found)


class Thirds(nn.Module):
    """Adds noise of its own size in every third step, by a count that no checkpoint holds."""

    def __init__(self, held: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.held = held
        if held:
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        else:
            self.count = 0

    def forward(self, x):
        if self.training:
            self.count = self.count + 1
        return self.layer(x) * (2.0 if int(self.count) % 3 == 2 else 1.0)


@pytest.mark.parametrize(("held", "status"), [(True, "passed"), (False, "violated")])
def test_what_happens_in_each_third_step_is_seen(held, status):
    torch.manual_seed(0)
    (found,) = (
        Contract(
            model=Thirds(held),
            batch=((torch.randn(6, 4),), torch.arange(6) % 3),
            loss=F.cross_entropy,
            optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        )
        .check(["resume"])
        .findings
    )
    assert found.status == status, str(found)


ONE_STEP = """
import torch
from torch import nn
from pytest_torchcheck import Contract

def told(hook, kind=None):
    def build(model):
        made = torch.optim.Adam(model.parameters())
        if hook:
            made.register_step_post_hook(lambda *_: None)
        return made

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    if kind is not None:
        model.config = kind()
    batch = ((torch.randn(6, 4),), torch.arange(6) % 3)
    contract = Contract(model=model, batch=batch, loss=nn.functional.cross_entropy, optimizer=build)
    return contract.check(["resume"]).findings[0].summary

class Own:
    def __init__(self):
        self.width, self.names = 8, {"a": [1]}

print(told(False))
print(told(True))
import sys
sys.path.insert(0, "site-packages")
from settings import Settings, Stateful
print(told(False, Settings))
print(told(False, Own))
print(told(False, Stateful))
"""
LIBRARY = """
class Settings:
    def __init__(self):
        self.width, self.names, self.sub = 8, {"a": [1]}, None

class Stateful(Settings):
    def __init__(self):
        super().__init__()
        self.rows = iter(range(9))
"""


def test_a_model_of_tensors_alone_is_resumed_for_one_step(tmp_path):
    """In a process of its own: what other tests leave at torch's optimizers makes the check careful."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "settings.py").write_text(LIBRARY)
    made = subprocess.run(
        [sys.executable, "-c", ONE_STEP], capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path
    )  # fmt: skip
    plain, hooked, settings, own, stateful = made.stdout.splitlines()
    assert plain.startswith("1 + 1 steps")
    assert hooked.startswith("1 + 2 steps")  # a hook may keep what no checkpoint holds
    assert settings.startswith("1 + 1 steps")  # as a library's configuration
    assert own.startswith("1 + 2 steps")
    assert stateful.startswith("1 + 2 steps")


class Slow(torch.optim.SGD):
    """Goes back to an average of its own in every fifth step; keeps it in its state, or beside it."""

    def __init__(self, parameters: Any, saved: bool, matters: bool = True) -> None:
        super().__init__(parameters, lr=0.3)
        self.saved, self.matters = saved, matters
        self.beside: dict[Any, torch.Tensor] = {}
        self.taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        made = super().step(closure)
        self.taken += 1
        for p in self.param_groups[0]["params"]:
            held = self.state[p] if self.saved else self.beside.setdefault(p, {})
            count = self.state[p]["count"] = self.state[p].get("count", 0) + 1
            held["mean"] = held.get("mean", torch.zeros_like(p)) * 0.9 + p * 0.1
            if self.matters and count % 5 == 0:
                p.copy_(held["mean"])
        return made


@pytest.mark.parametrize(
    ("saved", "matters", "status"),
    [(True, True, "passed"), (False, False, "passed"), (False, True, "violated")],
)
def test_what_an_optimizer_keeps_beside_its_state_may_matter_in_each_fifth_step(
    saved: bool, matters: bool, status: str
) -> None:
    contract = Contract(
        model=Net, batch=((torch.randn(8, 6),), torch.arange(8) % 3), loss=F.cross_entropy,
        optimizer=lambda model: Slow(model.parameters(), saved, matters),
    )  # fmt: skip
    (found,) = contract.check(["resume"]).findings
    assert found.status == status, str(found)
    if status == "violated":
        assert "optimizer.beside[0]['mean'] is not saved" in found.summary
        assert "carried over too, the runs are equal" in found.because
        assert "state[p]" in found.fix


class Carrying(nn.Module):
    """Carries a hidden state from step to step, and counts its calls; the rate of its noise may follow the count."""

    def __init__(self, carries: bool, anneals: bool) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(6, 5), nn.Linear(5, 3)
        self.carries, self.anneals = carries, anneals
        self.hidden = torch.zeros(8, 5)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return self.head(self.cell(x))
        self.calls += 1
        hidden = self.cell(x, self.hidden if self.carries else None)
        self.hidden = hidden.detach()
        return self.head(hidden) / (self.calls if self.anneals else 1.0)


@pytest.mark.parametrize(
    ("carries", "anneals", "status", "named"),
    [
        (False, False, "passed", ""),
        (True, False, "suspicious", "model.hidden"),
        (False, True, "violated", "model.calls is not saved"),
    ],
)
def test_a_lost_count_decides_and_a_hidden_state_may_start_anew(
    carries: bool, anneals: bool, status: str, named: str
) -> None:
    contract = Contract(
        model=lambda: Carrying(carries, anneals),
        batch=((torch.randn(8, 6),), torch.arange(8) % 3), loss=F.cross_entropy,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )  # fmt: skip
    (found,) = contract.check(["resume"]).findings
    assert found.status == status, str(found)
    assert named in str(found)


class Rateless(torch.optim.SGD):
    """Chooses its rate by itself, and says so by None."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["lr"] = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.1)


class Delegating(torch.optim.Optimizer):
    """Wraps another optimizer, and never calls torch's constructor."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.calls = inner, 0
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        return self.inner.step(closure)


@pytest.mark.parametrize(
    "make", [Rateless, lambda parameters: Delegating(torch.optim.Adam(parameters, lr=1e-2))]
)
def test_an_optimizer_without_a_rate_or_around_another_is_followed(make: Any) -> None:
    made = Contract(
        model=Net, batch=((torch.randn(8, 6),), torch.arange(8) % 3), loss=F.cross_entropy,
        optimizer=lambda model: make(model.parameters()),
    )  # fmt: skip
    found = made.check(["resume", "weights-update", "overfit"]).findings
    assert {f.status for f in found} <= {"passed", "inconclusive"}, list(map(str, found))


class Counts:
    """A schedule of the user's own, hung on an optimizer."""

    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0

    def step(self):
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.count)


class Own(torch.optim.SGD):
    """An optimizer of the user's that hangs its schedule on itself."""


@pytest.mark.parametrize(("kind", "status"), [(torch.optim.SGD, "suspicious"), (Own, "violated")])
def test_what_a_schedule_that_is_hung_on_an_optimizer_does_not_save(kind, status):
    def optimizer(model):
        made = kind(model.parameters(), lr=0.1)
        made.schedule = Counts(made)
        return made

    def step(model, made, inputs, targets):
        made.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        made.step()
        made.schedule.step()
        return loss.detach()

    contract = Contract(
        model=lambda: nn.Linear(3, 2), batch=((torch.randn(6, 3),), torch.randn(6, 2)),
        loss=F.mse_loss, optimizer=optimizer, train_step=step,
    )  # fmt: skip
    (found,) = contract.check(["resume"]).findings
    assert (found.status, found.code) == (status, "resume-differs")


class Weighing(nn.Module):
    """A loss that learns the weights of its two terms (Kendall et al.), or keeps a mean of what it saw."""

    def __init__(self, saves: bool = True) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros(()), persistent=saves)

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        terms = torch.stack([F.cross_entropy(output, target), output.square().mean()])
        if torch.is_grad_enabled():
            self.seen.mul_(0.5).add_(terms[0].detach(), alpha=0.5)
        return (terms * (-self.log).exp() + self.log).sum() * (1 + self.seen)


def learned(loss: Any, *, wrapped: bool = False, trained: bool = True) -> Contract:
    def optimizer(model: nn.Module) -> Any:
        beside = loss.parameters() if trained else ()
        return torch.optim.Adam([*model.parameters(), *beside], 1e-2)

    def called(output: Any, target: Any) -> Any:
        return loss(output, target)

    return Contract(**task(Net, None, loss=called if wrapped else loss, optimizer=optimizer))


@pytest.mark.parametrize("wrapped", [False, True], ids=["module", "function"])
@pytest.mark.parametrize("trained", [True, False], ids=["trained", "buffers"])
def test_the_state_of_a_loss_is_saved_with_the_rest(wrapped: bool, trained: bool) -> None:
    loss = Weighing()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    (finding,) = learned(loss, wrapped=wrapped, trained=trained).check(["resume"]).findings
    assert finding.status == "passed", str(finding)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


def test_what_a_loss_does_not_save_is_found() -> None:
    (finding,) = learned(Weighing(saves=False)).check(["resume"]).findings
    assert (finding.status, finding.code) == ("suspicious", "resume-differs")
    assert "loss.seen is not saved" in finding.summary
