"""Where one line carries out what another decided, the other one is cited; where a trial cures it, it is named."""

from __future__ import annotations

import copy
import functools
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchcheck import Contract, Ints, Labels, promises


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


def found(contract, check, code):
    """Return the finding of a code, and the texts of the lines that it cites."""
    finding = next(f for f in contract.check([check]).findings if f.code == code)
    places = [finding.location, *(c.location for c in finding.culprits)]
    return finding, [place.text for place in places if place is not None]


class Centred(nn.Module):
    """Subtracts a largest value: over the samples too, or over the positions alone."""

    def __init__(self, whole=True):
        super().__init__()
        self.whole, self.layer = whole, nn.Linear(4, 2)

    def forward(self, x):
        if self.whole:
            over = (0, 1)
        else:
            over = (1,)
            x = x.abs()
        return self.layer(x - torch.amax(x, over, keepdim=True))


def test_of_two_assignments_of_a_dimension_the_one_that_ran():
    contract = Contract(model=Centred, batch=((torch.randn(5, 3, 4),), None))
    finding, lines = found(contract, "batch-independence", "samples-mixed")
    assert "over = (0, 1)" in lines
    assert "over = (1,)" not in lines
    assert "over is set on line" in finding.because


class Ladder(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def forward(self, x):
        for turn in range(2):
            start = turn
            x = self.steps[start](x).tanh()
            x = self.steps[start + 1](x).tanh()
        return x


def test_the_line_that_counts_the_entries_of_a_list():
    x = torch.randn(6, 4)
    contract = Contract(model=Ladder, batch=((x,), x.clone()), loss=F.mse_loss)
    _, lines = found(contract, "gradients-exist", "grad-none")
    assert "start = turn" in lines


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.tail = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))

    def train(self, mode=True):
        self.training = mode
        parts = ("body",)
        for name in parts:
            self.get_submodule(name).train(mode)
        return self

    def forward(self, x):
        return self.tail(self.body(x))


def test_the_list_of_what_train_reaches():
    contract = Contract(model=Listed, batch=((torch.randn(6, 4),), None))
    finding, lines = found(contract, "mode-flags", "mode-stuck")
    assert finding.location.text == "for name in parts:"
    assert 'parts = ("body",)' in lines


class Recurrent(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.read = nn.GRU(3, 5, **options)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.read(x)[0].mean(1))


@pytest.mark.parametrize("kind", ["GRU", "MultiheadAttention"])
def test_a_layer_that_takes_the_samples_for_the_sequence(kind):
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.MultiheadAttention(4, 2)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.read(x, x, x)[0].mean(1))

    model, width = (Recurrent, 3) if kind == "GRU" else (Attending, 4)
    contract = Contract(model=model, batch=((torch.randn(5, 6, width),), None))
    # a recurrent layer that runs over the samples gives the first one nothing of the others
    code = "sample-order" if kind == "GRU" else "samples-mixed"
    finding, _ = found(contract, "batch-independence", code)
    assert "self.read = nn." in finding.location.text
    assert "with batch_first=True none of the outputs depends on two samples" in finding.because
    assert f"pass batch_first=True to {kind}" in finding.fix


class Rebuilt:
    def __call__(self, output, target):
        value = F.mse_loss(output, target)
        again = torch.tensor(float(value), requires_grad=True)
        self.last = again
        return again


def test_the_line_that_makes_the_loss_anew():
    contract = Contract(
        model=lambda: nn.Linear(3, 3),
        batch=((torch.randn(4, 3),), torch.randn(4, 3)),
        loss=Rebuilt(),
    )
    finding, _ = found(contract, "loss-sound", "loss-recreated")
    assert finding.location.text.startswith("again = torch.tensor(float(value)")
    weights = contract.check(["loss-weights"]).findings
    assert [f.status for f in weights] == ["inconclusive"]


class Redrawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        h = checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=False)
        return self.head(h)


def test_the_call_that_recomputes_with_other_random_numbers():
    contract = Contract(
        model=Redrawn, batch=((torch.randn(8, 6),), torch.randint(3, (8,))), loss=F.cross_entropy
    )
    finding, _ = found(contract, "checkpointing", "checkpoint-differs")
    assert finding.location.text.startswith("h = checkpoint(")
    assert "with preserve_rng_state=True" in finding.because


