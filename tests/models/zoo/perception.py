"""Detection, sound, pictures with text, and videos."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.models.zoo import ids, labels, public
from tests.models.zoo.text import TINY, hugging
from tests.models.zoo.vision import VISION, classified, image

LISTENER = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "conv_dim": (8, 8), "conv_kernel": (8, 4), "conv_stride": (4, 4),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "pad_token_id": 0,
    "mask_time_prob": 0.0,
}  # fmt: skip
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
SPEAKER = {"vocab_size": 50, "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": 2}  # fmt: skip


def boxes(batch: int = 2, many: int = 2, classes: int = 5) -> list[dict[str, torch.Tensor]]:
    return [{"class_labels": labels(many, classes=classes), "boxes": torch.rand(many, 4) * 0.3 + 0.3}
            for _ in range(batch)]  # fmt: skip


def resnet(**options: Any) -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
                        layer_type="basic", out_features=["stage2", "stage3", "stage4"], **options)  # fmt: skip


@public("transformers")
def deformable_detr() -> dict[str, Any]:
    return hugging("DeformableDetrForObjectDetection", "DeformableDetrConfig",
                   {"pixel_values": image(2, 3, 64), "labels": boxes()}, use_timm_backbone=False,
                   use_pretrained_backbone=False, backbone=None, backbone_config=resnet(),
                   d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
                   decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
                   num_queries=6, num_labels=5, num_feature_levels=3)  # fmt: skip


@public("transformers")
def conditional_detr() -> dict[str, Any]:
    return hugging("ConditionalDetrForObjectDetection", "ConditionalDetrConfig",
                   {"pixel_values": image(2, 3, 64), "labels": boxes()}, use_timm_backbone=False,
                   use_pretrained_backbone=False, backbone=None,
                   backbone_config=resnet(), d_model=32, encoder_layers=1, decoder_layers=2,
                   encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
                   decoder_ffn_dim=32, num_queries=6, num_labels=5)  # fmt: skip


@public("transformers")
def rt_detr() -> dict[str, Any]:
    from transformers import RTDetrResNetConfig

    backbone = RTDetrResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16],
                                  depths=[1, 1, 1, 1], layer_type="basic",
                                  out_features=["stage2", "stage3", "stage4"])  # fmt: skip
    return hugging("RTDetrForObjectDetection", "RTDetrConfig",
                   {"pixel_values": image(2, 3, 64), "labels": boxes()}, backbone_config=backbone,
                   encoder_hidden_dim=16, encoder_in_channels=[8, 16, 16], encoder_layers=1,
                   encoder_ffn_dim=32, encoder_attention_heads=2, d_model=32, num_queries=6,
                   decoder_in_channels=[16, 16, 16], decoder_ffn_dim=32, decoder_layers=1,
                   decoder_attention_heads=2, num_denoising=4, num_labels=5,
                   use_pretrained_backbone=False, hidden_expansion=1.0)  # fmt: skip


@public("transformers")
def mask2former() -> dict[str, Any]:
    from transformers import SwinConfig

    backbone = SwinConfig(image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1],
                          window_size=2, out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip
    batch = {"pixel_values": image(2, 3, 64), "mask_labels": [torch.rand(2, 64, 64).round()] * 2,
             "class_labels": [labels(2), labels(2)]}  # fmt: skip
    return hugging("Mask2FormerForUniversalSegmentation", "Mask2FormerConfig", batch,
                   backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32,
                   encoder_feedforward_dim=32, encoder_layers=1, decoder_layers=2, dim_feedforward=32,
                   num_attention_heads=2, num_queries=5, train_num_points=32, num_labels=5)  # fmt: skip


@public("transformers")
def segformer() -> dict[str, Any]:
    return hugging("SegformerForSemanticSegmentation", "SegformerConfig",
                   {"pixel_values": image(2, 3, 64), "labels": labels(2, 64, 64)},
                   hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], decoder_hidden_size=16,
                   num_attention_heads=[1, 1, 2, 2], num_labels=5)  # fmt: skip


@public("transformers")
def masked_auto_encoder() -> dict[str, Any]:
    return hugging("ViTMAEForPreTraining", "ViTMAEConfig", {"pixel_values": image(3)},
                   **{**VISION, "patch_size": 4}, decoder_hidden_size=16,
                   decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
                   decoder_intermediate_size=32)  # fmt: skip


@public("transformers")
def levit() -> dict[str, Any]:
    return classified("LevitForImageClassification", "LevitConfig", size=64, image_size=64,
                      hidden_sizes=[16, 16, 16], depths=[1, 1, 1], key_dim=[4, 4, 4],
                      num_attention_heads=[2, 2, 2], num_labels=5)  # fmt: skip


@public("transformers")
def mobile_vit() -> dict[str, Any]:
    return classified("MobileViTForImageClassification", "MobileViTConfig", size=64, image_size=64,
                      hidden_sizes=[8, 8, 8], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
                      num_attention_heads=2, num_labels=5)  # fmt: skip


@public("transformers")
def swift_former() -> dict[str, Any]:
    return classified("SwiftFormerForImageClassification", "SwiftFormerConfig", size=64,
                      image_size=64, depths=[1, 1, 1, 1], embed_dims=[8, 8, 8, 8],
                      num_labels=5)  # fmt: skip


@public("transformers")
def hiera() -> dict[str, Any]:
    return classified("HieraForImageClassification", "HieraConfig", size=64, image_size=[64, 64],
                      embed_dim=8, depths=[1, 1, 1], num_heads=[1, 1, 1], query_stride=[2, 2],
                      num_query_pool=2, masked_unit_size=[4, 4], num_labels=5)  # fmt: skip


@public("transformers")
def swin_v2() -> dict[str, Any]:
    return classified("Swinv2ForImageClassification", "Swinv2Config", size=32, image_size=32,
                      patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4,
                      num_labels=5)  # fmt: skip


@public("transformers")
def timesformer() -> dict[str, Any]:
    return hugging("TimesformerForVideoClassification", "TimesformerConfig",
                   {"pixel_values": torch.randn(2, 4, 3, 16, 16), "labels": labels(2)}, **VISION,
                   num_frames=4)  # fmt: skip


@public("transformers")
def contrastive_groups() -> dict[str, Any]:
    return hugging("GroupViTModel", "GroupViTConfig",
                   {"input_ids": ids(3, 8), "pixel_values": image(3, 3, 32), "return_loss": True,
                    "attention_mask": torch.ones(3, 8, dtype=torch.long)},
                   text_config={**SMALL, **SPEAKER},
                   vision_config={**SMALL, "image_size": 32, "patch_size": 4, "depths": [1, 1, 1],
                                  "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 4]},
                   projection_dim=8, projection_intermediate_dim=16)  # fmt: skip


@public("transformers")
def clap() -> dict[str, Any]:
    audio = {"hidden_size": 16, "patch_embeds_hidden_size": 8, "depths": [1, 1], "spec_size": 32,
             "num_attention_heads": [1, 2], "window_size": 4, "num_mel_bins": 16, "patch_size": 4,
             "patch_stride": [4, 4]}  # fmt: skip
    return hugging("ClapModel", "ClapConfig",
                   {"input_ids": ids(3, 8), "input_features": torch.randn(3, 1, 32, 16),
                    "return_loss": True, "is_longer": torch.zeros(3, 1, dtype=torch.bool)},
                   text_config={**SMALL, **SPEAKER, "max_position_embeddings": 20},
                   audio_config=audio, projection_dim=8)  # fmt: skip


@public("transformers")
def captions() -> dict[str, Any]:
    tokens = ids(3, 8)
    return hugging("GitForCausalLM", "GitConfig",
                   {"input_ids": tokens, "pixel_values": image(3), "labels": tokens.clone()},
                   **{**TINY, "num_hidden_layers": 1},
                   vision_config={**SMALL, "image_size": 16, "patch_size": 8})  # fmt: skip


@public("transformers")
def blip() -> dict[str, Any]:
    tokens = ids(3, 8)
    return hugging("BlipForConditionalGeneration", "BlipConfig",
                   {"input_ids": tokens, "pixel_values": image(3), "labels": tokens.clone()},
                   text_config={**SMALL, **SPEAKER, "encoder_hidden_size": 16},
                   vision_config={**SMALL, "image_size": 16, "patch_size": 8})  # fmt: skip


@public("transformers")
def prompted_masks() -> dict[str, Any]:
    return hugging("CLIPSegForImageSegmentation", "CLIPSegConfig",
                     {"input_ids": ids(2, 8), "pixel_values": image(2, 3, 32),
                      "labels": torch.rand(2, 32, 32).round()},
                     text_config={**SMALL, **SPEAKER, "num_hidden_layers": 2},
                     vision_config={**SMALL, "num_hidden_layers": 2, "image_size": 32,
                                    "patch_size": 8},
                     projection_dim=8, reduce_dim=8, extract_layers=[0, 1],
                     decoder_num_attention_heads=2, decoder_intermediate_size=16)  # fmt: skip


@public("transformers")
def wav_lm() -> dict[str, Any]:
    return hugging("WavLMForCTC", "WavLMConfig",
                   {"input_values": torch.randn(2, 320), "labels": labels(2, 3, classes=15) + 1},
                   **LISTENER, num_feat_extract_layers=2, num_buckets=8, max_bucket_distance=16,
                   ctc_zero_infinity=True)  # fmt: skip


@public("transformers")
def sew_d() -> dict[str, Any]:
    return hugging("SEWDForSequenceClassification", "SEWDConfig",
                   {"input_values": torch.randn(2, 320), "labels": labels(2)}, **LISTENER,
                   squeeze_factor=2, max_position_embeddings=32, position_buckets=8,
                   feature_layer_norm_eps=1e-5, num_labels=5, classifier_proj_size=8)  # fmt: skip


@public("transformers")
def contrastive_speech() -> dict[str, Any]:
    mask = torch.zeros(2, 19, dtype=torch.bool)
    mask[:, 3:8] = True
    return hugging("Wav2Vec2ForPreTraining", "Wav2Vec2Config",
                   {"input_values": torch.randn(2, 320), "mask_time_indices": mask,
                    "sampled_negative_indices": torch.randint(0, 19, (2, 19, 3))},
                   **{**LISTENER, "mask_time_prob": 0.1},
                   num_feat_extract_layers=2, codevector_dim=8, num_codevectors_per_group=4,
                   proj_codevector_dim=8, num_negatives=3)  # fmt: skip


@public("transformers")
def whisper() -> dict[str, Any]:
    return hugging("WhisperForConditionalGeneration", "WhisperConfig",
                   {"input_features": torch.randn(2, 8, 32), "labels": ids(2, 6)}, vocab_size=50,
                   num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1,
                   encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
                   decoder_ffn_dim=32, max_source_positions=16, max_target_positions=16,
                   pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
                   begin_suppress_tokens=None, suppress_tokens=None)  # fmt: skip


@public("transformers")
def parakeet() -> dict[str, Any]:
    return hugging("ParakeetForCTC", "ParakeetCTCConfig",
                   {"input_features": torch.randn(2, 64, 16), "labels": labels(2, 3, classes=15) + 1,
                    "attention_mask": torch.ones(2, 64, dtype=torch.long)},
                   vocab_size=20, pad_token_id=0, ctc_zero_infinity=True,
                   encoder_config={**SMALL, "num_mel_bins": 16, "subsampling_factor": 8,
                                   "subsampling_conv_channels": 8, "conv_kernel_size": 5})  # fmt: skip


@public("transformers")
def dac() -> dict[str, Any]:
    fields = hugging("DacModel", "DacConfig", {"input_values": torch.randn(2, 1, 64)},
                     encoder_hidden_size=4, downsampling_ratios=[2, 4], decoder_hidden_size=16,
                     upsampling_ratios=[4, 2], n_codebooks=2, codebook_size=16, codebook_dim=4)  # fmt: skip
    return {**fields, "batch": (fields["batch"][0], torch.randn(2, 64)),
            "loss": lambda o, t: F.l1_loss(o.audio_values[..., :64].squeeze(1), t) + o.loss.mean()}  # fmt: skip
