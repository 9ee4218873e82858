"""Images, video and sound: transformers and diffusers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.models.zoo import ids, labels, public
from tests.models.zoo.text import hugging

VISION = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": 16, "patch_size": 8, "num_labels": 5,
}  # fmt: skip


def image(batch: int = 3, channels: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randn(batch, channels, size, size)


def classified(cls: str, config: str, size: int = 16, **options: Any) -> dict[str, Any]:
    """Return the fields for a classifier of images from transformers."""
    return hugging(cls, config, {"pixel_values": image(4, 3, size), "labels": labels(4)}, **options)


@public("transformers")
def beit() -> dict[str, Any]:
    return classified("BeitForImageClassification", "BeitConfig", **VISION,
                      use_relative_position_bias=True)  # fmt: skip


@public("transformers")
def dinov2() -> dict[str, Any]:
    return classified("Dinov2ForImageClassification", "Dinov2Config",
                      **{**VISION, "mlp_ratio": 2})  # fmt: skip


@public("transformers")
def efficientnet() -> dict[str, Any]:
    return classified("EfficientNetForImageClassification", "EfficientNetConfig", size=32,
                      image_size=32, kernel_sizes=[3, 3], in_channels=[8, 8], out_channels=[8, 16],
                      depthwise_padding=[], strides=[1, 2], num_block_repeats=[1, 1],
                      expand_ratios=[1, 2], width_coefficient=0.25, depth_coefficient=1.0,
                      hidden_dim=320, num_labels=5)  # fmt: skip


@public("transformers")
def poolformer() -> dict[str, Any]:
    return classified("PoolFormerForImageClassification", "PoolFormerConfig", size=32,
                      hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2,
                      patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1],
                      num_labels=5)  # fmt: skip


@public("transformers")
def focalnet() -> dict[str, Any]:
    return classified("FocalNetForImageClassification", "FocalNetConfig", size=32, image_size=32,
                      embed_dim=8, depths=[1, 1], focal_levels=[1, 1], focal_windows=[3, 3],
                      num_labels=5)  # fmt: skip


@public("transformers")
def pvt() -> dict[str, Any]:
    return classified("PvtV2ForImageClassification", "PvtV2Config", size=64, image_size=64,
                      hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1],
                      num_attention_heads=[1, 2, 2, 2], num_labels=5)  # fmt: skip


@public("transformers")
def mobilenet() -> dict[str, Any]:
    return classified("MobileNetV2ForImageClassification", "MobileNetV2Config", size=32,
                      depth_multiplier=0.25, image_size=32, num_labels=5)  # fmt: skip


@public("transformers")
def yolos() -> dict[str, Any]:
    boxes = [{"class_labels": labels(2), "boxes": torch.rand(2, 4) * 0.3 + 0.3} for _ in range(3)]
    return hugging("YolosForObjectDetection", "YolosConfig",
                   {"pixel_values": image(3, 3, 32), "labels": boxes},
                   **{**VISION, "image_size": [32, 32], "num_detection_tokens": 5})  # fmt: skip


@public("transformers")
def dpt() -> dict[str, Any]:
    fields = hugging("DPTForDepthEstimation", "DPTConfig", {"pixel_values": image(2, 3, 32)},
                     **{**VISION, "image_size": 32, "num_hidden_layers": 4},
                     backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8],
                     fusion_hidden_size=8, head_in_index=-1)  # fmt: skip
    return {**fields, "batch": (fields["batch"][0], torch.rand(2, 64, 64)),
            "loss": lambda o, t: F.l1_loss(o.predicted_depth, t)}  # fmt: skip


@public("transformers")
def swin2sr() -> dict[str, Any]:
    fields = hugging("Swin2SRForImageSuperResolution", "Swin2SRConfig",
                     {"pixel_values": image(2, 3, 16)}, image_size=16, embed_dim=8, depths=[1, 1],
                     num_heads=[2, 2], window_size=4, upscale=2)  # fmt: skip
    return {**fields, "batch": (fields["batch"][0], image(2, 3, 32)),
            "loss": lambda o, t: F.l1_loss(o.reconstruction, t)}  # fmt: skip


@public("transformers")
def videomae() -> dict[str, Any]:
    mask = torch.zeros(3, 8, dtype=torch.bool)
    mask[:, ::2] = True
    return hugging("VideoMAEForPreTraining", "VideoMAEConfig",
                   {"pixel_values": torch.rand(3, 4, 3, 16, 16), "bool_masked_pos": mask},
                   **VISION, num_frames=4, tubelet_size=2, decoder_hidden_size=16,
                   decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
                   decoder_intermediate_size=32)  # fmt: skip


@public("transformers")
def siglip() -> dict[str, Any]:
    text = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 16}  # fmt: skip
    picture = {key: value for key, value in VISION.items() if key != "num_labels"}
    return hugging("SiglipModel", "SiglipConfig",
                   {"input_ids": ids(4, 8), "pixel_values": image(4), "return_loss": True},
                   text_config=text, vision_config=picture)  # fmt: skip


@public("transformers")
def vilt() -> dict[str, Any]:
    return hugging("ViltForQuestionAnswering", "ViltConfig",
                   {"input_ids": ids(3, 8), "pixel_values": image(3), "labels": torch.rand(3, 5)},
                   **VISION, vocab_size=50, max_position_embeddings=16)  # fmt: skip


@public("transformers")
def hubert() -> dict[str, Any]:
    return hugging("HubertForCTC", "HubertConfig",
                   {"input_values": torch.randn(3, 800), "labels": ids(3, 3, high=20)},
                   vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                   intermediate_size=32, conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 4),
                   num_feat_extract_layers=2, num_conv_pos_embeddings=4,
                   num_conv_pos_embedding_groups=2, mask_time_length=2)  # fmt: skip


@public("transformers")
def encodec() -> dict[str, Any]:
    fields = hugging("EncodecModel", "EncodecConfig", {"input_values": torch.randn(2, 1, 640)},
                     num_filters=4, hidden_size=8, codebook_size=16, codebook_dim=8,
                     upsampling_ratios=[4, 2], num_lstm_layers=1, num_residual_layers=1,
                     target_bandwidths=[24.0], sampling_rate=24000)  # fmt: skip
    return {**fields, "batch": (fields["batch"][0], torch.randn(2, 1, 640)),
            "loss": lambda o, t: F.l1_loss(o.audio_values, t)}  # fmt: skip


@public("transformers")
def speech2text() -> dict[str, Any]:
    return hugging("Speech2TextForConditionalGeneration", "Speech2TextConfig",
                   {"input_features": torch.randn(3, 24, 8), "labels": ids(3, 6)}, vocab_size=50,
                   d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                   decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
                   input_feat_per_channel=8, conv_channels=16, num_conv_layers=1,
                   conv_kernel_sizes=(3,), max_source_positions=32, max_target_positions=16,
                   bos_token_id=1, pad_token_id=0, eos_token_id=2,
                   decoder_start_token_id=1)  # fmt: skip


def sample_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the squared error of diffusers' output object."""
    return F.mse_loss(output.sample, target)


