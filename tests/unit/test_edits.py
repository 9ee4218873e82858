"""Suggested code parses, and its names exist where it is to stand."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises
from pytest_torchcheck.findings import Location
from pytest_torchcheck.sources import edits
from pytest_torchcheck.text.wording import exact_globs

G = torch.Generator().manual_seed(0)


class Fed(nn.Module):
    """Takes a dictionary: no name of a tensor is in scope."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, batch):
        return self.head(batch["features"]) + torch.ones(3)


class Named(Fed):
    def forward(self, features):
        return self.head(features) + torch.ones(3)


def weighted(logits, labels):
    return F.cross_entropy(logits.float(), labels, weight=torch.ones(3))


def line(function, text):
    lines, first = inspect.getsourcelines(function)
    number = first + next(i for i, each in enumerate(lines) if text in each)
    return Location(file=__file__, line=number)


def test_names_of_the_function_and_of_its_module_are_known():
    place = line(Fed.forward, "torch.ones")
    assert edits.usable("device=batch.device", place)
    assert edits.usable(".to(torch.float16)", place)
    assert not edits.usable("device=x.device", place)
    assert not edits.usable("self.1", place)
    assert edits.written("x.to(", place, "in words") == "in words"


@pytest.mark.parametrize(
    ("function", "text", "code"),
    [
        (Fed.forward, "torch.ones", "next(self.parameters()).device"),
        (Named.forward, "torch.ones", "features.device"),
        (weighted, "torch.ones", "logits.device"),
    ],
)
def test_a_tensor_in_scope_gives_the_device(function, text, code):
    place = line(function, text)
    assert edits.like_tensor(place, "device") == code
    assert edits.usable(f"device={code}", place)


distance = nn.HuberLoss()


def by_criterion(scores, wanted):
    return distance(scores * 2, wanted)


def by_function(scores, wanted):
    return F.l1_loss(scores, wanted).sqrt()


def by_operator(scores, wanted):
    gap = wanted - scores
    return gap.abs().mean()


def by_keyword(scores, wanted):
    return F.l1_loss(target=wanted, input=scores)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (by_criterion, "write (scores * 2).squeeze(1) for (scores * 2) on line "),
        (by_function, "write scores.squeeze(1) for scores on line "),
        (by_operator, "write scores.squeeze(1) for scores on line "),
        (by_keyword, "make the shapes equal: squeeze(1) on the output, or unsqueeze(1) on the target"),
    ],
)  # fmt: skip
def test_shapes_are_made_equal_by_the_names_of_their_line(loss, says):
    contract = Contract(model=lambda: nn.Linear(4, 1), inputs="B 4", targets="B", loss=loss)
    (finding,) = contract.check(["loss-shapes"]).findings
    assert finding.code == "loss-broadcast"
    assert finding.fix.startswith(says)
    if finding.edit is not None:
        assert finding.edit.tried == "passes"


def test_the_suggested_device_is_one_that_runs():
    x, y = torch.randn(5, 4, generator=G), torch.randint(0, 3, (5,), generator=G)
    for model, batch, code in (
        (Fed, (({"features": x},), y), "next(self.parameters()).device"),
        (Named, ((x,), y), "features.device"),
    ):
        contract = Contract(model=model, batch=batch, loss=F.cross_entropy)
        (finding,) = contract.check(["device-portability"]).findings
        assert f"device={code}" in finding.fix


def test_submodules_are_reached_as_python_reaches_them():
    model = nn.Sequential(
        nn.ModuleDict({"a b": nn.Linear(2, 2)}), nn.ModuleList([nn.Sequential(nn.ReLU())])
    )
    for name, module in model.named_modules():
        if name:
            assert eval(edits.submodule(model, name), {"self": model}) is module
    assert edits.submodule(nn.Sequential(nn.ReLU()), "0") == "self[0]"


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(12, 12)

    def forward(self, x):
        size, length, width = x.shape
        return self.q(x).reshape(size, 3, length, width // 3).sum(1)


def test_sizes_are_written_as_the_line_writes_them():
    x = torch.randn(2, 7, 12, generator=G)
    contract = Contract(model=Heads, batch=((x,), None), promises=(promises.Causal(),))
    (finding,) = contract.check(["causality"]).findings
    assert finding.code == "future-leak"
    assert ".view(size, length, 3, width // 3).transpose(1, 2)" in finding.fix


class Spare(nn.Module):
    """Has parts that no forward reads."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.spare = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.rest = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.alone = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.head(self.rest[0](torch.relu(self.body(x))))


def test_a_promise_that_a_fix_proposes_covers_the_finding_and_no_more():
    fields = {"inputs": "B 4", "targets": "B 3", "loss": F.mse_loss}
    report = Contract(model=Spare, **fields).check(["gradients-exist"])
    globs = [re.search(r"MayLackGradient\((.*), reason=", found.fix)[1] for found in report.failing]
    assert set(", ".join(globs).split(", ")) == {"'spare.*'", "'rest.1.*'", "'alone'"}
    made = [eval(f"promises.MayLackGradient({each}, reason='spare')") for each in globs]
    assert Contract(model=Spare, **fields, promises=made).check(["gradients-exist"]).ok


def test_globs_are_written_out_as_far_as_they_are_few():
    every = [f"part{i}.{leaf}" for i in range(9) for leaf in ("weight", "bias")]
    assert exact_globs(["part1.weight"], every) == "'part1.weight'"
    assert exact_globs(["part1.weight", "part2.bias"], every) == "'part1.weight', 'part2.bias'"
    assert exact_globs(every[:2], every) == "'part0.*'"
    assert exact_globs(every, every, most=2) == "'part0.*', 'part1.*', ..."
