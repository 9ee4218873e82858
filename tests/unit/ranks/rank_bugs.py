"""Seeded bugs of data-parallel training, each beside its mended twin; the ranks import this file."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, Sampler, Subset, TensorDataset

from pytest_torchcheck import Contract, Labels
from pytest_torchcheck.promises import Checkpoints, FullyShards, SharesData


class Net(nn.Module):
    """What the others are made from."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.drop(torch.tanh(self.body(x))))


class Branching(Net):
    """One of two heads, by the data."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return self.head(hidden) if len(x) else self.other(hidden)


class BothBranches(Branching):
    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return self.head(hidden) + self.other(hidden)


class RankInit(Net):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))
        with torch.no_grad():
            self.head.weight.normal_(generator=generator)


class PlainTensor(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mixing = torch.randn(8, 8)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)) @ self.mixing.to(x.dtype))


class Buffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mixing", torch.randn(8, 8))

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)) @ self.mixing)


class SameNoise(Net):
    def forward(self, x):
        torch.manual_seed(0)
        return super().forward(x)


class Late(Net):
    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        if self.training and not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(8, dtype=x.dtype))
        return self.head(hidden * getattr(self, "scale", 1.0))


class LateAtRandom(Net):
    def forward(self, x):
        if not hasattr(self, "turn"):
            self.turn = nn.Linear(3, 3).to(x.dtype)
        return self.turn(super().forward(x))


class InTime(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)) * self.scale)


class Drift(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(6))

    def update(self, x):
        self.centre.lerp_(x.mean(0), 0.1)


class NoDrift(Drift):
    def update(self, x):
        mean = x.mean(0)
        dist.all_reduce(mean)
        self.centre.lerp_(mean / dist.get_world_size(), 0.1)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def cross_entropy(output, targets):
    return F.cross_entropy(output, targets)


def summed(output, targets):
    return F.cross_entropy(output, targets, reduction="sum")


def plain_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


def clips_on_one_rank(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    if dist.get_rank() == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()


def clips_everywhere(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()


def adds_gradients(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model.module(*inputs), targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()


def averages_gradients(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model.module(*inputs), targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()


def bypasses_wrapper(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model.module(*inputs), targets).backward()
    optimizer.step()


def updates_buffer(model, optimizer, inputs, targets):
    plain_step(model, optimizer, inputs, targets)
    model.module.update(inputs[0])


def waits_alone(model, optimizer, inputs, targets):
    plain_step(model, optimizer, inputs, targets)
    if dist.get_rank() == 0:
        dist.barrier()


def hidden_attribute(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    F.cross_entropy(model.head(model.body(*inputs)), targets).backward()
    optimizer.step()


def made(model, loss=cross_entropy, step=None, **fields):
    return Contract(
        model=model, inputs="B 6", targets=Labels("B", classes=3), sizes={"B": (2, 16)}, loss=loss,
        train_step=step, optimizer=sgd, ranks=2, devices=("cpu",), **fields,
    )  # fmt: skip


BUGS = {
    "unused parameter in one branch": (made(Branching), "ddp-equivalence/unused-parameter", "other.weight"),
    "sum instead of mean, in the loss": (made(Net, summed), "ddp-equivalence/loss-sum", "summed"),
    "sum instead of mean, in the step": (made(Net, step=adds_gradients), "distributed-steps/gradient-sum", "x the gradient"),
    "initialisation by rank": (made(RankInit), "rank-consistency/rank-dependent-init", "head.weight"),
    "state that is not sent": (made(PlainTensor), "rank-consistency/not-broadcast", "mixing"),
    "the same dropout everywhere": (made(SameNoise), "rank-consistency/same-noise", "drop"),
    "parameter made after wrapping": (made(Late, step=plain_step), "ddp-equivalence/late-parameter", "scale"),
    "layer made in forward": (made(LateAtRandom), "ddp-equivalence/late-parameter", "turn"),
    "buffer drift": (made(Drift, step=updates_buffer), "distributed-steps/buffer-drift", "centre"),
    "clipping on rank 0 only": (made(Net, step=clips_on_one_rank), "distributed-steps/parameters-differ", "body.weight"),
    "the wrapper is bypassed": (made(Net, step=bypasses_wrapper), "distributed-steps/parameters-differ", "body.weight"),
    "one rank waits alone": (made(Net, step=waits_alone), "distributed-steps/hang", "rank 0"),
    "an attribute of the wrapped model": (made(Net, step=hidden_attribute), "distributed-steps/wrapper-hides-attribute", "head"),
}  # fmt: skip
"""By bug: contract, ``check/code`` that must find it, and what the summary must name."""

MENDED = {
    "both branches": made(BothBranches),
    "mean": made(Net, step=averages_gradients),
    "registered": made(Buffer),
    "in time": made(InTime, step=plain_step),
    "no drift": made(NoDrift, step=updates_buffer),
    "clips everywhere": made(Net, step=clips_everywhere),
}


# -- data, checkpoints, shards -----------------------------------------------------------------------


def samples(count):
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(count, 6, generator=generator),
        torch.randint(0, 3, (count,), generator=generator),
    )


def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def without_set_epoch(model, optimizer):
    data = samples(21)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    for _ in range(2):
        train(model, optimizer, loader)


def with_set_epoch(model, optimizer):
    data = samples(21)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        train(model, optimizer, loader)


def everyone_reads_all(model, optimizer):
    loader = DataLoader(samples(21), 4, shuffle=True)
    for _ in range(2):
        train(model, optimizer, loader)


class Strided(Sampler):
    """Every so many-th sample, without padding."""

    def __init__(self, data):
        self.order = list(range(dist.get_rank(), len(data), dist.get_world_size()))

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


def uneven_last_batch(model, optimizer):
    data = samples(15)
    loader = DataLoader(data, 5, sampler=Strided(data))
    for _ in range(2):
        train(model, optimizer, loader)


def uneven_batches(model, optimizer):
    data = samples(17)
    loader = DataLoader(data, 4, sampler=Strided(data))
    for _ in range(2):
        train(model, optimizer, loader)


def split_beforehand(model, optimizer):
    data = samples(24)
    mine = Subset(data, range(dist.get_rank(), 24, 2))
    for _ in range(2):
        train(model, optimizer, DataLoader(mine, 4, shuffle=True))


def evaluates_too(model, optimizer):
    loader = DataLoader(samples(6), 4)
    for _ in range(2):
        with torch.no_grad():
            for x, _y in loader:
                model.module(x)
    with_set_epoch(model, optimizer)


def evaluates_between(model, optimizer):
    data, held_out = samples(24), samples(6)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    for phase in range(2):  # each starts again at epoch 0
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for number, (x, y) in enumerate(loader):
                if number == 1:
                    with torch.no_grad():
                        for each, _ in DataLoader(held_out, 3):
                            model.module(each)
                train(model, optimizer, [(x, y)])
        assert phase < 2


def weighs_samples(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    total = torch.tensor(float(len(targets)))
    dist.all_reduce(total)
    loss = F.cross_entropy(model(*inputs), targets, reduction="sum")
    (loss * dist.get_world_size() / total).backward()
    optimizer.step()


def saves_wrapper(model, path):
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "epoch": 3}, path)


def saves_module(model, path):
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "epoch": 3}, path)


def loads(model, path):
    model.load_state_dict(torch.load(path, weights_only=True)["model"])


def loads_what_fits(model, path):
    model.load_state_dict(torch.load(path, weights_only=True)["model"], strict=False)


def loads_nothing(model, path):
    torch.load(path, weights_only=True)


def loads_on_one_rank(model, path):
    if dist.get_rank() == 0:
        loads(model, path)


def assigns(model, path):
    model.load_state_dict(torch.load(path, weights_only=True)["model"], assign=True)


class Tying(nn.Module):
    """A table whose weight is also that of the head."""

    def __init__(self):
        super().__init__()
        self.table = nn.Linear(6, 8, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(6, 8, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        hidden = self.table(x)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        return F.linear(hidden, self.head.weight.t())[:, :3] + self.head(x)[:, :3]


class TyingInModules(Tying):
    def forward(self, x):
        hidden = self.table(x)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        return (hidden + self.head(x))[:, :3]


class TyingByRank(TyingInModules):
    def __init__(self):
        super().__init__()
        if int(os.environ.get("RANK", "0")) > 0:
            self.head.weight = nn.Parameter(self.table.weight.detach().clone())


class Blocks(nn.Module):
    """What models are made of: attention, normalisation, a frozen part and buffers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
        )
        self.cell = nn.LSTM(8, 5, batch_first=True)
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(5, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        hidden = self.norm(self.first(x))[:, None].expand(-1, 3, -1) * self.scale
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.cell(hidden)[0][:, -1])


