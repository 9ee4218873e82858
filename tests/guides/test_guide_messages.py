"""Rows 4 to 7 and 17 to 20: errors, by phase, line, shapes and devices. The numbers are those of docs/guides.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints
from pytest_torchcheck.render.terminal import render_report
from tests.guides.rows import Net, Symptom, contract, holds, named, sgd, told

if TYPE_CHECKING:
    from pathlib import Path


class Reshaped(Net):
    def middle(self, h):
        return h.view(-1, 5) if self.broken else h  # BUG


class InPlace(Net):
    def middle(self, h):
        h = torch.sigmoid(h)
        if self.broken:
            h += 1  # BUG
        return h


def builds(broken):
    return Net(outputs=3) if broken else Net(out=3)  # BUG


def flat_loss(output, targets):
    return F.cross_entropy(output.flatten(), targets)  # BUG


class Scaled(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("no scale was set")


def unscaled(model):
    return Scaled(model.parameters(), lr=0.1)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.broken and index == 5:
            raise ValueError("a truncated file")  # BUG
        return torch.full((4,), float(index)), index % 3


PHASES = {
    "build": lambda b: contract(lambda: builds(b)),
    "forward": lambda b: contract(lambda: Reshaped(b)),
    "loss": lambda b: contract(Net, loss=flat_loss if b else F.cross_entropy),
    "backward": lambda b: contract(lambda: InPlace(b)),
    "step": lambda b: contract(Net, optimizer=unscaled if b else sgd),
}
CODES = {
    "build": "crash",
    "forward": "view-size",
    "loss": "crash",
    "backward": "inplace-saved",
    "step": "crash",
}


@pytest.mark.parametrize("phase", [*PHASES, "data"])
def test_row_04(phase: str) -> None:
    """Data, forward, loss, backward and step, each on its own: the finding says which of them failed."""
    if phase == "data":
        bad = Symptom(
            name=phase, make=lambda b: Contract(dataset=Pictures(b)), checks=("samples-valid",), code="sample-raises",
            says=("reading sample 5", "a truncated file"),
        )  # fmt: skip
        holds(bad)
        return
    found = holds(
        Symptom(name=phase, make=PHASES[phase], checks=("backward",), code=CODES[phase], marked=phase != "step")
    )  # fmt: skip
    assert found.evidence["phase"] == phase
    report = PHASES[phase](True).check(["backward", "loss-sound", "eval-determinism"])
    before = {f.check for f in report.with_status("passed")}
    # what comes before the phase that fails is held to its own promises all the same
    assert ("eval-determinism" in before) == (phase not in ("build", "forward"))


class Beside(Net):
    """A buffer on another device: what a tensor that was not moved is on a GPU."""

    def __init__(self, broken):
        super().__init__(broken)
        device = "meta" if broken else "cpu"
        self.register_buffer("scale", torch.ones(16, device=device))

    def middle(self, h):
        return h * self.scale


class Doubled(Net):
    """One layer in another dtype than the rest of the model."""

    def __init__(self, broken):
        super().__init__(broken)
        self.head.to(torch.float64 if broken else torch.float32)


ROW_05 = (
    Symptom(
        name="operation and shapes", make=lambda b: contract(lambda: Reshaped(b)), checks=("backward",),
        code="view-size", says=("view(-1, 5) of the output of relu", "64 elements", "write 16 instead of 5"),
    ),
    Symptom(
        name="devices", make=lambda b: contract(lambda: Beside(b)), checks=("backward",), code="device-pair",
        says=("[16] on meta", "on cpu", "scale"), marked=False,
    ),
    Symptom(
        name="dtypes", make=lambda b: contract(lambda: Doubled(b)), checks=("backward",),
        code="dtype-pair", says=("float64 weights", "receives float32"), marked=False,
    ),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_05))
def test_row_05(symptom: Symptom) -> None:
    """The whole message: operation, shapes, devices, dtypes, and under -vv the versions."""
    holds(symptom)
    report = symptom.make(True).check(symptom.checks)
    assert f"torch  {torch.__version__}" in render_report(report, verbosity=2)
    assert {"python", "torch", "platform", "seed"} <= set(report.environment)


class Inner(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.pool = nn.Sequential(nn.Unflatten(1, (1, 16)), nn.AvgPool1d(2), nn.Flatten())
        self.size = 4 if broken else 8

    def forward(self, h):
        return self.halve(self.pool(h))

    def halve(self, h):
        return F.layer_norm(h, (self.size,))  # BUG


class Nested(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.inner = nn.Sequential(nn.Identity(), nn.Sequential(Inner(broken)))
        self.head = nn.Linear(8, 3)

    def middle(self, h):
        return self.inner(h)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, broken):
        ctx.broken = broken
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return (grad * torch.ones(5) if ctx.broken else grad * 2), None  # BUG


class ByHand(Net):
    def middle(self, h):
        return Doubles.apply(h, self.broken)


ROW_06 = (
    Symptom(
        name="below torch's containers", make=lambda b: contract(lambda: Nested(b)), checks=("backward",),
        code="norm-shape",
    ),
    Symptom(
        name="in a loss", make=lambda b: contract(Net, loss=flat_loss if b else F.cross_entropy),
        checks=("backward",), code="crash",
    ),
    Symptom(
        name="in a backward of one's own", make=lambda b: contract(lambda: ByHand(b)), checks=("backward",),
        code="broadcast-shapes",
    ),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_06))
def test_row_06(symptom: Symptom) -> None:
    """One's own line, not torch's, however deep the call."""
    found = holds(symptom)
    assert found.location is not None
    assert found.location.file == __file__
    assert found.location.text.endswith("# BUG")
    assert any("site-packages" in line for line in found.evidence["traceback"])  # torch raised it


class Pictured(nn.Module):
    """A small convolutional net; ``wrong`` names its mistake."""

    def __init__(self, wrong=""):
        super().__init__()
        self.wrong = wrong
        self.conv = nn.Conv2d(1 if wrong == "channels" else 3, 4, 3)  # BUG
        self.fc = nn.Linear(128 if wrong == "flatten" else 144, 3)  # BUG

    def forward(self, x):
        if self.wrong == "first":
            x = x[0]  # BUG
        if self.wrong == "mean":
            x = x.mean(1)  # BUG
        h = torch.relu(self.conv(x)).flatten(1)
        return self.fc(h.view(4, -1) if self.wrong == "batch" else h)  # BUG


def pictures(wrong, **fields):
    return lambda b: contract(
        lambda: Pictured(wrong if b else ""), **({"inputs": "B 3 8 8", "sizes": {"B": (4, 6)}} | fields)
    )  # fmt: skip


class Sequence(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.broken = broken
        self.rnn = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = x.flatten(0).unsqueeze(0).unsqueeze(0) if self.broken else x  # BUG
        return self.head(self.rnn(x.unsqueeze(0) if self.broken else x)[0][:, -1])  # BUG


class Wide(Net):
    def __init__(self, broken):
        super().__init__(broken, out=4 if broken else 3)


ROW_07 = (
    Symptom(name="channels", make=pictures("channels"), checks=("backward",), code="channels",
            says=("conv expects 1 channels, got 3",)),
    Symptom(name="flatten size", make=pictures("flatten"), checks=("backward",), code="matmul-shapes",
            says=("144 = 4*6*6", "144")),
    Symptom(name="rank", make=lambda b: contract(lambda: Sequence(b), inputs="B T 8"), checks=("backward",),
            code="input-rank", says=("rnn",)),
    Symptom(name="output", make=lambda b: contract(lambda: Wide(b), output="B 3"), checks=("output-spec",),
            code="output-shape", says=("float32[", "declares 'B 3'"), marked=False),
    Symptom(name="a batch size in the code", make=pictures("batch"), checks=("batch-sizes",), code="matmul-shapes",
            says=("does not run at B=", "a batch size is hard-coded", "write x.shape[0] instead of 4")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_07))
def test_row_07(symptom: Symptom) -> None:
    """Ranks, channels and shapes inside forward, at other sizes than the usual ones too; the size to write."""
    holds(symptom)


class Grown(Net):
    def forward(self, x):
        out = super().forward(x)
        return out + (x[:, :1, None] if self.broken else x[:, :1])  # BUG


class Apart(Net):
    def forward(self, x):
        out = super().forward(x)
        return out * (out[:-1] if self.broken else out)  # BUG


class Products(Net):
    def forward(self, x):
        out = super().forward(x)
        return out @ (x if self.broken else out.T @ out)  # BUG


class Column(Net):
    def forward(self, x):
        out = super().forward(x)
        return out if self.broken else out.squeeze(1)  # BUG


ROW_17 = (
    Symptom(name="matmul", make=lambda b: contract(lambda: Products(b)), checks=("backward",),
            code="matmul-shapes", says=("3 and",)),
    Symptom(name="linear", make=pictures("flatten"), checks=("backward",), code="matmul-shapes",
            says=("fc expects 128 features, got 144",)),
    Symptom(name="a channel dimension that is lost", make=pictures("mean"), checks=("backward",), code="channels",
            says=("mean on line", "the batch is read as channels", "keep dimension 1, which has 3")),
    Symptom(name="a batch dimension that is lost", make=pictures("first"), checks=("backward",),
            code="matmul-shapes", says=("the batch dimension is missing", "unsqueeze(0)")),
    Symptom(name="broadcasting that fails", make=lambda b: contract(lambda: Apart(b)), checks=("backward",),
            code="broadcast-shapes", says=("against",)),
    Symptom(name="broadcasting in the model", make=lambda b: contract(lambda: Grown(b)), checks=("backward",),
            code="label-shape", says=("are broadcast to", "both are stretched")),
    Symptom(name="broadcasting in the loss",
            make=lambda b: contract(lambda: Column(b, out=1), targets="B", loss=F.mse_loss),
            checks=("loss-shapes",), code="loss-broadcast", says=("every sample is compared with the targets of all",),
            marked=False),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_17))
def test_row_17(symptom: Symptom) -> None:
    """Matrix products, convolutions, a missing batch dimension, broadcasting that fails and that nobody meant."""
    holds(symptom)


class Attribute(Net):
    def __init__(self, broken):
        super().__init__(broken)
        scale = torch.linspace(0.5, 1.5, 16)
        if broken:
            self.scale = scale  # BUG
        else:
            self.register_buffer("scale", scale)

    def middle(self, h):
        return h * self.scale


class Makes(Net):
    def middle(self, h):
        return h + torch.zeros(16, device=None if self.broken else h.device)  # BUG


class HardCoded(Net):
    device = "cuda"

    def middle(self, h):
        return h.to(self.device).to(h.device) if self.broken else h  # BUG


class SecondGpu(HardCoded):
    device = "cuda:1"


class Halved(Net):
    def __init__(self, broken):
        super().__init__(broken)
        if broken:
            self.head.to("meta")  # BUG


def moves_too_late(broken):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        x = inputs[0].to("meta") if broken else inputs[0]
        loss = F.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def weighted(output, targets):
    return F.cross_entropy(output, targets, weight=torch.tensor([1.0, 2.0, 1.0]))  # BUG


def moved_weights(output, targets):
    weight = torch.tensor([1.0, 2.0, 1.0], device=output.device)
    return F.cross_entropy(output, targets, weight=weight)


no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
PORTABLE = ("device-portability",)
ROW_18 = (
    Symptom(name="a plain attribute", make=lambda b: contract(lambda: Attribute(b)), checks=PORTABLE,
            code="cpu-tensor", says=("register_buffer", "stays on the CPU when the model is moved")),
    Symptom(name="a new tensor", make=lambda b: contract(lambda: Makes(b)), checks=PORTABLE, code="cpu-factory",
            says=("torch.zeros", "device=h.device")),
    Symptom(name="a new tensor in the loss", make=lambda b: contract(Net, loss=weighted if b else moved_weights),
            checks=PORTABLE, code="cpu-factory", says=("torch.tensor",), status="suspicious"),
    Symptom(name="a part of the model", make=lambda b: contract(lambda: Halved(b)), checks=("backward",),
            code="device-pair", says=("head is on meta, the rest of the model on cpu", "move the model as a whole")),
    Symptom(name="an input", make=lambda b: contract(Net, train_step=moves_too_late(b), optimizer=sgd),
            checks=("backward",), code="device-pair", says=("input x is on meta, the model on cpu",), marked=False),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_18))
def test_row_18(symptom: Symptom) -> None:
    """Tensors left on the CPU are found with no GPU; mixtures that fail are told by what was not moved."""
    holds(symptom)


@no_gpu
@pytest.mark.parametrize("model", [HardCoded, SecondGpu])
def test_row_18_a_device_in_the_code(model: type[Net]) -> None:
    """One GPU, or the second of several, written into forward."""
    holds(
        Symptom(name="", make=lambda b: contract(lambda: model(b)), checks=("backward",), code="device-hard-coded",
                says=("the device cuda is hard-coded", "x.device"))
    )  # fmt: skip


@no_gpu
def test_row_18_map_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of a GPU is loaded on a machine without one."""
    path = tmp_path / "saved.pt"
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save(Net().state_dict(), path)

    def load(broken):
        model = Net()
        model.load_state_dict(torch.load(path, map_location=None if broken else "cpu"))  # BUG
        return model

    holds(
        Symptom(name="", make=lambda b: contract(lambda: load(b)), checks=("backward",), code="device-hard-coded",
                says=("saved on a GPU and is loaded without map_location", 'map_location="cpu"'))
    )  # fmt: skip


ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"


