"""Transformers on tokens: transformers, x-transformers, peft and packages of one architecture each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import ids, labels, over_tokens, public

TINY = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_labels": 5,
}  # fmt: skip


def hugging(cls: str, config: str, batch: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the fields for a class of transformers, whose batch holds the labels."""
    import transformers

    built = getattr(transformers, config)(**options)
    return {"model": lambda: getattr(transformers, cls)(built), "batch": (batch, None),
            "loss": "output"}  # fmt: skip


def labelled(cls: str, config: str, **options: Any) -> dict[str, Any]:
    """Return the fields for a classifier of sequences."""
    batch = {"input_ids": ids(4, 12), "labels": labels(4)}
    return hugging(cls, config, batch, **{**TINY, **options})


def causal(cls: str, config: str, **options: Any) -> dict[str, Any]:
    """Return the fields for a causal language model: the inputs are the labels."""
    tokens = ids(3, 12)
    return hugging(cls, config, {"input_ids": tokens, "labels": tokens.clone()},
                   **{**TINY, **options})  # fmt: skip


@public("transformers")
def xlnet() -> dict[str, Any]:
    return hugging("XLNetForSequenceClassification", "XLNetConfig",
                   {"input_ids": ids(4, 12), "labels": labels(4)}, vocab_size=50, d_model=16,
                   n_layer=2, n_head=2, d_inner=32, num_labels=5)  # fmt: skip


@public("transformers")
def longformer() -> dict[str, Any]:
    return labelled("LongformerForSequenceClassification", "LongformerConfig", attention_window=4)


@public("transformers")
def bigbird() -> dict[str, Any]:
    return labelled("BigBirdForSequenceClassification", "BigBirdConfig", block_size=4,
                    attention_type="original_full")  # fmt: skip


@public("transformers")
def canine() -> dict[str, Any]:
    return labelled("CanineForSequenceClassification", "CanineConfig", downsampling_rate=2,
                    num_hash_buckets=32, num_hash_functions=2, local_transformer_stride=4)  # fmt: skip


@public("transformers")
def funnel() -> dict[str, Any]:
    return hugging("FunnelForSequenceClassification", "FunnelConfig",
                   {"input_ids": ids(4, 12), "labels": labels(4)}, vocab_size=50, d_model=16,
                   block_sizes=[1, 1], n_head=2, d_head=8, d_inner=32, num_labels=5)  # fmt: skip


@public("transformers")
def ibert() -> dict[str, Any]:
    return labelled("IBertForSequenceClassification", "IBertConfig", quant_mode=True)


@public("transformers")
def esm() -> dict[str, Any]:
    tokens = ids(3, 12, high=30)
    return hugging("EsmForMaskedLM", "EsmConfig", {"input_ids": tokens, "labels": tokens.clone()},
                   **{**TINY, "vocab_size": 33}, position_embedding_type="rotary",
                   mask_token_id=32)  # fmt: skip


@public("transformers")
def layoutlm() -> dict[str, Any]:
    corner = torch.randint(0, 20, (4, 12, 2))
    boxes = torch.cat([corner, corner + torch.randint(1, 10, (4, 12, 2))], -1)
    return hugging("LayoutLMForTokenClassification", "LayoutLMConfig",
                   {"input_ids": ids(4, 12), "bbox": boxes, "labels": labels(4, 12)},
                   **{**TINY, "max_2d_position_embeddings": 64})  # fmt: skip


@public("transformers")
def distilbert_qa() -> dict[str, Any]:
    return hugging("DistilBertForQuestionAnswering", "DistilBertConfig",
                   {"input_ids": ids(4, 12), "start_positions": labels(4, classes=12),
                    "end_positions": labels(4, classes=12)},
                   vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32,
                   max_position_embeddings=32)  # fmt: skip


@public("transformers")
def bert_multiple_choice() -> dict[str, Any]:
    return hugging("BertForMultipleChoice", "BertConfig",
                   {"input_ids": ids(4, 3, 10), "labels": labels(4, classes=3)}, **TINY)  # fmt: skip


@public("transformers")
def bert_pretraining() -> dict[str, Any]:
    return hugging("BertForPreTraining", "BertConfig",
                   {"input_ids": ids(4, 10), "labels": ids(4, 10),
                    "next_sentence_label": labels(4, classes=2)}, **TINY)  # fmt: skip


