"""One bug is one root cause over the whole contract, whatever the architecture."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from root_causes import CODES, MODELS

from pytest_torchcheck import Contract


def check(name, bug):
    make, fields = MODELS[name]
    torch.manual_seed(0)
    return Contract(model=partial(make, bug), name=name, **fields).check()


@pytest.mark.parametrize("bug", CODES)
@pytest.mark.parametrize("name", MODELS)
def test_one_bug_is_one_cause(name, bug):
    report = check(name, bug)
    told = [f for f in report.findings if f.status in ("violated", "suspicious") and f.root is None]
    assert [f.code for f in told] == [CODES[bug]], str(report)


@pytest.mark.parametrize("name", MODELS)
def test_the_sound_model_has_none(name):
    report = check(name, "")
    assert not [f for f in report.findings if f.status in ("violated", "suspicious")], str(report)