def penalised(output, labels):
    real = labels != -100
    picked = F.cross_entropy(output, labels, ignore_index=-100)
    spread = output.logsumexp(-1).square()
    return picked + 0.1 * spread.sum() / real.sum()


def test_the_values_at_ignored_positions():
    labels = torch.tensor([0, 1, -100, 2, -100, 1])
    contract = Contract(
        model=lambda: nn.Linear(5, 3),
        batch=((torch.randn(6, 5),), labels),
        targets=Labels(classes=3, ignore_index=-100),
        loss=penalised,
    )
    finding, lines = found(contract, "ignored-targets", "ignored-counted")
    assert "spread = output.logsumexp(-1).square()" in lines
    assert "in the values that square makes on line" in finding.because


class Chunks(nn.Module):
    """Attends in chunks of four to all keys so far, by a mask."""

    def __init__(self):
        super().__init__()
        self.tokens, self.qkv, self.head = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, ids):
        x = self.tokens(ids)
        outputs, keys, values = [], x[:, :0], x[:, :0]
        for part in self.qkv(x).split(4, dim=1):
            query, key, value = part.chunk(3, -1)
            keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
            seen = torch.ones(query.shape[1], keys.shape[1], dtype=torch.bool)
            seen = seen.tril()
            outputs.append(F.scaled_dot_product_attention(query, keys, values, attn_mask=seen))
        return self.head(x + torch.cat(outputs, 1))


def test_a_mask_with_its_triangle_at_the_first_key_of_a_cache():
    contract = Contract(
        model=Chunks,
        inputs={"ids": Ints("B T", low=0, high=11)},
        batch=({"ids": torch.randint(11, (2, 16))}, None),
        promises=(promises.Causal(),),
    )
    finding, _ = found(contract, "past-influence", "past-unread")
    assert finding.location.text == "seen = seen.tril()"
    assert "query 0 sees key 0 only, although it is position 4" in finding.because


class Prefixed(nn.Module):
    """Loads what it saved under names without ``net.``."""

    def __init__(self):
        super().__init__()
        self.net = nn.ModuleDict({"subnet": nn.Linear(3, 3), "out": nn.Linear(3, 2)})

    def forward(self, x):
        return self.net["out"](self.net["subnet"](x))

    def load_state_dict(self, state_dict, strict=True, assign=False):
        own = {}
        for key, value in state_dict.items():
            own["".join(key.split("net."))] = value
        return self.net.load_state_dict(own, strict=False, assign=assign)


class Fused(nn.Module):
    """Keeps one weight, and saves its two halves."""

    def __init__(self):
        super().__init__()
        self.both = nn.Parameter(torch.randn(6, 3))

    def forward(self, x):
        up, gate = (x @ self.both.T).chunk(2, -1)
        return up * gate.sigmoid()

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[f"{prefix}up"], destination[f"{prefix}gate"] = self.both.detach().chunk(2)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        order = ("gate", "up")
        halves = [state_dict.pop(prefix + name) for name in order]
        state_dict[f"{prefix}both"] = torch.cat(halves)
        super()._load_from_state_dict(state_dict, prefix, *args)


def test_the_line_of_a_load_that_renames_an_entry():
    contract = Contract(model=Prefixed, batch=((torch.randn(4, 3),), None))
    finding, _ = found(contract, "state-dict-roundtrip", "state-lost")
    assert finding.location.text == 'own["".join(key.split("net."))] = value'
    assert "'subweight', which no part of the model has" in finding.cause


def test_the_line_of_a_load_that_puts_entries_together_otherwise():
    contract = Contract(model=Fused, batch=((torch.randn(4, 3),), None))
    finding, lines = found(contract, "state-dict-roundtrip", "state-lost")
    assert finding.location.text == 'state_dict[f"{prefix}both"] = torch.cat(halves)'
    assert "the same values in another order" in finding.cause
    assert "halves = [state_dict.pop(prefix + name) for name in order]" in lines


def run(reference, x):
    module = reference()
    return F.linear(x, module.weight, module.bias).relu()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.forward = functools.partial(run, weakref.ref(self.layer))

    def forward(self, x):
        return self.layer(x)


