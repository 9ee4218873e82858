"""Where copies of a model train and its weights follow them, its running statistics must follow too."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from pytest_torchcheck import Contract


def net(**options):
    return nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12, **options), nn.ReLU(), nn.Linear(12, 3)
    )


def trained(client, shard, labels, steps=2):
    client.train()
    optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
    for _ in range(steps):
        loss = F.cross_entropy(client(shard), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return client, loss.detach()


def copies(model, inputs, targets):
    """Train one copy on each half of the batch."""
    pairs = zip(inputs[0].chunk(2), targets.chunk(2), strict=True)
    made = [trained(copy.deepcopy(model), *pair) for pair in pairs]
    return [client for client, _ in made], sum(loss for _, loss in made) / len(made)


def told(train_step, model=net, *, loss=F.cross_entropy):
    torch.manual_seed(4)
    contract = Contract(
        model=model, train_step=train_step, loss=loss,
        batch=((2 * torch.randn(24, 6) + 3,), torch.arange(24) % 3),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1.0),
    )  # fmt: skip
    return next(iter(contract.check(["averages-follow"]).findings))


@torch.no_grad()
def take_over(model, clients, names):
    for name, tensor in names(model):
        others = [dict(names(client))[name] for client in clients]
        tensor.copy_(sum(others) / len(others))


def averaged(model, optimizer, inputs, targets):
    clients, loss = copies(model, inputs, targets)
    take_over(model, clients, nn.Module.named_parameters)
    return loss


def loaded(model, optimizer, inputs, targets):
    clients, loss = copies(model, inputs, targets)
    uploads = [dict(client.named_parameters()) for client in clients]
    mean = {n: sum(u[n].detach() for u in uploads) / len(uploads) for n in uploads[0]}
    model.load_state_dict(mean, strict=False)
    return loss


def by_optimizer(model, optimizer, inputs, targets):
    clients, loss = copies(model, inputs, targets)
    for name, parameter in model.named_parameters():
        others = [dict(client.named_parameters())[name].detach() for client in clients]
        parameter.grad = parameter.detach() - sum(others) / len(others)
    optimizer.step()
    return loss


@pytest.mark.parametrize("step", [averaged, loaded, by_optimizer])
def test_parameters_alone_are_taken_over(step):
    finding = told(step)
    assert (finding.status, finding.code) == ("violated", "average-statistics"), str(finding)
    assert "1.running_mean" in finding.summary
    wanted = "tensor.copy_(" if step is averaged else "named_parameters()"
    assert wanted in finding.location.text


def test_without_a_loss_the_model_may_be_adapted_before_it_is_asked():
    assert told(averaged, loss=None).status == "suspicious"


def whole_state(model, optimizer, inputs, targets):
    clients, loss = copies(model, inputs, targets)
    states = [client.state_dict() for client in clients]
    model.load_state_dict({n: sum(s[n] for s in states) / len(states) for n in states[0]})
    return loss


def gathered_anew(model, optimizer, inputs, targets):
    loss = averaged(model, optimizer, inputs, targets)
    torch.optim.swa_utils.update_bn([inputs[0]], model)
    return loss


def own_norms(model, optimizer, inputs, targets):
    """Leave the norms to the clients."""
    clients, loss = copies(model, inputs, targets)
    take_over(model, clients, lambda m: [(n, p) for n, p in m.named_parameters() if n[0] != "1"])
    return loss


def in_evaluation_mode(model, optimizer, inputs, targets):
    model.train()
    model[1].eval()
    loss = F.cross_entropy(model(inputs[0]), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def adapted(model, optimizer, inputs, targets):
    """Take one inner step, and the gradient through it."""
    weights = dict(model.named_parameters())
    statistics = {n: b.clone() for n, b in model.named_buffers()}
    loss = F.cross_entropy(functional_call(model, {**weights, **statistics}, inputs), targets)
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    weights = {n: p - 0.1 * s for (n, p), s in zip(weights.items(), slopes, strict=True)}
    loss = F.cross_entropy(functional_call(model, {**weights, **statistics}, inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad.mul_(0.1)
    optimizer.step()
    return loss.detach()


def plain(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model.train()(inputs[0]), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def with_a_frozen_copy(model, optimizer, inputs, targets):
    """Distil from a copy in training mode, while the model's own norm is frozen in evaluation mode."""
    model.train()
    model[1].eval()
    with torch.no_grad():
        wanted = copy.deepcopy(model).train()(inputs[0]).softmax(-1)
    loss = F.cross_entropy(model(inputs[0]), wanted) + F.cross_entropy(model(inputs[0]), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize(
    "step",
    [whole_state, gathered_anew, own_norms, in_evaluation_mode, adapted, plain, with_a_frozen_copy],
)
def test_sound_steps(step):
    finding = told(step)
    assert finding.status in {"passed", "not-applicable"}, str(finding)


@pytest.mark.parametrize("options", [{"track_running_stats": False}, {"momentum": 0.0}])
def test_norms_that_no_batch_moves(options):
    assert told(averaged, model=lambda: net(**options)).code != "average-statistics"


def test_clients_that_stay_have_statistics_of_their_own():
    clients = []

    def step(model, optimizer, inputs, targets):
        if not clients:
            clients.extend(copy.deepcopy(model) for _ in range(2))
        losses = []
        for client, shard, labels in zip(
            clients, inputs[0].chunk(2), targets.chunk(2), strict=True
        ):
            client.load_state_dict(dict(model.named_parameters()), strict=False)
            losses.append(trained(client, shard, labels)[1])
        take_over(model, clients, nn.Module.named_parameters)
        return sum(losses) / len(losses)

    assert told(step).code != "average-statistics"
