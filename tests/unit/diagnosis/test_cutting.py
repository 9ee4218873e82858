"""A line that cuts the graph within a helper: the call that meets it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Backbone(nn.Module):
    """Features of a table, given with a graph and without."""

    def __init__(self) -> None:
        super().__init__()
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


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.backbone = Backbone()
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
        else:
            h = self.backbone(x)
            if how == "here":
                h = h.detach()  # here
        return self.head(h)


def found(how: str):
    contract = Contract(
        model=Net(how),
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
        ("shown", "no return value here has a graph"),
    ],
)
def test_the_call_of_a_helper_that_cuts_is_named(how, detail):
    finding = found(how)
    (call,) = [c for c in finding.culprits if c.location and c.location.text.endswith(f"# {how}")]
    assert call.detail == detail
    assert f"line {call.location.line}" in finding.fix
    assert call.name == how


def test_a_line_of_the_outermost_forward_has_no_call():
    finding = found("here")
    assert finding.location.text.endswith("# here")
    assert all(c.kind != "call" for c in finding.culprits)


class Restarted(nn.Module):
    """Goes on from the values of its first layer, with a gradient of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = h.detach().requires_grad_()  # a leaf
        return self.last(h)


def test_a_tensor_that_was_made_a_leaf_has_no_backward_to_blame():
    contract = Contract(
        model=Restarted,
        batch=((torch.randn(8, 4),), torch.randint(0, 2, (8,))),
        loss=nn.functional.cross_entropy,
    )
    (finding,) = contract.check(["gradients-exist"]).findings
    assert (finding.code, finding.cause) == ("grad-none", "detach() cuts the graph")
    assert finding.location.text.endswith("# a leaf")


class Unwatched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x))
        return torch.tanh(self.second(h))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            h = self.features(x)
        return self.head(h)


def test_a_block_without_gradients_is_one_finding() -> None:
    made = Contract(
        model=Unwatched,
        batch=((torch.randn(5, 4),), torch.arange(5) % 3),
        loss=nn.functional.cross_entropy,
    )
    found = list(made.check("gradients-exist").with_status("violated"))
    assert len(found) == 1
    assert "6 of 8 parameters" in found[0].summary
    assert "torch.no_grad()" in found[0].location.text
