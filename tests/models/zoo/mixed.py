"""Tables, recommendations, embeddings, self-supervision and packages of one architecture."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import ids, labels, over_tokens, public
from tests.models.zoo.vision import image


def fields(model: Any, inputs: Any, target: Any, loss: Any = F.mse_loss) -> dict[str, Any]:
    return {"model": model, "batch": (inputs, target), "loss": loss}


def scalar(model: Any, *inputs: Any) -> dict[str, Any]:
    """Return the fields for a model that returns its loss."""
    return fields(model, inputs, None, "output")


@public("rtdl")
def feature_tokens() -> dict[str, Any]:
    from rtdl_revisiting_models import FTTransformer

    options = {"n_cont_features": 3, "cat_cardinalities": [4, 5], "d_out": 5, "n_blocks": 2,
               "d_block": 16, "attention_n_heads": 2, "attention_dropout": 0.1,
               "ffn_d_hidden_multiplier": 2, "ffn_dropout": 0.1, "residual_dropout": 0.0}  # fmt: skip
    return fields(lambda: FTTransformer(**options),
                  (torch.randn(6, 3), torch.randint(0, 4, (6, 2))), labels(6),
                  F.cross_entropy)  # fmt: skip


@public("rtdl")
def residual_table() -> dict[str, Any]:
    from rtdl_revisiting_models import ResNet

    return fields(lambda: ResNet(d_in=4, d_out=5, n_blocks=2, d_block=16, d_hidden=None,
                                 d_hidden_multiplier=2.0, dropout1=0.15, dropout2=0.0),
                  (torch.randn(6, 4),), labels(6), F.cross_entropy)  # fmt: skip


@public("rtdl")
def periodic() -> dict[str, Any]:
    from rtdl_num_embeddings import PeriodicEmbeddings

    return fields(lambda: nn.Sequential(PeriodicEmbeddings(4, 8, lite=False), nn.Flatten(),
                                        nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)),
                  (torch.randn(6, 4),), torch.randn(6, 1))  # fmt: skip


@public("tabm")
def ensemble() -> dict[str, Any]:
    from tabm import TabM

    return fields(lambda: TabM.make(n_num_features=4, cat_cardinalities=[], d_out=1, k=4,
                                    n_blocks=2, d_block=16),
                  (torch.randn(6, 4),), torch.randn(6),
                  lambda o, t: F.mse_loss(o.squeeze(-1), t[:, None].expand(-1, 4)))  # fmt: skip


@public("widedeep")
def wide() -> dict[str, Any]:
    from pytorch_widedeep.models import TabMlp, Wide, WideDeep

    def make() -> nn.Module:
        deep = TabMlp(column_idx={"a": 0, "b": 1, "c": 2}, cat_embed_input=[("a", 4, 4)],
                      continuous_cols=["b", "c"], mlp_hidden_dims=[16, 8])  # fmt: skip
        return WideDeep(wide=Wide(5, 1), deeptabular=deep)

    table = torch.cat([torch.randint(0, 4, (6, 1)).float(), torch.randn(6, 2)], 1)
    columns = {"wide": torch.randint(1, 5, (6, 1)).float(), "deeptabular": table}
    return fields(make, (columns,), torch.randn(6, 1))


@public("deepctr")
def factorised() -> dict[str, Any]:
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM

    columns = [SparseFeat("a", 5, 4), SparseFeat("b", 6, 4), DenseFeat("c", 1)]
    x = torch.cat([torch.randint(0, 5, (8, 2)).float(), torch.rand(8, 1)], 1)
    return fields(lambda: DeepFM(columns, columns, dnn_hidden_units=(8,), device="cpu"), (x,),
                  torch.rand(8, 1).round(), F.binary_cross_entropy)  # fmt: skip


@public("pykeen")
def triples() -> dict[str, Any]:
    from pykeen.models import RotatE
    from pykeen.triples import CoreTriplesFactory

    every = torch.stack([labels(30, classes=10), labels(30, classes=3), labels(30, classes=10)], 1)
    factory = CoreTriplesFactory.create(every, num_entities=10, num_relations=3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = RotatE(triples_factory=factory, embedding_dim=4, random_seed=0)

        def forward(self, good: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
            return F.softplus(self.net.score_hrt(bad) - self.net.score_hrt(good)).mean()

    return scalar(Model, every[:8], every[8:16])


def metric(name: str, **options: Any) -> None:
    """Register a loss of pytorch_metric_learning on a small encoder."""

    def build() -> dict[str, Any]:
        from pytorch_metric_learning import losses

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
                self.criterion = getattr(losses, name)(**options)

            def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return self.criterion(self.net(x), y)

        return scalar(Model, torch.randn(8, 8), torch.arange(8) // 2)

    public("metric_learning", name)(build)


metric("ProxyAnchorLoss", num_classes=4, embedding_size=6)
metric("NTXentLoss")
metric("CircleLoss")
metric("SubCenterArcFaceLoss", num_classes=4, embedding_size=6)


@public("metric_learning", "VICRegLoss_")
def vicreg() -> dict[str, Any]:
    from pytorch_metric_learning import losses

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.criterion = nn.Linear(8, 6), losses.VICRegLoss()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.criterion(self.net(x), ref_emb=self.net(y))

    return scalar(Model, torch.randn(8, 8), torch.randn(8, 8))


class TwoViews(nn.Module):
    """A loss of lightly between two views of one image."""

    def __init__(self, head: nn.Module, predictor: nn.Module | None, criterion: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head, self.predictor, self.criterion = head, predictor, criterion

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        a, b = self.head(self.body(first)), self.head(self.body(second))
        if self.predictor is None:
            return self.criterion(a, b)
        p, q = self.predictor(a), self.predictor(b)
        return 0.5 * (self.criterion(p, b.detach()) + self.criterion(q, a.detach()))


def views(make: Any) -> dict[str, Any]:
    return scalar(make, image(6, 3, 12), image(6, 3, 12))


@public("lightly")
def sim_siam() -> dict[str, Any]:
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import heads

    return views(lambda: TwoViews(heads.SimSiamProjectionHead(8, 8, 8),
                                  heads.SimSiamPredictionHead(8, 4, 8), NegativeCosineSimilarity()))  # fmt: skip


@public("lightly")
def barlow() -> dict[str, Any]:
    from lightly.loss import BarlowTwinsLoss
    from lightly.models.modules import heads

    return views(
        lambda: TwoViews(heads.BarlowTwinsProjectionHead(8, 8, 8), None, BarlowTwinsLoss())
    )


@public("lightly")
def sim_clr() -> dict[str, Any]:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import heads

    return views(lambda: TwoViews(heads.SimCLRProjectionHead(8, 8, 8), None, NTXentLoss()))


@public("lightly")
def memory_bank() -> dict[str, Any]:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import heads

    return views(lambda: TwoViews(heads.MoCoProjectionHead(8, 8, 8), None,
                                  NTXentLoss(memory_bank_size=(16, 8))))  # fmt: skip


@public("byol_pytorch")
def byol() -> dict[str, Any]:
    from byol_pytorch import BYOL

    def make() -> nn.Module:
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return BYOL(net, image_size=12, hidden_layer=-1, projection_size=8,
                    projection_hidden_size=16, augment_fn=nn.Identity(),
                    augment_fn2=nn.Identity())  # fmt: skip

    return scalar(make, torch.rand(6, 3, 12, 12))


@public("siren_pytorch")
def siren() -> dict[str, Any]:
    from siren_pytorch import SirenNet

    return fields(lambda: SirenNet(dim_in=2, dim_hidden=16, dim_out=3, num_layers=2),
                  (torch.rand(12, 2),), torch.rand(12, 3))  # fmt: skip


@public("glom_pytorch")
def glom() -> dict[str, Any]:
    from glom_pytorch import Glom

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Glom(dim=8, levels=3, image_size=16, patch_size=8)
            self.head = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.net(x, iters=3)[:, :, -1].mean(1))

    return fields(Model, (image(4),), labels(4), F.cross_entropy)


@public("axial_attention")
def axial() -> dict[str, Any]:
    from axial_attention import AxialAttention

    return fields(lambda: nn.Sequential(nn.Conv2d(3, 8, 1),
                                        AxialAttention(dim=8, dim_index=1, heads=2,
                                                       num_dimensions=2),
                                        nn.Conv2d(8, 5, 1)),
                  (image(2, 3, 6),), labels(2, 6, 6), F.cross_entropy)  # fmt: skip


@public("lambda_networks")
def lambdas() -> dict[str, Any]:
    from lambda_networks import LambdaLayer

    return fields(lambda: nn.Sequential(LambdaLayer(dim=3, dim_out=8, n=6, dim_k=4, heads=2),
                                        nn.ReLU(), nn.Conv2d(8, 5, 1)),
                  (image(2, 3, 6),), labels(2, 6, 6), F.cross_entropy)  # fmt: skip


@public("soft_moe_pytorch")
def soft_experts() -> dict[str, Any]:
    from soft_moe_pytorch import SoftMoE

    return fields(lambda: nn.Sequential(SoftMoE(dim=8, seq_len=6, num_experts=3), nn.Linear(8, 3)),
                  (torch.randn(4, 6, 8),), torch.randn(4, 6, 3))  # fmt: skip


@public("st_moe_pytorch")
def routed_experts() -> dict[str, Any]:
    from st_moe_pytorch import MoE

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.moe, self.head = MoE(dim=8, num_experts=4, gating_top_n=2), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> Any:
            out = self.moe(x)
            return self.head(x + out.outputs), out.total_aux_loss

    return fields(Model, (torch.randn(4, 12, 8),), torch.randn(4, 12, 3),
                  lambda o, t: F.mse_loss(o[0], t) + o[1])  # fmt: skip


@public("titans_pytorch")
def neural_memory() -> dict[str, Any]:
    from titans_pytorch import NeuralMemory

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.head = NeuralMemory(dim=8, chunk_size=4), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + self.memory(x)[0])

    return fields(Model, (torch.randn(2, 8, 8),), torch.randn(2, 8, 3))


@public("invariant_point_attention")
def points() -> dict[str, Any]:
    from invariant_point_attention import InvariantPointAttention

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = InvariantPointAttention(dim=8, heads=2, scalar_key_dim=4,
                                                     scalar_value_dim=4, point_key_dim=2,
                                                     point_value_dim=2, pairwise_repr_dim=4)  # fmt: skip

        def forward(self, x: Any, pairs: Any, rotation: Any, shift: Any) -> torch.Tensor:
            return self.attention(x, pairs, rotations=rotation, translations=shift)

    rotation = torch.linalg.qr(torch.randn(2, 6, 3, 3))[0]
    return fields(Model, (torch.randn(2, 6, 8), torch.randn(2, 6, 6, 4), rotation,
                          torch.randn(2, 6, 3)), torch.randn(2, 6, 8))  # fmt: skip


@public("block_recurrent")
def recurrent_blocks() -> dict[str, Any]:
    from block_recurrent_transformer_pytorch import BlockRecurrentTransformer

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = BlockRecurrentTransformer(num_tokens=50, dim=16, depth=2, dim_head=8, heads=2,
                                                 max_seq_len=16, block_width=8,
                                                 num_state_vectors=8, recurrent_layers=(2,))  # fmt: skip

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.net(tokens)[0]

    return fields(Model, (ids(2, 16),), ids(2, 16), over_tokens)


@public("memorizing_transformers")
def memorizing() -> dict[str, Any]:
    from recurrent_memory_transformer_pytorch import RecurrentMemoryTransformer

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = RecurrentMemoryTransformer(num_tokens=50, num_memory_tokens=4, dim=16, depth=2,
                                                  causal=True, dim_head=8, heads=2, seq_len=12)  # fmt: skip

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.net(tokens)[0]

    return fields(Model, (ids(3, 12),), ids(3, 12), over_tokens)


@public("brevitas")
def quantised() -> dict[str, Any]:
    import brevitas.nn as qnn

    return fields(lambda: nn.Sequential(qnn.QuantLinear(4, 16, bias=True, weight_bit_width=4),
                                        qnn.QuantReLU(bit_width=4),
                                        qnn.QuantLinear(16, 3, bias=True, weight_bit_width=4)),
                  (torch.randn(6, 4),), torch.randn(6, 3))  # fmt: skip


@public("torch")
def quantisation_aware() -> dict[str, Any]:
    from torch.ao import quantization as q

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.first = q.QuantStub(), nn.Linear(4, 16)
            self.act, self.second, self.back = nn.ReLU(), nn.Linear(16, 3), q.DeQuantStub()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.back(self.second(self.act(self.first(self.quant(x)))))

    def make() -> nn.Module:
        model = Model().train()
        model.qconfig = q.get_default_qat_qconfig("x86")
        return q.prepare_qat(model)

    return fields(make, (torch.randn(6, 4),), torch.randn(6, 3))