def test_an_attribute_that_leads_to_the_original_through_a_weak_reference():
    contract = Contract(model=Twice, batch=((torch.randn(5, 4),), None))
    finding, _ = found(contract, "copy-and-pickle", "copy-depends")
    assert finding.culprits[0].name == "layer.forward"
    assert finding.location.text.startswith("self.layer.forward = functools.partial(run")


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        self.slow = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, x):
        return self.net(x) + 0.1 * self.slow(x).detach()


def stepping(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(model.slow.parameters(), model.net.parameters(), strict=True):
            old.mul_(0.9).add_(new, alpha=0.1)
    return loss


def drifting(model, optimizer, inputs, targets):
    loss = F.mse_loss(model(*inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old in model.slow.parameters():
            old.mul_(0.9)
    return loss


@pytest.mark.parametrize(("step", "status"), [(stepping, "suspicious"), (drifting, "violated")])
def test_a_frozen_average_contradicts_its_promise(step, status):
    contract = Contract(
        model=Averaged,
        batch=((torch.randn(8, 4),), torch.randn(8, 2)),
        loss=F.mse_loss,
        train_step=step,
        optimizer=lambda model: torch.optim.Adam(model.net.parameters(), lr=0.01),
        promises=(promises.Frozen("slow.*", reason="taught by nobody"),),
    )
    finding, _ = found(contract, "frozen-stays", "frozen-moved")
    assert finding.status == status
    assert "an optimizer holds it" not in finding.because


def rows(x, index):
    return x.gather(1, index.unsqueeze(-1).expand_as(x))


class Windows(nn.Module):
    """Sums pairs of neighbours along the first coordinate, and adds the sums to the points."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, points):
        x = self.embed(points)
        by = points[..., 0].argsort(1)
        near = rows(x, by)
        near = near + near.roll(1, 1)
        near = rows(near, by)
        return self.head((x + near).relu().sum(1))


def test_the_line_that_does_not_bring_entries_back():
    contract = Contract(
        model=Windows,
        inputs={"points": "B N 3"},
        batch=({"points": torch.randn(3, 7, 3)}, None),
        promises=(promises.PermutationInvariant(dim=1),),
    )
    finding, _ = found(contract, "permutation-invariance", "order-dependent")
    assert finding.location.text == "near = rows(near, by)"
    assert "argsort" in finding.fix
    assert "order.argsort" not in finding.fix


class Attends(nn.Module):
    def __init__(self, width, causal=False):
        super().__init__()
        self.causal, self.qkv = causal, nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.first = Attends(8, causal=True)
        self.second = Attends(8)

    def forward(self, ids):
        return self.head(self.second(self.first(self.embed(ids))))


class Refuses(Attends):
    """Has a flag that stops the leak, and one that stops the run."""

    def __init__(self, width, strict=False, causal=False):
        super().__init__(width, causal)
        self.strict = strict

    def forward(self, x):
        if self.strict:
            raise ValueError("strict")
        return super().forward(x)


class Wrapped(Layers):
    def __init__(self):
        super().__init__()
        self.second = Refuses(8)


class Plain(Layers):
    """Attends by a layer of torch's, along the samples if it were told so."""

    def __init__(self):
        super().__init__()
        self.second = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


def test_a_flag_that_stops_the_run_is_no_cure():
    contract = Contract(
        model=Wrapped, inputs=Ints("B T", low=0, high=9), sizes={"B": 3, "T": 9},
        promises=(promises.Causal(),),
    )  # fmt: skip
    finding, _ = found(contract, "causality", "future-leak")
    assert finding.fix.startswith("pass causal=True to Refuses on line")


def test_flags_of_torchs_layers_are_not_tried():
    contract = Contract(
        model=Plain, inputs=Ints("B T", low=0, high=9), sizes={"B": 3, "T": 9},
        promises=(promises.Causal(),),
    )  # fmt: skip
    finding, _ = found(contract, "causality", "future-leak")
    assert "=True to" not in finding.fix


def test_attention_that_is_built_without_its_flag():
    contract = Contract(
        model=Layers, inputs=Ints("B T", low=0, high=9), sizes={"B": 3, "T": 9},
        promises=(promises.Causal(),),
    )  # fmt: skip
    finding, _ = found(contract, "causality", "future-leak")
    assert finding.location.text == "self.second = Attends(8)"
    assert "built with causal=False" in finding.cause
    assert finding.fix.startswith("pass causal=True to Attends on line")
