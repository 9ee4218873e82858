"""A map of classes that a helper resizes by the mode it is given: the call that chose the mode is named."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

GENERATOR = torch.Generator().manual_seed(0)
CLASSES = torch.randint(0, 3, (6, 2, 2), generator=GENERATOR)
CLASSES = CLASSES.repeat_interleave(8, 1).repeat_interleave(8, 2)


def resized(x, how="bilinear"):
    return F.interpolate(x, (24, 24), mode=how)


def by_place(x, mode):
    return F.interpolate(x, (24, 24), None, mode)


def lowered(x, mode):
    mode = mode.lower()
    return F.interpolate(x, (24, 24), mode=mode)


def forwarded(*args):
    return by_place(*args)


class Resize(nn.Module):
    def forward(self, x, mode):
        return by_place(x, mode=mode)


class Stack:
    def over(self, maps, mode):
        return [resized(one, mode) for one in maps]


resize, stack, smooth = Resize(), Stack(), partial(resized, how="bilinear")


def given(x):
    return by_place(x, "bilinear")  # given


def named(x):
    return resized(
        x,
        how="bilinear",  # named
    )


def by_default(x):
    return resized(x)  # default


def by_module(x):
    return resize(x, "bilinear")  # module


def each(x):
    return stack.over([x], "bilinear")[0]  # each


def joined(x):
    return lowered(x, "BILINEAR")


def scattered(x):
    return forwarded(x, "bilinear")


def bound(x):
    return smooth(x)


def itself(x):
    return F.interpolate(x, (24, 24), mode="bilinear")  # itself


class Maps(Dataset):
    def __init__(self, how, keyed=False):
        self.how, self.keyed = how, keyed

    def __len__(self):
        return len(CLASSES)

    def __getitem__(self, i):
        image = by_place(torch.rand(1, 3, 8, 8), "bilinear")
        classes = self.how(CLASSES[i][None, None].float())
        if self.keyed:
            return {"image": image, "target": classes[0, 0].round().long()}
        return image, classes[0, 0].round().long()


def line(function, text):
    lines, start = inspect.getsourcelines(function)
    (found,) = [start + i for i, each in enumerate(lines) if text in each]
    return found


def told(*args, **kwargs):
    report = Contract(dataset=Maps(*args, **kwargs)).check(["dataset-labels"])
    (found,) = (f for f in report.findings if f.code == "label-blended")
    return found


@pytest.mark.parametrize(
    ("how", "text", "fix"),
    [
        (given, "# given", 'pass mode="nearest"'),
        (named, "# named", 'pass how="nearest"'),
        (by_default, "# default", 'pass how="nearest"'),
        (by_module, "# module", 'pass mode="nearest"'),
        (each, "# each", 'pass mode="nearest"'),
        (itself, "# itself", 'pass mode="nearest"'),
    ],
)
def test_the_call_that_chose_the_mode_is_the_place(how, text, fix):
    found = told(how)
    assert found.location.line == line(how, text)
    assert found.fix.startswith(fix)
    helpers = {c.location.line for c in found.culprits[1:]}
    assert how is itself or (helpers and found.location.line not in helpers)


@pytest.mark.parametrize(
    ("how", "helper"), [(joined, lowered), (scattered, by_place), (bound, resized)]
)
def test_a_mode_whose_giver_is_not_sure_stays_where_it_is_used(how, helper):
    assert told(how).location.line == line(helper, "F.interpolate")


def test_the_label_has_its_own_name_where_the_code_has_one():
    assert "classes, sample[1]" in told(given).summary
    assert told(given).culprits[0].name == "classes"
    assert told(given, keyed=True).summary.endswith("the classes of sample['target']")
