"""Parameters that a forward reads only with an argument that a contract leaves out, or only in other data."""

from __future__ import annotations

import linecache
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.probes.stand_ins import stand_in

G = torch.Generator().manual_seed(0)
CHECKS = ["gradients-exist", "weights-update", "dead-modules"]


def found(model, **inputs):
    inputs = {"x": torch.randn(6, 4, generator=G), **inputs}
    targets = torch.randn(6, 3, generator=G)
    return Contract(model=model, batch=(inputs, targets), loss=F.mse_loss).check(CHECKS)


def bad(report):
    return [
        (f.check, f.status)
        for f in report.findings
        if f.status in ("violated", "suspicious", "error")
    ]


class Conditioned(nn.Module):
    """A sum of what it is given: each of two optional arguments goes by parts of its own."""

    def __init__(self):
        super().__init__()
        self.body, self.style = nn.Linear(4, 3), nn.Linear(5, 3)
        self.missing = nn.Parameter(torch.zeros(3))

    def mix(self, out, code):
        _, width = code.shape
        return out + self.style(code[:, :width])

    def forward(self, x, style=None, holes=None):
        out = self.body(x)
        if style is not None:
            out = self.mix(out, style)
        return out if holes is None else torch.where(holes.view(-1, 1) > 0, self.missing, out)


def test_arguments_that_were_not_given_are_named():
    report = found(Conditioned)
    assert bad(report) == [("gradients-exist", "suspicious")] * 2, str(report)
    first, second = report.with_status("suspicious")
    assert "missing" in first.summary
    assert "holes" in first.cause
    assert "style.weight, style.bias" in second.summary
    assert "self.style(" in second.location.text
    assert "declare style among the inputs" in second.fix


def test_arguments_that_are_given_leave_nothing_to_say():
    report = found(Conditioned, style=torch.randn(6, 5), holes=torch.arange(6) % 2)
    assert not bad(report), str(report)


class Plain(Conditioned):
    """Takes the arguments, and asks for something else."""

    wide = False

    def forward(self, x, style=None, holes=None):
        out = self.body(x)
        return self.mix(out, style) if self.wide else out


class Holding(nn.Module):
    """A part of the user's own that is called without its argument."""

    def __init__(self):
        super().__init__()
        self.part = Conditioned()

    def forward(self, x):
        return self.part(x)


@pytest.mark.parametrize("model", [Plain, Holding])
def test_parts_that_no_argument_reaches_are_dead(model):
    report = found(model)
    assert ("gradients-exist", "violated") in bad(report), str(report)
    assert not report.ok


PACKAGE = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.context = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x, context=None):
        return self.own(x) if context is None else self.own(x) + self.context(context)
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x
"""
package = types.ModuleType("package")
exec(compile(PACKAGE, f"{sys.prefix}/lib/python3/site-packages/package.py", "exec"), vars(package))


class Wrapped(nn.Module):
    """Uses a part of what a class of another package can do."""

    def __init__(self, part):
        super().__init__()
        self.part, self.head = part, nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.part(x))


@pytest.mark.parametrize(
    ("part", "fix"), [("Block", "pass context where part is called, or "), ("Stack", "")]
)
def test_a_class_of_a_package_may_be_used_in_part(monkeypatch, part, fix):
    for kind in (package.Block, package.Stack):
        monkeypatch.setattr(kind, "__module__", "package")
    monkeypatch.setitem(sys.modules, "package", package)
    package.__file__ = f"{sys.prefix}/lib/python3/site-packages/package.py"
    lines = PACKAGE.splitlines(keepends=True)
    entry = (len(PACKAGE), None, lines, package.__file__)
    monkeypatch.setitem(linecache.cache, package.__file__, entry)
    report = found(lambda: Wrapped(getattr(package, part)()))
    assert bad(report) == [("gradients-exist", "suspicious")], str(report)
    (finding,) = report.with_status("suspicious")
    assert finding.fix.startswith(f"{fix}declare MayLackGradient(")


class Chosen(nn.Module):
    """Puts another result where a column of its input says so; the loss looks at the first place only."""

    def __init__(self, everywhere):
        super().__init__()
        self.near, self.far, self.everywhere = nn.Linear(4, 3), nn.Linear(4, 3), everywhere

    def forward(self, x):
        out = self.near(x).unsqueeze(1).repeat(1, 5, 1)
        far = self.far(x)
        rows = torch.arange(len(x))
        if self.everywhere:
            out[rows] = far.unsqueeze(1).expand(-1, 5, -1).clone()
        else:
            out[rows, torch.zeros_like(rows)] = far
        return out[:, 0]


def test_what_data_overwrite_in_part_is_not_reached():
    assert not bad(found(lambda: Chosen(everywhere=False)))
    report = found(lambda: Chosen(everywhere=True))
    assert ("gradients-exist", "violated") in bad(report), str(report)


def test_a_stand_in_goes_through_any_code():
    value = stand_in()
    first, second, third = value.shape
    left, right = value
    assert (first, second, third, value.shape[2]) == (1, 1, 1, 1)
    assert isinstance(left, torch.Tensor)
    assert right is not left
    assert type(torch.cat([torch.ones(3), value])) is type(value)
    assert type(value.get_length(2) + value[:, None]) is type(value)
    assert bool((value == "text").any())
    assert torch.eye(2, dtype=value.dtype, device=value.device).shape == (2, 2)
    assert len([0 for _ in range(value)]) == 1
    assert "not given" in repr(value)
