"""A trainer's own loop is what the checks of the training step watch; here one of a third party, told of by an adapter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, DeclarationError, adapters
from pytest_torchcheck.adapters import Adapted, Loop, LoopUnavailableError, Scheduled

IDS = torch.randint(1, 8, (8, 6), generator=torch.Generator().manual_seed(0))
X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


class Trainer:
    """Trains as it is told; every attribute is a way to be wrong."""

    def __init__(self, *, window: int = 1, **told: Any) -> None:
        self.window = window
        self.told = {"zero": True, "divide": window, "clip": True, "epochs": 10, **told}

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        output = model(*batch.args, **{k: v for k, v in batch.kwargs.items() if k == "ids"})
        if self.told.get("ignores"):
            return output.square().mean()
        labels = batch.kwargs.get("labels", batch.targets)
        ahead = self.told.get("ahead", 0)
        if output.dim() == 3:
            output, labels = output[:, : output.shape[1] - ahead], labels[:, ahead:]
        return F.cross_entropy(output.flatten(0, -2), labels.flatten())

    def run(self, model: Any, batches: Any, count: int, watch: Any, *, window: int) -> None:
        if self.told.get("elsewhere"):
            raise LoopUnavailableError("it trains elsewhere")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, self.told.get("every", 1000))
        for place in range(count):
            watch.before(place)
            if self.told["zero"] and place % window == 0:
                optimizer.zero_grad()
            loss = self.loss(model, batches(place))
            divide = window if self.told["divide"] == self.window else self.told["divide"]
            (loss / divide).backward()
            if (place + 1) % window == 0:
                if self.told["clip"]:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                if self.told.get("evaluates"):
                    model.eval()
            watch.after(place, loss.detach())
        steps = self.told["epochs"] * 100
        calls = {"calls": steps, "otherwise": self.told["epochs"]}
        watch.scheduled([Scheduled(scheduler=scheduler, interval="step", **calls)])


class Adapter:
    def recognises(self, declared: Any) -> bool:
        return isinstance(declared.fields.get("trainer"), Trainer)

    def adapt(self, declared: Any) -> Adapted:
        from pytest_torchcheck import promises

        trainer = declared.trainer
        loop = Loop(
            run=trainer.run, window=trainer.window, name="Trainer", defined=Trainer.loss,
            graded=lambda model, batch: (trainer.loss(model, batch), None), causal=False,
        )  # fmt: skip

        def call(model: nn.Module, batch: Any) -> Any:
            return {"loss": trainer.loss(model, batch)} if model.training else model(*batch.args)

        made = {"loss": "output", "promises": (promises.ClipsGradients(0.5),)}
        return Adapted(fields=made, call=call, loop=loop)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_places", lambda: {"own": f"{__name__}:Adapter"})


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def tokens() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 8))


CHECKS = (
    "step-protocol", "scheduler-order", "gradient-clipping", "evaluation-leaves-trace", "graph-kept", "trainer-runs",
    "trainer-accumulation", "trainer-labels",
)  # fmt: skip


def found(trainer: Trainer, **fields: Any) -> dict[str, Any]:
    given = {"model": net(), "batch": ((X,), Y), **fields}
    report = Contract(trainer=trainer, **given).check(CHECKS)
    return {f.code: f for f in report.findings if f.status in ("violated", "suspicious") or f.code == "internal-error"}  # fmt: skip


@pytest.mark.parametrize("window", [1, 2])
def test_a_right_trainer_passes(window: int) -> None:
    assert found(Trainer(window=window)) == {}


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({"zero": False}, "zero-grad-missing"),
        ({"clip": False}, "not-clipped"),
        ({"every": 5}, "rate-vanishes"),
        ({"evaluates": True}, "eval-mode-left"),
        ({"ignores": True}, "input-ignored"),
        ({"window": 2, "divide": 1}, "accumulation-scale"),
    ],
)
def test_a_wrong_one_is_found(told: dict[str, Any], code: str) -> None:
    codes = found(Trainer(**told))
    assert code in codes
    assert codes[code].status == "violated"
    place = codes[code].location
    assert place is not None
    assert place.file == __file__


def test_a_mean_of_means_over_unequal_targets_is_found() -> None:
    labels = IDS.clone()
    labels[4:, 2:] = -100
    wrong = found(Trainer(window=2), model=tokens(), batch=((IDS,), labels))
    assert "different gradient from the whole batch" in wrong["accumulation-scale"].summary
    assert "valid targets 24, 8" in wrong["accumulation-scale"].observed


def test_labels_of_padding_that_count_are_found() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tokens()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(ids)

    mask = torch.ones_like(IDS)
    mask[4:, 3:] = 0
    batch = {"ids": IDS, "attention_mask": mask, "labels": IDS}
    assert "padding-counted" in found(Trainer(), model=Named(), batch=batch)
    ignored = {**batch, "labels": IDS.masked_fill(mask == 0, -100)}
    assert found(Trainer(), model=Named(), batch=ignored) == {}


def test_a_loop_that_cannot_run_is_inconclusive() -> None:
    report = Contract(trainer=Trainer(elsewhere=True), model=net(), batch=((X,), Y)).check(
        ["step-protocol"]
    )
    (finding,) = report.findings
    assert (finding.status, finding.code) == ("inconclusive", "loop-unavailable")
    assert "it trains elsewhere" in finding.summary


def test_nothing_of_the_model_changes() -> None:
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found(Trainer(evaluates=True), model=model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


def test_what_is_no_trainer_is_said() -> None:
    with pytest.raises(DeclarationError, match=r"no adapter knows how a builtins\.object trains"):
        Contract(trainer=object(), model=net(), batch=((X,), Y))
    with pytest.raises(DeclarationError, match="leave train_step= out"):
        Contract(trainer=Trainer(), model=net(), batch=((X,), Y), train_step=lambda *_: None)
