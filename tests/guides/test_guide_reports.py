"""Rows 41 to 45: what a run shows of sound models, what makes them slow, and what is left behind."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as modules
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, promises
from pytest_torchcheck.probes.holding.leaks import count_hooks
from pytest_torchcheck.render.terminal import render_report
from tests.guides.rows import Net, Symptom, contract, holds, named, sgd, told

STAGES = ("backward", "loss-sound", "gradients-exist", "weights-update", "overfit")
USERS = """
    @contract(**FIELDS)
    def sound():
        return Net()

    @contract(**FIELDS)
    def cut():
        return Net(cut=True)
"""
"""What a reader of the guides would have in a test file: a model, and the same with its graph cut."""
SPOILT = """
    class Spoilt(Net):
        def forward(self, x):
            return super().forward(x).log()

    @contract(**FIELDS)
    def spoilt():
        return Spoilt()
"""


def test_row_41() -> None:
    """Parameters with shapes, dtypes and devices, and their number; every layer with what it gave."""
    model, x = Net(), torch.randn(5, 8)
    model.body.bias.requires_grad_(False)
    report = Contract(
        model=model, batch=((x,), torch.tensor([0, 1, 2, 0, 1])), loss=F.cross_entropy,
        promises=(promises.Frozen("body.bias", reason="trained before"),),
    ).check(["gradients-exist", "signal-propagation"])  # fmt: skip
    first, second = report.findings
    *rows, counted = first.evidence["gradients"]
    parameters = dict(model.named_parameters())
    assert {row["parameter"]: (row["shape"], row["dtype"], row["device"], row["elements"]) for row in rows} == {
        name: (list(p.shape), "float32", "cpu", p.numel()) for name, p in parameters.items()
    }  # fmt: skip
    assert [row["parameter"] for row in rows if row["gradient norm"] == "frozen"] == ["body.bias"]
    assert counted["elements"] == sum(p.numel() for p in parameters.values()) == 195
    assert counted["gradient norm"] == "179 elements are trainable"
    layers = {row["module"]: row for row in second.evidence["layers"]}
    given = model.body(x).detach()
    assert layers["body"]["shape"] == list(given.shape)
    assert layers["body"]["low"] == pytest.approx(float(given.min()), rel=1e-2)
    assert layers["body"]["high"] == pytest.approx(float(given.max()), rel=1e-2)
    shown = render_report(report, verbosity=2)
    assert re.search(r"^ *body\.weight +16, 8 +float32 +cpu +128 ", shown, re.MULTILINE)
    assert re.search(r"^ *4 in all +195 +179 elements are trainable", shown, re.MULTILINE)


class Halved(Net):
    def __init__(self, broken):
        super().__init__()
        if broken:
            self.head.double()  # BUG


def test_row_41_of_a_failure() -> None:
    """A part in another dtype stands in the message, which a list of all would have shown."""
    holds(
        Symptom(name="", make=lambda b: contract(lambda: Halved(b)), checks=("backward",), code="dtype-pair",
                says=("head is float64, the rest of the model float32", "only a part of the model was converted"))
    )  # fmt: skip


class Reads(Net):
    """Reads a value on the host in its forward."""

    def __init__(self, how=""):
        super().__init__()
        self.how = how

    def middle(self, h):
        if self.how == "item":
            return h / h.max().item()  # BUG
        if self.how == "branch" and h.mean() > 100:  # BUG
            return h / 100
        if self.how == "list":
            self.means = h.mean(0).tolist()  # BUG
        if self.how == "print":
            print(h.mean())  # BUG
        if self.how == "text":
            self.seen = f"mean {h.mean():.3f}"  # BUG
        if self.how == "numpy":
            return h * float(h.detach().numpy().mean())  # BUG
        return h / h.detach().max()


def reads(how):
    return lambda b: contract(lambda: Reads(how if b else ""))


def logs(output, targets):
    loss = F.cross_entropy(output, targets)
    print(loss.item())  # BUG
    return loss


WAITS = {"checks": ("device-portability",), "code": "host-sync", "status": "suspicious"}
ROW_42 = (
    Symptom(name=".item()", make=reads("item"), says=("waits for the GPU: .item()", "keep it a tensor"), **WAITS),
    Symptom(name="a branch", make=reads("branch"), says=("bool()",), **WAITS),
    Symptom(name="a list", make=reads("list"), says=(".tolist()",), **WAITS),
    Symptom(name="print", make=reads("print"), says=("waits for the GPU: print()",), **WAITS),
    Symptom(name="a formatted string", make=reads("text"), says=("a formatted string",), **WAITS),
    Symptom(name=".item() per step in the loss", make=lambda b: contract(Net, loss=logs if b else F.cross_entropy),
            says=("the loss waits for the GPU: .item()",), **WAITS),
    Symptom(name="NumPy in the forward", make=reads("numpy"), checks=("device-portability",), code="numpy-on-device",
            says=("NumPy",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_42))
def test_row_42(symptom: Symptom) -> None:
    """What makes each step wait for the device, seen without one."""
    holds(symptom)


class Points(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((4,), float(index)), index % 2


def test_row_42_reading() -> None:
    """How long a sample takes to read, beside its dtypes and ranges."""

    def measured(seconds: float) -> float:
        report = Contract(dataset=Points(seconds)).check(["samples-valid"])
        (passed,) = report.with_status("passed")
        (reading,) = passed.evidence["reading"]
        assert "reading:\n  read  seconds\n  8     " in render_report(report, verbosity=2)
        return reading["seconds"] / reading["read"]

    assert measured(0.02) >= 0.02 > measured(0.0)


def test_row_43(pytester: pytest.Pytester, models: Any) -> None:
    """One step with every stage ticked, by name; with the bug, the stage that fails and those that follow from it."""
    models(USERS)
    result = pytester.runpytest_inprocess(
        "--torchcheck", f"--torchcheck-checks={','.join(STAGES)}", "-v"
    )
    lines = "\n".join(result.outlines)
    for stage in STAGES:
        assert re.search(rf"::sound::{stage}\S* PASSED", lines), stage
    assert re.search(r"::cut::backward\S* PASSED", lines)
    assert re.search(r"::cut::gradients-exist\S* FAILED", lines)
    result.stdout.fnmatch_lines(
        [
            "*first.weight, first.bias get no gradient*grad-none*",
            "*where *return self.last(h.detach() if self.cut else h)*",
            "*fix *drop .detach() on this line*",
        ]
    )
    (summary,) = [line for line in result.outlines if "::cut: violated" in line]
    assert "1 cause" in summary


def test_row_44(pytester: pytest.Pytester, models: Any) -> None:
    """Curves and histograms in a page with no script, and all of it as JSON."""
    models(USERS.partition("@contract(**FIELDS)\n    def cut")[0] + SPOILT)
    pytester.runpytest_inprocess(
        "--torchcheck", "--torchcheck-checks=gradients-finite,overfit",
        "--torchcheck-html=found.html", "--torchcheck-json=found.json",
    )  # fmt: skip
    page = (pytester.path / "found.html").read_text()
    label = 'aria-label="loss by step: ([0-9.]+) at first, ([0-9.]+) after'
    (curve,) = re.findall(rf"<svg[^>]*{label}", page)
    assert float(curve[1]) < 0.6 * float(curve[0])
    assert "histogram" in page
    assert re.search(r"[▁▂▃▄▅▆▇█]{4}", page)
    assert "<script" not in page
    found = json.loads((pytester.path / "found.json").read_text())
    text = json.dumps(found)
    for words in ("non-finite-forward", "super().forward(x).log()", '"losses"', '"histogram"'):
        assert words in text, words


class Peeks(Net):
    """Keeps what it sees by a hook, as one does to look into a model."""

    def __init__(self, broken):
        super().__init__(broken)
        self.seen = []

    def forward(self, x):
        if self.broken:
            self.body.register_forward_hook(lambda *given: None)  # BUG
        return super().forward(x)


class Keeps(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.seen = []

    def middle(self, h):
        if self.broken:
            self.seen.append(h)  # BUG
        return h


def anomaly(broken):
    def make():
        if broken:
            torch.autograd.set_detect_anomaly(True)  # BUG
        return Net()

    return contract(make)


ROW_45 = (
    Symptom(name="anomaly mode", make=anomaly, checks=("rng-hygiene",), code="anomaly-left-on", status="suspicious",
            says=("every backward checks all its results", "delete it on line")),
    Symptom(name="hooks", make=lambda b: contract(lambda: Peeks(b), optimizer=sgd), checks=("step-leak",),
            code="leak-hooks", says=("hook",)),
    Symptom(name="activations that are kept", make=lambda b: contract(lambda: Keeps(b), optimizer=sgd),
            checks=("step-leak",), code="leak-graph", says=("seen",)),
    Symptom(name="print", make=reads("print"), says=("print()", "(line"), **WAITS),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_45))
def test_row_45(symptom: Symptom) -> None:
    """What was put in to debug by hand is found."""
    try:
        holds(symptom)
        assert not torch.is_anomaly_enabled()
    finally:
        torch.autograd.set_detect_anomaly(False)


def everything(model: nn.Module) -> dict[str, Any]:
    """Return what debugging by hand would change."""
    hooks = [name for name in vars(modules) if re.fullmatch(r"_global_\w*hooks\w*", name)]
    return {
        "hooks": (count_hooks(model), {name: len(getattr(modules, name) or ()) for name in hooks}),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "anomaly": torch.is_anomaly_enabled(),
        "grad": (torch.is_grad_enabled(), [p.grad for p in model.parameters()]),
        "training": [module.training for module in model.modules()],
        "values": {name: value.tolist() for name, value in model.state_dict().items()},
        "random": torch.get_rng_state().tolist(),
    }


class Spoilt(Net):
    def middle(self, h):
        return torch.log(h - 1) if self.broken else h


@pytest.mark.parametrize("broken", [True, False])
def test_row_45_leaves_nothing(broken: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """The plugin's own hooks, modes and prints are gone, also where a failure was looked into."""
    model = Spoilt(broken)
    before = everything(model)
    batch = ((torch.randn(5, 8),), torch.tensor([0, 1, 2, 0, 1]))
    before["random"] = torch.get_rng_state().tolist()
    report = Contract(model=model, batch=batch, loss=F.cross_entropy).check(
        ["backward", "gradients-exist", "gradients-finite", "signal-propagation", "step-leak"]
    )
    assert bool(told(report)) is broken
    assert everything(model) == before
    assert capfd.readouterr() == ("", "")
