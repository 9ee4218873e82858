"""What lines that set ``requires_grad`` by a parameter's name say of one name."""

from __future__ import annotations

import linecache

import pytest

from pytest_torchcheck import sources
from pytest_torchcheck.diagnosis.training.name_tests import keeps_on

LOW = ("blocks.0.", "blocks.1.")


def by_name(model, more):
    tuned = ["head", "lora_"]
    for name, p in model.named_parameters():
        p.requires_grad = "lora_" in name  # off
        p.requires_grad = "lora_" in name or name.startswith("head.")  # on
        p.requires_grad = any(part in name for part in tuned)  # on
        p.requires_grad = not any(name.startswith(part) for part in LOW)  # on
        p.requires_grad_(not name.endswith(("weight", "bias")))  # off
        p.requires_grad = name in more  # unknown, so off
        p.requires_grad = name in more or "head" in name  # unknown, so off
        if "head" not in name:
            p.requires_grad = False  # on: not met
        else:
            p.requires_grad = False  # off
    for name, p in model.body.named_parameters():
        p.requires_grad = name.startswith("head")  # off: the names are not the model's
    for name, p in model.named_parameters():
        name = name.removeprefix("head.")
        p.requires_grad = name.startswith("head")  # off: it is another name


@pytest.mark.parametrize(
    "number", range(by_name.__code__.co_firstlineno, by_name.__code__.co_firstlineno + 21)
)
def test_a_line_that_leaves_a_name_on_is_told(number):
    text = linecache.getline(__file__, number)
    if "requires_grad" in text:
        assert keeps_on(sources.of_line(__file__, number, "by_name"), "head.weight") is (
            "# on" in text
        )
