"""Samplers and loaders that are made in the dataset's file, not where the contract is declared."""

from __future__ import annotations

import inspect

from sampler_calls import Weighed, arguments_of, sampler_of

from pytest_torchcheck import Contract


def line(function, text):
    lines, start = inspect.getsourcelines(function)
    (found,) = [start + i for i, each in enumerate(lines) if text in each]
    return found


def told(check, **fields):
    return Contract(**fields).check([check]).findings


def test_of_two_calls_the_one_that_fits():
    data = Weighed()
    (found,) = told(
        "loader-order", dataset=data, loader={"sampler": sampler_of(data, per_sample=False)}
    )
    assert found.code == "sampler-length"
    assert found.location.line == line(sampler_of, "weights = 1 /")
    assert [one.location.line for one in found.culprits] == [
        line(sampler_of, "weights = 1 /"),
        line(sampler_of, "WeightedRandomSampler(weights, "),
    ]
    (found,) = told(
        "loader-order", dataset=data, loader={"sampler": sampler_of(data, per_sample=True)}
    )
    assert found.status == "passed"


def test_a_loader_made_beside_the_dataset():
    (found,) = told("last-batch", dataset={"eval": Weighed()}, loader=arguments_of())
    assert found.code == "evaluation-drops-samples"
    assert found.location.line == line(arguments_of, "drop_last")
