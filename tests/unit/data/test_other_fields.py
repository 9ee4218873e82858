"""Data sets whose last field is no label of the contract's kind: pairs of views, of sentences, of signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract
from pytest_torchcheck.specs import Labels

if TYPE_CHECKING:
    from collections.abc import Callable


class Fields(Dataset):
    """Gives what a function makes of each index."""

    def __init__(self, make: Callable[[int], Any], count: int = 24) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.make(index)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images.flatten(1))


class Segmenter(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(1, 3, 3, padding=1)


class Rater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(40, 8), nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids).mean(1)).squeeze(1)


def _g(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _image(i: int, *size: int) -> torch.Tensor:
    return torch.randn(*(size or (1, 4, 4)), generator=_g(i))


def _binary(i: int) -> torch.Tensor:
    return (_image(i) > 0).float()


def _ids(i: int, length: int = 6) -> torch.Tensor:
    return torch.randint(1, 40, (length,), generator=_g(i))


CLASSES = {
    "model": Classifier,
    "batch": ((_image(1, 6, 1, 4, 4),), torch.arange(6) % 3),
    "loss": nn.functional.cross_entropy,
}
MASKS = {
    "model": Segmenter,
    "batch": ((_image(1, 6, 1, 4, 4),), torch.arange(96).view(6, 4, 4) % 3),
    "loss": nn.functional.cross_entropy,
}
RATINGS = {
    "model": Rater,
    "batch": ((torch.randint(1, 40, (6, 6)),), torch.rand(6)),
    "loss": nn.functional.mse_loss,
}
DECLARED = {"targets": Labels(classes=3)}


def _labels(make: Callable[[int], Any], contract: dict[str, Any], **more: Any) -> list[Any]:
    arguments = {**contract, **more}
    kind = arguments.pop("model")
    made = Contract(model=kind(), dataset=Fields(make), **arguments)
    return list(made.check(["dataset-labels"]).findings)


@pytest.mark.parametrize("more", [{}, DECLARED], ids=["plain", "declared"])
@pytest.mark.parametrize(
    "make",
    [
        lambda i: (_image(i), _image(i + 100)),
        lambda i: (_binary(i), _binary(i).flip(-1)),
        lambda i: (_binary(i) + 0.1 * _image(i + 100), _binary(i)),
        lambda i: ((255 * _image(i).sigmoid()).byte(), (255 * _image(i + 1).sigmoid()).byte()),
        lambda i: (_image(i), torch.eye(3)[i % 3]),
    ],
    ids=["views", "binary views", "noisy and clean", "views of bytes", "one-hot"],
)
def test_a_pair_without_a_label_has_no_wrong_label(make, more):
    (finding,) = _labels(make, CLASSES, **more)
    assert (finding.status, finding.code) == ("inconclusive", "could-not-fail")
    assert "sample[1]" in finding.summary


@pytest.mark.parametrize(
    "make",
    [
        lambda i: (_image(i, 4, 4), _image(i + 100, 4, 4)),
        lambda i: (_binary(i)[0], _binary(i)[0].flip(-1)),
    ],
    ids=["views", "binary views"],
)
def test_views_of_as_many_axes_as_a_map_of_classes_are_no_maps(make):
    assert [f.status for f in _labels(make, MASKS)] == ["inconclusive"]


@pytest.mark.parametrize("step", [0.1, 1.0])
def test_a_weight_beside_the_label_is_no_label(step):
    found = _labels(lambda i: (_image(i), i % 3, 1.0 + step * (i % 2)), CLASSES)
    assert [f.status for f in found] == ["inconclusive"]
    assert "sample[1]" in found[0].summary


@pytest.mark.parametrize("lengths", [(6, 6), (6, 9)])
def test_pairs_of_sentences_are_no_ratings(lengths):
    one, two = lengths
    found = _labels(lambda i: (_ids(i, one), _ids(i + 100, two)), RATINGS)
    assert [f.status for f in found] == ["inconclusive"]


def test_pairs_of_sentences_have_no_classes_to_lie_beyond():
    found = _labels(
        lambda i: (_ids(i), _ids(i + 100)),
        {**RATINGS, "batch": ((torch.randint(1, 40, (6, 6)),), torch.arange(6) % 3)},
        loss=lambda output, targets: (output - targets).square().mean(),
        targets=Labels(classes=3),
    )
    assert [f.status for f in found] == ["inconclusive"]


@pytest.mark.parametrize(
    ("make", "contract"),
    [
        (lambda i: (_image(i), float(i % 3)), CLASSES),
        (lambda i: (_image(i), torch.tensor([i % 3.0])), CLASSES),
        (lambda i: (_image(i), (3 * _image(i + 9, 4, 4).sigmoid()).floor()), MASKS),
        (lambda i: (_image(i), (3 * _image(i + 9).sigmoid()).floor()), MASKS),
        (lambda i: (_ids(i), i % 5), RATINGS),
        (lambda i: (i, _image(i), float(i % 3)), CLASSES),
        (lambda i: (i % 4, _image(i), (3 * _image(i + 9, 4, 4).sigmoid()).floor()), MASKS),
    ],
    ids=[
        "number",
        "row",
        "mask",
        "mask with a channel",
        "whole ratings",
        "index first",
        "group first",
    ],
)
def test_labels_of_the_wrong_dtype_are_still_found(make, contract):
    (finding,) = _labels(make, contract)
    assert (finding.status, finding.code) == ("violated", "label-dtype")


def test_labels_beyond_the_classes_are_still_found():
    (finding,) = _labels(lambda i: (_image(i), i % 4), CLASSES, **DECLARED)
    assert (finding.status, finding.code) == ("violated", "label-range")


def test_fractions_may_be_a_quantity_that_the_step_cuts_into_classes():
    (finding,) = _labels(lambda i: (_image(i), 0.37 * (i % 7)), CLASSES)
    assert (finding.status, finding.code) == ("suspicious", "label-dtype")
    assert "another quantity" in finding.cause
