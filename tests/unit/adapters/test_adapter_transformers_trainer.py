"""The Hugging Face Trainer's own loop runs under contract, with its collator, accumulation, precision and schedules."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pytest_torchcheck import Contract

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")  # what public packages warn of is theirs
TEXT = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CHECKS = (
    "step-protocol", "scheduler-order", "gradient-clipping", "evaluation-leaves-trace", "trainer-runs",
    "trainer-accumulation", "trainer-labels", "optimizer-coverage", "collate-pairing", "samples-valid",
)  # fmt: skip
Base: Any = transformers.Trainer


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> Any:
        generator = torch.Generator().manual_seed(self.first + place)
        ids = torch.randint(3, 64, (5 + place % 4,), generator=generator)
        return {"input_ids": ids.tolist(), "labels": place % 3, "text": "a column that is removed"}


def padded(rows: list[Any]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {**padded(rows), "labels": torch.tensor([row["labels"] for row in rows])}


def rolled(rows: list[Any]) -> dict[str, torch.Tensor]:
    made = collate(rows)
    return {**made, "labels": made["labels"].roll(1)}


def words(rows: list[Any]) -> dict[str, torch.Tensor]:
    made = padded(rows)
    return {**made, "labels": made["input_ids"].masked_fill(made["attention_mask"] == 0, -100)}


def words_and_padding(rows: list[Any]) -> dict[str, torch.Tensor]:
    made = padded(rows)
    return {**made, "labels": made["input_ids"].clone()}


def shifted(rows: list[Any]) -> dict[str, torch.Tensor]:
    made = words(rows)
    ignored = torch.full_like(made["labels"][:, :1], -100)
    return {**made, "labels": torch.cat([made["labels"][:, 1:], ignored], 1)}


class Unlabelled(Base):  # type: ignore[misc]
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        inputs.pop("labels")
        output = model(**inputs)
        loss = output.logits.square().mean()
        return (loss, output) if return_outputs else loss


class Mean(Base):  # type: ignore[misc]
    """Knows nothing of ``num_items_in_batch``, so that nobody divides by the accumulated batches."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        output = model(**inputs)
        loss = self.of(output.logits, labels, num_items_in_batch)
        return (loss, output) if return_outputs else loss

    def of(self, logits: Any, labels: Any, count: Any) -> Any:
        return F.cross_entropy(logits, labels)


class Counted(Mean):
    def of(self, logits: Any, labels: Any, count: Any) -> Any:
        return F.cross_entropy(logits, labels, reduction="sum") / (count or len(labels))


class Stepping(Base):  # type: ignore[misc]
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.optimizer.step()
        return loss


class HeadOnly(Base):  # type: ignore[misc]
    def create_optimizer(self, model: Any = None) -> Any:
        self.optimizer = torch.optim.AdamW(self.model.classifier.parameters(), lr=1e-3)
        return self.optimizer


def gradients_off(prediction: Any) -> dict[str, float]:
    torch.set_grad_enabled(False)
    return {"accuracy": 1.0}


def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**TEXT, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))


def by_epochs(gamma: float) -> dict[str, Any]:
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=gamma)
    return {"model": model, "optimizers": (optimizer, schedule)}


def made(tmp_path: Any, cls: Any = Base, told: Any = None, **fields: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, report_to=[], use_cpu=True, **(told or {})
    )  # fmt: skip
    given = {"train_dataset": Rows(), "eval_dataset": Rows(1000), "data_collator": collate, **fields}  # fmt: skip
    return cls(model=given.pop("model", None) or bert(), args=arguments, **given)


def found(trainer: Any) -> dict[str, Any]:
    report = Contract(trainer=trainer).check(CHECKS)
    assert not [
        f.summary for f in report.findings if f.code in ("internal-error", "loop-unavailable")
    ]
    return {f.code: f for f in report.findings if f.status == "violated"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cls": Counted, "told": {"gradient_accumulation_steps": 4, "bf16": True}},
        {"model": llama, "told": {"gradient_accumulation_steps": 2}, "data_collator": words},
        {**by_epochs(0.999)},
    ],
    ids=["plain", "counted-bfloat16", "causal-accumulated", "own-schedule"],
)
def test_a_right_trainer_passes(tmp_path: Any, fields: dict[str, Any]) -> None:
    if fields.get("model") is llama:
        fields = {**fields, "model": llama()}
    trainer = made(tmp_path, **fields)
    assert found(trainer) == {}
    assert trainer.state.global_step == 0
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "code", "line"),
    [
        ({"cls": Unlabelled}, "input-ignored", "def compute_loss"),
        ({"cls": Mean, "told": {"gradient_accumulation_steps": 4}}, "accumulation-scale", "def compute_loss"),
        ({"cls": Stepping}, "zero-grad-missing", "super().training_step"),
        ({"cls": HeadOnly}, "optimizer-missing", "self.model.classifier.parameters()"),
        ({"compute_metrics": gradients_off}, "gradients-left-off", "torch.set_grad_enabled(False)"),
        ({"data_collator": rolled}, "collate-mixes-labels", "roll(1)"),
        ({"model": llama, "data_collator": words_and_padding}, "padding-counted", "def words_and_padding"),
        ({"model": llama, "data_collator": shifted}, "label-shift", "def shifted"),
        ({**by_epochs(0.1)}, "rate-vanishes", "StepLR(optimizer, 3"),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" in value else None,
)  # fmt: skip
def test_a_wrong_one_is_found_at_its_line(
    tmp_path: Any, fields: dict[str, Any], code: str, line: str
) -> None:
    if fields.get("model") is llama:
        fields = {**fields, "model": llama()}
    codes = found(made(tmp_path, **fields))
    assert code in codes
    place = codes[code].location
    assert place is not None
    assert place.file == __file__
    assert line in place.text


def test_a_loss_of_the_library_that_ignores_the_count_is_only_suspicious(tmp_path: Any) -> None:
    contract = Contract(trainer=made(tmp_path, told={"gradient_accumulation_steps": 2}))
    (finding,) = contract.check(["trainer-accumulation"]).findings
    assert finding.status in ("suspicious", "passed")


def test_the_model_is_as_it_was(tmp_path: Any) -> None:
    trainer = made(tmp_path, told={"bf16": True})
    model = trainer.model
    names = set(vars(model))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Contract(trainer=trainer).check(["step-protocol"])
    assert set(vars(model)) == names
    assert "forward" not in vars(model)
    assert trainer.optimizer is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
