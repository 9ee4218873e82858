"""Lightning's own Trainer runs under contract: its loop, precision, accumulation, clipping and schedules."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, DeclarationError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    L: Any = pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore")  # what public packages warn of is theirs
X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3
CHECKS = (
    "step-protocol", "scheduler-order", "gradient-clipping", "evaluation-leaves-trace", "trainer-runs",
    "trainer-accumulation", "trainer-labels", "optimizer-coverage", "split-hygiene", "samples-valid",
)  # fmt: skip


def rows(shift: float = 0.0) -> Any:
    data = torch.utils.data.TensorDataset(X + shift, Y)
    return torch.utils.data.DataLoader(data, batch_size=6)


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def train_dataloader(self) -> Any:
        return rows()

    def val_dataloader(self) -> Any:
        return rows(100.0)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
        each = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": each}


class PerEpoch(Net):
    """A schedule of all steps, stepped with every epoch."""

    def configure_optimizers(self) -> Any:
        made = super().configure_optimizers()
        made["lr_scheduler"].pop("interval")
        return made


class PerStep(Net):
    """A schedule of epochs, stepped with every batch."""

    interval = "step"

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.1)
        each = {"scheduler": schedule, "interval": self.interval}
        return {"optimizer": optimizer, "lr_scheduler": each}


class Milestones(PerStep):
    interval = "epoch"


class Plateau(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
        }


class Manual(Net):
    zeroes = True

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        if self.zeroes:
            optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Unzeroed(Manual):
    zeroes = False


class Unclipped(Net):
    def configure_gradient_clipping(self, optimizer: Any, *limits: Any, **more: Any) -> None:
        """Clips nothing."""


class LeftInEval(Net):
    def on_train_batch_end(self, *given: Any) -> None:
        self.eval()


class Zeroed(Net):
    def on_after_backward(self) -> None:
        self.zero_grad()


class Headless(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.body.parameters())


class Unlabelled(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch[0]).square().mean()


class Tokens(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Embedding(8, 8), nn.Linear(8, 8)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(batch[0])).transpose(1, 2), batch[1])


def trainer(**told: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    made = {"max_epochs": 20, "accelerator": "cpu", "enable_model_summary": False, **quiet, **told}
    return L.Trainer(**made)


def found(model: Any, told: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    report = Contract(model=model, trainer=trainer(**(told or {})), **fields).check(CHECKS)
    assert not [
        f.summary for f in report.findings if f.code in ("internal-error", "loop-unavailable")
    ]
    return {f.code: f for f in report.findings if f.status == "violated"}


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Net(), {}),
        (Net, {"gradient_clip_val": 0.5}),
        (Net(), {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}),
        (Milestones(), {}),
        (Plateau(), {}),
        (Manual(), {}),
    ],
    ids=["plain", "factory-clipped", "bfloat16-accumulated", "epochs", "plateau", "manual"],
)  # fmt: skip
def test_a_right_module_passes(model: Any, told: dict[str, Any]) -> None:
    assert found(model, told) == {}


@pytest.mark.parametrize(
    ("cls", "told", "code", "line"),
    [
        (PerEpoch, {}, "schedule-differs", ""),
        (PerStep, {}, "rate-vanishes", "StepLR(optimizer, 10"),
        (Unzeroed, {}, "zero-grad-missing", "self.manual_backward("),
        (Unclipped, {"gradient_clip_val": 0.5}, "not-clipped", "def configure_gradient_clipping"),
        (LeftInEval, {}, "eval-mode-left", ""),
        (Zeroed, {}, "zero-grad-before-step", "self.zero_grad()"),
        (Headless, {}, "optimizer-missing", "self.body.parameters()"),
        (Unlabelled, {}, "input-ignored", "def training_step"),
    ],
)
def test_a_wrong_one_is_found_at_its_line(cls: Any, told: Any, code: str, line: str) -> None:
    codes = found(cls(), told)
    assert code in codes
    place = codes[code].location
    assert place is not None
    assert place.file == __file__
    assert line in place.text


def test_unequal_targets_of_accumulated_batches_are_found() -> None:
    ids = torch.randint(1, 8, (8, 6), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[4:, 2:] = -100
    wrong = found(Tokens(), {"accumulate_grad_batches": 2}, batch=(ids, labels))
    assert "different gradient from the whole batch" in wrong["accumulation-scale"].summary


def test_the_module_is_as_it_was_and_no_file_is_written(tmp_path: Any) -> None:
    model, own = Net(), trainer(default_root_dir=str(tmp_path), logger=True)
    names, before = set(vars(model)), {k: v.clone() for k, v in model.state_dict().items()}
    Contract(model=model, trainer=own).check(["step-protocol"])
    assert set(vars(model)) == names
    assert model._trainer is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert own.global_step == 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_lacking_is_said() -> None:
    with pytest.raises(DeclarationError, match=r"holds no module before fit\(\)"):
        Contract(trainer=trainer())
    with pytest.raises(DeclarationError, match="trains a LightningModule; got Linear"):
        Contract(trainer=trainer(), model=nn.Linear(4, 3), batch=((X,), Y))