class Tagger(nn.Module):
    """Fails as on a device where it is told to: with an error that says nothing."""

    def __init__(self, rows, on_device=False):
        super().__init__()
        self.on_device = on_device
        self.table = nn.Embedding(rows, 8)  # BUG
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        if self.on_device:
            raise RuntimeError(ASSERT)
        return self.head(self.table(ids)).mean(1)


def one_based(broken):
    def batch(seed):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        return (x,), torch.tensor([1, 2, 3, 1, 2, 3]) - (0 if broken else 1)  # BUG

    return batch


ROW_19 = (
    Symptom(name="an index", make=lambda b: contract(lambda: Tagger(10 if b else 12), inputs=Ints("B 5", high=12)),
            checks=("backward",), code="embedding-range", says=("table has 10 rows", "or declare the ids as 0..9"), marked=False),
    Symptom(name="a label", make=lambda b: Contract(model=Net, batch=one_based(b), loss=F.cross_entropy),
            checks=("backward",), code="label-range", says=("labels start at 1", "on CUDA the same bug is a device-side")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_19))
def test_row_19(symptom: Symptom) -> None:
    """What a device-side assert would hide is found on the CPU."""
    holds(symptom)


def test_row_19_replayed() -> None:
    """A device-side assert is run again on the CPU with a model made anew, and told by the real error."""
    made: list[Tagger] = []

    def build() -> Tagger:
        made.append(Tagger(10, on_device=not made))
        return made[-1]

    ids = torch.tensor([[1, 2, 11, 3, 4], [0, 1, 2, 3, 4]])
    batch = ((ids,), torch.tensor([0, 2]))
    report = Contract(model=build, batch=batch, loss=F.cross_entropy).check(["backward"])
    (found,) = told(report)
    assert found.code == "embedding-range"
    assert "CUDA reported a device-side assert" in found.because
    assert found.culprits[0].name == "table"
    fine = Contract(model=lambda: Tagger(12), batch=batch, loss=F.cross_entropy)
    assert fine.check(["backward"]).ok


