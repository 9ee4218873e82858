from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck.probes.numbers.finiteness import find_nonfinite


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def middle(self, h):
        return h

    def forward(self, x):
        return self.head(self.middle(self.encoder(x)))


class LogOfNegative(Net):
    def middle(self, h):
        return h.log()  # HERE


class ZeroByZero(Net):
    def middle(self, h):
        h = h.relu() * torch.arange(8).gt(3)
        return h / h  # HERE


class ByNorm(Net):
    def middle(self, h):
        h = h * 0
        return h / h.norm(dim=-1, keepdim=True)  # HERE


class ExpOverflow(Net):
    def middle(self, h):
        return torch.exp(h * 0 + 91.2)  # HERE


class AllMasked(Net):
    def middle(self, h):
        mask = torch.ones(8, dtype=torch.bool)
        scores = h.masked_fill(mask, -torch.inf)  # MASKED
        return torch.softmax(scores, -1)  # HERE


class LogMask(Net):
    def middle(self, h):
        weight = torch.zeros(5, 8)
        return torch.softmax(h + weight.log(), -1)  # HERE


class Attention(Net):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def middle(self, h):
        pad = torch.ones(1, 5, dtype=torch.bool)
        h = h[None]
        return self.attend(h, h, h, key_padding_mask=pad)[0][0]  # HERE


class Fraction(Net):
    def middle(self, h):
        return h**0.5  # HERE


class SmallStd(Net):
    def middle(self, h):
        return h - h[:1].std(0)  # HERE


class InPlace(Net):
    def middle(self, h):
        h = h.detach() * 1
        return h.sqrt_()  # HERE


class Empty(Net):
    def middle(self, h):
        return h - h[:, :0].mean()  # HERE


class InfMinusInf(Net):
    def middle(self, h):
        far = torch.full((8,), torch.inf)
        return (h + far) - far  # HERE


FORWARD = {
    LogOfNegative: ("nan", r"log of a negative number in \d+ of 40 elements \(min -"),
    ZeroByZero: ("nan", r"0/0 in \d+ of 40 elements"),
    ByNorm: ("nan", r"0/0 in 40 of 40 elements"),
    ExpOverflow: (
        "inf",
        r"exp overflow in 40 of 40 elements: max input 91.2, float32 holds up to 88.72",
    ),
    AllMasked: ("nan", r"softmax over 5 of 5 rows that are all -inf"),
    LogMask: ("nan", r"softmax over 5 of 5 rows that are all -inf"),
    Attention: ("nan", r"all -inf"),
    Fraction: ("nan", r"sqrt of a negative|negative number to a fractional power in \d+ of 40"),
    SmallStd: ("nan", r"std over 1 element"),
    InPlace: ("nan", r"sqrt of a negative number in \d+ of 40 elements"),
    Empty: ("nan", r"mean over 0 elements"),
    InfMinusInf: ("nan", r"inf - inf in 40 of 40 elements"),
}


