"""A resumed run whose pieces are kept under the identity of an optimizer is no other run."""

from __future__ import annotations

import torch
from loop_bugs import Net, sgd, task
from test_loop_bugs import findings


def keyed(held):
    """Return the fields of a step that finds its scheduler by ``id(optimizer)``."""
    kept = {}

    def optimizer(model):
        made = sgd(model)
        kept[id(made)] = held(torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.9**step))
        return made

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        kept[id(optimizer)].step()
        return loss.detach()

    return task(Net(), train_step, optimizer=optimizer)


class Loop:
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def step(self):
        self.scheduler.step()


def test_scheduler_found_by_identity_takes_the_saved_state() -> None:
    (finding,) = findings(keyed(lambda scheduler: scheduler))["resume"]
    assert finding.status == "passed", str(finding)


def test_scheduler_inside_an_object_without_state_dict_is_not_judged() -> None:
    (finding,) = findings(keyed(Loop))["resume"]
    assert (finding.status, finding.code) == ("inconclusive", "state-in-closure")