@public("transformers")
def pegasus() -> dict[str, Any]:
    return hugging("PegasusForConditionalGeneration", "PegasusConfig",
                   {"input_ids": ids(3, 10), "labels": ids(3, 6)}, vocab_size=50, d_model=16,
                   encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                   decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
                   max_position_embeddings=32, decoder_start_token_id=0)  # fmt: skip


@public("transformers")
def led() -> dict[str, Any]:
    return hugging("LEDForConditionalGeneration", "LEDConfig",
                   {"input_ids": ids(3, 12), "labels": ids(3, 6)}, vocab_size=50, d_model=16,
                   encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                   decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
                   attention_window=4, max_encoder_position_embeddings=32,
                   max_decoder_position_embeddings=32)  # fmt: skip


@public("transformers")
def prophetnet() -> dict[str, Any]:
    return hugging("ProphetNetForConditionalGeneration", "ProphetNetConfig",
                   {"input_ids": ids(3, 10), "labels": ids(3, 6)}, vocab_size=50, hidden_size=16,
                   encoder_ffn_dim=32, decoder_ffn_dim=32, num_encoder_layers=1,
                   num_decoder_layers=1, num_encoder_attention_heads=2,
                   num_decoder_attention_heads=2, max_position_embeddings=32)  # fmt: skip


@public("transformers")
def olmoe() -> dict[str, Any]:
    return causal("OlmoeForCausalLM", "OlmoeConfig", num_experts=4, num_experts_per_tok=2,
                  output_router_logits=True)  # fmt: skip


@public("transformers")
def deepseek_v3() -> dict[str, Any]:
    return causal("DeepseekV3ForCausalLM", "DeepseekV3Config", moe_intermediate_size=16,
                  n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                  kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4,
                  v_head_dim=8, first_k_dense_replace=1, num_key_value_heads=2)  # fmt: skip


@public("transformers")
def mamba2() -> dict[str, Any]:
    return causal("Mamba2ForCausalLM", "Mamba2Config", state_size=4, num_heads=4, head_dim=8,
                  n_groups=1, chunk_size=4)  # fmt: skip


@public("transformers")
def recurrent_gemma() -> dict[str, Any]:
    return causal("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", lru_width=16,
                  attention_window_size=8, num_hidden_layers=3)  # fmt: skip


@public("transformers")
def jamba() -> dict[str, Any]:
    return causal("JambaForCausalLM", "JambaConfig", num_experts=2, num_experts_per_tok=1,
                  attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
                  mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False,
                  num_key_value_heads=1)  # fmt: skip


@public("transformers")
def gpt_oss() -> dict[str, Any]:
    return causal("GptOssForCausalLM", "GptOssConfig", num_local_experts=4,
                  num_experts_per_tok=2, num_key_value_heads=1, head_dim=8,
                  sliding_window=8)  # fmt: skip


@public("transformers")
def switch() -> dict[str, Any]:
    return hugging("SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig",
                   {"input_ids": ids(3, 10), "labels": ids(3, 6)}, vocab_size=50, d_model=16,
                   d_kv=8, d_ff=32, num_layers=2, num_heads=2, num_experts=4,
                   num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
                   expert_capacity=8, decoder_start_token_id=0)  # fmt: skip


@public("peft")
def lora() -> dict[str, Any]:
    return adapted("LoraConfig", r=4, target_modules=["q_proj", "v_proj"])


@public("peft")
def dora() -> dict[str, Any]:
    return adapted("LoraConfig", r=4, target_modules=["q_proj", "v_proj"], use_dora=True)


@public("peft")
def ia3() -> dict[str, Any]:
    return adapted("IA3Config", target_modules=["k_proj", "v_proj", "down_proj"],
                   feedforward_modules=["down_proj"])  # fmt: skip


@public("peft")
def prefix() -> dict[str, Any]:
    return adapted("PrefixTuningConfig", num_virtual_tokens=3)


@public("peft")
def oft() -> dict[str, Any]:
    return adapted("OFTConfig", oft_block_size=4, target_modules=["q_proj", "v_proj"])


