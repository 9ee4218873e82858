"""Images, volumes and sound: transformers, diffusers, MONAI, kornia, timm, speechbrain and others."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

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


def medical(name: str, batch: torch.Tensor, target: torch.Tensor, loss: Any, **options: Any) -> Any:
    """Return the fields for a network of MONAI."""
    from monai.networks import nets

    return {"model": lambda: getattr(nets, name)(**options), "batch": ((batch,), target),
            "loss": loss}  # fmt: skip


@public("monai")
def vnet() -> dict[str, Any]:
    return medical("VNet", image(2, 1, 32), labels(2, 32, 32, classes=2), F.cross_entropy,
                   spatial_dims=2, in_channels=1, out_channels=2)  # fmt: skip


@public("monai")
def attention_unet() -> dict[str, Any]:
    return medical("AttentionUnet", image(3, 1, 16), labels(3, 16, 16, classes=3), F.cross_entropy,
                   spatial_dims=2, in_channels=1, out_channels=3, channels=(4, 8),
                   strides=(2,))  # fmt: skip


@public("monai")
def unetr() -> dict[str, Any]:
    return medical("UNETR", image(2, 1, 32), labels(2, 32, 32, classes=3), F.cross_entropy,
                   in_channels=1, out_channels=3, img_size=32, feature_size=4, hidden_size=16,
                   mlp_dim=32, num_heads=2, spatial_dims=2)  # fmt: skip


@public("monai")
def densenet() -> dict[str, Any]:
    return medical("DenseNet", image(4, 1, 16), labels(4), F.cross_entropy, spatial_dims=2,
                   in_channels=1, out_channels=5, init_features=8, growth_rate=4,
                   block_config=(1, 1))  # fmt: skip


@public("monai")
def variational() -> dict[str, Any]:
    def elbo(output: Any, target: torch.Tensor) -> torch.Tensor:
        x, mu, logvar, _ = output
        return F.mse_loss(x, target) - 0.5 * (1 + logvar - mu**2 - logvar.exp()).mean()

    x = image(4, 1, 16)
    return medical("VarAutoEncoder", x, x.clone(), elbo, spatial_dims=2, in_shape=(1, 16, 16),
                   out_channels=1, latent_size=4, channels=(4, 8), strides=(2, 2))  # fmt: skip


@public("monai")
def discriminator() -> dict[str, Any]:
    return medical("Discriminator", image(4, 1, 16), torch.rand(4, 1).round(),
                   F.binary_cross_entropy, in_shape=(1, 16, 16), channels=(4, 8),
                   strides=(2, 2))  # fmt: skip


@public("monai")
def deep_supervision() -> dict[str, Any]:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return sum((F.cross_entropy(o, target) / 2**i for i, o in enumerate(output.unbind(1))))

    return medical("DynUNet", image(2, 1, 32), labels(2, 32, 32, classes=3), loss, spatial_dims=2,
                   in_channels=1, out_channels=3, kernel_size=[3, 3, 3], strides=[1, 2, 2],
                   upsample_kernel_size=[2, 2], filters=[4, 8, 8], deep_supervision=True,
                   deep_supr_num=1)  # fmt: skip


@public("monai")
def vqvae() -> dict[str, Any]:
    x = image(2, 1, 16)
    return medical("VQVAE", x, x.clone(), lambda o, t: F.l1_loss(o[0], t) + o[1], spatial_dims=2,
                   in_channels=1, out_channels=1, channels=(8, 8), num_res_channels=8,
                   num_res_layers=1, downsample_parameters=((2, 4, 1, 1),) * 2,
                   upsample_parameters=((2, 4, 1, 1, 0),) * 2, num_embeddings=16,
                   embedding_dim=4)  # fmt: skip


@public("monai")
def instance_learning() -> dict[str, Any]:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            from monai.networks.nets import MILModel

            backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                                     nn.Flatten())  # fmt: skip
            self.net = MILModel(num_classes=1, mil_mode="mean", pretrained=False,
                                backbone=backbone, backbone_num_features=8)  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    return {"model": Bags, "batch": ((torch.randn(4, 3, 3, 12, 12),), torch.rand(4, 1).round()),
            "loss": F.binary_cross_entropy_with_logits}  # fmt: skip


@public("kornia")
def spatial_transformer() -> dict[str, Any]:
    import kornia

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.angle = nn.Sequential(
                nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 1)
            )
            self.head = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(kornia.geometry.transform.rotate(x, 20 * self.angle(x).squeeze(-1)))

    return {"model": Net, "batch": ((image(4, 1, 12),), labels(4)), "loss": F.cross_entropy}


@public("kornia")
def hardnet() -> dict[str, Any]:
    import kornia

    return {"model": lambda: Siamese(kornia.feature.HardNet(False)),
            "batch": ((image(4, 1, 32), image(4, 1, 32)), None), "loss": "output"}  # fmt: skip


class Siamese(nn.Module):
    """The distance of descriptors of matching patches, with a margin to those of other patches."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        distance = torch.cdist(self.net(first), self.net(second))
        other = distance + 10 * torch.eye(len(distance), device=distance.device)
        return F.relu(1 + distance.diagonal() - other.min(1).values).mean()


@public("kornia")
def augmented() -> dict[str, Any]:
    import kornia.augmentation as K

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.augment = K.AugmentationSequential(
                K.RandomHorizontalFlip(), K.RandomRotation(10.0)
            )
            self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                                     nn.Flatten(), nn.Linear(8, 5))  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(self.augment(x) if self.training else x)

    return {"model": Net, "batch": ((torch.rand(4, 3, 12, 12),), labels(4)),
            "loss": F.cross_entropy}  # fmt: skip


def timm_model(name: str, size: int = 32, **options: Any) -> None:
    """Register a model of timm."""

    def build() -> dict[str, Any]:
        import timm

        return {"model": lambda: timm.create_model(name, num_classes=5, **options),
                "batch": ((image(4, 3, size),), labels(4)), "loss": F.cross_entropy}  # fmt: skip

    public("timm", name)(build)


timm_model("resnet18", layers=(1, 1, 1, 1), channels=(8, 8, 16, 16))
timm_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
timm_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2)
timm_model("gmlp_ti16_224", img_size=32)
timm_model("mixer_s32_224", img_size=32)
timm_model("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2)
timm_model("xcit_nano_12_p16_224", img_size=32, embed_dim=16, depth=2, num_heads=2)
timm_model("eva02_tiny_patch14_224", img_size=28, size=28, embed_dim=16, depth=2, num_heads=2)
timm_model("swin_tiny_patch4_window7_224", img_size=32, embed_dim=8, depths=(1, 1),
           num_heads=(2, 2), window_size=4)  # fmt: skip
timm_model("mobilenetv4_conv_small_035")
timm_model("test_efficientnet")
timm_model("test_byobnet")


@public("segmentation_models")
def unet_plus() -> dict[str, Any]:
    import segmentation_models_pytorch as smp

    return {"model": lambda: smp.UnetPlusPlus("timm-mobilenetv3_small_minimal_100",
                encoder_weights=None, classes=3, encoder_depth=3,
                decoder_channels=(16, 8, 8)),
            "batch": ((image(2, 3, 32),), labels(2, 32, 32, classes=3)),
            "loss": smp.losses.DiceLoss("multiclass")}  # fmt: skip
