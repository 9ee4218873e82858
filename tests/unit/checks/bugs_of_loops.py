"""Programs whose bug stands in a helper, a method or a factory: the finding must still name its line."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises
from tests.unit.checks.bugs import Net, bug, classify


def made_for(model: nn.Module, *, copied: bool) -> torch.optim.Optimizer:
    best = copy.deepcopy(model)
    if copied:
        return torch.optim.AdamW(best.parameters(), lr=0.01)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@bug("optimizer-coverage", "optimizer-missing", "head.weight", "best.parameters()")
def optimizer_of_a_copy(buggy: bool) -> Contract:
    return classify(Net, optimizer=lambda model: made_for(model, copied=buggy))


@bug("optimizer-coverage", "optimizer-missing", "head.weight", "(p for p in model.parameters()")
def groups_from_a_generator(buggy: bool) -> Contract:
    def optimizer(model: Any) -> torch.optim.Optimizer:
        if buggy:
            wide = (p for p in model.parameters() if p.ndim > 1)
        else:
            wide = [p for p in model.parameters() if p.ndim > 1]
        narrow = [p for p in model.parameters() if p.ndim < 2]
        assert sum(p.numel() for p in wide)
        return torch.optim.SGD([{"params": wide}, {"params": narrow}], lr=0.1)

    return classify(Net, optimizer=optimizer)


@bug("optimizer-coverage", "optimizer-missing", "body.weight", "requires_grad_(True)")
def thawed_after_the_optimizer(buggy: bool) -> Contract:
    def build() -> nn.Module:
        net = Net()
        net.body.requires_grad_(False)
        return net

    def optimizer(model: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        model.body.requires_grad_(True)
        if not buggy:
            made.add_param_group({"params": list(model.body.parameters())})
        return made

    return classify(build, optimizer=optimizer, promises=(promises.Trainable("body.*"),))


def freeze(model: nn.Module, *, buggy: bool) -> nn.Module:
    for name, parameter in model.named_parameters():
        if buggy:
            parameter.requires_grad = "head" not in name
        else:
            parameter.requires_grad = not name.startswith("body.")
    return model


@bug("gradients-exist", "grad-off", "head.weight", '"head" not in name')
def frozen_by_the_wrong_name(buggy: bool) -> Contract:
    return classify(lambda: freeze(Net(), buggy=buggy), promises=(promises.Trainable("head.*"),))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class OwnFlag(Dropping):
    def train(self, mode: bool = True) -> OwnFlag:
        self.training = mode
        return self


@bug("mode-flags", "mode-stuck", "net", "self.training = mode")
def train_sets_its_own_flag(buggy: bool) -> Contract:
    return classify(OwnFlag if buggy else Dropping)


class Target(nn.Module):
    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.online = nn.Linear(6, 4)
        if shared:
            self.target = self.online
        else:
            self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            goal = self.target(x)
        return self.online(x) + 0.1 * goal


@bug("frozen-stays", "frozen-moved", "target.weight", "self.target = self.online")
def target_is_the_online_network(buggy: bool) -> Contract:
    return classify(
        lambda: Target(shared=buggy),
        optimizer=lambda model: torch.optim.SGD(model.online.parameters(), lr=0.1),
        promises=(promises.Frozen("target.*", reason="the target is copied now and then"),),
    )


class Remembering(nn.Module):
    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.cell, self.head, self.keeps = nn.GRUCell(6, 8), nn.Linear(8, 4), keeps
        self.hidden: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = self.hidden
        if start is not None and len(start) != len(x):
            start = None
        state = self.cell(x, start)
        if self.keeps:
            self.hidden = state.detach()
        return self.head(state)


@bug("eval-purity", "eval-not-repeatable", "hidden", "self.hidden = state.detach()")
def state_kept_between_batches(buggy: bool) -> Contract:
    return classify(lambda: Remembering(keeps=buggy))


class Meter:
    def __init__(self) -> None:
        self.total: Any = 0.0

    def update(self, value: torch.Tensor, *, buggy: bool) -> None:
        if buggy:
            self.total = self.total + value
        else:
            self.total = self.total + value.item()


def stepped(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


@bug("step-leak", "leak-graph", "meter.total", "self.total = self.total + value")
def meter_that_keeps_graphs(buggy: bool) -> Contract:
    meter = Meter()

    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        loss = stepped(model, optimizer, inputs, targets)
        meter.update(loss, buggy=buggy)
        return loss.detach()

    return classify(
        Net,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        train_step=train_step,
    )


@bug("evaluation-leaves-trace", "eval-mode-left", "model.net.eval", "model.net.eval()")
def labels_made_in_eval_mode(buggy: bool) -> Contract:
    def label(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.net.eval()
        with torch.no_grad():
            made = model(x).argmax(1)
        if not buggy:
            model.net.train()
        return made

    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        label(model, *inputs)
        return stepped(model, optimizer, inputs, targets).detach()

    return classify(
        Dropping,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        train_step=train_step,
    )


def warm(step: int) -> float:
    return min(1.0, (step + 1) / 4)


@bug("schedule", "schedule-differs", "LambdaLR", "0.1 * warm(step)")
def factor_that_is_a_rate(buggy: bool) -> Contract:
    schedulers: dict[int, Any] = {}

    def scheduler(optimizer: torch.optim.Optimizer) -> Any:
        if buggy:
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 * warm(step))
        return torch.optim.lr_scheduler.LambdaLR(optimizer, warm)

    def optimizer(model: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        schedulers[id(made)] = scheduler(made)
        return made

    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        loss = stepped(model, optimizer, inputs, targets)
        schedulers[id(optimizer)].step()
        return loss.detach()

    return classify(
        Net,
        optimizer=optimizer,
        train_step=train_step,
        promises=(promises.Schedule(lambda step: 0.1 * warm(step)),),
    )


class Trainer:
    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.outputs: list[Any] = []

    def __call__(self, model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        output = model(*inputs)
        if self.keeps:
            self.outputs.append(output)
        loss = F.cross_entropy(output, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()


@bug("step-leak", "leak-graph", "", "self.outputs.append(output)")
def trainer_that_keeps_outputs(buggy: bool) -> Contract:
    return classify(
        Net,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        train_step=Trainer(keeps=buggy),
    )


@bug("weights-update", "weight-static", "body.weight", "scale = 1 // depth")
def rate_by_integer_division(buggy: bool) -> Contract:
    def optimizer(model: Any) -> torch.optim.Optimizer:
        depth = 2
        scale = 1 // depth if buggy else 1 / depth
        groups = [
            {"params": model.body.parameters(), "lr": 0.1 * scale},
            {"params": model.head.parameters(), "lr": 0.1},
        ]
        return torch.optim.SGD(groups)

    return classify(Net, optimizer=optimizer)


class Grouped(nn.Module):
    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        self.body, self.head, self.fixed = nn.Linear(6, 24), nn.Linear(8, 4), fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.body(x))
        h = h.view(6, -1, 8) if self.fixed else h.view(len(x), -1, 8)
        return self.head(h.mean(1))


@bug("output-spec", "output-shape", "", "h.view(6, -1, 8)")
def view_of_one_batch_size(buggy: bool) -> Contract:
    return classify(lambda: Grouped(fixed=buggy), sizes={"B": (2, 6)}, output="B 4")


def finished(model: Any, *, buggy: bool) -> torch.optim.Optimizer:
    if buggy:
        made = torch.optim.Adam(model.parameters(), lr=0.01)
        model.head = nn.Linear(12, 4)
        return made
    model.head = nn.Linear(12, 4)
    return torch.optim.Adam(model.parameters(), lr=0.01)


@bug("optimizer-coverage", "optimizer-missing", "head.weight", "model.head = nn.Linear(12, 4)")
def head_replaced_after_the_optimizer(buggy: bool) -> Contract:
    return classify(Net, optimizer=lambda model: finished(model, buggy=buggy))


class Distilled(nn.Module):
    def __init__(self, *, trains: bool) -> None:
        super().__init__()
        self.teacher, self.student, self.trains = nn.Linear(6, 4), nn.Linear(6, 4), trains

    def goal(self, x: torch.Tensor) -> torch.Tensor:
        if self.trains:
            return self.teacher(x)
        with torch.no_grad():
            return self.teacher(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.student(x) + 0.1 * self.goal(x)


@bug("frozen-stays", "frozen-moved", "teacher.weight", "return self.teacher(x)")
def teacher_that_is_trained(buggy: bool) -> Contract:
    return classify(
        lambda: Distilled(trains=buggy),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        promises=(promises.Frozen("teacher.*", reason="it is the teacher"),),
    )
