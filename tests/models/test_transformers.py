"""Tiny configurations of transformers' architectures, built offline from their config classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_torchcheck import Contract, promises
from tests.models.population import Population, unused_is_true

transformers = pytest.importorskip("transformers")

POPULATION = Population("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # what public packages warn of is theirs
TEXT = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CAUSAL: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "GPTNeo": {
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "num_heads": 4,
        "window_size": 8,
    },
    "GPTJ": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    "GPTNeoX": {},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "Llama": {"num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 2, "sliding_window": 8},
    "Mixtral": {"num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 2},
    "Qwen2": {"num_key_value_heads": 2},
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "Gemma": {"num_key_value_heads": 2, "head_dim": 8},
    "Gemma2": {"num_key_value_heads": 2, "head_dim": 8},
    "Phi": {},
    "Phi3": {"num_key_value_heads": 2},
    "Falcon": {"num_kv_heads": 4, "new_decoder_architecture": False},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "StableLm": {"num_key_value_heads": 2},
    "Olmo": {"num_key_value_heads": 2},
    "Cohere": {"num_key_value_heads": 2},
    "Starcoder2": {"num_key_value_heads": 2},
    "Granite": {"num_key_value_heads": 2},
    "CodeGen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    "Mamba": {"state_size": 8, "num_hidden_layers": 2},
    "XGLM": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "Persimmon": {},
    "Biogpt": {},
}
MASKED: dict[str, dict[str, Any]] = {
    "Bert": {}, "Roberta": {}, "Electra": {"embedding_size": 32}, "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "Albert": {"embedding_size": 16}, "Deberta": {}, "DebertaV2": {}, "MobileBert": {"intra_bottleneck_size": 32, "embedding_size": 32, "true_hidden_size": 32},
    "MPNet": {}, "Camembert": {}, "XLMRoberta": {}, "Nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 16},
    "ConvBert": {"embedding_size": 32}, "Squeezebert": {"embedding_size": 32, "q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1},
    "FNet": {}, "RoFormer": {"embedding_size": 32}, "ModernBert": {"global_attn_every_n_layers": 1},
}  # fmt: skip
NAMES = {"Biogpt": "BioGpt", "Squeezebert": "SqueezeBert"}


@pytest.fixture(scope="module", autouse=True)
def _counts() -> Any:
    yield
    print(f"\n{POPULATION}")


def hold(name: str, build: Any, batch: Any, **fields: Any) -> None:
    torch.manual_seed(0)
    contract = Contract(model=build, batch=batch, loss="output", **fields)
    wrong = POPULATION.hold(name, contract, truth=unused_is_true(contract))
    assert not wrong, "\n\n".join(str(f) for f in wrong)


def config_of(name: str, extra: dict[str, Any]) -> Any:
    return getattr(transformers, f"{NAMES.get(name, name)}Config")(**{**TEXT, **extra})


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_language_models(name: str) -> None:
    config = config_of(name, CAUSAL[name])
    cls = getattr(transformers, f"{NAMES.get(name, name)}ForCausalLM", None) or getattr(
        transformers, f"{name}LMHeadModel"
    )
    ids = torch.randint(3, 64, (3, 12), generator=torch.Generator().manual_seed(1))
    hold(name, lambda: cls(config), ({"input_ids": ids, "labels": ids.clone()}, None),
         promises=(promises.Causal(input="input_ids", output="logits"),))  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_masked_language_models(name: str) -> None:
    config = config_of(name, MASKED[name])
    cls = getattr(transformers, f"{NAMES.get(name, name)}ForMaskedLM")
    ids = torch.randint(3, 64, (3, 16), generator=torch.Generator().manual_seed(1))
    hold(name, lambda: cls(config), ({"input_ids": ids, "labels": ids.clone()}, None))


def test_t5() -> None:
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    ids = torch.randint(3, 64, (3, 10), generator=torch.Generator().manual_seed(1))
    hold(
        "T5",
        lambda: transformers.T5ForConditionalGeneration(config),
        ({"input_ids": ids, "labels": ids[:, :7].contiguous()}, None),
    )


def test_bart() -> None:
    config = transformers.BartConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
    )  # fmt: skip
    ids = torch.randint(3, 64, (3, 10), generator=torch.Generator().manual_seed(1))
    hold(
        "Bart",
        lambda: transformers.BartForConditionalGeneration(config),
        ({"input_ids": ids, "labels": ids[:, :7].contiguous()}, None),
    )


def test_vit() -> None:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=16,
        patch_size=8,
        num_labels=4,
    )
    hold(
        "ViT",
        lambda: transformers.ViTForImageClassification(config),
        ({"pixel_values": torch.randn(3, 3, 16, 16), "labels": torch.tensor([0, 1, 2])}, None),
    )


def test_convnext() -> None:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=4
    )
    hold(
        "ConvNext",
        lambda: transformers.ConvNextForImageClassification(config),
        ({"pixel_values": torch.randn(3, 3, 32, 32), "labels": torch.tensor([0, 1, 2])}, None),
    )


def test_resnet() -> None:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4
    )
    hold(
        "ResNet",
        lambda: transformers.ResNetForImageClassification(config),
        ({"pixel_values": torch.randn(3, 3, 32, 32), "labels": torch.tensor([0, 1, 2])}, None),
    )


def test_wav2vec2() -> None:
    config = transformers.Wav2Vec2Config(
        vocab_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=(8, 8),
        conv_stride=(4, 4), conv_kernel=(8, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0, num_labels=4, classifier_proj_size=16,
    )  # fmt: skip
    hold(
        "Wav2Vec2",
        lambda: transformers.Wav2Vec2ForSequenceClassification(config),
        ({"input_values": torch.randn(3, 400), "labels": torch.tensor([0, 1, 2])}, None),
    )