@pytest.mark.filterwarnings("ignore:std\\(\\)")
@pytest.mark.parametrize(
    ("cls", "expected"), FORWARD.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_what_made_the_output_not_finite(cls, expected):
    kind, fact = expected
    model, x = cls(), torch.randn(5, 4)
    found = find_nonfinite(lambda: model(x), model)
    assert found.location.text.endswith("# HERE"), found
    assert (found.kind, found.phase, found.origin) == (kind, "forward", "computed")
    if cls is AllMasked:
        assert found.written.location.text.endswith("# MASKED")
    else:
        assert found.written is None or "all -inf" in found.fact or cls is InfMinusInf
    assert re.search(fact, found.fact), found.fact
    assert found.count > 0
    assert all(p.grad is None for p in model.parameters())


# infinities that are written on purpose and then computed with

HIDDEN = torch.arange(8) < 2


class Entropy(Net):
    def middle(self, h):
        logs = h.masked_fill(HIDDEN, -torch.inf).log_softmax(-1)  # WRITTEN
        return -(logs.exp() * logs)  # HERE


class ByWhere(Net):
    def middle(self, h):
        h = torch.where(HIDDEN, -torch.inf, h)  # WRITTEN
        return h * (~HIDDEN)  # HERE


class ByIndex(Net):
    def middle(self, h):
        h = h.clone()
        h[:, :2] = -torch.inf  # WRITTEN
        return h - h[:, :1]  # HERE


class Divergence(Net):
    def middle(self, h):
        h = h.masked_fill(HIDDEN, torch.inf)  # WRITTEN
        return h / h.amax(-1, keepdim=True)  # HERE


class Product(Net):
    def middle(self, h):
        h = h.masked_fill(HIDDEN, -torch.inf)  # WRITTEN
        return h @ torch.diag((~HIDDEN).float())  # HERE


WRITTEN = {
    Entropy: "0 * inf in 10 of 40 elements",
    ByWhere: "0 * inf in 10 of 40 elements",
    ByIndex: "inf - inf in 10 of 40 elements",
    Divergence: "inf / inf in 10 of 40 elements",
    Product: "0 * inf or inf - inf in 40 of 40 elements: mm reads 10 infinite numbers",
}


@pytest.mark.parametrize(("cls", "fact"), WRITTEN.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_the_line_that_wrote_the_infinity_is_followed(cls, fact):
    model, x = cls(), torch.randn(5, 4)
    found = find_nonfinite(lambda: model(x), model)
    assert (found.kind, found.origin, found.fact) == ("nan", "computed", fact)
    assert found.location.text.endswith("# HERE")
    assert found.written.origin == "constant"
    assert found.written.location.text.endswith("# WRITTEN")
    assert found.written.upward == (cls is Divergence)


def test_the_line_that_wrote_the_infinity_is_followed_from_the_backward():
    class Skipped(Net):
        def middle(self, h):
            logs = h.masked_fill(HIDDEN, -torch.inf).log_softmax(-1)  # WRITTEN
            return torch.where(HIDDEN, 0.0, logs.exp() * logs)  # HERE

    model, x = Skipped(), torch.randn(5, 4)
    found = find_nonfinite(lambda: model(x).square().mean(), model)
    assert (found.phase, found.origin) == ("backward", "computed")
    assert found.location.text.endswith("# HERE")
    assert found.written.location.text.endswith("# WRITTEN")


def test_an_infinity_that_a_buffer_holds_is_said_to_be_given():
    class Buffered(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.zeros(8).masked_fill(HIDDEN, -torch.inf))

        def middle(self, h):
            logs = (h + self.mask).log_softmax(-1)
            return logs.exp() * logs

    model, x = Buffered(), torch.randn(5, 4)
    written = find_nonfinite(lambda: model(x), model).written
    assert written.origin == "given"
    assert written.fact.startswith("buffer mask, float32 [8], holds 2 infinities")


def test_zeros_times_a_written_infinity():
    class Scaled(Net):
        def middle(self, h):
            return h + HIDDEN.float() * -torch.inf  # HERE

    model, x = Scaled(), torch.randn(5, 4)
    found = find_nonfinite(lambda: model(x), model)
    assert found.location.text.endswith("# HERE")
    assert found.fact == "0 * inf in 6 of 8 elements"


def test_an_overflow_is_named_where_it_happens_not_where_it_turns_nan():
    class Half(Net):
        def forward(self, x):
            h = self.encoder(x)
            y = F.linear(h * 100, self.head.weight * 3000)  # HERE
            wide = y.float()
            return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True))

    model, x = Half().half(), torch.randn(5, 4).half()
    found = find_nonfinite(lambda: model(x), model)
    assert found.location.text.endswith("# HERE")
    assert found.kind == "inf"
    assert found.fact.startswith("float16 overflow in ")
    assert found.fact.endswith(" > 65504")
    assert found.result == "float16 [5, 3]"
    assert found.then.location.text.startswith("return wide * torch.rsqrt")


def test_all_targets_ignored():
    model, x, y = Net(), torch.randn(5, 4), torch.full((5,), -100)
    found = find_nonfinite(lambda: F.cross_entropy(model(x), y), model)
    assert found.op.name == "F.cross_entropy"
    assert "all 5 hold ignore_index -100" in found.fact


