"""Training steps with one planted bug each, and their mended twins.

Every function takes ``buggy`` and returns the fields of a contract. The line whose mending cures the
bug ends in ``# BUG``; ``EXPECTED`` says which check finds it, its code, and the culprit's name.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels
from pytest_torchcheck.promises import (
    Accumulates,
    ClipsGradients,
    MovingAverage,
    Replicated,
    Schedule,
    SkipsNonFinite,
)

EXPECTED: dict[str, tuple[str, str, str]] = {
    "zero_grad_missing": ("step-protocol", "zero-grad-missing", "optimizer.zero_grad"),
    "zero_grad_between": ("step-protocol", "zero-grad-before-step", "opt.zero_grad"),
    "zero_grad_of_the_head": ("step-protocol", "zero-grad-missing", "optimizer.zero_grad"),
    "step_before_backward": ("step-protocol", "step-before-backward", "optimizer.step"),
    "step_forgotten": ("step-protocol", "step-missing", "optimizer.step"),
    "loss_made_anew": ("step-protocol", "loss-recreated", "loss"),
    "generator_takes_the_critics_gradient": ("step-protocol", "gradient-leak", "opt_g.step"),
    "scaler_bypassed": ("step-protocol", "scaled-step", "optimizer.step"),
    "clip_after_step": ("step-protocol", "clip-after-step", "clip_grad_norm_"),
    "clip_before_unscale": ("step-protocol", "clip-before-unscale", "clip_grad_norm_"),
    "hidden_carried": ("graph-kept", "graph-carried", "hidden"),
    "memory_carried_by_model": ("graph-kept", "graph-carried", "model.memory"),
    "scheduler_first": ("scheduler-order", "scheduler-before-step", "scheduler.step"),
    "scheduler_twice": ("schedule", "schedule-differs", "scheduler.step"),
    "scheduler_forgotten": ("schedule", "schedule-differs", "scheduler.step"),
    "cosine_too_long": ("schedule", "schedule-differs", "CosineAnnealingLR"),
    "clip_of_the_head": ("gradient-clipping", "clip-partial", "body.weight"),
    "clip_too_high": ("gradient-clipping", "clip-limit", "clip_grad_norm_"),
    "validation_left_in_eval": ("evaluation-leaves-trace", "eval-mode-left", "model.eval"),
    "submodule_left_in_eval": ("evaluation-leaves-trace", "eval-mode-left", "net.norm.eval"),
    "gradients_left_off": ("evaluation-leaves-trace", "gradients-left-off", "set_grad_enabled"),
    "mean_of_means": ("accumulation", "accumulation-mean-of-means", "loss"),
    "not_divided": ("accumulation", "accumulation-scale", "loss"),
    "cleared_in_between": ("accumulation", "accumulation-cleared", "optimizer.zero_grad"),
    "stepped_in_between": ("accumulation", "accumulation-missing", "optimizer.step"),
    "not_divided_unpromised": ("accumulation", "accumulation-scale", "loss"),
    "cleared_in_between_unpromised": (
        "accumulation",
        "accumulation-cleared",
        "optimizer.zero_grad",
    ),
    "first_loss_twice": ("step-protocol", "loss-counted-twice", "total.backward"),
    "clip_before_dividing": ("gradient-clipping", "clip-before-unscale", "clip_grad_norm_"),
    "attribute_not_saved": ("resume", "resume-differs", "model.scale"),
    "replica_not_averaged": ("replicated", "replicas-differ", "b.weight"),
    "nan_applied": ("non-finite-guard", "non-finite-applied", "optimizer.step"),
    "average_swapped": ("moving-average", "average-differs", "target.body.weight"),
    "average_is_an_alias": ("moving-average", "average-differs", "target.body.weight"),
}


class Net(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.body(x))))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def task(model, train_step, **fields):
    return {
        "model": model, "batch": ((torch.randn(8, 6),), torch.arange(8) % 3), "loss": F.cross_entropy,
        "optimizer": sgd, "train_step": train_step, **fields,
    }  # fmt: skip


def zero_grad_missing(buggy):
    def train_step(model, optimizer, inputs, targets):
        if not buggy:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()  # BUG
        optimizer.step()
        return loss.detach()

    return task(Net(), train_step)


def zero_grad_between(buggy):
    def apply(opt):
        if buggy:
            opt.zero_grad()  # BUG
        opt.step()

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(*inputs), targets).backward()
        apply(optimizer)

    return task(Net(), train_step)


def zero_grad_of_the_head(buggy):
    def train_step(model, optimizer, inputs, targets):
        owner = model.head if buggy else model
        owner.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()  # BUG
        optimizer.step()
        return loss.item()

    return task(Net(), train_step)


def step_before_backward(buggy):
    def train_step(model, optimizer, inputs, targets):
        loss = F.cross_entropy(model(*inputs), targets)
        if buggy:
            optimizer.step()  # BUG
            optimizer.zero_grad()
            loss.backward()
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    return task(Net(), train_step)


def step_forgotten(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()  # BUG
        if not buggy:
            optimizer.step()
        return loss.detach()

    return task(Net(), train_step)


def loss_made_anew(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        if buggy:
            loss = torch.tensor(loss.item(), requires_grad=True)  # BUG
        loss.backward()
        optimizer.step()
        return loss.detach()

    return task(Net(), train_step)


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
        self.critic = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, z):
        return self.critic(self.generator(z))


def generator_takes_the_critics_gradient(buggy):
    real = torch.randn(8, 6)

    def optimizers(model):
        return (
            torch.optim.Adam(model.generator.parameters(), 1e-3),
            torch.optim.Adam(model.critic.parameters(), 1e-3),
        )

    def train_step(model, optimizer, inputs, targets):
        opt_g, opt_d = optimizer
        opt_g.zero_grad()
        opt_d.zero_grad()
        fake = model.generator(*inputs)
        shown = fake if buggy else fake.detach()
        loss_d = F.softplus(model.critic(shown)).mean() + F.softplus(-model.critic(real)).mean()
        loss_d.backward(retain_graph=True)  # BUG
        opt_d.step()
        loss_g = F.softplus(-model.critic(model.generator(*inputs))).mean()
        loss_g.backward()
        opt_g.step()
        return loss_d.detach()

    return {
        "model": Gan(), "batch": ((torch.randn(8, 4),), None), "optimizer": optimizers, "train_step": train_step,
    }  # fmt: skip


def scaler_bypassed(buggy):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        scaler.scale(loss).backward()
        if buggy:
            optimizer.step()  # BUG
        else:
            scaler.step(optimizer)
            scaler.update()
        return loss.detach()

    return task(Net(), train_step)


def clip_after_step(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        if not buggy:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if buggy:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # BUG
        return loss.detach()

    return task(Net(), train_step)


def clip_before_unscale(buggy):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        scaler.scale(loss).backward()
        if not buggy:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # BUG
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return task(Net(), train_step)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, h=None):
        h = self.cell(x, h)
        return self.head(h), h


def hidden_carried(buggy):
    hidden = None

    def train_step(model, optimizer, inputs, targets):
        nonlocal hidden
        optimizer.zero_grad()
        output, new = model(*inputs, hidden)
        loss = F.cross_entropy(output, targets)
        loss.backward()
        optimizer.step()
        hidden = new if buggy else new.detach()  # BUG
        return loss.detach()

    return task(Recurrent(), train_step, loss=lambda out, y: F.cross_entropy(out[0], y))


class Remembers(Net):
    def __init__(self):
        super().__init__()
        self.memory = torch.zeros(8)


def memory_carried_by_model(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        h = torch.tanh(model.body(*inputs) + model.memory)
        loss = F.cross_entropy(model.head(h), targets)
        loss.backward()
        optimizer.step()
        model.memory = h.mean(0) if buggy else h.mean(0).detach()  # BUG
        return loss.detach()

    return task(Remembers(), train_step)


def _scheduled(make, step, **fields):
    kept = {}

    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        kept["scheduler"] = make(made)
        return made

    def train_step(model, optimizer, inputs, targets):
        scheduler = kept["scheduler"]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        step(optimizer, scheduler)
        return loss.detach()

    return task(Net(), train_step, **{**fields, "optimizer": optimizer})


def scheduler_first(buggy):
    def step(optimizer, scheduler):
        if buggy:
            scheduler.step()  # BUG
            optimizer.step()
        else:
            optimizer.step()
            scheduler.step()

    return _scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), step)


def scheduler_twice(buggy):
    def step(optimizer, scheduler):
        optimizer.step()
        scheduler.step()  # BUG
        if buggy:
            scheduler.step()

    return _scheduled(
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        step,
        promises=(Schedule(lambda n: 0.1 * 0.9**n),),
    )


def scheduler_forgotten(buggy):
    def step(optimizer, scheduler):
        optimizer.step()  # BUG
        if not buggy:
            scheduler.step()

    return _scheduled(
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=4), step,
        promises=(Schedule([0.01, 0.0325, 0.055, 0.0775, 0.1, 0.1]),),
    )  # fmt: skip


def cosine_too_long(buggy):
    def make(optimizer):
        length = 40 if buggy else 10
        cosine = torch.optim.lr_scheduler
        return cosine.CosineAnnealingLR(optimizer, length, eta_min=0.01)  # BUG

    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        return made, make(made)

    def train_step(model, optimizer, inputs, targets):
        opt, scheduler = optimizer
        opt.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        opt.step()
        scheduler.step()
        return loss.detach()

    meant = Schedule([0.01 + 0.09 * (1 + math.cos(math.pi * n / 10)) / 2 for n in range(10)])
    return task(Net(), train_step, optimizer=optimizer, promises=(meant,))


def _clipping(clip):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        clip(model)
        optimizer.step()
        return loss.detach()

    return task(Net(), train_step, promises=(ClipsGradients(5.0),))


def clip_of_the_head(buggy):
    def clip(model):
        clipped = model.head if buggy else model
        nn.utils.clip_grad_norm_(clipped.parameters(), 5.0)  # BUG

    return _clipping(clip)


def clip_too_high(buggy):
    limit = 50.0 if buggy else 5.0

    def clip(model):
        nn.utils.clip_grad_norm_(model.parameters(), limit)  # BUG

    return _clipping(clip)


def validation_left_in_eval(buggy):
    held_out = torch.randn(8, 6)

    def validate(model):
        model.eval()
        with torch.no_grad():
            score = model(held_out).mean().item()
        if buggy:
            return score  # BUG
        model.train()
        return score

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        validate(model)
        return loss.detach()

    return task(Net(norm=True), train_step)


def submodule_left_in_eval(buggy):
    def calibrate(net, x):
        net.norm.eval()
        with torch.no_grad():
            net(x)
        if not buggy:
            net.norm.train()
        return net  # BUG

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        calibrate(model, *inputs)
        return loss.detach()

    return task(Net(norm=True), train_step)


def gradients_left_off(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        torch.set_grad_enabled(False)  # BUG
        accuracy = (model(*inputs).argmax(1) == targets).float().mean()
        torch.set_grad_enabled(not buggy)
        return accuracy

    return task(Net(), train_step)


def _accumulating(micro, n=4, **fields):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        total = int((targets != -1).sum())
        for x, y in zip(inputs[0].chunk(n), targets.chunk(n), strict=True):
            micro(model, optimizer, x, y, total)
        optimizer.step()

    return {
        "model": nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 5)),
        "batch": ((torch.randn(8, 7, 6),), torch.randint(0, 5, (8, 7))),
        "inputs": "B T 6", "targets": Labels("B T", classes=5, ignore_index=-1), "sizes": {"B": (4, 8), "T": (3, 7)},
        "loss": lambda out, y: F.cross_entropy(out.transpose(1, 2), y, ignore_index=-1),
        "optimizer": sgd, "train_step": train_step, "promises": (Accumulates(n),), **fields,
    }  # fmt: skip


def summed(model, x, y):
    return F.cross_entropy(model(x).transpose(1, 2), y, ignore_index=-1, reduction="sum")


def mean_of_means(buggy):
    def micro(model, optimizer, x, y, total):
        count = 4 * int((y != -1).sum()) if buggy else total
        loss = summed(model, x, y) / count  # BUG
        loss.backward()

    return _accumulating(micro)


def not_divided(buggy):
    def micro(model, optimizer, x, y, total):
        loss = summed(model, x, y) / (total / 4 if buggy else total)  # BUG
        loss.backward()

    return _accumulating(micro)


def cleared_in_between(buggy):
    def micro(model, optimizer, x, y, total):
        if buggy:
            optimizer.zero_grad()  # BUG
        loss = summed(model, x, y) / total
        loss.backward()

    return _accumulating(micro)


def not_divided_unpromised(buggy):
    def micro(model, optimizer, x, y, total):
        loss = summed(model, x, y) / (total / 4 if buggy else total)
        loss.backward()  # BUG

    return _accumulating(micro, promises=())


def cleared_in_between_unpromised(buggy):
    return cleared_in_between(buggy) | {"promises": ()}


def first_loss_twice(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        output = model(*inputs)
        fit = F.cross_entropy(output, targets)
        if buggy:
            fit.backward(retain_graph=True)
        total = fit + 0.1 * output.square().mean()
        total.backward()  # BUG
        optimizer.step()

    return task(Net(), train_step)


def clip_before_dividing(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        (64.0 * loss).backward()
        if buggy:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # BUG
        for parameter in model.parameters():
            parameter.grad /= 64.0
        if not buggy:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    return task(Net(), train_step, promises=(ClipsGradients(0.1),))


def stepped_in_between(buggy):
    def micro(model, optimizer, x, y, total):
        loss = summed(model, x, y) / total
        loss.backward()
        if buggy:
            optimizer.step()  # BUG
            optimizer.zero_grad()

    return _accumulating(micro)


class Annealed(Net):
    def __init__(self, buggy):
        super().__init__()
        if buggy:
            self.scale = torch.ones(())  # BUG
        else:
            self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.scale = self.scale * 0.9
        return super().forward(x) * self.scale


def attribute_not_saved(buggy):
    return {
        "model": lambda: Annealed(buggy), "batch": ((torch.randn(8, 6),), torch.arange(8) % 3),
        "loss": F.cross_entropy, "optimizer": sgd,
    }  # fmt: skip


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)
        self.b.load_state_dict(self.a.state_dict())

    def forward(self, x):
        return torch.cat([self.a(x[::2]), self.b(x[1::2])])


def replica_not_averaged(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        with torch.no_grad():
            for p, q in zip(model.a.parameters(), model.b.parameters(), strict=True):
                mean = (p.grad + q.grad) / 2
                p.grad.copy_(mean)
                q.grad.copy_(q.grad / 2 if buggy else mean)  # BUG
        optimizer.step()
        return loss.detach()

    return task(
        Pair(),
        train_step,
        promises=(Replicated("a.weight", "b.weight"), Replicated("a.bias", "b.bias")),
    )


def nan_applied(buggy):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if buggy or torch.isfinite(norm):
            optimizer.step()  # BUG
        return loss.detach()

    return task(Net(), train_step, promises=(SkipsNonFinite(),))


class Averaged(nn.Module):
    def __init__(self, alias=False):
        super().__init__()
        self.online = Net()
        self.target = self.online if alias else copy.deepcopy(self.online)  # BUG
        if not alias:
            self.target.requires_grad_(False)

    def forward(self, x):
        return self.online(x)


def _averaging(model, keep):
    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(model.target.parameters(), model.online.parameters(), strict=True):
                p.lerp_(q, 1 - keep)  # BUG
        return loss.detach()

    return task(
        model, train_step, promises=(MovingAverage(target="target", source="online", decay=0.9),),
        optimizer=lambda m: torch.optim.SGD(m.online.parameters(), lr=0.5),
    )  # fmt: skip


def average_swapped(buggy):
    return _averaging(Averaged(), 0.1 if buggy else 0.9)


def average_is_an_alias(buggy):
    return _averaging(Averaged(alias=buggy), 0.9)
