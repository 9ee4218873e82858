from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchcheck.probes.gradient.recompute_divergence import find_recompute_divergence
from pytest_torchcheck.probes.recorded import operations as tracing
from pytest_torchcheck.probes.recorded.divergence import (
    first_divergence,
    first_mixing,
    first_place_dependence,
    first_spread,
    record,
)

B, T, D = 4, 6, 8


class Block(nn.Module):
    """A pre-norm encoder block over (B, T, D); subclasses mistake one line."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)
        self.register_buffer("later", torch.ones(16, 16, dtype=torch.bool).triu(1))

    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        n = scores.shape[-1]
        scores = scores.masked_fill(self.later[:n, :n], -torch.inf)
        return torch.softmax(scores, -1) @ v

    def mix(self, x):
        return x

    def forward(self, x):
        h = self.norm(x)
        b, t, _ = h.shape
        q, k, v = (part.view(b, t, 2, D // 2).transpose(1, 2) for part in self.qkv(h).chunk(3, -1))
        y = self.attend(q, k, v).transpose(1, 2).reshape(b, t, D)
        return self.mix(x + self.out(y))


def batch() -> torch.Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1))


def perturbed(x: torch.Tensor, index) -> torch.Tensor:
    x = x.clone()
    x[index] = torch.randn(x[index].shape, generator=torch.Generator().manual_seed(2)).to(x.dtype)
    return x


def mixing_of(model):
    x = batch()
    base = record(lambda: model(x), model)
    runs = {j: record(lambda j=j: model(perturbed(x, j)), model) for j in range(B)}
    return first_mixing(base, runs)


class SoftmaxOverBatch(Block):
    def mix(self, x):
        return x * torch.softmax(x, 0)  # HERE


class WrongView(Block):
    def mix(self, x):
        t_first = x.reshape(T, B, D)  # rows are scrambled, but each still belongs to one sample
        return x + t_first.mean(0).unsqueeze(1)  # HERE


class Centred(Block):
    def mix(self, x):
        x = x.tanh()
        return x - x.mean()  # HERE


class BatchFirstForgotten(Block):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2)

    def mix(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]  # HERE


class TrainBatchNorm(Block):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(D)

    def mix(self, x):
        return self.bn(x.transpose(1, 2))  # HERE


class InPlace(Block):
    def mix(self, x):
        y = x.clone()
        y[1:] += x[:-1]  # HERE
        return y


@pytest.mark.parametrize(
    "cls", [SoftmaxOverBatch, WrongView, Centred, BatchFirstForgotten, TrainBatchNorm, InPlace]
)
def test_where_samples_mix(cls):
    found = mixing_of(cls())
    assert found.kind == "mixing"
    assert found.location.text.endswith("# HERE"), found
    assert found.share > 0
    assert "samples" in found.fact


def test_the_mixing_module_is_named():
    assert mixing_of(TrainBatchNorm()).module == "bn"
    assert mixing_of(BatchFirstForgotten()).op.name == "F.multi_head_attention_forward"


class Packed(Block):
    """Legal: all samples in one sequence, held apart by a block mask."""

    def mix(self, x):
        flat = x.reshape(1, B * T, D)
        same = torch.arange(B * T) // T
        scores = (flat @ flat.transpose(1, 2)).masked_fill(same[:, None] != same[None], -torch.inf)
        y = scores.softmax(-1) @ flat
        self.monitored = x.detach().mean()
        return y.view(B, T, D).permute(1, 0, 2).flip(0)


@pytest.mark.parametrize("cls", [Block, Packed])
def test_reshapes_masks_and_monitors_do_not_mix(cls):
    assert mixing_of(cls()) is None


def test_the_mask_is_not_blamed_for_what_mixes_later():
    class Both(Packed):
        def mix(self, x):
            y = super().mix(x)
            return y - y.mean(1, keepdim=True)  # HERE

    assert mixing_of(Both()).location.text.endswith("# HERE")


class Steadied(Block):
    """Legal: the largest of the whole batch is taken off before exp, and cancels in the division."""

    def mix(self, x):
        powers = (x - x.max()).exp()
        return powers / powers.sum(-1, keepdim=True)


def test_rounding_is_no_mixing():
    class Mixes(Steadied):
        def mix(self, x):
            x = super().mix(x)
            return x * x.mean(0)  # HERE

    def find(model, allowed):
        model, x = model.double(), batch().double()
        base = record(lambda: model(x), model)
        runs = {j: record(lambda j=j: model(louder(x, j)), model) for j in range(B)}
        return first_mixing(base, runs, allowed=allowed)

    def louder(x, index):
        return perturbed(x, index) * torch.where(torch.arange(B) == index, 3.0, 1.0)[:, None, None]

    assert find(Steadied(), 0.0) is not None
    assert find(Steadied(), 1e-11) is None
    assert find(Mixes(), 1e-11).location.text.endswith("# HERE")


def test_a_code_along_the_batch():
    class Coded(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("code", torch.randn(16, 1, D))

        def mix(self, x):
            h = x.relu()
            return h + self.code[: x.shape[0]]  # HERE

    def find(model):
        x = batch()
        other = x[[2, 3, 0, 1]]
        return first_place_dependence(
            record(lambda: model(x), model), record(lambda: model(other), model)
        )

    found = find(Coded())
    assert found.kind == "place"
    assert found.location.text.endswith("# HERE")
    assert find(Block()) is None


def test_a_mask_by_the_place_of_a_sample():
    class Kept(Block):
        def mix(self, x):
            small = x.argsort(-1).argsort(-1) < 3  # as many in each row
            small = small.sort(-1).values
            small[0] = False  # HERE
            return x.masked_fill(small, 0.0)

    order = torch.tensor([1, 2, 3, 0])
    model, x = Kept(), batch()
    runs = [record(lambda x=x: model(x), model) for x in (x, x[order])]
    assert first_place_dependence(*runs).op.name == "Tensor.masked_fill"
    assert first_place_dependence(*runs, order=order).location.text.endswith("# HERE")


# positions


def spread_of(model, *, side="right", length=T):
    x = batch()
    base = record(lambda: model(x), model)
    keep = {
        k: perturbed(x, (slice(None), slice(k, None) if side == "right" else slice(0, T - k)))
        for k in (3, 5)
    }
    runs = {k: record(lambda c=c: model(c), model) for k, c in keep.items()}
    return first_spread(base, runs, length, side=side)


class NoMask(Block):
    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return torch.softmax(scores, -1) @ v  # HERE


class WrongMask(Block):
    def attend(self, q, k, v):
        n = q.shape[-2]
        mask = torch.ones(n, n, dtype=torch.bool).triu(2)
        scores = (q @ k.transpose(-2, -1)).masked_fill(mask, -torch.inf)
        return torch.softmax(scores, -1) @ v  # HERE


class Sdpa(Block):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)  # HERE


class SymmetricConv(Block):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(D, D, 3, dilation=2)

    def mix(self, x):
        y = F.pad(x.transpose(1, 2), (2, 2))
        return x + self.conv(y).transpose(1, 2)  # HERE


class SquashedMean(Block):
    def mix(self, x):
        h = x.tanh()
        return h + h.mean(1, keepdim=True)  # HERE


class Rolled(Block):
    def mix(self, x):
        return torch.roll(x, -1, 1)  # HERE


class Sorted(Block):
    def mix(self, x):
        return x.flip(1).cumsum(1).flip(1)  # HERE


class Bidirectional(Block):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(D, D // 2, batch_first=True, bidirectional=True)

    def mix(self, x):
        return self.rnn(x)[0]  # HERE


class BlockMean(Block):
    def mix(self, x):
        return torch.cat([h * h.mean(1, keepdim=True) for h in x.split(4, 1)], 1)  # HERE


class NextInput(Block):
    def mix(self, x):
        steps, state = [], x.new_zeros(B, D)
        for t in range(T):
            seen = x[:, min(t + 1, T - 1)]  # HERE
            state = torch.tanh(self.out(seen) + state)
            steps.append(state)
        return torch.stack(steps, 1)


@pytest.mark.parametrize(
    "cls",
    [
        BlockMean,
        NextInput,
        NoMask,
        WrongMask,
        Sdpa,
        SymmetricConv,
        SquashedMean,
        Rolled,
        Sorted,
        Bidirectional,
    ],
)
def test_where_the_future_leaks(cls):
    found = spread_of(cls())
    assert found.location.text.endswith("# HERE"), found
    assert found.kept in (3, 5)
    assert found.fact


def test_what_fed_the_leak_is_named():
    found = spread_of(SymmetricConv())
    assert found.op.name in ("F.conv1d", "torch.conv1d")
    assert [op.location.text for op in found.operands] == ["y = F.pad(x.transpose(1, 2), (2, 2))"]
    assert found.reaches == 1
    assert "masked_fill" in spread_of(WrongMask()).operands[0].name


class CausalConv(SymmetricConv):
    def mix(self, x):
        y = F.pad(x.transpose(1, 2), (4, 0))
        return x + self.conv(y).transpose(1, 2)


class Chomped(Block):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(D, D, 3, padding=2)

    def mix(self, x):
        return self.conv(x.transpose(1, 2))[..., :-2].transpose(1, 2)


class Flattened(Block):
    def mix(self, x):
        return self.out(x.reshape(-1, D)).relu().view(B, T, D)


class SdpaCausal(Block):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Recurrent(Block):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(D, D)

    def mix(self, x):
        return self.rnn(x.transpose(0, 1))[0].transpose(0, 1)


class PrefixMean(Block):
    def mix(self, x):
        return x.cumsum(1) / torch.arange(1, T + 1)[:, None]


class Chunked(Block):
    def mix(self, x):
        found, last = [], 0
        for h in x.split(4, 1):
            found.append(last + h.cumsum(1))
            last = found[-1][:, -1:]
        return torch.cat(found, 1)


class ByHand(NextInput):
    def mix(self, x):
        steps = [x[:, 0]]
        for t in range(1, T):
            steps.append(torch.tanh(self.out(x[:, t]) + steps[-1]))
        return torch.stack(steps, 1)


@pytest.mark.parametrize(
    "cls",
    [Chunked, ByHand, Block, CausalConv, Chomped, Flattened, SdpaCausal, Recurrent, PrefixMean],
)
def test_causal_models_leak_nothing(cls):
    assert spread_of(cls()) is None


def test_left_padding_is_the_mirror_image():
    class Reversed(Block):
        def forward(self, x):
            return super().forward(x.flip(1)).flip(1)

    assert spread_of(Reversed(), side="left") is None
    assert spread_of(Reversed()).location is not None
    found = spread_of(NoMask(), side="left")
    assert found.location.text.endswith("# HERE")


# plain comparison


def test_a_seed_changes_the_dropout_first():
    class Dropped(Block):
        def mix(self, x):
            return F.dropout(x.relu(), 0.5)  # HERE

    model, x = Dropped(), batch()

    def run(seed):
        torch.manual_seed(seed)
        return model(x)

    found = first_divergence(record(lambda: run(0), model), record(lambda: run(1), model))
    assert (found.kind, found.op.name) == ("value", "F.dropout")
    assert found.location.text.endswith("# HERE")
    assert 0 < found.share < 1
    assert first_divergence(record(lambda: run(3), model), record(lambda: run(3), model)) is None


def test_a_second_pass_reads_a_cache():
    class Cached(Block):
        cache = 0

        def mix(self, x):
            x = x + self.cache  # HERE
            self.cache = x.mean().detach()
            return x

    model, x = Cached(), batch()
    found = first_divergence(record(lambda: model(x), model), record(lambda: model(x), model))
    assert found.location.text.endswith("# HERE")


def test_cancellation_is_beyond_the_rounding():
    class Cancels(Block):
        def mix(self, x):
            h = x + 1e6
            return h - 1e6  # HERE

    model, x = Cancels(), batch()
    single = record(lambda: model(x), model)
    model.double()
    wide = x.double()
    double = record(lambda: model(wide), model)
    found = first_divergence(single, double, allowed=1e-5)
    assert found.location.text.endswith("# HERE")
    assert first_divergence(single, double).kind == "shape"
    plain, wide_plain = Block(), Block().double()
    a = record(lambda: plain(x), plain)
    assert first_divergence(a, record(lambda: wide_plain(wide)), allowed=1e-5) is not None
    assert first_divergence(a, record(lambda: wide_plain(wide), wide_plain), allowed=1e-5) is None
    assert first_divergence(a, single).kind == "control-flow"


def test_padding_appended_reaches_the_mean():
    class Pooled(Block):
        def mix(self, x):
            x = x.tanh()
            return x.mean(1)  # HERE

    model, x = Pooled(), batch()
    longer = torch.cat([x, torch.zeros(B, 2, D)], 1)
    a, b = record(lambda: model(x), model), record(lambda: model(longer), model)
    found = first_divergence(a, b, align="prefix", allowed=1e-5)
    assert found.location.text.endswith("# HERE")
    assert first_divergence(a, b).kind == "shape"


def test_fingerprints_replace_values_beyond_the_limit():
    model, x = Block(), batch()
    a = record(lambda: model(x), model, limit_bytes=0)
    assert all(value.values is None for value in a.values)
    assert first_divergence(a, record(lambda: model(x), model, limit_bytes=0)) is None
    other = perturbed(x, (3, 5, 7))
    found = first_divergence(a, record(lambda: model(other), model, limit_bytes=0))
    assert found.module == "norm"


def test_fingerprints_see_order_and_single_bits():
    x = torch.arange(12.0)
    flipped = x.clone()
    flipped[5] = torch.nextafter(x[5], x[6])
    prints = {tracing.fingerprint(t) for t in (x, x.flip(0), flipped, x.view(3, 4).T)}
    assert len(prints) == 4
    assert tracing.fingerprint(x.view(3, 4)[:, ::1]) == tracing.fingerprint(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_dropout(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self, keep):
            super().__init__()
            self.first, self.last, self.keep = nn.Linear(D, D), nn.Linear(D, 2), keep

        def body(self, x):
            h = torch.tanh(self.first(x))
            return F.dropout(h, 0.5)  # HERE

        def forward(self, x):
            h = checkpoint(self.body, x, use_reentrant=reentrant, preserve_rng_state=self.keep)
            return self.last(h)

    x = torch.randn(4, D, requires_grad=True)
    model = Checkpointed(False)
    found = find_recompute_divergence(lambda: model(x).square().sum(), model)
    assert (found.kind, found.op.name) == ("recomputed", "F.dropout")
    assert found.location.text.endswith("# HERE")
    assert found.op.backward
    own = find_recompute_divergence(lambda: model(x).square().sum().backward(), model)
    assert own.op.name == "F.dropout"
    kept = Checkpointed(True)
    assert find_recompute_divergence(lambda: kept(x).square().sum(), kept) is None


@pytest.mark.parametrize(
    ("name", "call", "read"),
    [
        ("zeros_like", lambda x, y: torch.zeros_like(x), 0),
        ("new_ones", lambda x, y: x.new_ones(3), 0),
        ("randn_like", lambda x, y: torch.randn_like(x), 0),
        ("full_like", lambda x, y: torch.full_like(x, y), 1),
        ("new_tensor", lambda x, y: x.new_tensor(y), 1),
        ("to", lambda x, y: y.to(x), 1),
        ("maximum", lambda x, y: torch.maximum(x, y), 2),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_shape_or_a_dtype_is_no_value_that_is_read(name, call, read):
    x, y = torch.randn(3), torch.ones((), dtype=torch.float64)
    (step,) = record(lambda: call(x, y)).steps
    assert step.op.name.rpartition(".")[2] == name
    assert len(step.operands) == read
