"""Detection models of torchvision's protocol: losses in train mode, predictions in eval mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract
from pytest_torchcheck.subject.losses import own_loss


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


class Named(Detector):
    """Gives its losses the names that it is told, and scores without a graph beside them."""

    def __init__(self, box: str, label: str, *, score: str = "", cut: bool = False) -> None:
        super().__init__(cut)
        self.names, self.score = (box, label), score

    def forward(self, images: list[Tensor], targets: Any = None) -> Any:
        made = super().forward(images, targets)
        if not self.training:
            return made
        losses = dict(zip(self.names, made.values(), strict=True))
        return losses | ({self.score: next(iter(made.values())).detach()} if self.score else {})


@pytest.mark.parametrize(
    ("names", "score"),
    [
        (("bbox_regression", "classification"), ""),  # RetinaNet, SSD
        (("loss_box", "objectness"), ""),
        (("loss_box", "loss_label"), "recall"),
        (("box", "label"), "recall"),
    ],
)
def test_every_scalar_of_a_dict_of_losses_trains(names: tuple[str, str], score: str) -> None:
    report = Contract(model=lambda: Named(*names, score=score), batch=data()).check()
    assert not [str(f) for f in report.findings if f.status in ("violated", "error")]


def test_a_cut_below_losses_of_any_name_is_found() -> None:
    contract = Contract(
        model=lambda: Named("bbox_regression", "classification", cut=True), batch=data()
    )
    (finding,) = contract.check(["gradients-exist"]).findings
    assert (finding.status, finding.code) == ("violated", "grad-none")


def test_scores_are_no_losses_with_or_without_a_graph() -> None:
    known: dict[Any, Any] = {}
    weight = torch.tensor(2.0, requires_grad=True)
    made = {"box": weight * 3, "label": weight * 4, "recall": torch.tensor(0.5)}
    assert own_loss(made, known).item() == 14
    with torch.no_grad():
        made = {"box": weight * 3, "label": weight * 4, "recall": torch.tensor(0.5)}
        assert own_loss(made, known).item() == 14
    assert own_loss({"logits": torch.ones(2, 3), "loss_ce": weight * 1}).item() == 2
    assert own_loss({"loss": weight * 1, "kl": weight * 5}).item() == 2


class NoLoss(Detector):
    def forward(self, images: list[Tensor], targets: Any = None) -> Any:
        features = torch.stack([self.body(image[None]).mean((0, 2, 3)) for image in images])
        return {"boxes": self.box(features), "logits": self.label(features)}


def test_a_dict_without_a_loss_is_said() -> None:
    (finding,) = Contract(model=NoLoss, batch=data()).check(["backward"]).findings
    assert (finding.status, finding.code) == ("violated", "loss-not-tensor")
    assert "a dict with the keys boxes, logits" in finding.summary
    assert "loss=" in finding.fix
