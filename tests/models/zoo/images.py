"""Images in medicine and in packages of architectures: MONAI, kornia, timm, segmentation models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import labels, public
from tests.models.zoo.vision import image


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
