"""A model with PEFT's adapters comes under contract as the model that it wraps."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = pytest.importorskip("transformers")
    peft: Any = pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore")  # what public packages warn of is theirs
TEXT = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def classifier() -> Any:
    config = transformers.BertConfig(**TEXT, num_labels=3)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return peft.get_peft_model(transformers.BertForSequenceClassification(config), settings)


def prompted() -> Any:
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))
    return peft.get_peft_model(model, settings)


@pytest.mark.parametrize("factory", [classifier, prompted])
@pytest.mark.parametrize("built", [False, True])
def test_specs_and_loss_are_those_of_the_base_model(factory: Any, built: bool) -> None:
    contract = Contract(model=factory() if built else factory)
    assert contract.loss == "output"
    assert {"input_ids", "labels"} <= set(contract.inputs)
    report = contract.check(["backward", "gradients-exist", "weights-update", "batch-independence"])
    assert report.ok, str(report)


def test_weights_that_peft_froze_are_not_asked_to_move() -> None:
    report = Contract(model=classifier).check(["gradients-exist", "weights-update"])
    assert report.ok, str(report)
    model = classifier()
    for name, leaf in model.named_parameters():
        leaf.requires_grad_("lora_A" in name)  # B starts at zero, so A gets no gradient that counts
    assert not Contract(model=model).check(["gradients-exist", "weights-update"]).ok


def test_a_base_that_is_no_transformer_is_declared_as_ever() -> None:
    def tuned() -> Any:
        base = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0"]))

    made = Contract(model=tuned, inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
    assert made.check(["backward", "weights-update"]).ok
    assert torch.is_tensor(tuned()(torch.randn(2, 6)))
