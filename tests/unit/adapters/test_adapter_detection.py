"""Detection models of torchvision's protocol: losses in train mode, predictions in eval mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract


class Detector(nn.Module):
    """One box an image, of images of any size."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.box, self.label = nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        features = torch.stack([self.body(image[None]).relu().mean((0, 2, 3)) for image in images])
        boxes = self.box(features.detach() if self.cut else features)
        logits = self.label(features.detach() if self.cut else features)
        if self.training:
            if targets is None:
                raise ValueError("targets should not be none when in training mode")
            wanted = torch.stack([target["boxes"].mean(0) for target in targets])
            labels = torch.stack([target["labels"][0] for target in targets])
            return {
                "loss_box": (boxes - wanted).abs().mean(),
                "loss_label": F.cross_entropy(logits, labels),
            }
        return [
            {
                "boxes": box[None],
                "labels": each.argmax()[None],
                "scores": each.softmax(0).amax()[None],
            }
            for box, each in zip(boxes, logits, strict=True)
        ]


def data(seed: int = 0) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(seed)
    images = [torch.rand(3, *size, generator=generator) for size in ((20, 24), (16, 16), (18, 30))]
    targets = [
        {"boxes": torch.rand(count, 4, generator=generator), "labels": torch.tensor([k] * count)}
        for k, count in enumerate((2, 1, 3))
    ]
    return images, targets


@pytest.mark.parametrize(
    "fields",
    [
        {"model": Detector(), "batch": data()},
        {"model": lambda: Detector(), "batch": data()},
        {"model": Detector, "batch": data},
    ],
    ids=["module", "factory", "function"],
)
def test_a_model_and_a_batch_are_enough(fields: dict[str, Any]) -> None:
    contract = Contract(**fields)
    assert contract.adapted is not None
    assert (contract.adapted.name, contract.loss, contract.batch_dim) == (
        "detection",
        "output",
        None,
    )
    report = contract.check()
    wrong = [f for f in report.findings if f.status in ("violated", "suspicious")]
    assert [
        str(f) for f in (*wrong, *report.findings) if f in wrong or f.code == "internal-error"
    ] == []
    held = {f.check for f in report.with_status("passed")}
    assert held >= {"gradients-exist", "weights-update", "eval-determinism"}


def test_every_loss_of_the_dict_trains() -> None:
    contract = Contract(model=Detector(cut=True), batch=data())
    (finding,) = contract.check(["gradients-exist"]).findings
    assert finding.code == "grad-none"
    assert finding.summary.startswith("body.0.weight, body.0.bias, body.2.weight")
    assert finding.location is not None
    assert "features.detach()" in finding.location.text


def test_a_loss_of_the_users_own_comes_first() -> None:
    made = Contract(model=Detector(), batch=data(), loss=lambda output, targets: output["loss_box"])
    assert made.adapted is None
    other = Contract(model=nn.Linear(4, 3), batch=(torch.ones(2, 4), None))
    assert other.adapted is None
