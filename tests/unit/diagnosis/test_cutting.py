"""A line that cuts the graph within a helper, or under a flag: the call that meets it, and what sets the flag."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Backbone(nn.Module):
    """Features of a table; how the graph of them is lost is chosen."""

    def __init__(self, how: str, frozen: bool = True) -> None:
        super().__init__()
        self.how, self.frozen = how, frozen
        self.layer = nn.Linear(4, 6)

    def forward(self, x):
        return torch.tanh(self.layer(x))

    @torch.no_grad()
    def describe(self, x):
        made = self(x)
        return made / made.norm(dim=1, keepdim=True).clamp(min=1e-3)

    def embed(self, x):
        with torch.no_grad():
            return self(x)

    def code(self, x):
        return self(x).detach()

    def twice(self, x):
        made = self.code(x)
        return made * 2

    def shown(self, x, *, keep_graph=False):
        made = self(x)
        if not keep_graph:
            made = made.detach()
        return {"code": made, "x": x}

    def partly(self, x, detach):
        made = self(x)
        return self(x), (made.detach() if detach else made)

    def chosen(self, x):
        if self.frozen:
            with torch.no_grad():
                made = self(x)
        else:
            made = self(x)
        return made, self.layer.bias * 0

    def switched(self, x):
        with torch.set_grad_enabled(not self.frozen):
            return self(x)

    def contextual(self, x):
        with torch.no_grad() if self.frozen and len(x) else nullcontext():
            return self(x)


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.backbone = Backbone(how, False)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        how = self.how
        if how == "describe":
            h = self.backbone.describe(x)  # describe
        elif how == "embed":
            h = self.backbone.embed(x)  # embed
        elif how == "code":
            h = self.backbone.code(x)  # code
        elif how == "twice":
            h = self.backbone.twice(x)  # twice
        elif how == "shown":
            h = self.backbone.shown(x)["code"]  # shown
        elif how == "partly":
            _, h = self.backbone.partly(x, detach=True)  # partly
        elif how == "chosen":
            h, _ = self.backbone.chosen(x)
        elif how == "switched":
            h = self.backbone.switched(x)
        elif how == "contextual":
            h = self.backbone.contextual(x)
        else:
            h = self.backbone(x)
            if how == "here":
                h = h.detach()  # here
        return self.head(h)


class Default(Net):
    def __init__(self, how: str) -> None:
        nn.Module.__init__(self)
        self.how, self.head = how, nn.Linear(6, 2)
        if how == "chosen":
            self.backbone = Backbone(how, frozen=False)
        self.backbone = Backbone(how)  # BUILT-DEFAULT


class Given(Net):
    def __init__(self, how: str) -> None:
        nn.Module.__init__(self)
        self.how, self.head = how, nn.Linear(6, 2)
        if how == "other":
            self.backbone = Backbone(how, False)
        else:
            self.backbone = Backbone(how, frozen=True)  # BUILT-GIVEN


class Unclear(Net):
    def __init__(self, how: str) -> None:
        nn.Module.__init__(self)
        self.how, self.head = how, nn.Linear(6, 2)
        if how == "other":
            self.backbone = Backbone(how)
        else:
            self.backbone = Backbone(how, frozen=True)


def found(how: str, kind: type[Net] = Net):
    contract = Contract(
        model=kind(how),
        batch=((torch.randn(8, 4),), torch.randint(0, 2, (8,))),
        loss=nn.functional.cross_entropy,
    )
    report = contract.check(["gradients-exist"])
    (finding,) = [f for f in report.findings if f.code == "grad-none"]
    return finding


@pytest.mark.parametrize(
    ("how", "detail"),
    [
        ("describe", "no return value here has a graph"),
        ("embed", "no return value here has a graph"),
        ("code", "no return value here has a graph"),
        ("twice", "no return value here has a graph"),
        ("shown", "called here without keep_graph=, whose default is False"),
        ("partly", "called here with detach=True"),
    ],
)
def test_the_call_of_a_helper_that_cuts_is_named(how, detail):
    finding = found(how)
    (call,) = [c for c in finding.culprits if c.location and c.location.text.endswith(f"# {how}")]
    assert call.detail == detail
    assert f"line {call.location.line}" in finding.fix
    assert call.name == how


@pytest.mark.parametrize(
    ("how", "kind", "detail"),
    [
        ("chosen", Default, "built without frozen=, whose default is True"),
        ("switched", Default, "built without frozen=, whose default is True"),
        ("contextual", Given, "built with frozen=True"),
    ],
)
def test_the_line_that_sets_the_flag_is_named(how, kind, detail):
    finding = found(how, kind)
    (built,) = [c for c in finding.culprits if c.detail.startswith("built")]
    assert built.location.text.endswith(f"# BUILT-{kind.__name__.upper()}")
    assert built.detail == detail
    assert "backbone has frozen=True" in finding.cause
    assert f"pass frozen=False to Backbone on line {built.location.line}" in finding.fix


def test_a_line_of_the_outermost_forward_has_no_call():
    finding = found("here")
    assert finding.location.text.endswith("# here")
    assert all(c.kind != "call" for c in finding.culprits)


def test_of_several_lines_that_may_have_set_the_flag_none_is_named():
    finding = found("chosen", Unclear)
    (flag,) = [c for c in finding.culprits if c.name == "backbone" and "frozen" in c.detail]
    assert flag.detail == "frozen is True"
    assert "built" not in finding.cause
