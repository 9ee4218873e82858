"""Correct training steps of many kinds raise no alarm."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from loop_bugs import Gan, Net, sgd, task
from test_loop_bugs import findings
from torch import nn
from torch.nn.utils import clip_grad_norm_

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import (
    Accumulates,
    ClipsGradients,
    MovingAverage,
    Schedule,
    SkipsNonFinite,
)


def plain(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def zero_at_the_end(model, optimizer, inputs, targets):
    F.cross_entropy(model(*inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def cleared_by_hand(model, optimizer, inputs, targets):
    for p in model.parameters():
        p.grad = None
    F.cross_entropy(model(*inputs), targets).backward()
    optimizer.step()


def through_the_model(model, optimizer, inputs, targets):
    model.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    optimizer.step()


def with_grad(model, optimizer, inputs, targets):
    grads = torch.autograd.grad(F.cross_entropy(model(*inputs), targets), list(model.parameters()))
    for p, g in zip(model.parameters(), grads, strict=True):
        p.grad = g
    optimizer.step()


def by_hand(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(*inputs), targets)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads, strict=True):
            p -= 0.1 * g
    return loss.item()


def two_losses(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    output = model(*inputs)
    F.cross_entropy(output, targets).backward(retain_graph=True)
    output.pow(2).mean().backward()
    optimizer.step()


def losses_apart(model, optimizer, inputs, targets):
    """Each loss has a pass of its own, and the second is no sum that holds the first."""
    optimizer.zero_grad()
    hidden = model(*inputs)
    for loss in (F.cross_entropy(hidden, targets), hidden.square().mean(), hidden.abs().mean()):
        loss.backward(retain_graph=True)
    optimizer.step()


def penalised(model, optimizer, inputs, targets):
    """A pass that is differentiated itself; its own gradient is cleared before the sum's."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets).add(1e-3).sqrt()
    grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + 0.01 * sum(g.square().sum() for g in grads)).backward()
    optimizer.step()


def clipped_per_sample(model, optimizer, inputs, targets):
    """As differentially private training does: a pass for every sample, clipped and kept elsewhere."""
    parameters = list(model.parameters())
    kept = [torch.zeros_like(p) for p in parameters]
    for x, y in zip(inputs[0], targets, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x[None]), y[None]).backward()
        clip_grad_norm_(parameters, 0.5)
        for total, p in zip(kept, parameters, strict=True):
            total += p.grad
    for total, p in zip(kept, parameters, strict=True):
        p.grad = total / len(targets)
    optimizer.step()


def closure(model, optimizer, inputs, targets):
    def evaluate():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        return loss

    return optimizer.step(evaluate).detach()


def sharpness_aware(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    with torch.no_grad():
        climbs = [0.05 * p.grad / p.grad.norm().clamp_min(1e-6) for p in model.parameters()]
        for p, e in zip(model.parameters(), climbs, strict=True):
            p.add_(e)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), climbs, strict=True):
            p.sub_(e)
    optimizer.step()
    return loss.detach()


