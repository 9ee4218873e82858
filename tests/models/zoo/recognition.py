"""Models of torchvision, self-supervision, segmentation and tables, each with the loss of its task."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import ids, labels, public
from tests.models.zoo.mixed import fields, scalar
from tests.models.zoo.vision import image


def torchvision(name: str, size: int = 64, **options: Any) -> None:
    """Register a classifier of torchvision."""

    @public("torchvision", name)
    def model() -> dict[str, Any]:
        import torchvision.models as library

        def loss(o: Any, t: torch.Tensor) -> torch.Tensor:
            parts = [o] if isinstance(o, torch.Tensor) else [p for p in o if p is not None]
            return sum(F.cross_entropy(p, t) for p in parts)  # type: ignore[return-value]

        return fields(lambda: library.get_model(name, weights=None, num_classes=5, **options),
                      (image(3, 3, size),), labels(3), loss)  # fmt: skip


torchvision("googlenet", aux_logits=True, init_weights=False)
torchvision("shufflenet_v2_x0_5")
torchvision("mnasnet0_5")
torchvision("squeezenet1_1")
torchvision("densenet121", 32)
torchvision("regnet_y_400mf")
torchvision("mobilenet_v3_small")
torchvision("swin_v2_t")
torchvision("alexnet")


def detector(name: str, **options: Any) -> None:
    """Register a detector: losses in training, boxes in evaluation."""

    @public("torchvision", name)
    def model() -> dict[str, Any]:
        import torchvision.models.detection as library

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = getattr(library, name)(
                    weights=None, weights_backbone=None, num_classes=3, **options
                )

            def forward(self, images: Any, targets: Any) -> Any:
                out = self.net(images, targets)
                return sum(out.values()) if self.training else out

        images = [torch.rand(3, 64, 64) for _ in range(2)]
        boxes = torch.tensor([[8.0, 8.0, 40.0, 40.0], [20.0, 16.0, 60.0, 50.0]])
        targets = [{"boxes": boxes + n, "labels": torch.tensor([1, 2])} for n in range(2)]
        return {**scalar(Net, images, targets), "batch_dim": None}


detector("fasterrcnn_mobilenet_v3_large_320_fpn", min_size=64, max_size=64)
detector("retinanet_resnet50_fpn", min_size=64, max_size=64)


@public("torchvision")
def deeplab() -> dict[str, Any]:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    return fields(lambda: lraspp_mobilenet_v3_large(weights=None, weights_backbone=None,
                                                    num_classes=3),
                  (image(2, 3, 64),), labels(2, 64, 64, classes=3),
                  lambda o, t: F.cross_entropy(o["out"], t))  # fmt: skip


@public("torchvision")
def fully_convolutional() -> dict[str, Any]:
    from torchvision.models.segmentation import fcn_resnet50

    return fields(lambda: fcn_resnet50(weights=None, weights_backbone=None, num_classes=3,
                                       aux_loss=True),
                  (image(2, 3, 32),), labels(2, 32, 32, classes=3),
                  lambda o, t: F.cross_entropy(o["out"], t) + 0.4 * F.cross_entropy(o["aux"], t))  # fmt: skip


@public("torchvision")
def optical_flow() -> dict[str, Any]:
    from torchvision.models.optical_flow import raft_small

    def loss(o: Any, t: torch.Tensor) -> torch.Tensor:
        return sum(0.8 ** (len(o) - n) * (flow - t).abs().mean() for n, flow in enumerate(o))  # type: ignore[return-value]

    return fields(lambda: raft_small(weights=None), (image(1, 3, 128), image(1, 3, 128)),
                  torch.randn(1, 2, 128, 128), loss)  # fmt: skip


@public("torchvision")
def video() -> dict[str, Any]:
    from torchvision.models.video import mc3_18

    return fields(lambda: mc3_18(weights=None, num_classes=5), (torch.randn(2, 3, 4, 32, 32),),
                  labels(2), F.cross_entropy)  # fmt: skip


def encoder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten())  # fmt: skip


@public("lightly")
def swav() -> dict[str, Any]:
    from lightly.loss import SwaVLoss
    from lightly.models.modules import SwaVProjectionHead, SwaVPrototypes

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = encoder(), SwaVProjectionHead(8, 16, 8)
            self.prototypes, self.loss = SwaVPrototypes(8, 6), SwaVLoss()

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            views = [F.normalize(self.head(self.body(x)), dim=1) for x in (a, b)]
            return self.loss([self.prototypes(v) for v in views], [])

    return scalar(Net, image(4), image(4))


@public("lightly")
def dino() -> dict[str, Any]:
    from lightly.loss import DINOLoss
    from lightly.models.modules import DINOProjectionHead
    from lightly.models.utils import deactivate_requires_grad

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = nn.Sequential(
                encoder(), DINOProjectionHead(8, 16, 8, 10, freeze_last_layer=-1)
            )
            self.teacher = nn.Sequential(encoder(), DINOProjectionHead(8, 16, 8, 10))
            self.teacher.load_state_dict(self.student.state_dict())
            deactivate_requires_grad(self.teacher)
            self.loss = DINOLoss(output_dim=10)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.loss(
                [self.teacher(a), self.teacher(b)], [self.student(a), self.student(b)], epoch=1
            )

    return scalar(Net, image(4), image(4))


@public("lightly")
def vicreg() -> dict[str, Any]:
    from lightly.loss import VICRegLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.loss = (
                encoder(),
                BarlowTwinsProjectionHead(8, 16, 8),
                VICRegLoss(),
            )

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.loss(self.head(self.body(a)), self.head(self.body(b)))

    return scalar(Net, image(4), image(4))


def segmentation(name: str, **options: Any) -> None:
    @public("segmentation_models", name.lower())
    def model() -> dict[str, Any]:
        import segmentation_models_pytorch as library

        dice = library.losses.DiceLoss("multiclass")
        return fields(lambda: getattr(library, name)("resnet18", encoder_weights=None, classes=3,
                                                     **options),
                      (image(2, 3, 64),), labels(2, 64, 64, classes=3), dice)  # fmt: skip


segmentation("FPN")
segmentation("DeepLabV3Plus")
segmentation("PSPNet")
segmentation("MAnet")
segmentation("Linknet")


@public("widedeep")
def tab_net() -> dict[str, Any]:
    from pytorch_widedeep.models import TabNet

    columns = {"a": 0, "b": 1, "c": 2}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = TabNet(column_idx=columns, cat_embed_input=[("a", 4, 4)],
                               continuous_cols=["b", "c"], n_steps=2, step_dim=8, attn_dim=8)  # fmt: skip
            self.head = nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> Any:
            found, sparsity = self.body(x)
            return self.head(found), sparsity

    table = torch.cat([torch.randint(0, 4, (8, 1)).float(), torch.randn(8, 2)], 1)
    return fields(Net, (table,), torch.randn(8, 1),
                  lambda o, t: F.mse_loss(o[0], t) - 1e-3 * o[1])  # fmt: skip


@public("widedeep")
def attention_over_samples() -> dict[str, Any]:
    from pytorch_widedeep.models import SAINT

    columns = {"a": 0, "b": 1, "c": 2}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = SAINT(column_idx=columns, cat_embed_input=[("a", 4)],
                              continuous_cols=["b", "c"], input_dim=8, n_heads=2, n_blocks=1)  # fmt: skip
            self.head = nn.Linear(self.body.output_dim, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    table = torch.cat([torch.randint(1, 4, (8, 1)).float(), torch.randn(8, 2)], 1)
    return fields(Net, (table,), torch.randn(8, 1))


def clicks(name: str, **options: Any) -> None:
    @public("deepctr", name.lower())
    def model() -> dict[str, Any]:
        import deepctr_torch.models as library
        from deepctr_torch.inputs import DenseFeat, SparseFeat

        columns = [SparseFeat("a", 5, 4), SparseFeat("b", 6, 4), DenseFeat("c", 1)]
        x = torch.cat([torch.randint(0, 5, (8, 2)).float(), torch.rand(8, 1)], 1)
        return fields(lambda: getattr(library, name)(columns, columns, device="cpu", **options), (x,),
                      torch.rand(8, 1).round(), F.binary_cross_entropy)  # fmt: skip


clicks("xDeepFM", dnn_hidden_units=(8,), cin_layer_size=(4, 4))
clicks("AutoInt", dnn_hidden_units=(8,), att_layer_num=1)
clicks("DCN", dnn_hidden_units=(8,))


@public("brevitas")
def quantised_convolution() -> dict[str, Any]:
    import brevitas.nn as qnn

    return fields(lambda: nn.Sequential(qnn.QuantConv2d(3, 6, 3, weight_bit_width=4),
                                        nn.BatchNorm2d(6), qnn.QuantReLU(bit_width=4), nn.Flatten(),
                                        qnn.QuantLinear(6 * 36, 5, bias=True, weight_bit_width=4)),
                  (image(3, 3, 8),), labels(3), F.cross_entropy)  # fmt: skip


@public("spikingjelly")
def spiking_steps() -> dict[str, Any]:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(layer.Linear(6, 8), neuron.ParametricLIFNode(
                surrogate_function=surrogate.ATan()), layer.Linear(8, 3))  # fmt: skip
            functional.set_step_mode(self.net, "m")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            functional.reset_net(self.net)
            return self.net(x.expand(4, *x.shape)).mean(0)

    return fields(Net, (torch.rand(5, 6) * 3,), labels(5, classes=3), F.cross_entropy)


@public("x_transformers")
def recurrent_memory() -> dict[str, Any]:
    from x_transformers import Decoder, TransformerWrapper

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = TransformerWrapper(num_tokens=50, max_seq_len=8, max_mem_len=8,
                attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rel_pos_bias=True))  # fmt: skip

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            first, memories = self.net(tokens[:, :8], return_mems=True)
            return torch.cat([first, self.net(tokens[:, 8:], mems=memories)], 1)

    return fields(Net, (ids(3, 16),), ids(3, 16),
                  lambda o, t: F.cross_entropy(o.transpose(1, 2), t))  # fmt: skip


@public("monai")
def registration() -> dict[str, Any]:
    from monai.losses import BendingEnergyLoss, LocalNormalizedCrossCorrelationLoss
    from monai.networks.blocks import Warp
    from monai.networks.nets import RegUNet

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = RegUNet(spatial_dims=2, in_channels=2, num_channel_initial=4, depth=2,
                               out_channels=2)  # fmt: skip
            self.warp, self.smooth = Warp(), BendingEnergyLoss()
            self.alike = LocalNormalizedCrossCorrelationLoss(spatial_dims=2, kernel_size=3)

        def forward(self, moving: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
            field = self.net(torch.cat([moving, fixed], 1))
            return self.alike(self.warp(moving, field), fixed) + self.smooth(field)

    return scalar(Net, torch.rand(2, 1, 16, 16), torch.rand(2, 1, 16, 16))


@public("monai")
def dynamic_unet() -> dict[str, Any]:
    from monai.losses import DeepSupervisionLoss, DiceLoss
    from monai.networks.nets import DynUNet

    loss = DeepSupervisionLoss(DiceLoss(sigmoid=True))
    return fields(lambda: DynUNet(2, 1, 1, [3, 3, 3, 3], [1, 2, 2, 2], [2, 2, 2], filters=[4, 8, 8, 8],
                                  deep_supervision=True, deep_supr_num=2),
                  (image(2, 1, 32),), torch.rand(2, 1, 32, 32).round(),
                  lambda o, t: loss(list(o.unbind(1)) if o.dim() == 5 else [o], t))  # fmt: skip


@public("kornia")
def similarity() -> dict[str, Any]:
    from kornia.losses import SSIMLoss

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(self.net(x))

    return fields(Net, (torch.rand(2, 3, 16, 16),), torch.rand(2, 3, 16, 16), SSIMLoss(5))
