"""Graphs: torch_geometric, schnetpack, e3nn and equivariant networks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import labels, public


def graph(nodes: int = 12, features: int = 6, edges: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Return node features and a fixed random edge list."""
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(0, nodes, (2, edges), generator=generator)
    return torch.randn(nodes, features, generator=generator), index


def on_nodes(model: Any, *more: Any, loss: Any = F.cross_entropy, target: Any = None) -> Any:
    """Return the fields for a classifier of nodes: the nodes of one graph are no batch."""
    x, edges = graph()
    return {"model": model, "batch": ((x, edges, *more), labels(12) if target is None else target),
            "loss": loss, "batch_dim": None}  # fmt: skip


class TwoLayers(nn.Module):
    """Two layers of one kind with a ReLU between them."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor, edges: torch.Tensor, *more: Any) -> torch.Tensor:
        return self.second(self.first(x, edges, *more).relu(), edges, *more)


def layers(name: str, more: Any = (), **options: Any) -> None:
    """Register a network of two convolutions of torch_geometric."""

    def build() -> dict[str, Any]:
        import torch_geometric.nn as G

        layer = getattr(G, name)
        return on_nodes(lambda: TwoLayers(layer(6, 8, **options), layer(8, 5, **options)),
                        *(more() if callable(more) else more))  # fmt: skip

    public("torch_geometric", name)(build)


layers("GCNConv")
layers("GATConv")
layers("SGConv", K=2)
layers("ChebConv", K=2)
layers("TAGConv", K=2)
layers("RGCNConv", more=lambda: (torch.arange(40) % 3,), num_relations=3, num_bases=2)
layers("FiLMConv")
layers("PNAConv", aggregators=["mean", "max", "std"], scalers=["identity", "attenuation"],
       deg=torch.tensor([1, 2, 4, 3, 2]))  # fmt: skip
layers("HypergraphConv")
layers("GMMConv", more=lambda: (torch.rand(40, 2),), dim=2, kernel_size=3)


@public("torch_geometric", "NNConv_")
def edge_network() -> dict[str, Any]:
    import torch_geometric.nn as G

    def layer(a: int, b: int) -> nn.Module:
        return G.NNConv(a, b, nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, a * b)))

    return on_nodes(lambda: TwoLayers(layer(6, 8), layer(8, 5)), torch.randn(40, 2))


class Net(nn.Module):
    """A module from a function of itself: `build` sets the parts, `run` is the forward pass."""

    def __init__(self, parts: dict[str, nn.Module], run: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.run = run

    def forward(self, *args: Any) -> Any:
        return self.run(self, *args)


def top_k_run(net: Any, x: Any, edges: Any, batch: Any) -> torch.Tensor:
    from torch_geometric.nn import global_max_pool

    x = net.conv(x, edges).relu()
    x, edges, _, batch, _, _ = net.pool(x, edges, None, batch)
    return net.head(global_max_pool(x, batch))


@public("torch_geometric")
def top_k() -> dict[str, Any]:
    import torch_geometric.nn as G

    x, edges = graph()
    half = torch.arange(12) // 6
    edges = edges[:, half[edges[0]] == half[edges[1]]]
    return {"model": lambda: Net({"conv": G.GraphConv(6, 8), "pool": G.TopKPooling(8, 0.6),
                                  "head": nn.Linear(8, 5)}, top_k_run),
            "batch": ((x, edges, half), labels(2)), "loss": F.cross_entropy,
            "batch_dim": None}  # fmt: skip


@public("torch_geometric")
def variational_auto_encoder() -> dict[str, Any]:
    import torch_geometric.nn as G

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mean, self.scale = (
                G.GCNConv(a, b) for a, b in ((6, 8), (8, 4), (8, 4))
            )

        def forward(self, x: Any, edges: Any) -> Any:
            h = self.body(x, edges).relu()
            return self.mean(h, edges), self.scale(h, edges)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vgae = G.VGAE(Encoder())

        def forward(self, x: Any, edges: Any) -> Any:
            z = self.vgae.encode(x, edges)
            return self.vgae.recon_loss(z, edges) + self.vgae.kl_loss() / 12

    x, edges = graph()
    return {"model": Model, "batch": ((x, edges), None), "loss": "output", "batch_dim": None}


@public("torch_geometric")
def infomax() -> dict[str, Any]:
    import torch_geometric.nn as G

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = G.GCNConv(6, 8), nn.PReLU(8)

        def forward(self, x: Any, edges: Any) -> Any:
            return self.act(self.conv(x, edges))

    def corrupt(x: Any, edges: Any) -> Any:
        return x[torch.randperm(len(x))], edges

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dgi = G.DeepGraphInfomax(8, Encoder(), lambda z, *_: z.mean(0).sigmoid(), corrupt)

        def forward(self, x: Any, edges: Any) -> Any:
            return self.dgi.loss(*self.dgi(x, edges))

    x, edges = graph()
    return {"model": Model, "batch": ((x, edges), None), "loss": "output", "batch_dim": None}


@public("torch_geometric")
def light_gcn() -> dict[str, Any]:
    import torch_geometric.nn as G

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = G.LightGCN(12, 8, num_layers=2)

        def forward(self, edges: Any, pairs: Any) -> Any:
            scores = self.net(edges, pairs)
            good, bad = scores.chunk(2)
            return -F.logsigmoid(good - bad).mean()

    _, edges = graph()
    return {"model": Model, "batch": ((edges, torch.randint(0, 12, (2, 20))), None),
            "loss": "output", "batch_dim": None}  # fmt: skip


@public("torch_geometric")
def heterogeneous() -> dict[str, Any]:
    import torch_geometric.nn as G

    kinds = (["user", "item"], [("user", "buys", "item"), ("item", "sold", "user")])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = G.HGTConv(4, 8, kinds, heads=2)
            self.head = nn.Linear(8, 5)

        def forward(self, users: Any, items: Any, buys: Any) -> Any:
            out = self.conv({"user": users, "item": items},
                            {("user", "buys", "item"): buys,
                             ("item", "sold", "user"): buys.flip(0)})  # fmt: skip
            return self.head(out["user"])

    buys = torch.stack([torch.randint(0, 8, (30,)), torch.randint(0, 6, (30,))])
    return {"model": Model, "batch": ((torch.randn(8, 4), torch.randn(6, 4), buys), labels(8)),
            "loss": F.cross_entropy, "batch_dim": None}  # fmt: skip


@public("torch_geometric")
def attentive_fp() -> dict[str, Any]:
    import torch_geometric.nn as G

    x, edges = graph()
    half = torch.arange(12) // 6
    return {"model": lambda: G.AttentiveFP(6, 8, 2, edge_dim=3, num_layers=2, num_timesteps=2),
            "batch": ((x, edges, torch.randn(40, 3), half), torch.randn(2, 2)),
            "loss": F.mse_loss, "batch_dim": None}  # fmt: skip


@public("torch_geometric")
def graph_unet() -> dict[str, Any]:
    import torch_geometric.nn as G

    return on_nodes(lambda: G.GraphUNet(6, 8, 5, depth=2))


@public("torch_geometric")
def gps() -> dict[str, Any]:
    import torch_geometric.nn as G

    def run(net: Any, x: Any, edges: Any, batch: Any) -> Any:
        return net.head(net.conv(net.inputs(x), edges, batch))

    half = torch.arange(12) // 6
    return on_nodes(lambda: Net({"inputs": nn.Linear(6, 8), "conv": G.GPSConv(8, G.GINConv(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))), heads=2),
        "head": nn.Linear(8, 5)}, run), half)  # fmt: skip


@public("torch_geometric")
def diff_pool() -> dict[str, Any]:
    import torch_geometric.nn as G

    def run(net: Any, x: Any, adjacency: Any) -> Any:
        choice = net.assign(x, adjacency)
        x, adjacency, link, entropy = G.dense_diff_pool(net.embed(x, adjacency), adjacency, choice)
        return net.head(x.mean(1)), link + entropy

    adjacency = (torch.rand(4, 8, 8) < 0.4).float()
    return {"model": lambda: Net({"assign": G.DenseSAGEConv(6, 3), "embed": G.DenseSAGEConv(6, 8),
                                  "head": nn.Linear(8, 5)}, run),
            "batch": ((torch.randn(4, 8, 6), adjacency.maximum(adjacency.mT)), labels(4)),
            "loss": lambda o, t: F.cross_entropy(o[0], t) + o[1]}  # fmt: skip


@public("torch_geometric")
def node2vec() -> dict[str, Any]:
    import torch_geometric.nn as G

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(12, 8)

        def forward(self, good: Any, bad: Any) -> Any:
            def score(walk: Any) -> Any:
                h = self.embedding(walk)
                return (h[:, :1] * h[:, 1:]).sum(-1)

            return -F.logsigmoid(score(good)).mean() - F.logsigmoid(-score(bad)).mean()

    assert G.Node2Vec
    walks = torch.randint(0, 12, (6, 4))
    return {"model": Model, "batch": ((walks, torch.randint(0, 12, (6, 4))), None),
            "loss": "output"}  # fmt: skip


@public("torch_geometric")
def set_to_set() -> dict[str, Any]:
    import torch_geometric.nn as G

    def run(net: Any, x: Any, batch: Any) -> Any:
        return net.head(net.pool(net.inputs(x), batch))

    return {"model": lambda: Net({"inputs": nn.Linear(6, 8), "pool": G.Set2Set(8, 2),
                                  "head": nn.Linear(16, 5)}, run),
            "batch": ((torch.randn(12, 6), torch.arange(12) // 4), labels(3)),
            "loss": F.cross_entropy, "batch_dim": None}  # fmt: skip


@public("torch_geometric")
def point_net() -> dict[str, Any]:
    import torch_geometric.nn as G

    def run(net: Any, positions: Any, edges: Any, batch: Any) -> Any:
        h = net.conv(None, positions, edges).relu()
        return net.head(G.global_max_pool(h, batch))

    _, edges = graph()
    return {"model": lambda: Net({"conv": G.PointNetConv(nn.Linear(3, 8), nn.Linear(8, 8)),
                                  "head": nn.Linear(8, 5)}, run),
            "batch": ((torch.randn(12, 3), edges, torch.arange(12) // 6), labels(2)),
            "loss": F.cross_entropy, "batch_dim": None}  # fmt: skip


@public("torch_geometric")
def gated_graph() -> dict[str, Any]:
    import torch_geometric.nn as G

    def run(net: Any, x: Any, edges: Any) -> Any:
        return net.head(net.conv(x, edges))

    return on_nodes(lambda: Net({"conv": G.GatedGraphConv(8, 2), "head": nn.Linear(8, 5)}, run))


@public("torch_geometric")
def anti_symmetric() -> dict[str, Any]:
    import torch_geometric.nn as G

    def run(net: Any, x: Any, edges: Any) -> Any:
        return net.head(net.norm(net.conv(net.inputs(x), edges)))

    return on_nodes(lambda: Net({"inputs": nn.Linear(6, 8), "conv": G.AntiSymmetricConv(8, num_iters=2),
                                 "norm": G.GraphNorm(8), "head": nn.Linear(8, 5)}, run))  # fmt: skip


@public("egnn_pytorch")
def egnn() -> dict[str, Any]:
    from egnn_pytorch import EGNN

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = EGNN(dim=8, m_dim=4), EGNN(dim=8, m_dim=4)

        def forward(self, x: Any, positions: Any) -> Any:
            x, positions = self.first(x, positions)
            return self.second(x, positions)

    return {"model": Model, "batch": ((torch.randn(3, 6, 8), torch.randn(3, 6, 3)),
                                      torch.randn(3, 6, 3)),
            "loss": lambda o, t: F.mse_loss(o[1], t) + 0.1 * o[0].pow(2).mean()}  # fmt: skip


@public("se3_transformer")
def se3() -> dict[str, Any]:
    from se3_transformer_pytorch import SE3Transformer

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = SE3Transformer(dim=8, heads=2, dim_head=4, depth=1, num_degrees=2,
                                      valid_radius=10)  # fmt: skip

        def forward(self, x: Any, positions: Any) -> Any:
            return self.net(
                x,
                positions,
                torch.ones(x.shape[:2], dtype=torch.bool, device=x.device),
                return_type=0,
            )

    return {"model": Model, "batch": ((torch.randn(2, 6, 8), torch.randn(2, 6, 3)),
                                      torch.randn(2, 6, 8)), "loss": F.mse_loss}  # fmt: skip


@public("e3nn")
def gated_convolution() -> dict[str, Any]:
    from e3nn import nn as enn
    from e3nn import o3

    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.harmonics = o3.SphericalHarmonics([0, 1], True, normalization="component")
            self.product = o3.FullyConnectedTensorProduct(
                "4x0e", self.harmonics.irreps_out, "8x0e + 2x1o", shared_weights=False)  # fmt: skip
            self.weights = enn.FullyConnectedNet([4, 8, self.product.weight_numel], F.silu)
            self.norm, self.out = enn.BatchNorm("8x0e + 2x1o"), o3.Linear("8x0e + 2x1o", "2x0e")

        def forward(self, x: Any, positions: Any, edges: Any) -> Any:
            a, b = edges
            offset = positions[a] - positions[b]
            radial = torch.cat(
                [offset.norm(dim=-1, keepdim=True) * k for k in (1, 2, 3, 4)], -1
            ).sin()
            message = self.product(x[a], self.harmonics(offset), self.weights(radial))
            h = torch.zeros(len(x), message.shape[1], dtype=x.dtype, device=x.device).index_add(
                0, b, message
            )
            return self.out(self.norm(h))

    _, edges = graph()
    edges = edges[:, edges[0] != edges[1]]
    return {"model": Conv, "batch": ((torch.randn(12, 4), torch.randn(12, 3), edges),
                                     torch.randn(12, 2)),
            "loss": F.mse_loss, "batch_dim": None}  # fmt: skip