def test_a_given_nan_is_said_to_be_given():
    model, x = Net(), torch.randn(5, 4)
    x[2, 1] = torch.nan
    found = find_nonfinite(lambda: model(x), model)
    assert found.origin == "given"
    assert found.op.name == "F.linear"
    assert "holds 1 NaN" in found.fact
    with torch.no_grad():
        model.head.weight[0, 0] = torch.inf
    found = find_nonfinite(lambda: model(torch.ones(5, 4)), model)
    assert found.fact.startswith("parameter head.weight, float32 [3, 8], holds 1 infinities")


def test_memory_that_was_never_written():
    class Raw(Net):
        def middle(self, h):
            out = torch.empty(5, 8)
            out[:, :4] = h[:, :4]
            return out

    class Filled(Net):
        def middle(self, h):
            out = torch.empty(5, 8).fill_(torch.nan)
            return h + out

    x = torch.randn(5, 4)
    torch._C._set_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        model = Raw()
        raw = find_nonfinite(lambda: model(x), model)
        filled = Filled()
        written = find_nonfinite(lambda: filled(x), filled)
    finally:
        torch._C._set_deterministic_algorithms(False)
    assert raw.origin == "uninitialised"
    assert raw.location.text == "out = torch.empty(5, 8)"
    assert written.origin == "constant"
    assert written.op.name == "Tensor.fill_"


# backward


class SqrtOfZero(Net):
    def middle(self, h):
        h = h.square() * torch.arange(8).gt(3)
        return h.sqrt()  # HERE


class WhereTrap(Net):
    def middle(self, h):
        h = h.square() * torch.arange(8).gt(3)
        return torch.where(h > 0, h.log(), 0.0)  # HERE


class NormOfZero(Net):
    def middle(self, h):
        h = h * 0
        return h + torch.sqrt(h.square().sum(-1, keepdim=True))  # HERE


class Cuberoot(Net):
    def middle(self, h):
        h = h.square() * torch.arange(8).gt(3)
        return h.pow(1 / 3)  # HERE


class BadFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign() * x.abs().sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x.relu()  # HERE


class Custom(Net):
    def middle(self, h):
        return BadFunction.apply(h)


BACKWARD = {
    SqrtOfZero: r"sqrt of 0 in \d+ of 40 elements, in the backward of Tensor.sqrt \(SqrtBackward0\)",
    WhereTrap: r"log of 0 in \d+ of 40 elements, in the backward of Tensor.log",
    NormOfZero: r"sqrt of 0 in 5 of 5 elements",
    Cuberoot: r"a power of 0 in \d+ of 40 elements, in the backward of Tensor.pow",
    Custom: r"0 in \d+ of 40 elements",
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("cls", "fact"), BACKWARD.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_what_made_the_gradient_not_finite(cls, fact, own):
    model, x = cls(), torch.randn(5, 4)

    def run():
        loss = model(x).square().mean()
        if own:
            loss.backward()
        return loss

    found = find_nonfinite(run, model)
    assert found.location.text.endswith("# HERE"), found
    assert found.phase == "backward"
    assert re.search(fact, found.fact), found.fact
    assert all(p.grad is None for p in model.parameters())


def test_sound_models_are_finite():
    class Masked(Net):
        def middle(self, h):
            later = torch.ones(5, 5, dtype=torch.bool).triu(1)
            scores = (h @ h.T).masked_fill(later, -torch.inf)
            unused = (h - h).log()
            return torch.softmax(scores, -1) @ h + 0 * unused.isinf()

    for cls in (Net, Masked):
        model, x = cls(), torch.randn(5, 4)
        assert find_nonfinite(lambda m=model, x=x: m(x).square().mean(), model) is None


def test_logits_masked_on_purpose_are_told_apart():
    class Masked(Net):
        def forward(self, x):
            return super().forward(x).masked_fill(torch.tensor([False, True, False]), -torch.inf)

    model = Masked()
    found = find_nonfinite(lambda: model(torch.randn(5, 4)), model)
    assert (found.kind, found.origin) == ("inf", "constant")
    assert found.fact == "Tensor.masked_fill wrote -inf to 5 of 15 elements"