def diffused(cls: str, batch: Any, target: torch.Tensor, **options: Any) -> dict[str, Any]:
    """Return the fields for a model of diffusers."""
    import diffusers

    return {"model": lambda: getattr(diffusers, cls)(**options), "batch": (batch, target),
            "loss": sample_loss}  # fmt: skip


@public("diffusers")
def pixart() -> dict[str, Any]:
    return diffused("PixArtTransformer2DModel",
                    {"hidden_states": image(3, 4, 8), "encoder_hidden_states": torch.randn(3, 5, 8),
                     "timestep": torch.tensor([1, 20, 300]),
                     "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
                    image(3, 8, 8), num_attention_heads=2, attention_head_dim=8, in_channels=4,
                    out_channels=8, num_layers=2, cross_attention_dim=16, sample_size=8,
                    caption_channels=8, use_additional_conditions=False)  # fmt: skip


@public("diffusers")
def sd3() -> dict[str, Any]:
    return diffused("SD3Transformer2DModel",
                    {"hidden_states": image(3, 4, 8), "encoder_hidden_states": torch.randn(3, 5, 8),
                     "pooled_projections": torch.randn(3, 8),
                     "timestep": torch.tensor([1, 20, 300])},
                    image(3, 4, 8), sample_size=8, patch_size=2, in_channels=4, num_layers=2,
                    attention_head_dim=8, num_attention_heads=2, joint_attention_dim=8,
                    caption_projection_dim=16, pooled_projection_dim=8, out_channels=4,
                    pos_embed_max_size=8)  # fmt: skip


@public("diffusers")
def autoencoder_tiny() -> dict[str, Any]:
    return diffused("AutoencoderTiny", (image(2),), image(2), encoder_block_out_channels=(8, 8),
                    decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
                    num_decoder_blocks=(1, 1), latent_channels=4)  # fmt: skip


@public("diffusers")
def autoencoder_sampled() -> dict[str, Any]:
    return diffused("AutoencoderKL", {"sample": image(2), "sample_posterior": True}, image(2),
                    block_out_channels=(8, 8), norm_num_groups=4, latent_channels=2,
                    down_block_types=("DownEncoderBlock2D",) * 2,
                    up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip


@public("diffusers")
def unet3d() -> dict[str, Any]:
    return diffused("UNet3DConditionModel",
                    (torch.randn(2, 4, 3, 8, 8), torch.tensor([1, 20]), torch.randn(2, 5, 8)),
                    torch.randn(2, 4, 3, 8, 8), sample_size=8, in_channels=4, out_channels=4,
                    block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4,
                    down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
                    up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"), cross_attention_dim=8,
                    attention_head_dim=4)  # fmt: skip


@public("diffusers")
def controlnet() -> dict[str, Any]:
    fields = diffused("ControlNetModel",
                      {"sample": image(2, 4, 8), "timestep": torch.tensor([1, 20]),
                       "encoder_hidden_states": torch.randn(2, 5, 8),
                       "controlnet_cond": image(2, 3, 64)},
                      image(2, 8, 4), in_channels=4, block_out_channels=(8, 8),
                      layers_per_block=1, norm_num_groups=4, cross_attention_dim=8,
                      attention_head_dim=4, down_block_types=("CrossAttnDownBlock2D",
                                                              "DownBlock2D"))  # fmt: skip
    return {**fields, "loss": lambda o, t: F.mse_loss(o.mid_block_res_sample, t)
            + sum((r - 1).pow(2).mean() for r in o.down_block_res_samples)}  # fmt: skip


def diffusion(objective: str) -> dict[str, Any]:
    """Return the fields for denoising_diffusion_pytorch on series."""
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D

    return {"model": lambda: GaussianDiffusion1D(Unet1D(dim=8, dim_mults=(1, 2), channels=2,
                attn_heads=2, attn_dim_head=8), seq_length=16, timesteps=20, objective=objective),
            "batch": ((torch.rand(3, 2, 16),), None), "loss": "output"}  # fmt: skip


public("denoising_diffusion", "noise_1d")(lambda: diffusion("pred_noise"))
public("denoising_diffusion", "velocity_1d")(lambda: diffusion("pred_v"))