class Shifted(Net):
    def middle(self, h):
        if self.broken:
            self.body.weight += 0.01  # BUG
        return h


class Parts(Net):
    def middle(self, h):
        first, second = h.chunk(2, 1)
        first = first if self.broken else first.clone()
        first.mul_(2)  # BUG
        return torch.cat([first, second], 1)


class Rectified(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.squash = nn.Sequential(nn.Sigmoid(), nn.ReLU(inplace=broken))  # BUG

    def middle(self, h):
        return self.squash(h)


ROW_20 = (
    Symptom(name="a saved tensor", make=lambda b: contract(lambda: InPlace(b)), checks=("backward",),
            code="inplace-saved", says=("add_ (or +=)", "Sigmoid", "needs its old value", "h = h + 1")),
    Symptom(name="a leaf", make=lambda b: contract(lambda: Shifted(b)), checks=("backward",), code="inplace-leaf",
            says=("changes body.weight in place", "torch.no_grad()")),
    Symptom(name="a view of several", make=lambda b: contract(lambda: Parts(b)), checks=("backward",),
            code="inplace-view", says=("chunk", "clone()")),
    Symptom(name="an activation", make=lambda b: contract(lambda: Rectified(b)), checks=("backward",),
            code="inplace-saved", says=("relu(inplace=True)", "Sigmoid", "inplace=False")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_20))
def test_row_20(symptom: Symptom) -> None:
    """What saved the tensor, and the line that changed it."""
    holds(symptom)


G = torch.Generator().manual_seed(0)
X = torch.randn(6, 8, generator=G)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
BITS = torch.tensor([0.0, 1, 1, 0, 1, 0])


def given(wrong, right, loss=F.cross_entropy, model=Net):
    def make(broken):
        return Contract(model=model, batch=((X,), wrong if broken else right), loss=loss)

    return make


class Single(Net):
    def __init__(self):
        super().__init__(out=1)

    def forward(self, x):
        return super().forward(x).squeeze(1)


class Labelled(torch.utils.data.Dataset):
    def __init__(self, wrong):
        self.wrong = wrong

    def __len__(self):
        return 12

    def __getitem__(self, index):
        label = index % 3 + (2 if self.wrong == "range" else 0)  # BUG
        if self.wrong == "floats":
            return X[index % 6] + index, float(label)  # BUG
        return X[index % 6] + index, label


def labelled(wrong):
    def make(broken):
        dataset = Labelled(wrong if broken else "")
        return contract(Net, dataset=dataset)

    return make


BCE = F.binary_cross_entropy_with_logits
NUMPY = torch.from_numpy(X.numpy().astype("float64"))
ROW_30 = (
    Symptom(name="labels as floats", make=given(Y.float(), Y), checks=("backward",), code="label-dtype",
            says=("needs int64 class indices", ".long()"), marked=False),
    Symptom(name="one-hot labels", make=given(F.one_hot(Y, 3), Y), checks=("backward",), code="label-shape",
            says=("one-hot integers", ".argmax(1)"), marked=False),
    Symptom(name="labels out of range", make=given(Y + 1, Y), checks=("backward",), code="label-range",
            says=("labels start at 1",), marked=False),
    Symptom(name="binary labels as integers", make=given(BITS.long(), BITS, BCE, Single), checks=("backward",),
            code="target-dtype", says=("needs the dtype of the output",), marked=False),
    Symptom(name="binary labels of 255", make=given(BITS * 255, BITS, BCE, Single), checks=("label-range",),
            code="label-range", says=("0 and 255", "divide the targets by 255"), marked=False),
    Symptom(name="float64 of NumPy",
            make=lambda b: Contract(model=Net, batch=((NUMPY if b else X,), Y), loss=F.cross_entropy),
            checks=("backward",), code="dtype-pair", says=("NumPy's default dtype",), marked=False),
    Symptom(name="a dataset of float labels", make=labelled("floats"), checks=("dataset-labels",),
            code="label-dtype", says=("return int(label)",)),
    Symptom(name="a dataset with a label too high", make=labelled("range"), checks=("dataset-labels",),
            code="label-range", says=("3 classes",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_30))
def test_row_30(symptom: Symptom) -> None:
    """The dtype, form and range that the loss wants, in the batch and in the dataset."""
    holds(symptom)
