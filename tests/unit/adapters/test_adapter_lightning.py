"""LightningModules come under contract as they are, without a Trainer."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, DeclarationError, Labels

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    L: Any = pytest.importorskip("lightning")
    old: Any = pytest.importorskip("pytorch_lightning")

from pytest_torchcheck.adapters.lightning_hooks import configured

pytestmark = pytest.mark.filterwarnings("ignore")  # what public packages warn of is theirs
X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


class Classifier(L.LightningModule):
    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.cut = nn.Linear(4, 16), nn.Linear(16, 3), cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x).relu()
        return self.head(h.detach() if self.cut else h)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total_steps=self.trainer.estimated_stepping_batches
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Forgets(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.body.parameters())


class Hooked(Classifier):
    """Steps by its own hooks."""

    stepped = 0

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        optimizer.step(closure=optimizer_closure)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        type(self).stepped += 1


class Gan(L.LightningModule):
    """Two optimizers, by hand."""

    def __init__(self, steps: bool = True) -> None:
        super().__init__()
        self.automatic_optimization, self.steps = False, steps
        self.maker = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
        self.judge = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.maker(z)

    def training_step(self, x: torch.Tensor) -> None:
        first, second = self.optimizers()
        real, fake = x.new_ones(len(x), 1), x.new_zeros(len(x), 1)
        made = self(torch.randn_like(x))
        self.toggle_optimizer(first)
        loss = F.binary_cross_entropy_with_logits(self.judge(made), real)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        loss = F.binary_cross_entropy_with_logits(self.judge(x), real)
        loss = loss + F.binary_cross_entropy_with_logits(self.judge(made.detach()), fake)
        second.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(second, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        if self.steps:
            second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"loss": loss})

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters()) for part in (self.maker, self.judge)]


class Loads(Classifier):
    def train_dataloader(self) -> Any:
        data = torch.utils.data.TensorDataset(X, Y)
        return torch.utils.data.DataLoader(data, batch_size=3)


class OldName(old.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        return {"loss": F.cross_entropy(self(batch["x"]), batch["y"])}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class NoForward(old.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def codes(contract: Contract, *checks: str) -> set[str]:
    report = contract.check(checks or None)
    assert not [f.summary for f in report.findings if f.code == "internal-error"]
    return {f.code for f in report.findings if f.status in ("violated", "suspicious")}


@pytest.mark.parametrize(
    "fields",
    [
        {"model": Classifier(), "batch": (X, Y)},
        {"model": lambda: Classifier(), "batch": (X, Y)},
        {"model": Classifier, "inputs": "B 4", "targets": Labels("B", classes=3)},
        {"model": Loads()},
        {"model": Hooked(), "batch": (X, Y)},
        {"model": Gan(), "batch": X},
        {"model": OldName(), "batch": {"x": X, "y": Y}},
    ],
    ids=["module", "factory", "specs", "own-loader", "hooks", "manual", "old-name"],
)
def test_a_module_and_a_batch_are_enough(fields: dict[str, Any]) -> None:
    contract = Contract(**fields)
    assert contract.adapted is not None
    assert contract.adapted.name == "lightning"
    report = contract.check()
    assert [str(f) for f in report.findings if f.status in ("violated", "suspicious")] == []
    held = {f.check for f in report.with_status("passed")}
    assert held >= {"backward", "gradients-exist", "weights-update", "optimizer-coverage", "resume"}
    assert ("overfit" in held) != (fields["model"].__class__ is Gan)


def test_what_the_training_step_cuts_is_found_at_its_line() -> None:
    contract = Contract(model=Classifier(cut=True), batch=(X, Y))
    (finding,) = [f for f in contract.check(["gradients-exist"]).findings if f.code == "grad-none"]
    assert "body.weight" in finding.summary
    assert finding.location is not None
    assert "h.detach() if self.cut" in finding.location.text
    assert codes(contract, "weights-update") == {"weight-static"}


def test_what_the_optimizers_lack_is_found() -> None:
    contract = Contract(model=Forgets, batch=(X, Y))
    (finding,) = contract.check(["optimizer-coverage"]).findings
    assert finding.code == "optimizer-missing"
    assert "head.weight" in finding.summary
    assert finding.location is not None
    assert finding.location.file == __file__  # configure_optimizers, not the adapter


def test_a_manual_step_that_does_not_step_is_found() -> None:
    contract = Contract(model=Gan(steps=False), batch=X)
    (finding,) = contract.check(["weights-update"]).findings
    assert finding.code == "weight-static"
    assert "judge.0.weight" in finding.summary
    assert finding.location is not None
    assert finding.location.file == __file__
    report = contract.check(["overfit"])
    assert [f.status for f in report.findings] == ["not-applicable"]
    assert "optimizes by itself" in report.findings[0].summary


def test_hooks_run_and_nothing_of_the_module_changes() -> None:
    model = Hooked()
    before, names = {k: v.clone() for k, v in model.state_dict().items()}, set(vars(model))
    Hooked.stepped = 0
    assert codes(Contract(model=model, batch=(X, Y)), "weights-update", "gradients-exist") == set()
    assert Hooked.stepped >= 3
    assert set(vars(model)) == names
    assert model._trainer is None
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_module_without_forward_is_trained_all_the_same() -> None:
    contract = Contract(model=NoForward(), batch=(X, Y))
    assert codes(contract, "gradients-exist", "weights-update", "eval-determinism") == set()


def test_a_factory_is_built_to_see_its_class_only_where_it_may_be_one() -> None:
    built = []

    def plain():  # type: ignore[no-untyped-def]
        built.append("plain")
        return nn.Linear(4, 3)

    def inner():  # type: ignore[no-untyped-def]
        built.append("inner")
        return Classifier()

    def outer():  # type: ignore[no-untyped-def]
        return inner()

    def imports():  # type: ignore[no-untyped-def]
        import lightning

        built.append("imports")
        assert lightning
        return Classifier()

    assert Contract(model=plain, batch=(X, None)).adapted is None
    assert Contract(model=inner, batch=(X, Y), loss=F.cross_entropy).optimizer is None
    assert built == []
    for factory in (outer, imports, inner):
        made = Contract(model=factory, batch=(X, Y)).adapted
        assert made is not None
        assert made.name == "lightning"
    assert built == ["inner", "imports", "inner"]


def test_what_the_user_declares_counts() -> None:
    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, targets)

    contract = Contract(model=Classifier(), batch=(X, Y), loss=loss)
    assert contract.loss is loss
    assert contract.adapted is not None
    assert contract.adapted.call is None  # its forward counts, as that of any module
    assert contract.optimizer is not None  # still its own
    assert codes(contract, "weights-update", "loss-sound") == set()


def test_what_is_lacking_is_said() -> None:
    with pytest.raises(DeclarationError, match=r"Classifier has no train_dataloader\(\); give"):
        Contract(model=Classifier())
    with pytest.raises(DeclarationError, match=r"ranks: .*'lightning'"):
        Contract(model=Classifier(), batch=(X, Y), ranks=2)

    class Asks(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch, batch_idx) * self.trainer.strategy.world_size

    (finding,) = Contract(model=Asks(), batch=(X, Y)).check(["backward"]).findings
    assert "a contract runs without a Trainer" in str(finding)


def test_every_form_of_configure_optimizers() -> None:
    layer = nn.Linear(2, 2)

    def parts() -> tuple[Any, Any, Any]:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        step = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return optimizer, step, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    a, step, plateau = parts()
    b, other, _ = parts()
    every = {"scheduler": step, "interval": "step"}
    assert configured(a) == [a]
    assert configured([a, b]) == [a, b]
    assert configured({"optimizer": a}) == [a]
    assert configured({"optimizer": a, "lr_scheduler": step}) == [a]  # steps with the epoch
    assert configured({"optimizer": a, "lr_scheduler": every}) == [a, step]
    assert configured({"optimizer": a, "lr_scheduler": {**every, "frequency": 2}}) == [a]
    assert configured({"optimizer": a, "lr_scheduler": {**every, "scheduler": plateau}}) == [a]
    assert configured(([a, b], [every, other])) == [a, b, step]
    assert configured(({"optimizer": a, "lr_scheduler": every}, {"optimizer": b})) == [a, b, step]
    assert configured(None) == []
