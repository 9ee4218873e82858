"""What would look green without having been looked at: each is red, or said plainly, and its sound twin is not."""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_torchcheck import Contract

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
Y = torch.arange(6) % 3


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def codes(report: Any) -> dict[str, str]:
    return {f.code: f.status for f in report.findings if f.status in ("violated", "suspicious")}


class HidesNames(nn.Linear):
    def named_parameters(self, *args: Any, **options: Any) -> Any:
        return iter(())


class HidesParameters(nn.Linear):
    def parameters(self, recurse: bool = True) -> Any:
        return iter(())


class ShowsSome(nn.Linear):
    def parameters(self, recurse: bool = True) -> Any:
        return iter((self.weight,))


@pytest.mark.parametrize("model", [HidesNames, HidesParameters, ShowsSome])
def test_parameters_that_nobody_is_shown(model: Any) -> None:
    report = Contract(model=lambda: model(5, 3), batch=((X,), Y), loss=F.cross_entropy).check()
    hides = model is not ShowsSome
    assert any("gives none of the 2 parameters" in f.summary for f in report.causes) == hides
    assert not list(report.with_status("error"))


def owned(loss: Any, targets: Any = Y) -> dict[str, str]:
    made = Contract(model=net, batch=((X,), targets), loss=loss)
    return codes(made.check("target-ownership"))


@pytest.mark.parametrize(
    ("loss", "targets", "status"),
    [
        (lambda o, t: o.logsumexp(1).mean(), Y, "violated"),
        (lambda o, t: o.pow(2).mean() + 0.0 * t.shape[0], {"a": Y, "b": X}["a"], "violated"),
        (lambda o, t: (o.softmax(1) * o).sum(), {"weights": X[:, :3], "y": Y.bool()}, "violated"),
        (lambda o, t: o.pow(2).mean() + 0 * t.sum(), X[:, :3] - 1, "violated"),
        (lambda o, t: o.pow(2).mean(), torch.zeros(6), "suspicious"),
        (lambda o, t: o.pow(2).mean(), X, "suspicious"),
        (lambda o, _: o.pow(2).mean(), Y, "suspicious"),
        (lambda o, _labels: o.pow(2).mean(), Y, "suspicious"),
    ],
    ids=[
        "labels",
        "shape only",
        "a dict",
        "times zero",
        "a constant",
        "a copy of the input",
        "unnamed",
        "named as unused",
    ],
)
def test_a_loss_that_reads_no_target(loss: Any, targets: Any, status: str) -> None:
    assert owned(loss, targets) == {"targets-ignored": status}


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (F.cross_entropy, Y),
        (lambda o, t: F.cross_entropy(o, t["y"]), {"y": Y, "image": torch.arange(6)}),
        (lambda o, t: F.relu(o.sum(1) - 1e6 + t).mean() + o.pow(2).mean(), torch.ones(6) * 2),
        (lambda o, t: o.pow(2).mean(), None),
    ],
    ids=["labels", "one of two", "a hinge that is never met", "none declared"],
)
def test_a_loss_that_reads_its_targets_or_has_none(loss: Any, targets: Any) -> None:
    assert "targets-ignored" not in owned(loss, targets)


class Unsaved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * self.scale

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        return {}

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize("model", [Unsaved, Unsaved()], ids=["factory", "module"])
def test_a_state_dict_of_nothing_is_no_round_trip(model: Any) -> None:
    made = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy)
    assert codes(made.check("state-dict-roundtrip")) == {"state-lost": "violated"}


def test_a_model_without_parameters_has_no_state() -> None:
    (found,) = Contract(model=nn.Tanh, batch=(X,)).check("state-dict-roundtrip").findings
    assert found.status == "not-applicable"


@functools.cache
def memoised() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def test_a_factory_that_repeats_its_model_is_red() -> None:
    kept, backbone = net(), nn.Linear(5, 5).requires_grad_(False)
    for factory in (lambda: kept, lambda: nn.Sequential(kept), memoised):
        made = Contract(model=factory, batch=((X,), Y), loss=F.cross_entropy)
        report = made.check("initialisation")
        assert codes(report) == {"factory-repeats": "violated"}
        assert not report.ok
    assert "@functools.cache" in str(report)
    for factory in (lambda: nn.Sequential(backbone, net()), lambda: nn.Sequential(backbone)):
        shared = Contract(model=factory, batch=((X,), Y))
        assert not codes(shared.check("initialisation"))
    given = Contract(model=kept, batch=((X,), Y), loss=F.cross_entropy)
    assert given.check("initialisation").ok


def test_a_factory_whose_models_share_a_part_that_trains_is_suspicious() -> None:
    trunk = nn.Linear(5, 6)
    made = Contract(model=lambda: nn.Sequential(trunk, nn.Linear(6, 3)), batch=((X,), Y))
    assert codes(made.check("initialisation")) == {"factory-repeats": "suspicious"}


CALLS: list[int] = []


class Flaky(nn.Module):
    """Raises where a global count says so, as a cache or a lock that is not there yet would."""

    fails = (1,)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS.append(1)
        if len(CALLS) in self.fails:
            raise RuntimeError("not there yet")
        return self.head(x)


@pytest.mark.parametrize("check", ["backward", "weights-update", "gradients-exist"])
def test_what_fails_in_the_first_call_only_is_reported(check: str) -> None:
    CALLS.clear()
    made = Contract(model=Flaky, batch=((X,), Y), loss=F.cross_entropy)
    assert codes(made.check(check)) == {"crash": "violated"}
    assert made.check(check).ok


