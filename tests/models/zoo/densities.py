"""Densities, processes and codes: flows, Gaussian processes, Bayesian layers, quantisers, spheres."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import labels, public


class Likelihood(nn.Module):
    """The negative log-likelihood of a flow."""

    def __init__(self, flow: Any) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return -self.flow.log_prob(*args).mean()


def likelihood(make: Any, *inputs: torch.Tensor) -> dict[str, Any]:
    """Return the fields for a flow that is trained by maximum likelihood."""
    return {"model": lambda: Likelihood(make()), "batch": (inputs, None), "loss": "output"}


def zuko_flow(name: str, **options: Any) -> None:
    """Register a conditional flow of zuko, which returns a distribution."""

    def build() -> dict[str, Any]:
        import zuko

        return {"model": lambda: getattr(zuko.flows, name)(3, context=2, **options),
                "batch": ((torch.randn(8, 2),), torch.rand(8, 3) - 0.5),
                "loss": lambda d, y: -d.log_prob(y).mean()}  # fmt: skip

    public("zuko", name)(build)


zuko_flow("MAF", transforms=2, hidden_features=[16])
zuko_flow("NICE", transforms=2, hidden_features=[16])
zuko_flow("GMM", components=3, hidden_features=[16])
zuko_flow("CNF", hidden_features=[16], freqs=2)
zuko_flow("BPF", degree=4, transforms=2, hidden_features=[16])
zuko_flow("SOSPF", degree=2, polynomials=2, transforms=2, hidden_features=[16])


@public("nflows")
def real_nvp() -> dict[str, Any]:
    from nflows.flows import SimpleRealNVP

    return likelihood(lambda: SimpleRealNVP(features=4, hidden_features=16, num_layers=2,
                      num_blocks_per_layer=1, batch_norm_within_layers=True,
                      batch_norm_between_layers=True), torch.randn(8, 4))  # fmt: skip


class ForwardKL(nn.Module):
    """The loss by which normflows trains."""

    def __init__(self, flow: Any) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.flow.forward_kld(x)


def forward_kl(make: Any, x: torch.Tensor) -> dict[str, Any]:
    return {"model": lambda: ForwardKL(make()), "batch": ((x,), None), "loss": "output"}


@public("normflows")
def neural_spline() -> dict[str, Any]:
    import normflows as nf

    def make() -> nn.Module:
        flows = [layer for _ in range(2) for layer in (
            nf.flows.AutoregressiveRationalQuadraticSpline(3, 1, 16), nf.flows.LULinearPermute(3))]  # fmt: skip
        return nf.NormalizingFlow(nf.distributions.DiagGaussian(3, trainable=False), flows)

    return forward_kl(make, torch.randn(8, 3))


@public("normflows")
def residual_flow() -> dict[str, Any]:
    import normflows as nf

    def make() -> nn.Module:
        net = nf.nets.LipschitzMLP([2, 8, 2], init_zeros=True, lipschitz_const=0.9)
        flows = [nf.flows.Residual(net, reduce_memory=True), nf.flows.ActNorm(2)]
        return nf.NormalizingFlow(nf.distributions.DiagGaussian(2), flows)

    return forward_kl(make, torch.randn(8, 2))


@public("normflows")
def glow() -> dict[str, Any]:
    import normflows as nf

    def make() -> nn.Module:
        blocks = [[nf.flows.GlowBlock(12, 8, split_mode="channel", scale=True),
                   nf.flows.Squeeze()]]  # fmt: skip
        base = [nf.distributions.GlowBase((12, 4, 4))]
        return nf.MultiscaleFlow(base, blocks, [], class_cond=False)

    return forward_kl(make, torch.rand(4, 3, 8, 8))


@public("normflows")
def planar() -> dict[str, Any]:
    import normflows as nf

    class Reverse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nf.NormalizingFlow(nf.distributions.DiagGaussian(2),
                                          [nf.flows.Planar((2,)) for _ in range(3)],
                                          nf.distributions.TwoMoons())  # fmt: skip

        def forward(self, count: torch.Tensor) -> torch.Tensor:
            return self.net.reverse_kld(len(count))

    return {"model": Reverse, "batch": ((torch.zeros(16),), None), "loss": "output"}


@public("gpytorch")
def multitask() -> dict[str, Any]:
    import gpytorch as g

    class GP(g.models.ApproximateGP):
        def __init__(self) -> None:
            points = torch.rand(2, 5, 1)
            shape = torch.Size([2])
            inner = g.variational.VariationalStrategy(
                self, points, g.variational.CholeskyVariationalDistribution(5, batch_shape=shape)
            )
            super().__init__(g.variational.LMCVariationalStrategy(inner, 3, 2))
            self.mean = g.means.ConstantMean(batch_shape=shape)
            kernel = g.kernels.MaternKernel(nu=1.5, batch_shape=shape)
            self.kernel = g.kernels.ScaleKernel(kernel, batch_shape=shape)

        def forward(self, x: torch.Tensor) -> Any:
            return g.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gp, self.noise = GP(), g.likelihoods.MultitaskGaussianLikelihood(3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return -g.mlls.VariationalELBO(self.noise, self.gp, num_data=12)(self.gp(x), y)

    return {"model": Model, "batch": ((torch.rand(12, 1), torch.randn(12, 3)), None),
            "loss": "output"}  # fmt: skip


@public("gpytorch")
def exact() -> dict[str, Any]:
    import gpytorch as g

    x = torch.rand(10, 2)
    y = x.sum(-1).sin()

    class GP(g.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, g.likelihoods.GaussianLikelihood())
            self.mean = g.means.LinearMean(2)
            self.kernel = g.kernels.ScaleKernel(g.kernels.RBFKernel(ard_num_dims=2))

        def forward(self, x: torch.Tensor) -> Any:
            return g.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Marginal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gp = GP()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.gp.train()
            self.gp.set_train_data(x, y, strict=False)
            mll = g.mlls.ExactMarginalLogLikelihood(self.gp.likelihood, self.gp)
            return -mll(self.gp(x), y)

    return {"model": Marginal, "batch": ((x, y), None), "loss": "output", "batch_dim": None}


@public("botorch")
def single_task() -> dict[str, Any]:
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    x = torch.rand(10, 2, dtype=torch.double)
    y = x.sum(-1, keepdim=True).sin()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gp = SingleTaskGP(x, y)
            self.mll = ExactMarginalLogLikelihood(self.gp.likelihood, self.gp)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.gp.train()
            self.gp.set_train_data(x, strict=False)
            return -self.mll(self.gp(x), self.gp.train_targets)

    return {"model": Model, "batch": ((x,), None), "loss": "output", "batch_dim": None}


@public("torchbnn")
def bayesian() -> dict[str, Any]:
    import torchbnn as bnn

    divergence = bnn.BKLLoss(reduction="mean", last_layer_only=False)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(bnn.BayesLinear(0, 0.1, 4, 16), nn.ReLU(),
                                     bnn.BayesLinear(0, 0.1, 16, 5))  # fmt: skip

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x), divergence(self.net)

    return {"model": Model, "batch": ((torch.randn(6, 4),), labels(6)),
            "loss": lambda o, t: F.cross_entropy(o[0], t) + 0.01 * o[1].squeeze()}  # fmt: skip


@public("blitz")
def blitz_lstm() -> dict[str, Any]:
    from blitz.modules import BayesianLinear, BayesianLSTM
    from blitz.utils import variational_estimator

    @variational_estimator
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = BayesianLSTM(3, 8), BayesianLinear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    return {"model": Model, "batch": ((torch.randn(6, 5, 3),), torch.randn(6, 1)),
            "loss": F.mse_loss}  # fmt: skip


class Coded(nn.Module):
    """An encoder, a quantiser and a decoder."""

    def __init__(self, quantiser: nn.Module, dim: int = 8) -> None:
        super().__init__()
        self.encode, self.quantiser, self.decode = nn.Linear(6, dim), quantiser, nn.Linear(dim, 6)

    def forward(self, x: torch.Tensor) -> Any:
        code = self.quantiser(self.encode(x))
        extra = code[2] if len(code) > 2 else torch.zeros(())
        return self.decode(code[0]), extra.sum()


def quantised(name: str, dim: int = 8, **options: Any) -> None:
    """Register an auto-encoder with a quantiser of vector_quantize_pytorch."""

    def build() -> dict[str, Any]:
        import vector_quantize_pytorch as vq

        x = torch.randn(4, 8, 6)
        return {"model": lambda: Coded(getattr(vq, name)(dim=dim, **options), dim), "batch": ((x,), x.clone()),
                "loss": lambda o, t: F.mse_loss(o[0], t) + 0.1 * o[1]}  # fmt: skip

    public("vector_quantize", name)(build)


quantised("ResidualVQ", num_quantizers=2, codebook_size=16)
quantised("GroupedResidualVQ", num_quantizers=2, groups=2, codebook_size=16)
quantised("SimVQ", codebook_size=16)
quantised("ResidualFSQ", num_quantizers=2, levels=[5, 5, 3])
quantised("LatentQuantize", levels=[5, 5, 4])


@public("vector_quantize", "BinaryMapper_")
def binary_mapper() -> dict[str, Any]:
    from vector_quantize_pytorch import BinaryMapper

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.bits, self.decode = nn.Linear(6, 4), BinaryMapper(4), nn.Linear(16, 6)

        def forward(self, x: torch.Tensor) -> Any:
            code, auxiliary = self.bits(self.encode(x))
            return self.decode(code), auxiliary

    x = torch.randn(4, 8, 6)
    return {"model": Model, "batch": ((x,), x.clone()),
            "loss": lambda o, t: F.mse_loss(o[0], t) + (0.0 if o[1] is None else o[1])}  # fmt: skip


@public("geoopt")
def hyperbolic() -> dict[str, Any]:
    import geoopt

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ball = geoopt.PoincareBall()
            start = self.ball.random_normal(20, 3, std=0.3)
            self.points = geoopt.ManifoldParameter(start, manifold=self.ball)

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return self.ball.dist(self.points[first], self.points[second])

    return {"model": Embedding,
            "batch": ((labels(8, classes=20), labels(8, classes=20)), torch.rand(8)),
            "loss": lambda d, t: F.binary_cross_entropy((-d).exp().clamp(1e-4, 1 - 1e-4), t.round()),
            "optimizer": lambda model: geoopt.optim.RiemannianAdam(model.parameters(), lr=1e-2)}  # fmt: skip


@public("geotorch")
def low_rank() -> dict[str, Any]:
    import geotorch

    def make() -> nn.Module:
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        geotorch.low_rank(net[0], "weight", 3)
        geotorch.orthogonal(net[2], "weight")
        return net

    return {"model": make, "batch": ((torch.randn(6, 6),), torch.randn(6, 4)), "loss": F.mse_loss}


@public("hypll")
def hyperbolic_linear() -> dict[str, Any]:
    from hypll import nn as hnn
    from hypll.manifolds.poincare_ball import Curvature, PoincareBall
    from hypll.tensors import TangentTensor

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ball = PoincareBall(Curvature(requires_grad=True))
            self.first = hnn.HLinear(4, 8, manifold=self.ball)
            self.second = hnn.HLinear(8, 5, manifold=self.ball)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            point = self.ball.expmap(TangentTensor(data=x, man_dim=1, manifold=self.ball))
            return self.second(hnn.HReLU(self.ball)(self.first(point))).tensor

    return {"model": Model, "batch": ((torch.randn(6, 4),), labels(6)), "loss": F.cross_entropy}


@public("pyro")
def guide() -> dict[str, Any]:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroModule, PyroSample

    class Regression(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = PyroModule[nn.Linear](3, 1)
            self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            mean = self.linear(x).squeeze(-1)
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Normal(mean, 0.3), obs=y)
            return mean

    class Elbo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Regression()
            self.guide = AutoNormal(self.model)
            self.elbo = Trace_ELBO()(self.model, self.guide)
            self.elbo(torch.zeros(2, 3), torch.zeros(2))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.elbo(x, y)

    return {"model": Elbo, "batch": ((torch.randn(8, 3), torch.randn(8)), None), "loss": "output"}
