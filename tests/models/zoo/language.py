"""Language models of other families: recurrences, mixtures, long inputs, layouts and tables."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.zoo import ids, labels, public
from tests.models.zoo.text import TINY, causal, hugging, labelled

GROUPED = {"num_key_value_heads": 1, "head_dim": 8}


@public("transformers")
def deberta_v2() -> dict[str, Any]:
    return labelled("DebertaV2ForSequenceClassification", "DebertaV2Config",
                    relative_attention=True, position_buckets=4, max_relative_positions=8,
                    pos_att_type=["p2c", "c2p"], share_att_key=True)  # fmt: skip


@public("transformers")
def nystromformer() -> dict[str, Any]:
    return labelled("NystromformerForSequenceClassification", "NystromformerConfig",
                    num_landmarks=4, segment_means_seq_len=12)  # fmt: skip


@public("transformers")
def conv_bert() -> dict[str, Any]:
    return labelled("ConvBertForSequenceClassification", "ConvBertConfig", embedding_size=16,
                    head_ratio=2, conv_kernel_size=3)  # fmt: skip


@public("transformers")
def mobile_bert() -> dict[str, Any]:
    return labelled("MobileBertForSequenceClassification", "MobileBertConfig", embedding_size=16,
                    intra_bottleneck_size=8, true_hidden_size=8)  # fmt: skip


@public("transformers")
def f_net() -> dict[str, Any]:
    return labelled("FNetForSequenceClassification", "FNetConfig")


@public("transformers")
def modern_bert() -> dict[str, Any]:
    tokens = ids(3, 12)
    return hugging("ModernBertForMaskedLM", "ModernBertConfig",
                   {"input_ids": tokens, "labels": tokens.clone()}, **TINY,
                   local_attention=4, cls_token_id=1, sep_token_id=2)  # fmt: skip


@public("transformers")
def luke() -> dict[str, Any]:
    tokens = ids(3, 12)
    return hugging("LukeForEntityClassification", "LukeConfig",
                   {"input_ids": tokens, "entity_ids": ids(3, 1, high=8),
                    "entity_position_ids": torch.arange(3).repeat(3, 1, 1),
                    "labels": labels(3)}, **TINY, entity_vocab_size=8,
                   entity_emb_size=8)  # fmt: skip


@public("transformers")
def reformer() -> dict[str, Any]:
    tokens = ids(2, 16)
    return hugging("ReformerModelWithLMHead", "ReformerConfig",
                   {"input_ids": tokens, "labels": tokens.clone()}, vocab_size=50, hidden_size=16,
                   num_attention_heads=2, attention_head_size=8, feed_forward_size=32,
                   attn_layers=["local", "lsh"], axial_pos_shape=[4, 4], axial_pos_embds_dim=[8, 8],
                   num_buckets=2, num_hashes=1, lsh_attn_chunk_length=4, is_decoder=True,
                   local_attn_chunk_length=4, max_position_embeddings=16)  # fmt: skip


@public("transformers")
def long_t5() -> dict[str, Any]:
    return hugging("LongT5ForConditionalGeneration", "LongT5Config",
                   {"input_ids": ids(3, 16), "labels": ids(3, 6)}, vocab_size=50, d_model=16,
                   d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2, local_radius=3,
                   global_block_size=4, encoder_attention_type="transient-global",
                   decoder_start_token_id=0)  # fmt: skip


@public("transformers")
def rwkv() -> dict[str, Any]:
    return causal("RwkvForCausalLM", "RwkvConfig", attention_hidden_size=16)


@public("transformers")
def qwen3_next() -> dict[str, Any]:
    return causal("Qwen3NextForCausalLM", "Qwen3NextConfig", **GROUPED, linear_key_head_dim=8,
                  linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2,
                  num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                  shared_expert_intermediate_size=16,
                  layer_types=["linear_attention", "full_attention"])  # fmt: skip


@public("transformers")
def falcon_h1() -> dict[str, Any]:
    return causal("FalconH1ForCausalLM", "FalconH1Config", **GROUPED, mamba_d_ssm=32,
                  mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=4)  # fmt: skip


@public("transformers")
def zamba2() -> dict[str, Any]:
    return causal("Zamba2ForCausalLM", "Zamba2Config", mamba_d_state=8, n_mamba_heads=4,
                  mamba_headdim=8, chunk_size=4, layers_block_type=["mamba", "hybrid"],
                  num_mem_blocks=1, adapter_rank=4, use_mem_eff_path=False)  # fmt: skip


@public("transformers")
def lfm2() -> dict[str, Any]:
    return causal("Lfm2ForCausalLM", "Lfm2Config", num_key_value_heads=1,
                  layer_types=["conv", "full_attention"], block_multiple_of=8)  # fmt: skip


@public("transformers")
def gemma3n() -> dict[str, Any]:
    return causal("Gemma3nForCausalLM", "Gemma3nTextConfig", **GROUPED, vocab_size_per_layer_input=50,
                  hidden_size_per_layer_input=8, laurel_rank=4, num_kv_shared_layers=0,
                  altup_num_inputs=2, activation_sparsity_pattern=[0.5, 0.0],
                  layer_types=["sliding_attention", "full_attention"], sliding_window=4)  # fmt: skip


@public("transformers")
def diff_llama() -> dict[str, Any]:
    return causal("DiffLlamaForCausalLM", "DiffLlamaConfig", num_key_value_heads=2)


@public("transformers")
def doge() -> dict[str, Any]:
    return causal("DogeForCausalLM", "DogeConfig", num_key_value_heads=1, is_moe=True,
                  num_experts=4, num_experts_per_tok=2)  # fmt: skip


@public("transformers")
def llama4() -> dict[str, Any]:
    return causal("Llama4ForCausalLM", "Llama4TextConfig", **GROUPED, intermediate_size_mlp=32,
                  num_local_experts=2, attention_chunk_size=4)  # fmt: skip


@public("transformers")
def minimax() -> dict[str, Any]:
    return causal("MiniMaxForCausalLM", "MiniMaxConfig", **GROUPED, num_local_experts=2,
                  block_size=4, layer_types=["linear_attention", "full_attention"])  # fmt: skip


@public("transformers")
def jet_moe() -> dict[str, Any]:
    return causal("JetMoeForCausalLM", "JetMoeConfig", num_key_value_heads=1, kv_channels=8,
                  num_local_experts=4, num_experts_per_tok=2)  # fmt: skip


@public("transformers")
def nemotron_h() -> dict[str, Any]:
    return causal("NemotronHForCausalLM", "NemotronHConfig", **GROUPED, hybrid_override_pattern="M*",
                  mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=1,
                  chunk_size=4)  # fmt: skip


@public("transformers")
def hrm() -> dict[str, Any]:
    return causal("HrmTextForCausalLM", "HrmTextConfig")


@public("transformers")
def bloom() -> dict[str, Any]:
    return causal("BloomForCausalLM", "BloomConfig", n_layer=2, n_head=2)


@public("transformers")
def mpt() -> dict[str, Any]:
    tokens = ids(3, 12)
    return hugging("MptForCausalLM", "MptConfig", {"input_ids": tokens, "labels": tokens.clone()},
                   vocab_size=50, d_model=16, n_heads=2, n_layers=2, max_seq_len=32)  # fmt: skip


@public("transformers")
def xlm() -> dict[str, Any]:
    return hugging("XLMForSequenceClassification", "XLMConfig",
                   {"input_ids": ids(4, 12), "labels": labels(4)}, vocab_size=50, emb_dim=16,
                   n_layers=2, n_heads=2, max_position_embeddings=32, num_labels=5)  # fmt: skip


@public("transformers")
def bros() -> dict[str, Any]:
    return hugging("BrosForTokenClassification", "BrosConfig",
                   {"input_ids": ids(3, 8), "bbox": torch.rand(3, 8, 4), "labels": labels(3, 8)},
                   **{**TINY, "hidden_size": 64})  # fmt: skip


@public("transformers")
def tapas() -> dict[str, Any]:
    types = torch.stack([torch.randint(0, 2, (3, 8)) for _ in range(7)], -1)
    return hugging("TapasForSequenceClassification", "TapasConfig",
                   {"input_ids": ids(3, 8), "token_type_ids": types, "labels": labels(3)},
                   **TINY, type_vocab_sizes=[3, 16, 16, 2, 2, 4, 4])  # fmt: skip


@public("transformers")
def perceiver() -> dict[str, Any]:
    return hugging("PerceiverForMaskedLM", "PerceiverConfig",
                   {"inputs": ids(3, 12), "labels": ids(3, 12)}, vocab_size=50, num_latents=4,
                   d_latents=16, d_model=16, num_blocks=1, num_self_attends_per_block=1,
                   num_self_attention_heads=2, num_cross_attention_heads=2,
                   qk_channels=16, v_channels=16, max_position_embeddings=12)  # fmt: skip


@public("transformers")
def decision() -> dict[str, Any]:
    batch = {"states": torch.randn(3, 5, 4), "actions": torch.randn(3, 5, 2),
             "rewards": torch.randn(3, 5, 1), "returns_to_go": torch.randn(3, 5, 1),
             "timesteps": torch.arange(5).repeat(3, 1)}  # fmt: skip
    fields = hugging("DecisionTransformerModel", "DecisionTransformerConfig", batch, state_dim=4,
                     act_dim=2, hidden_size=16, max_ep_len=16, n_layer=1, n_head=2)  # fmt: skip
    return {**fields, "batch": (batch, torch.randn(3, 5, 2)),
            "loss": lambda o, t: (o.action_preds - t).pow(2).mean()}  # fmt: skip