class Rotary(TyingInModules):
    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.arange(6.0), persistent=False)

    def forward(self, x):
        return super().forward(x + torch.sin(self.angles))


def gives_memory(model):
    model.to_empty(device="cpu")
    model.angles = torch.arange(6.0, dtype=model.angles.dtype)


def unties(model, optimizer, inputs, targets):
    plain_step(model, optimizer, inputs, targets)
    model.module.head.weight = nn.Parameter(model.module.head.weight.detach().clone())


def shards_all(model):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)


def shards_head_too(model):
    fully_shard(model.head)
    fully_shard(model)


def shards_blocks_only(model):
    for block in model.blocks:
        fully_shard(block)


class Synchronised(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.norm = nn.SyncBatchNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


class EmulatedNorm(nn.SyncBatchNorm):
    """What torch's own does on GPUs, by a differentiable all_reduce."""

    weighs = True

    def forward(self, input):
        if not self.training or not dist.is_initialized():
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )  # fmt: skip
        from torch.distributed.nn.functional import all_reduce

        world = dist.get_world_size()
        mean = all_reduce(input.mean(0)) / world
        var = all_reduce((input - mean).square().mean(0)) / world
        count = len(input) * world
        with torch.no_grad():
            unbiased = var * (count / (count - 1) if self.weighs else 1.0)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        return (input - mean) / (var + self.eps).sqrt() * self.weight + self.bias