def adapted(config: str, **options: Any) -> dict[str, Any]:
    """Return the fields for a small Llama with adapters."""
    import peft

    fields = causal("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2)
    base = fields["model"]
    task = getattr(peft, config)(task_type="CAUSAL_LM", **options)
    return {**fields, "model": lambda: peft.get_peft_model(base(), task)}


@public("x_transformers")
def seq2seq() -> dict[str, Any]:
    from x_transformers import XTransformer

    return {"model": lambda: XTransformer(dim=16, enc_num_tokens=50, enc_depth=1, enc_heads=2,
                enc_max_seq_len=12, dec_num_tokens=50, dec_depth=1, dec_heads=2,
                dec_max_seq_len=12, enc_attn_dim_head=8, dec_attn_dim_head=8),
            "batch": ((ids(4, 10), ids(4, 9)), None), "loss": "output"}  # fmt: skip


@public("x_transformers")
def memory_tokens() -> dict[str, Any]:
    from x_transformers import Encoder, TransformerWrapper

    return {"model": lambda: TransformerWrapper(num_tokens=50, max_seq_len=16, num_memory_tokens=3,
                attn_layers=Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, use_scalenorm=True,
                                    ff_glu=True, alibi_pos_bias=True)),
            "batch": ((ids(4, 12),), ids(4, 12)), "loss": over_tokens}  # fmt: skip


@public("x_transformers")
def continuous() -> dict[str, Any]:
    from x_transformers import ContinuousTransformerWrapper, Decoder

    return {"model": lambda: ContinuousTransformerWrapper(dim_in=4, dim_out=4, max_seq_len=16,
                attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8,
                                    shift_tokens=1, sandwich_norm=True)),
            "batch": ((torch.randn(4, 10, 4),), torch.randn(4, 10, 4)),
            "loss": F.mse_loss}  # fmt: skip


@public("linformer")
def linformer() -> dict[str, Any]:
    from linformer import LinformerLM

    return {"model": lambda: LinformerLM(num_tokens=50, dim=16, seq_len=16, depth=2, heads=2, k=4),
            "batch": ((ids(4, 16),), ids(4, 16)), "loss": over_tokens}  # fmt: skip


@public("performer_pytorch")
def performer_causal() -> dict[str, Any]:
    from performer_pytorch import PerformerLM

    return {"model": lambda: PerformerLM(num_tokens=50, max_seq_len=16, dim=16, depth=2, heads=2,
                dim_head=8, causal=False, generalized_attention=True, reversible=True,
                shift_tokens=True, feature_redraw_interval=3),
            "batch": ((ids(4, 16),), ids(4, 16)), "loss": over_tokens}  # fmt: skip


@public("routing_transformer")
def routing() -> dict[str, Any]:
    from routing_transformer import RoutingTransformerLM

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm = RoutingTransformerLM(num_tokens=50, dim=16, heads=2, depth=2, max_seq_len=32,
                                           window_size=8, n_local_attn_heads=1)  # fmt: skip

        def forward(self, tokens: torch.Tensor) -> Any:
            return self.lm(tokens)

    return {"model": Model, "batch": ((ids(3, 32),), ids(3, 32)),
            "loss": lambda o, t: over_tokens(o[0], t) + o[1].sum()}  # fmt: skip


@public("sinkhorn_transformer")
def sinkhorn() -> dict[str, Any]:
    from sinkhorn_transformer import SinkhornTransformerLM

    return {"model": lambda: SinkhornTransformerLM(num_tokens=50, dim=16, heads=2, depth=2,
                max_seq_len=32, bucket_size=8),
            "batch": ((ids(3, 32),), ids(3, 32)), "loss": over_tokens}  # fmt: skip


@public("mixture_of_experts")
def experts() -> dict[str, Any]:
    from mixture_of_experts import MoE

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.moe, self.head = MoE(dim=16, num_experts=4), nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> Any:
            y, auxiliary = self.moe(x)
            return self.head(x + y), auxiliary

    return {"model": Model, "batch": ((torch.randn(4, 16, 16),), labels(4, 16)),
            "loss": lambda o, t: over_tokens(o[0], t) + o[1]}  # fmt: skip


@public("product_key_memory")
def pkm() -> dict[str, Any]:
    from product_key_memory import PKM

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.head = PKM(16, heads=2, num_keys=8, topk=4), nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + self.memory(x))

    return {"model": Model, "batch": ((torch.randn(4, 10, 16),), labels(4, 10)),
            "loss": over_tokens}  # fmt: skip


@public("sentence_transformers")
def contrastive() -> dict[str, Any]:
    import transformers

    config = transformers.BertConfig(**TINY)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel(config, add_pooling_layer=False)

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            a, b = (F.normalize(self.bert(x).last_hidden_state.mean(1), dim=-1)
                    for x in (first, second))  # fmt: skip
            return F.cross_entropy(20 * a @ b.T, torch.arange(len(a), device=a.device))

    return {"model": Encoder, "batch": ((ids(4, 8), ids(4, 8)), None), "loss": "output"}
