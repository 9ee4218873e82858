"""Graphs, recurrences, flows and operators of kinds that are not among the others."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import ids, labels, over_tokens, public
from tests.models.zoo.mixed import fields, scalar
from tests.models.zoo.text import TINY, causal, hugging
from tests.models.zoo.vision import image

EDGES = {"batch_dim": None}


@public("torch_geometric")
def momentum_pool() -> dict[str, Any]:
    from torch_geometric.nn import DMoNPooling

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.pool, self.out = nn.Linear(4, 8), DMoNPooling(8, 3), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor, adjacent: torch.Tensor) -> Any:
            _, pooled, _, spectral, ortho, cluster = self.pool(self.into(x).relu(), adjacent)
            return self.out(pooled.mean(1)), spectral + ortho + cluster

    adjacent = torch.rand(4, 6, 6).round()
    adjacent = (adjacent + adjacent.transpose(1, 2)).clamp(max=1)
    return fields(Net, (torch.randn(4, 6, 4), adjacent), labels(4),
                  lambda o, t: F.cross_entropy(o[0], t) + o[1])  # fmt: skip


@public("torch_geometric")
def principal_aggregation() -> dict[str, Any]:
    from torch_geometric.nn import PNA

    degrees = torch.tensor([1, 3, 4, 2])
    return {**fields(lambda: PNA(4, 8, 2, 5, aggregators=["mean", "std", "max"],
                                 scalers=["identity", "amplification"], deg=degrees, norm="graph_norm"),
                     (torch.randn(10, 4), labels(2, 24, classes=10)), labels(10), F.cross_entropy),
            **EDGES}  # fmt: skip


@public("torch_geometric")
def adversarial_embedding() -> dict[str, Any]:
    from torch_geometric.nn import ARGVA, GCNConv

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.deviation = GCNConv(4, 4), GCNConv(4, 4)

        def forward(self, x: Any, edges: Any) -> Any:
            return self.mean(x, edges), self.deviation(x, edges)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = ARGVA(Encoder(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))

        def forward(self, x: Any, edges: Any) -> torch.Tensor:
            z = self.net.encode(x, edges)
            adversary = self.net.discriminator_loss(z)
            return (
                self.net.recon_loss(z, edges)
                + self.net.reg_loss(z)
                + self.net.kl_loss() / 10
                + adversary
            )

    return {**scalar(Net, torch.randn(10, 4), labels(2, 24, classes=10)), **EDGES}


@public("torch_geometric")
def meta_layer() -> dict[str, Any]:
    from torch_geometric.nn import MetaLayer
    from torch_geometric.utils import scatter

    class Edge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4 + 4 + 3 + 2, 3)

        def forward(self, src: Any, dst: Any, e: Any, u: Any, batch: Any) -> Any:
            return self.net(torch.cat([src, dst, e, u[batch]], 1)).relu()

    class Node(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4 + 3 + 2, 4)

        def forward(self, x: Any, edges: Any, e: Any, u: Any, batch: Any) -> Any:
            told = scatter(e, edges[1], dim=0, dim_size=x.size(0), reduce="mean")
            return self.net(torch.cat([x, told, u[batch]], 1))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4 + 2, 2)

        def forward(self, x: Any, edges: Any, e: Any, u: Any, batch: Any) -> Any:
            return self.net(torch.cat([u, scatter(x, batch, dim=0, reduce="mean")], 1))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = MetaLayer(Edge(), Node(), Whole())

        def forward(self, x: Any, edges: Any, e: Any, u: Any, batch: Any) -> Any:
            return self.net(x, edges, e, u, batch)[2]

    edges = torch.cat([labels(2, 8, classes=4), 4 + labels(2, 8, classes=4)], 1)
    return {**fields(Net, (torch.randn(8, 4), edges, torch.randn(16, 3), torch.randn(2, 2),
                           torch.tensor([0] * 4 + [1] * 4)), torch.randn(2, 2)), **EDGES}  # fmt: skip


@public("torch_geometric")
def translated_entities() -> dict[str, Any]:
    from torch_geometric.nn import TransE

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = TransE(10, 3, 8)

        def forward(self, head: Any, kind: Any, tail: Any) -> torch.Tensor:
            return self.net.loss(head, kind, tail)

    return scalar(Net, labels(8, classes=10), labels(8, classes=3), labels(8, classes=10))


@public("torch_geometric")
def jumping() -> dict[str, Any]:
    from torch_geometric.nn import GIN, global_add_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = GIN(4, 8, 2, jk="lstm", norm="batch_norm", dropout=0.1)
            self.out = nn.Linear(8, 5)

        def forward(self, x: Any, edges: Any, batch: Any) -> torch.Tensor:
            return self.out(global_add_pool(self.net(x, edges), batch))

    edges = torch.cat([labels(2, 8, classes=4), 4 + labels(2, 8, classes=4)], 1)
    return {**fields(Net, (torch.randn(8, 4), edges, torch.tensor([0] * 4 + [1] * 4)), labels(2),
                     F.cross_entropy), **EDGES}  # fmt: skip


@public("ncps")
def liquid() -> dict[str, Any]:
    from ncps.torch import LTC

    return fields(lambda: LTC(3, 6, batch_first=True, return_sequences=False),
                  (torch.randn(4, 5, 3),), torch.randn(4, 6), lambda o, t: F.mse_loss(o[0], t))  # fmt: skip


@public("zuko")
def spline_flow() -> dict[str, Any]:
    from zuko.flows import NSF

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = NSF(3, 2, transforms=2, hidden_features=(8,), bins=4)

        def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return -self.flow(c).log_prob(x)

    return fields(Net, (torch.randn(6, 3), torch.randn(6, 2)), None, lambda o, _: o.mean())


@public("zuko")
def returned_distribution() -> dict[str, Any]:
    from zuko.flows import GMM

    return fields(lambda: GMM(3, 2, components=3, hidden_features=(8,)), (torch.randn(6, 2),),
                  torch.randn(6, 3), lambda o, t: -o.log_prob(t).mean())  # fmt: skip


@public("gpytorch")
def variational() -> dict[str, Any]:
    import gpytorch

    class Net(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = torch.randn(5, 2)
            how = gpytorch.variational.CholeskyVariationalDistribution(5)
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, how))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.noise = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    class Bound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.bound = gpytorch.mlls.VariationalELBO(self.net.noise, self.net, num_data=8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return -self.bound(self.net(x), y)

    return {**scalar(Bound, torch.randn(8, 2), torch.randn(8)), **EDGES}


@public("torchdiffeq")
def continuous_flow() -> dict[str, Any]:
    from torchdiffeq import odeint

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, t: torch.Tensor, state: Any) -> Any:
            z, _ = state
            with torch.enable_grad():
                z = z if z.requires_grad else z.detach().requires_grad_()
                dz = self.net(torch.cat([z, t.expand(len(z), 1)], 1))
                trace = sum(torch.autograd.grad(dz[:, n].sum(), z, create_graph=True)[0][:, n]
                            for n in range(2))  # fmt: skip
            return dz, -trace

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = Field()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            times = torch.tensor([0.0, 1.0], device=x.device, dtype=x.dtype)
            z, change = odeint(self.field, (x, torch.zeros_like(x[:, 0])), times, method="rk4")
            return -0.5 * z[-1].square().sum(1) - change[-1]

    return fields(Flow, (torch.randn(5, 2),), None, lambda o, _: -o.mean())


@public("neuralop")
def spherical() -> dict[str, Any]:
    from neuralop.models import FNO

    return fields(lambda: FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8,
                              n_layers=2, norm="instance_norm", use_channel_mlp=True,
                              domain_padding=0.1),
                  (image(2, 1),), image(2, 1))  # fmt: skip


@public("e3nn")
def tensor_product() -> dict[str, Any]:
    from e3nn import o3

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct("2x0e + 1x1o", "0e + 1o", "3x0e + 1x1o")
            self.out = o3.Linear("3x0e + 1x1o", "1x0e")

        def forward(self, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return self.out(self.product(x, o3.spherical_harmonics("0e + 1o", v, normalize=True)))

    return fields(Net, (torch.randn(6, 5), torch.randn(6, 3)), torch.randn(6, 1))


@public("performer_pytorch")
def redrawn_features() -> dict[str, Any]:
    from performer_pytorch import Performer

    return fields(lambda: Performer(dim=16, depth=1, heads=2, dim_head=8, causal=False,
                                    feature_redraw_interval=2, nb_features=8),
                  (torch.randn(3, 8, 16),), torch.randn(3, 8, 16))  # fmt: skip


@public("local_attention")
def local_windows() -> dict[str, Any]:
    from local_attention import LocalTransformer

    return fields(lambda: LocalTransformer(num_tokens=50, dim=16, depth=1, max_seq_len=16, causal=True,
                                           local_attn_window_size=4, heads=2, dim_head=8),
                  (ids(3, 16),), ids(3, 16), over_tokens)  # fmt: skip


@public("peft")
def vera() -> dict[str, Any]:
    from peft import VeraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = ids(3, 10)
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return {"model": lambda: get_peft_model(GPT2LMHeadModel(config), VeraConfig(
                r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")),
            "batch": ({"input_ids": tokens, "labels": tokens.clone()}, None),
            "loss": "output"}  # fmt: skip


@public("peft")
def prompt_tuning() -> dict[str, Any]:
    from peft import PromptTuningConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = ids(3, 10)
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    return {"model": lambda: get_peft_model(GPT2LMHeadModel(config), PromptTuningConfig(
                num_virtual_tokens=4, task_type="CAUSAL_LM")),
            "batch": ({"input_ids": tokens, "labels": tokens.clone(),
                       "attention_mask": torch.ones_like(tokens)}, None),
            "loss": "output"}  # fmt: skip


@public("transformers")
def bamba() -> dict[str, Any]:
    return causal("BambaForCausalLM", "BambaConfig", num_key_value_heads=1, mamba_n_heads=4,
                  mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4,
                  attn_layer_indices=[1])  # fmt: skip


@public("transformers")
def granite_moe() -> dict[str, Any]:
    return causal("GraniteMoeForCausalLM", "GraniteMoeConfig", num_key_value_heads=1,
                  num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)  # fmt: skip


@public("transformers")
def encoder_decoder() -> dict[str, Any]:
    from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

    small = {k: v for k, v in TINY.items() if k != "num_labels"}
    config = EncoderDecoderConfig.from_encoder_decoder_configs(
        BertConfig(**small), BertConfig(**small)
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return {"model": lambda: EncoderDecoderModel(config=config),
            "batch": ({"input_ids": ids(3, 10), "labels": ids(3, 6)}, None), "loss": "output"}  # fmt: skip


@public("transformers")
def layout_v3() -> dict[str, Any]:
    corner = torch.randint(0, 20, (3, 8, 2))
    boxes = torch.cat([corner, corner + torch.randint(1, 10, (3, 8, 2))], -1)
    return hugging("LayoutLMv3ForTokenClassification", "LayoutLMv3Config",
                   {"input_ids": ids(3, 8), "bbox": boxes, "labels": labels(3, 8),
                    "pixel_values": image(3)}, **{**TINY, "max_2d_position_embeddings": 64},
                   coordinate_size=2, shape_size=4, input_size=16, patch_size=8)  # fmt: skip


@public("transformers")
def visual_question() -> dict[str, Any]:
    return hugging("LxmertForQuestionAnswering", "LxmertConfig",
                   {"input_ids": ids(3, 8), "visual_feats": torch.randn(3, 4, 8),
                    "visual_pos": torch.rand(3, 4, 4), "labels": labels(3, classes=5)},
                   vocab_size=50, hidden_size=16, num_attention_heads=2, intermediate_size=32,
                   l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=8, num_qa_labels=5,
                   max_position_embeddings=16, num_object_labels=4, num_attr_labels=4)  # fmt: skip
