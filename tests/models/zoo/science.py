"""Series, molecules, medical images and other fields, from the libraries that serve them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import ids, labels, over_tokens, public
from tests.models.zoo.mixed import fields, scalar
from tests.models.zoo.text import hugging
from tests.models.zoo.vision import image


@public("transformers")
def patch_tst() -> dict[str, Any]:
    return hugging("PatchTSTForPrediction", "PatchTSTConfig",
                   {"past_values": torch.randn(3, 16, 2), "future_values": torch.randn(3, 4, 2)},
                   num_input_channels=2, context_length=16, patch_length=4, patch_stride=4,
                   prediction_length=4, d_model=16, num_hidden_layers=1, num_attention_heads=2,
                   ffn_dim=32)  # fmt: skip


@public("transformers")
def ts_mixer() -> dict[str, Any]:
    return hugging("PatchTSMixerForPrediction", "PatchTSMixerConfig",
                   {"past_values": torch.randn(3, 16, 2), "future_values": torch.randn(3, 4, 2)},
                   num_input_channels=2, context_length=16, patch_length=4, patch_stride=4,
                   prediction_length=4, d_model=8, num_layers=2, mode="mix_channel",
                   gated_attn=True)  # fmt: skip


def forecast(cls: str, config: str, **options: Any) -> dict[str, Any]:
    past, ahead = 19, 4
    batch = {"past_values": torch.randn(3, past), "past_time_features": torch.randn(3, past, 1),
             "past_observed_mask": torch.ones(3, past), "future_values": torch.randn(3, ahead),
             "future_time_features": torch.randn(3, ahead, 1)}  # fmt: skip
    return hugging(cls, config, batch, prediction_length=ahead, context_length=12, d_model=16,
                   lags_sequence=[1, 2, 7], num_time_features=1, encoder_layers=1, decoder_layers=1,
                   encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
                   decoder_ffn_dim=32, **options)  # fmt: skip


@public("transformers")
def informer() -> dict[str, Any]:
    return forecast("InformerForPrediction", "InformerConfig", sampling_factor=2)


@public("transformers")
def autoformer() -> dict[str, Any]:
    return forecast("AutoformerForPrediction", "AutoformerConfig", label_length=4)


@public("transformers")
def time_series() -> dict[str, Any]:
    return forecast("TimeSeriesTransformerForPrediction", "TimeSeriesTransformerConfig")


@public("x_transformers")
def autoregressive() -> dict[str, Any]:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    return scalar(lambda: AutoregressiveWrapper(TransformerWrapper(
        num_tokens=50, max_seq_len=16, attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8,
        rotary_pos_emb=True, ff_glu=True, attn_qk_norm=True))), ids(3, 13))  # fmt: skip


@public("x_transformers")
def non_autoregressive() -> dict[str, Any]:
    from x_transformers import Encoder, NonAutoregressiveWrapper, TransformerWrapper

    return scalar(lambda: NonAutoregressiveWrapper(TransformerWrapper(
        num_tokens=51, max_seq_len=12, attn_layers=Encoder(dim=16, depth=1, heads=2,
        attn_dim_head=8)), mask_id=50), ids(3, 12))  # fmt: skip


@public("x_transformers")
def residual_attention() -> dict[str, Any]:
    from x_transformers import Decoder, TransformerWrapper

    return fields(lambda: TransformerWrapper(num_tokens=50, max_seq_len=16, logits_dim=5,
                  attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, alibi_pos_bias=True,
                                      alibi_num_heads=1, use_rmsnorm=True, macaron=True,
                                      shift_tokens=1, residual_attn=True)),
                  (ids(3, 12),), labels(3, 12), over_tokens)  # fmt: skip


@public("monai")
def swin_unetr() -> dict[str, Any]:
    from monai.losses import DiceCELoss
    from monai.networks.nets import SwinUNETR

    return fields(lambda: SwinUNETR(in_channels=1, out_channels=3, feature_size=12, spatial_dims=2,
                                    depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), norm_name="instance"),
                  (image(2, 1, 64),), labels(2, 1, 64, 64, classes=3),
                  DiceCELoss(to_onehot_y=True, softmax=True))  # fmt: skip


@public("monai")
def segres() -> dict[str, Any]:
    from monai.losses import TverskyLoss
    from monai.networks.nets import SegResNetVAE

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = SegResNetVAE(input_image_size=(16, 16), spatial_dims=2, init_filters=8,
                                    in_channels=1, out_channels=2, blocks_down=(1, 1, 1),
                                    blocks_up=(1, 1))  # fmt: skip

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x)

    tversky = TverskyLoss(sigmoid=True)
    return fields(Net, (image(2, 1),), torch.rand(2, 2, 16, 16).round(),
                  lambda o, t: tversky(o[0], t) + (0 if o[1] is None else 0.1 * o[1]))  # fmt: skip


@public("monai")
def diffusion_unet() -> dict[str, Any]:
    from monai.networks.nets import DiffusionModelUNet

    return fields(lambda: DiffusionModelUNet(spatial_dims=2, in_channels=1, out_channels=1,
                  channels=(8, 8), attention_levels=(False, True), num_res_blocks=1,
                  norm_num_groups=4, num_head_channels=4),
                  (image(2, 1), torch.tensor([3, 40])), image(2, 1))  # fmt: skip


@public("monai")
def auto_encoder_kl() -> dict[str, Any]:
    from monai.networks.nets import AutoencoderKL

    def loss(o: Any, t: torch.Tensor) -> torch.Tensor:
        image, mean, std = o
        return F.l1_loss(image, t) + 1e-3 * (mean**2 + std**2 - 2 * std.log() - 1).mean()

    x = image(2, 1)
    return fields(lambda: AutoencoderKL(spatial_dims=2, in_channels=1, out_channels=1,
                  channels=(8, 8), latent_channels=2, num_res_blocks=1, norm_num_groups=4,
                  attention_levels=(False, False)), (x,), x.clone(), loss)  # fmt: skip


@public("torch_geometric")
def signed() -> dict[str, Any]:
    from torch_geometric.nn import SignedGCN

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = SignedGCN(4, 8, num_layers=2)

        def forward(self, x: torch.Tensor, good: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
            return self.net.loss(self.net(x, good, bad), good, bad)

    return {**scalar(Net, torch.randn(10, 4), labels(2, 20, classes=10), labels(2, 12, classes=10)),
            "batch_dim": None}  # fmt: skip


@public("torch_geometric")
def relational() -> dict[str, Any]:
    from torch_geometric.nn import RGCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = RGCNConv(4, 8, num_relations=3, num_bases=2)
            self.two = RGCNConv(8, 5, num_relations=3, num_blocks=None)

        def forward(self, x: Any, edges: Any, kinds: Any) -> torch.Tensor:
            return self.two(self.one(x, edges, kinds).relu(), edges, kinds)

    return {**fields(Net, (torch.randn(10, 4), labels(2, 24, classes=10), labels(24, classes=3)),
                     labels(10), F.cross_entropy), "batch_dim": None}  # fmt: skip


@public("torch_geometric")
def edge_attention() -> dict[str, Any]:
    from torch_geometric.nn import TransformerConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = TransformerConv(4, 4, heads=2, edge_dim=3, beta=True, dropout=0.1)
            self.out = nn.Linear(8, 1)

        def forward(self, x: Any, edges: Any, features: Any) -> torch.Tensor:
            return self.out(self.conv(x, edges, features).relu())

    return {**fields(Net, (torch.randn(10, 4), labels(2, 24, classes=10), torch.randn(24, 3)),
                     torch.randn(10, 1)), "batch_dim": None}  # fmt: skip


def knowledge(name: str, **options: Any) -> None:
    """Register a model of pykeen under its own loss for sampled negatives."""

    @public("pykeen", name.lower())
    def model() -> dict[str, Any]:
        import pykeen.models
        from pykeen.losses import MarginRankingLoss
        from pykeen.triples import CoreTriplesFactory

        every = torch.stack(
            [labels(30, classes=10), labels(30, classes=3), labels(30, classes=10)], 1
        )
        factory = CoreTriplesFactory.create(every, num_entities=10, num_relations=3)
        rank = MarginRankingLoss()

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                cls = getattr(pykeen.models, name)
                self.net = cls(triples_factory=factory, random_seed=0, **options)

            def forward(self, good: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
                loss = rank(self.net.score_hrt(good), self.net.score_hrt(bad))
                return loss + self.net.collect_regularization_term()

        return scalar(Model, every[:8], every[8:16])


knowledge("ComplEx", embedding_dim=4)
knowledge("ConvE", embedding_dim=8, output_channels=2, embedding_height=2, embedding_width=4,
          kernel_width=2, kernel_height=2, feature_map_dropout=0.0)  # fmt: skip
knowledge("TuckER", embedding_dim=4, relation_dim=4)
knowledge("NTN", embedding_dim=4)
knowledge("ERMLP", embedding_dim=4)


@public("ncps")
def closed_form() -> dict[str, Any]:
    from ncps.torch import CfC

    return fields(lambda: CfC(3, 8, proj_size=2, mixed_memory=True, batch_first=True),
                  (torch.randn(4, 6, 3),), torch.randn(4, 6, 2),
                  lambda o, t: F.mse_loss(o[0], t))  # fmt: skip


def timm(name: str, size: int = 64, **options: Any) -> None:
    @public("timm", name)
    def model() -> dict[str, Any]:
        import timm as library

        return fields(lambda: library.create_model(name, num_classes=5, **options),
                      (image(3, 3, size),), labels(3), F.cross_entropy)  # fmt: skip


for each in (
    "test_vit2",
    "test_vit4",
    "test_resnet",
    "test_convnext",
    "test_nfnet",
    "test_mambaout",
):
    timm(each, 96)
timm("ghostnet_050")
timm("mobileone_s0")
timm("repvgg_a0")
timm("edgenext_xx_small")
timm("levit_128s", 224)
timm("maxvit_rmlp_pico_rw_256", 64, img_size=64)
timm("coat_lite_tiny", 64, img_size=64)
timm("fastvit_t8", 64)
timm("hgnetv2_b0", 64)
timm("volo_d1_224", 64, img_size=64)


@public("pytorch_forecasting")
def attention_series() -> dict[str, Any]:
    from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import (
        InterpretableMultiHeadAttention,
    )

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = InterpretableMultiHeadAttention(n_head=2, d_model=8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x)[0]

    return fields(Net, (torch.randn(3, 6, 8),), torch.randn(3, 6, 8))


def vit(name: str, module: str, size: int = 32, **options: Any) -> None:
    @public("vit_pytorch", name)
    def model() -> dict[str, Any]:
        from importlib import import_module

        cls = getattr(import_module(f"vit_pytorch.{module}"), name)
        return fields(lambda: cls(num_classes=5, **options), (image(3, 3, size),), labels(3),
                      F.cross_entropy)  # fmt: skip


COMMON = {"image_size": 32, "patch_size": 8, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32}
vit("SimpleViT", "simple_vit_with_qk_norm", **COMMON)
vit("ViT", "vit_with_patch_dropout", **COMMON, patch_dropout=0.25)


@public("diffusers")
def flux() -> dict[str, Any]:
    from diffusers import FluxTransformer2DModel

    batch = {"hidden_states": torch.randn(2, 16, 4), "encoder_hidden_states": torch.randn(2, 5, 8),
             "pooled_projections": torch.randn(2, 8), "timestep": torch.tensor([0.1, 0.7]),
             "txt_ids": torch.zeros(5, 3), "img_ids": torch.zeros(16, 3)}  # fmt: skip
    return fields(lambda: FluxTransformer2DModel(in_channels=4, num_layers=1, num_single_layers=1,
                  attention_head_dim=8, num_attention_heads=2, joint_attention_dim=8,
                  pooled_projection_dim=8, axes_dims_rope=(2, 2, 4)), batch,
                  torch.randn(2, 16, 4), lambda o, t: F.mse_loss(o.sample, t))  # fmt: skip


@public("diffusers")
def vq_model() -> dict[str, Any]:
    from diffusers import VQModel

    x = image(2, 3)
    return fields(lambda: VQModel(block_out_channels=(8, 16), norm_num_groups=4, latent_channels=3,
                  num_vq_embeddings=16, down_block_types=("DownEncoderBlock2D",) * 2,
                  up_block_types=("UpDecoderBlock2D",) * 2), (x,), x.clone(),
                  lambda o, t: F.mse_loss(o.sample, t) + o.commit_loss.mean())  # fmt: skip


@public("diffusers")
def latent_video() -> dict[str, Any]:
    from diffusers import CogVideoXTransformer3DModel

    batch = {"hidden_states": torch.randn(2, 3, 4, 8, 8), "timestep": torch.tensor([3, 40]),
             "encoder_hidden_states": torch.randn(2, 5, 8)}  # fmt: skip
    return fields(lambda: CogVideoXTransformer3DModel(num_attention_heads=2, attention_head_dim=8,
                  in_channels=4, out_channels=4, time_embed_dim=8, text_embed_dim=8, num_layers=1,
                  sample_width=8, sample_height=8, sample_frames=9, patch_size=2,
                  max_text_seq_length=5), batch, torch.randn(2, 3, 4, 8, 8),
                  lambda o, t: F.mse_loss(o.sample, t))  # fmt: skip


@public("kornia")
def homography() -> dict[str, Any]:
    from kornia.geometry.transform import Homography, HomographyWarper

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.motion = Homography()
            self.warp = HomographyWarper(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.warp(x, self.motion().expand(len(x), 3, 3))

    return fields(Net, (image(2),), image(2))
