from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import data_bugs
import pytest
import torch

from pytest_torchcheck import Contract
from pytest_torchcheck.checks.datasets import loading
from pytest_torchcheck.checks.datasets import samples as data
from pytest_torchcheck.subject import Subject

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding

CHECKS = {
    "samples-valid": data.samples_valid,
    "samples-unchanged": data.samples_unchanged,
    "dataset-labels": data.dataset_labels,
    "split-hygiene": data.split_hygiene,
    "dataset-pickling": loading.dataset_pickling,
    "worker-sharding": loading.worker_sharding,
    "random-augmentation": loading.random_augmentation,
    "loader-order": loading.loader_order,
    "last-batch": loading.last_batch,
}
NO_LINE = {"validation_overlaps", "validation_drops_last", "batch_of_one", "sampler_ignores_epoch",
           "sampler_unseeded", "stream_not_sharded"}  # fmt: skip


def findings(fields: dict[str, object]) -> dict[str, list[Finding]]:
    contract = Contract(**fields)
    subject = Subject(contract)
    found: dict[str, list[Finding]] = {}
    for name, run in CHECKS.items():
        if name == "random-augmentation" and not contract.promised("RandomAugmentation"):
            continue
        found[name] = list(run(subject))
    return found


def build(name: str, buggy: bool) -> dict[str, object]:
    torch.manual_seed(0)
    return getattr(data_bugs, name)(buggy)


@pytest.mark.parametrize("name", data_bugs.EXPECTED)
def test_bug_is_found_with_culprit_and_line(name: str) -> None:
    check, code, culprit = data_bugs.EXPECTED[name]
    found = findings(build(name, True))
    finding = next((f for f in found[check] if f.status == "violated"), None)
    assert finding is not None, found[check]
    assert finding.code == code
    assert culprit in [one.name for one in finding.culprits]
    for text in (finding.summary, finding.observed, finding.cause, finding.because, finding.fix):
        assert text
    places = [finding.location, *(one.location for one in finding.culprits)]
    if name not in NO_LINE:
        marked = {
            number
            for number, text in enumerate(Path(data_bugs.__file__).read_text().splitlines(), 1)
            if text.endswith("# BUG")
        }
        assert any(
            p is not None and Path(p.file).name == "data_bugs.py" and p.line in marked
            for p in places
        ), places


@pytest.mark.parametrize("name", data_bugs.EXPECTED)
def test_mended_twin_raises_no_alarm(name: str) -> None:
    bad = [
        f"{check}: {f.summary}"
        for check, found in findings(build(name, False)).items()
        for f in found
        if f.status in ("violated", "suspicious")
    ]
    assert not bad


@pytest.mark.parametrize("name", data_bugs.EXPECTED)
def test_nothing_of_the_dataset_changes(name: str) -> None:
    fields = build(name, True)
    dataset = fields["dataset"]
    if isinstance(dataset, dict):
        dataset = dataset["train"]
    before = {
        key: value.copy() if hasattr(value, "copy") else value
        for key, value in vars(dataset).items()
    }
    tensors = {
        key: value.clone() for key, value in before.items() if isinstance(value, torch.Tensor)
    }
    state = torch.get_rng_state()
    findings(fields)
    assert torch.equal(state, torch.get_rng_state())
    assert vars(dataset).keys() == before.keys()
    for key, value in tensors.items():
        assert torch.equal(vars(dataset)[key].nan_to_num(), value.nan_to_num()), key
    for key, value in before.items():
        if hasattr(value, "dtype") and key not in tensors:
            assert (vars(dataset)[key] == value).all(), key