@pytest.mark.parametrize("call", [2, 3])
def test_what_fails_once_in_a_later_step_is_reported(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    CALLS.clear()
    monkeypatch.setattr(Flaky, "fails", (call,))
    made = Contract(model=Flaky, batch=((X,), Y), loss=F.cross_entropy)
    assert codes(made.check("backward")) == {"crash": "violated"}
    assert made.check("backward").ok


class OfOneSize(nn.Module):
    """Takes no other batch than the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.view(len(X), -1))


def test_steps_of_a_model_of_one_batch_size_take_all_samples() -> None:
    made = Contract(model=OfOneSize, batch=((X,), Y), loss=F.cross_entropy)
    assert not codes(made.check(["backward", "weights-update", "resume", "step-leak"]))


def leave(kind: Any, at: str) -> Contract:
    """Raise what is no ``Exception`` in the forward, the loss or the step."""

    class Leaves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if at == "forward":
                kind()
            return self.head(x)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if at == "loss":
            kind()
        return F.cross_entropy(output, target)

    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(model(*inputs), targets)
        value.backward()
        kind()
        optimizer.step()
        return value

    sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)  # noqa: E731
    extra: dict[str, Any] = {"train_step": step, "optimizer": sgd} if at == "step" else {}
    return Contract(model=Leaves, batch=((X,), Y), loss=loss, **extra)


@pytest.mark.parametrize("at", ["forward", "loss", "step"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(lambda: pytest.skip("not today"), "Skipped"), (lambda: sys.exit(0), "SystemExit")],
    ids=["skip", "exit"],
)
def test_a_skip_or_an_exit_out_of_the_model_is_an_error_of_it(
    at: str, kind: Any, name: str
) -> None:
    report = leave(kind, at).check(
        ["backward", "batch-sizes", "dtype-conversion", "weights-update"]
    )
    assert report.verdict == "violated"
    assert name in report.causes[0].summary


def test_a_skip_while_the_model_is_made_is_a_skip() -> None:
    def absent() -> nn.Module:
        pytest.skip("the weights are not here")

    with pytest.raises(pytest.skip.Exception):
        Contract(model=absent, batch=((X,), Y), loss=F.cross_entropy).check("backward")


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs a signal of one's own")
def test_what_a_signal_raises_ends_the_check() -> None:
    class TimeUp(BaseException):
        pass

    def ring(*_: Any) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(TimeUp):
            leave(lambda: os.kill(os.getpid(), signal.SIGUSR1), "forward").check("backward")
    finally:
        signal.signal(signal.SIGUSR1, before)


class Drained(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(())


def test_nothing_to_read_is_a_violation() -> None:
    for dataset in ([], Drained(), {"train": [1, 2, 3], "eval": []}):
        report = Contract(dataset=dataset).check()
        assert codes(report) == {"dataset-empty": "violated"}
        assert not report.ok


class Once(torch.utils.data.IterableDataset[Any]):
    """Goes on with what it has opened, or opens it anew."""

    def __init__(self, *, anew: bool) -> None:
        self.anew = anew
        self.rows = map(float, range(9))

    def __iter__(self) -> Any:
        rows = map(float, range(9)) if self.anew else self.rows
        return ((torch.tensor([row]), int(row) % 3) for row in rows)


@pytest.mark.parametrize("anew", [True, False])
def test_a_stream_that_gives_its_samples_once_is_a_violation(anew: bool) -> None:
    report = Contract(dataset=Once(anew=anew), loader={"batch_size": 3}).check()
    assert codes(report) == ({} if anew else {"epoch-empty": "violated"})


class Forgets(torch.utils.data.Dataset[Any]):
    """Fills its samples with nothing."""

    def __init__(self, *, always: bool) -> None:
        self.always = always

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        sample = {"x": X[index % 6], "y": index % 3}
        return dict.fromkeys(sample) if self.always else sample


def test_samples_that_hold_nothing_are_a_violation() -> None:
    assert codes(Contract(dataset=Forgets(always=True)).check()) == {"dataset-empty": "violated"}
    assert "dataset-empty" not in codes(Contract(dataset=Forgets(always=False)).check())


def test_a_loader_without_its_dataset_is_read_all_the_same() -> None:
    rows = TensorDataset(X, Y)
    short = DataLoader(rows, batch_size=8, drop_last=True)
    declared = {"model": net, "batch": ((X,), Y), "loss": F.cross_entropy}
    assert "loader-empty" in codes(Contract(loader=short, **declared).check("last-batch"))
    roles = {"train": DataLoader(rows, batch_size=2), "eval": short}
    assert "loader-empty" in codes(Contract(loader=roles, **declared).check("last-batch"))
    assert not codes(Contract(loader=DataLoader(rows, batch_size=2)).check("last-batch"))
    with pytest.raises(ValueError, match="write dataset="):
        Contract(loader={"batch_size": 8}, **declared)


@pytest.mark.parametrize(
    ("arguments", "empty"),
    [
        ({"batch_sampler": []}, True),
        ({"sampler": torch.utils.data.SubsetRandomSampler(()), "batch_size": 2}, True),
        ({"sampler": [], "batch_size": 2, "drop_last": True}, True),
        ({"batch_sampler": [[0, 1], [2]]}, False),
        ({"sampler": [4, 1], "batch_size": 2}, False),
    ],
)
def test_a_sampler_that_gives_nothing(arguments: dict[str, Any], empty: bool) -> None:
    report = Contract(dataset=TensorDataset(X, Y), loader=arguments).check("last-batch")
    found = [f for f in report.findings if f.code == "loader-empty"]
    assert len(found) == empty
    assert all("sampler of the loader is empty" in f.cause for f in found)
