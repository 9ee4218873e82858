"""Errors whose cause stands on another line than the one that raised: that line is named too."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from provoke import explain, line
from torch import nn

from pytest_torchcheck.diagnosis.stored.checkpoints import paths_of


def cited(found):
    return {c.location.line for c in found.culprits if c.location is not None}


class Pooled(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.keep = keep

    def forward(self, image, extra):
        h = self.pool(self.conv(image))
        h = h.flatten(1) if self.keep else h.squeeze()
        return torch.cat([extra, h], dim=1)


def test_a_squeeze_that_drops_the_batch_is_named():
    inputs = (torch.randn(1, 1, 5, 5), torch.randn(1, 2))
    model = Pooled(False)
    found = explain(lambda: model(*inputs), model=model, batch=(inputs, None))
    at = line(Pooled, "h.squeeze()")
    assert "squeeze on line" in found.cause
    assert "without the batch dimension" in found.cause
    assert at in cited(found)
    assert Pooled(True)(*inputs).shape == (1, 5)


class Averaged(nn.Module):
    def forward(self, image):
        h = image.mean(dim=(2, 3))
        return h.softmax(dim=2)


def test_a_mean_is_cited_beside_the_line_that_fails():
    x = torch.randn(4, 3, 5, 5)
    model = Averaged()
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "dimension-missing"
    assert found.location.line == line(Averaged, "softmax")
    assert line(Averaged, "image.mean") in cited(found)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)


def overlapping(model):
    head = list(model.head.parameters())
    everything = list(model.parameters())
    groups = [{"params": everything}, {"params": head, "lr": 1.0}]
    return torch.optim.SGD(groups, lr=0.1)


def crossing(model):
    first = [model.body.weight, model.body.bias]
    second = [model.body.bias, model.head.weight]
    return torch.optim.SGD([{"params": first}, {"params": second}], lr=0.1)


def test_the_group_that_holds_all_of_the_other_is_named():
    model = Two()
    found = explain(lambda: overlapping(model), model=model, phase="step")
    assert found.summary == "head.weight and head.bias stand in two groups of the optimizer"
    assert found.location.line == line(overlapping, "everything = list")
    assert "group 0 (everything) holds every parameter of group 1 (head)" in found.cause
    assert {line(overlapping, "head = list"), line(overlapping, "SGD(")} <= cited(found)


def test_groups_that_cross_are_both_named():
    model = Two()
    found = explain(lambda: crossing(model), model=model, phase="step")
    assert found.cause == "group 0 (first) and group 1 (second) share body.bias"
    assert {line(crossing, "first ="), line(crossing, "second =")} <= cited(found)


def raw_scores(binary):
    if binary:  # noqa: SIM108
        criterion = nn.BCELoss()
    else:
        criterion = nn.BCEWithLogitsLoss()
    targets = torch.ones(3)

    def loss():
        return criterion(torch.tensor([2.0, -1.0, 0.5], requires_grad=True), targets)

    return loss


class Keeper:
    def __init__(self):
        self.other = nn.MSELoss()
        self.criterion = nn.BCELoss()

    def loss(self):
        return self.criterion(torch.full((3,), 2.0), torch.ones(3))


@pytest.mark.parametrize(
    ("run", "owner", "text"),
    [(raw_scores(True), raw_scores, "BCELoss()"), (Keeper().loss, Keeper, "nn.BCELoss")],
)
def test_the_line_that_makes_the_criterion_is_cited(run, owner, text):
    found = explain(run, phase="loss")
    assert found.summary.startswith("BCELoss received outputs")
    assert found.culprits[0].name == "BCELoss"
    assert found.culprits[0].location.line == line(owner, text)
    assert "BCEWithLogitsLoss" in found.fix
    assert raw_scores(False)().isfinite()


def test_a_function_has_no_criterion_to_cite():
    found = explain(lambda: F.binary_cross_entropy(torch.full((3,), 2.0), torch.ones(3)), phase="loss")  # fmt: skip
    assert found.summary.startswith("binary_cross_entropy received")
    assert [c.kind for c in found.culprits] == ["output"]


class Extractor(nn.Module):
    def __init__(self, decorated=False):
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.features = self.by_decorator if decorated else self.by_block

    def by_block(self, x):
        with torch.inference_mode():
            return self.base(x)

    @torch.inference_mode()
    def by_decorator(self, x):
        return self.base(x)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize(
    ("decorated", "text"), [(False, "with torch.inference_mode"), (True, "@torch.inference_mode")]
)
def test_the_line_that_turns_inference_mode_on_is_named(decorated, text):
    model, x = Extractor(decorated), torch.randn(2, 4)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "inference-tensor"
    assert found.location.line == line(Extractor, text)
    assert "head.weight" not in found.summary


def half_loop():
    model = nn.Linear(4, 2)
    model = model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 4, dtype=torch.float16)).sum()).backward()
    scaler.unscale_(optimizer)


def test_float16_weights_under_a_scaler():
    found = explain(half_loop, phase="step")
    assert found.code == "float16-gradients"
    assert found.observed == "2 of 2 parameters of the optimizer are float16"
    assert found.location.line == line(half_loop, "model.half()")


def resumed(best):
    file = io.BytesIO()
    torch.save({"weights": torch.zeros(2), "best": {"value": best}}, file)
    file.seek(0)
    return torch.load(file)


def test_a_numpy_scalar_in_a_checkpoint():
    found = explain(lambda: resumed(np.float64(1.5)), phase="step")
    assert found.code == "weights-only"
    assert found.summary == "torch.load refuses the checkpoint: entry 'best' is a NumPy scalar"
    assert line(resumed, "torch.save") in cited(found)
    assert "\x1b" not in "".join(getattr(found, field) for field in ("summary", "because", "observed"))  # fmt: skip
    assert resumed(1.5)["best"] == {"value": 1.5}


def test_a_file_of_another_format_names_no_entry(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"no archive")
    assert paths_of(path, "numpy._core.multiarray.scalar") == []
    assert paths_of(None, "numpy._core.multiarray.scalar") == []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x).exp()
        y += 1
        return y


def test_the_module_of_an_in_place_change_is_named():
    model = nn.ModuleDict({"encoder": Block()})
    x = torch.randn(2, 4)
    found = explain(lambda: model["encoder"](x).sum().backward(), model=model, phase="backward")
    assert found.summary.startswith("Block.forward (encoder) modifies")


def preprocess(values):
    return torch.tensor(values)


def labels_beyond():
    targets = preprocess([0, 7])
    return run_loss(targets=targets)


def run_loss(targets):
    return F.cross_entropy(torch.zeros(2, 3, requires_grad=True), targets)


def test_the_return_of_the_helper_that_makes_the_labels_is_cited():
    found = explain(labels_beyond, phase="loss")
    assert found.code == "label-range"
    assert line(preprocess, "return") in cited(found)


def test_escape_codes_of_a_message_are_left_out():
    def run():
        raise RuntimeError("\x1b[1mvery bold\x1b[0m words")

    found = explain(run)
    assert "very bold words" in found.because
    assert "x1b" not in found.because