def logs_the_norm(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    optimizer.step()
    return clip_grad_norm_(model.parameters(), float("inf"))


def clips(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


def clips_by_hand(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad.mul_((5.0 / norm).clamp_max(1.0))
    optimizer.step()


def autocast(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def validates(model, optimizer, inputs, targets):
    model.train()
    loss = plain(model, optimizer, inputs, targets)
    model.eval()  # left so: every call begins with train()
    with torch.no_grad():
        model(*inputs)
    return loss


def frozen_norm(model, optimizer, inputs, targets):
    model.train()
    model.norm.eval()
    return plain(model, optimizer, inputs, targets)


def pseudo_labels(model, optimizer, inputs, targets):
    with torch.no_grad():
        guessed = model(*inputs).argmax(1)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), guessed)
    loss.backward()
    optimizer.step()
    return loss.detach()


def keeps_a_history():
    history = []

    def train_step(model, optimizer, inputs, targets):
        loss = plain(model, optimizer, inputs, targets)
        history.append(loss.item())
        return loss

    return train_step


def scaled(model_type=Net):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return train_step


def window(n=3):
    calls = 0

    def train_step(model, optimizer, inputs, targets):
        nonlocal calls
        (F.cross_entropy(model(*inputs), targets) / n).backward()
        calls += 1
        if calls % n == 0:
            optimizer.step()
            optimizer.zero_grad()

    return train_step


def gan(model, optimizers, inputs, targets):
    opt_g, opt_d = optimizers["g"], optimizers["d"]
    real = torch.zeros(8, 6)
    with torch.no_grad():
        fake = model.generator(*inputs)
    opt_d.zero_grad()
    (F.softplus(model.critic(fake)).mean() + F.softplus(-model.critic(real)).mean()).backward()
    opt_d.step()
    opt_g.zero_grad()
    loss = F.softplus(-model.critic(model.generator(*inputs))).mean()
    loss.backward()
    opt_g.step()
    return loss.detach()


def gan_detached(model, optimizers, inputs, targets):
    opt_g, opt_d = optimizers["g"], optimizers["d"]
    fake = model.generator(*inputs)
    opt_d.zero_grad()
    F.softplus(model.critic(fake.detach())).mean().backward()
    F.softplus(-model.critic(torch.ones(8, 6))).mean().backward()
    opt_d.step()
    opt_g.zero_grad()
    F.softplus(-model.critic(fake)).mean().backward()
    opt_g.step()


def several_critic_steps():
    calls = 0

    def train_step(model, optimizers, inputs, targets):
        nonlocal calls
        calls += 1
        opt_g, opt_d = optimizers["g"], optimizers["d"]
        if calls % 5:
            opt_d.zero_grad()
            F.softplus(model.critic(model.generator(*inputs).detach())).mean().backward()
            opt_d.step()
        else:
            opt_g.zero_grad()
            F.softplus(-model.critic(model.generator(*inputs))).mean().backward()
            opt_g.step()

    return train_step


def pair_of_adams(model):
    return {
        "g": torch.optim.Adam(model.generator.parameters()),
        "d": torch.optim.Adam(model.critic.parameters()),
    }


def gan_task(train_step):
    return {
        "model": Gan(),
        "batch": ((torch.randn(8, 4),), None),
        "optimizer": pair_of_adams,
        "train_step": train_step,
    }


def joint(model, optimizers, inputs, targets):
    for optimizer in optimizers:
        optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    for optimizer in optimizers:
        optimizer.step()


def body_and_head(model):
    return [
        torch.optim.SGD(model.body.parameters(), 0.1),
        torch.optim.Adam(model.head.parameters()),
    ]


def teacher(model, optimizer, inputs, targets):
    loss = plain(model.online, optimizer, inputs, targets)
    with torch.no_grad():
        for p, q in zip(model.target.parameters(), model.online.parameters(), strict=True):
            p.mul_(0.9).add_(q, alpha=0.1)
    return loss


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = Net()
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        return self.online(x)


def with_scheduler(kind, **arguments):
    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        return made, kind(made, **arguments)

    def train_step(model, made, inputs, targets):
        opt, scheduler = made
        loss = plain(model, opt, inputs, targets)
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(loss)
        else:
            scheduler.step()
        return loss

    return optimizer, train_step


def scheduled(kind, promises=(), **arguments):
    optimizer, train_step = with_scheduler(kind, **arguments)
    return task(Net(), train_step, optimizer=optimizer, promises=promises)


def accumulates(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    for x, y in zip(inputs[0].chunk(4), targets.chunk(4), strict=True):
        loss = F.cross_entropy(model(x), y, reduction="sum") / len(targets)
        loss.backward()
    clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()


def guarded(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    if not torch.isfinite(clip_grad_norm_(model.parameters(), 1.0)):
        raise FloatingPointError("the gradient is not finite")
    optimizer.step()


lr = torch.optim.lr_scheduler
SOUND = {
    "plain": lambda: task(Net(), plain),
    "zero at the end": lambda: task(Net(), zero_at_the_end),
    "cleared by hand": lambda: task(Net(), cleared_by_hand),
    "zero through the model": lambda: task(Net(), through_the_model),
    "autograd.grad": lambda: task(Net(), with_grad),
    "updates by hand": lambda: task(Net(), by_hand),
    "two losses": lambda: task(Net(), two_losses),
    "lbfgs": lambda: task(Net(), closure, optimizer=lambda m: torch.optim.LBFGS(m.parameters(), max_iter=3)),
    "losses apart": lambda: task(Net(), losses_apart),
    "penalised": lambda: task(Net(), penalised),
    "clipped per sample": lambda: task(Net(), clipped_per_sample),
    "sharpness aware": lambda: task(Net(), sharpness_aware),
    "logs the norm": lambda: task(Net(), logs_the_norm),
    "clips": lambda: task(Net(), clips, promises=(ClipsGradients(0.01),)),
    "clips by hand": lambda: task(Net(), clips_by_hand, promises=(ClipsGradients(5.0),)),
    "autocast": lambda: task(Net(), autocast),
    "left in eval, train() first": lambda: task(Net(norm=True), validates),
    "frozen statistics": lambda: task(Net(norm=True), frozen_norm),
    "pseudo labels": lambda: task(Net(norm=True), pseudo_labels),
    "history": lambda: task(Net(), keeps_a_history()),
    "scaler": lambda: task(Net(), scaled(), promises=(ClipsGradients(1.0), SkipsNonFinite())),
    "guard that raises": lambda: task(Net(), guarded, promises=(SkipsNonFinite(),)),
    "window over calls": lambda: task(Net(), window(), promises=(Accumulates(3),)),
    "accumulates": lambda: task(Net(), accumulates, promises=(Accumulates(4),)),
    "gan": lambda: gan_task(gan),
    "gan, detached": lambda: gan_task(gan_detached),
    "five critic steps": lambda: gan_task(several_critic_steps()),
    "two optimizers, one loss": lambda: task(Net(), joint, optimizer=body_and_head),
    "teacher": lambda: task(
        Averaged(), teacher, promises=(MovingAverage(target="target", source="online", decay=0.9),),
        optimizer=lambda m: torch.optim.SGD(m.online.parameters(), lr=0.5),
    ),
    "exponential": lambda: scheduled(lr.ExponentialLR, (Schedule(lambda n: 0.1 * 0.9**n),), gamma=0.9),
    "warm-up": lambda: scheduled(
        lr.LambdaLR, (Schedule(lambda n: 0.1 * min(1.0, n / 4)),), lr_lambda=lambda n: min(1.0, n / 4)
    ),
    "plateau": lambda: scheduled(lr.ReduceLROnPlateau),
    "one cycle": lambda: scheduled(lr.OneCycleLR, max_lr=0.1, total_steps=100),
    "adam with momentum": lambda: task(Net(norm=True), plain, optimizer=lambda m: torch.optim.AdamW(m.parameters())),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_step_raises_no_alarm(name: str) -> None:
    torch.manual_seed(0)
    found = findings(SOUND[name]())
    for check, several in found.items():
        for one in several:
            assert one.status not in ("violated", "suspicious"), (
                f"{check}: {one.summary}\n{one.because}"
            )
    assert any(one.status == "passed" for several in found.values() for one in several)


@pytest.mark.parametrize(
    "name", ["clips", "scaler", "window over calls", "teacher", "exponential", "warm-up"]
)
def test_promises_are_held_to(name: str) -> None:
    torch.manual_seed(0)
    fields = SOUND[name]()
    names = {"ClipsGradients": "gradient-clipping", "SkipsNonFinite": "non-finite-guard", "Accumulates": "accumulation",
             "MovingAverage": "moving-average", "Schedule": "schedule"}  # fmt: skip
    found = findings(fields)
    for promise in fields["promises"]:
        assert [one.status for one in found[names[type(promise).__name__]]] == ["passed"]


def test_clipping_that_never_acts_is_no_pass() -> None:
    fields = task(Net(), plain, promises=(ClipsGradients(1e9),))
    (finding,) = findings(fields)["gradient-clipping"]
    # without a clip, the amplified gradients go through
    assert finding.status == "violated"
    assert finding.code == "not-clipped"


def test_closure_state_is_put_back() -> None:
    step = window(3)
    findings(task(Net(), step))
    assert step.__closure__[step.__code__.co_freevars.index("calls")].cell_contents == 0


def evaluate(model, x):
    with torch.no_grad():
        return model(x)


def uncertainty_score(model, x):
    with torch.no_grad():
        return model(x)


@pytest.mark.parametrize(
    ("function", "status"), [(evaluate, "violated"), (uncertainty_score, "suspicious")]
)
def test_evaluation_that_moves_statistics(function, status) -> None:
    def train_step(model, optimizer, inputs, targets):
        function(model, *inputs)
        return plain(model, optimizer, inputs, targets)

    (finding,) = findings(task(Net(norm=True), train_step, optimizer=sgd))[
        "evaluation-leaves-trace"
    ]
    assert (finding.status, finding.code) == (status, "evaluation-updates-statistics")
    assert "norm.running_mean" in [one.name for one in finding.culprits]


def test_rate_that_vanishes_is_worth_a_warning() -> None:
    (finding,) = findings(scheduled(lr.StepLR, step_size=1, gamma=0.05))["scheduler-order"]
    assert (finding.status, finding.code) == ("suspicious", "rate-vanishes")


class AnswersByAverage(nn.Module):
    """Answers with a moving average of its weights in eval mode."""

    def __init__(self):
        super().__init__()
        self.live, self.kept = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)

    def forward(self, x):
        return (self.live if self.training else self.kept)(x)


def test_micro_batches_of_a_model_without_a_graph_in_eval_mode():
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        for x, y in zip(inputs[0].split(3), targets.split(3), strict=True):
            (F.cross_entropy(model(x), y) * len(x) / len(targets)).backward()
        optimizer.step()
        with torch.no_grad():
            for kept, live in zip(model.kept.parameters(), model.live.parameters(), strict=True):
                kept.lerp_(live, 0.1)

    report = Contract(
        model=AnswersByAverage,
        batch=((torch.randn(6, 4),), torch.tensor([0, 1, 2, 0, 1, 2])),
        loss=F.cross_entropy,
        optimizer=lambda model: torch.optim.SGD(model.live.parameters(), lr=0.1),
        train_step=step,
    ).check(["accumulation"])
    assert [f.status for f in report.findings] == ["inconclusive"]