class BiasedNorm(EmulatedNorm):
    weighs = False


class Emulated(Synchronised):
    def __init__(self):
        super().__init__()
        self.norm = EmulatedNorm(8)


class Biased(Synchronised):
    def __init__(self):
        super().__init__()
        self.norm = BiasedNorm(8)


def on_data(run, step=plain_step, model=Net):
    return made(model, step=step, promises=(SharesData(run),))


def on_files(save, load, model=Net):
    return made(model, promises=(Checkpoints(save, load),))


def in_shards(model=TyingInModules, wrap=None, meta=False):
    return made(model, promises=(FullyShards(wrap, meta=meta),))


BUGS |= {
    "set_epoch is never called": (on_data(without_set_epoch), "rank-data/set-epoch-missing", "DistributedSampler"),
    "every rank reads all": (on_data(everyone_reads_all), "rank-data/data-not-shared", "same samples"),
    "an unequal last batch": (on_data(uneven_last_batch), "rank-data/uneven-last-batch", "rank 0: 3, rank 1: 2"),
    "unequal numbers of batches": (on_data(uneven_batches), "rank-data/uneven-batches", "rank 0: "),
    "the wrapper's state_dict": (on_files(saves_wrapper, loads), "rank-checkpoint/state-dict-prefix", "module."),
    "the wrapper's state_dict, silently": (on_files(saves_wrapper, loads_what_fits), "rank-checkpoint/state-dict-prefix", "module."),
    "loaded on one rank": (on_files(saves_module, loads_on_one_rank), "rank-checkpoint/checkpoint-lost", "weight"),
    "loaded nowhere": (on_files(saves_module, loads_nothing, Buffer), "rank-checkpoint/checkpoint-lost", "weight"),
    "tied weights split by loading": (on_files(saves_module, assigns, TyingInModules), "rank-checkpoint/tie-split", "head.weight"),
    "tied weights split by the step": (made(TyingInModules, step=unties), "distributed-steps/tie-split", "head.weight"),
    "tied weights split on one rank": (made(TyingByRank), "rank-consistency/tie-split", "head.weight"),
    "tied weights split by FSDP": (in_shards(wrap=shards_head_too), "fsdp-equivalence/tie-split", "head.weight"),
    "the root is not sharded": (in_shards(wrap=shards_blocks_only), "fsdp-equivalence/not-sharded", "table.weight"),
    "a buffer without values after meta": (in_shards(Rotary, meta=True), "fsdp-equivalence/meta-not-restored", "angles"),
    "statistics without Bessel's correction": (made(Biased), "synchronised-statistics/statistics-differ", "norm.running_var"),
}  # fmt: skip

MENDED |= {
    "set_epoch": on_data(with_set_epoch),
    "split beforehand": on_data(split_beforehand),
    "evaluates too": on_data(evaluates_too),
    "evaluates between": on_data(evaluates_between),
    "the step weighs its samples": on_data(uneven_last_batch, weighs_samples),
    "the module's state_dict": on_files(saves_module, loads),
    "tied and loaded": on_files(saves_module, loads, TyingInModules),
    "sharded by the default plan": in_shards(),
    "a module, saved": on_files(saves_module, loads, Blocks()),
    "many layers, sharded": in_shards(Blocks),
    "many layers, sharded by a plan": in_shards(Blocks, wrap=shards_all, meta=True),
    "sharded by a plan": in_shards(wrap=shards_all, meta=True),
    "a buffer computed again": in_shards(Rotary, meta=gives_memory),
    "statistics": made(Emulated),
}  # fmt: skip
