"""Hugging Face models and their Trainer come under contract as they are."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pytest_torchcheck import Contract, DeclarationError, Labels, Tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # what public packages warn of is theirs
TEXT = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def bert(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, f"Bert{kind}")(transformers.BertConfig(**TEXT, **more))


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=16,
        patch_size=8, num_labels=4,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def broken(contract: Contract, *checks: str) -> list[str]:
    report = contract.check(checks or None)
    return [str(f) for f in report.findings if f.status == "violated" or f.code == "internal-error"]


@pytest.mark.parametrize(
    "model",
    [
        bert("ForSequenceClassification", num_labels=3),
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT)),
        vit(),
    ],
    ids=["bert", "llama", "vit"],
)
def test_a_model_alone_is_enough(model: Any) -> None:
    contract = Contract(model=model)
    assert contract.loss == "output"
    assert broken(contract) == []


def test_specs_come_from_the_config() -> None:
    contract = Contract(model=bert("ForSequenceClassification", num_labels=3))
    assert contract.inputs == {
        "input_ids": Tokens("B T", vocab=64, special=(0, 1, 2)),
        "labels": Labels("B", classes=3),
    }
    assert contract.sizes == {"B": (2, 4), "T": (2, 16)}
    token = Contract(model=bert("ForTokenClassification", num_labels=5))
    assert token.inputs["labels"] == Labels("B T", classes=5)
    masked = Contract(model=bert("ForMaskedLM"))
    assert masked.inputs["labels"] == Tokens("B T", vocab=64)
    assert "labels" not in Contract(model=bert("Model")).inputs
    assert Contract(model=bert("Model")).loss is None
    with pytest.raises(DeclarationError, match="start_positions, end_positions"):
        Contract(model=bert("ForQuestionAnswering"))


def test_a_batch_is_a_dict_with_its_labels() -> None:
    ids = torch.randint(3, 64, (4, 8), generator=torch.Generator().manual_seed(0))
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.arange(4) % 3,
    }
    model = bert("ForSequenceClassification", num_labels=3)
    assert Contract(model=model, batch=batch).loss == "output"
    assert broken(Contract(model=model, batch=batch), "backward", "gradients-exist") == []
    del batch["labels"]
    assert Contract(model=model, batch=batch).loss is None
    declared = Contract(
        model=model, batch=(batch, torch.arange(4)), loss=lambda o, t: o.logits.sum()
    )
    assert declared.loss != "output"


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> Any:
        generator = torch.Generator().manual_seed(place)
        ids = torch.randint(3, 64, (5 + place % 4,), generator=generator)
        return {"input_ids": ids.tolist(), "labels": place % 3}


def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    padded = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    ids = torch.tensor(padded)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def trainer(tmp_path: Any, compute_loss: Any = None, **fields: Any) -> Any:
    pytest.importorskip("accelerate")
    cls: Any = transformers.Trainer
    if compute_loss is not None:
        cls = type("Mine", (cls,), {"compute_loss": compute_loss})
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, report_to=[], use_cpu=True
    )
    model = bert("ForSequenceClassification", num_labels=3)
    given = {"train_dataset": Rows(), "data_collator": collate, **fields}
    return cls(model=model, args=arguments, **given)


def test_a_trainer_is_enough(tmp_path: Any) -> None:
    held = trainer(tmp_path)
    contract = Contract(model=held)
    assert contract.model is held.model
    assert broken(contract) == []
    assert held.optimizer is None  # each check makes its own
    report = contract.check(["optimizer-coverage", "resume", "weights-update"])
    assert len(list(report.with_status("passed"))) == 3


def test_its_own_loss_is_what_trains(tmp_path: Any) -> None:
    def cut(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        labels = inputs.pop("labels")
        pooled = model.bert(**inputs).pooler_output.detach()
        return F.cross_entropy(model.classifier(pooled), labels)

    contract = Contract(model=trainer(tmp_path, cut))
    (finding,) = contract.check(["gradients-exist"]).findings
    assert finding.code == "grad-none"
    assert finding.location is not None
    assert ".pooler_output.detach()" in finding.location.text


def test_a_trainer_without_data_says_so(tmp_path: Any) -> None:
    with pytest.raises(DeclarationError, match="has no train_dataset"):
        Contract(model=trainer(tmp_path, train_dataset=None))
