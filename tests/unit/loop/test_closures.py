from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from pytest_torchcheck.loop.closures import ClosureState, carried_graphs, kept
from pytest_torchcheck.loop.naming import name_in, user_frame
from pytest_torchcheck.loop.patches import listening

COUNTS = {"calls": 0}
CALLS = 0


def counting(x: torch.Tensor) -> None:
    global CALLS
    CALLS += 1
    COUNTS["calls"] += 1


def test_variables_globals_and_containers_are_put_back() -> None:
    total, seen = 0, []
    tensor = torch.zeros(3)

    def step(x: torch.Tensor) -> None:
        nonlocal total
        total += 1
        seen.append(x)
        tensor.add_(1)
        counting(x)

    with contextlib.suppress(KeyError), kept(step):
        step(torch.ones(1))
        raise KeyError
    assert (total, seen, CALLS, COUNTS) == (0, [], 0, {"calls": 0})
    assert tensor.eq(0).all()


def test_what_changed_is_named() -> None:
    carried = {"hidden": None}
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        carried["hidden"] = torch.zeros(1)

    state = ClosureState(step)
    step()
    assert state.changed() == ("calls", "carried")
    state.restore()
    assert carried == {"hidden": None}


def test_graphs_that_are_carried() -> None:
    model = nn.Linear(2, 2)
    hidden = (model(torch.ones(1, 2)), torch.ones(1))
    carried = {"h": hidden}

    def step() -> object:
        return carried

    model.cache = hidden[0]
    assert set(carried_graphs(step, model=model)) == {"carried['h'][0]", "model.cache"}


def test_objects_are_called_as_the_user_calls_them() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.opt = object()

    frame = user_frame()
    trainer, opts = Trainer(), {"g": object()}
    assert name_in(frame, trainer) == "trainer"
    assert name_in(frame, trainer.opt) == "trainer.opt"
    assert name_in(frame, opts["g"]) == "opts['g']"
    assert name_in(frame, object()) == ""


def test_every_patch_is_undone_after_an_error() -> None:
    owners = [
        (torch.autograd, "backward"), (nn.Module, "train"), (nn.Module, "zero_grad"), (nn.utils, "clip_grad_norm_"),
        (torch.optim.Optimizer, "zero_grad"), (torch.optim.lr_scheduler.LRScheduler, "step"), (torch.amp.GradScaler, "step"),
    ]  # fmt: skip
    before = [vars(owner)[name] for owner, name in owners]

    def around(original, args, kwargs):
        return original(*args, **kwargs)

    kinds = ("backward", "zero-grad", "scheduler-step", "scale", "unscale", "scaler-step", "scaler-update", "clip-norm",
             "clip-value", "mode")  # fmt: skip
    during = []

    def run() -> None:
        with listening(
            dict.fromkeys(kinds, around),
            before_step=lambda *_: None,
            before_forward=lambda _: None,
            after_forward=lambda _: None,
        ):
            during.extend(vars(owner)[name] for owner, name in owners)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert all(a is not b for a, b in zip(before, during, strict=True))
    assert [vars(owner)[name] for owner, name in owners] == before
