"""Legitimate models of unusual build: none of them may be called wrong."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.models.zoo import ids, labels, over_tokens, public


def mlp(inputs: int, outputs: int, hidden: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def regression(model: Any, inputs: int = 4, outputs: int = 3, **fields: Any) -> dict[str, Any]:
    """Return the fields for a model of rows, trained by least squares."""
    return {"model": model, "batch": ((torch.randn(6, inputs),), torch.randn(6, outputs)),
            "loss": F.mse_loss, **fields}  # fmt: skip


class Prototypes(nn.Module):
    """Outputs and prototypes on the sphere: scores lie within [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(4, 8)
        self.prototypes = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.body(x), dim=-1) @ F.normalize(self.prototypes, dim=-1).T


@public("odd")
def prototypes() -> dict[str, Any]:
    return {"model": Prototypes, "batch": ((torch.randn(6, 4),), labels(6)),
            "loss": F.cross_entropy}  # fmt: skip


class MixtureDensity(nn.Module):
    """Returns a distribution, not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4, 9)

    def forward(self, x: torch.Tensor) -> torch.distributions.Distribution:
        weight, mean, scale = self.net(x).chunk(3, -1)
        parts = torch.distributions.Normal(mean, F.softplus(scale) + 1e-2)
        choice = torch.distributions.Categorical(logits=weight)
        return torch.distributions.MixtureSameFamily(choice, parts)


@public("odd")
def mixture_density() -> dict[str, Any]:
    return {"model": MixtureDensity, "batch": ((torch.randn(6, 4),), torch.randn(6)),
            "loss": lambda d, y: -d.log_prob(y).mean()}  # fmt: skip


class DeepSet(nn.Module):
    """Sums over the elements of a set, with a mask for those that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.element, self.total = mlp(3, 8), mlp(9, 2)

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        kept = self.element(x) * there[..., None]
        count = there.sum(1, keepdim=True).clamp(min=1).to(x)
        return self.total(torch.cat([kept.sum(1) / count, count.log()], -1))


@public("odd")
def deep_set() -> dict[str, Any]:
    there = torch.arange(5)[None] < torch.tensor([5, 3, 1, 4])[:, None]
    return {"model": DeepSet, "batch": ((torch.randn(4, 5, 3), there), torch.randn(4, 2)),
            "loss": F.mse_loss}  # fmt: skip


class PerSampleJacobian(nn.Module):
    """Penalises a Jacobian that vmap and jacrev give, sample by sample."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        jacobian = torch.func.vmap(torch.func.jacrev(self.net))(x)
        return self.net(x), jacobian.pow(2).sum((1, 2))


@public("odd")
def per_sample_jacobian() -> dict[str, Any]:
    return regression(PerSampleJacobian, loss=lambda o, t: F.mse_loss(o[0], t) + 0.1 * o[1].mean())


class HyperNetwork(nn.Module):
    """One network writes the weights of another, which holds none of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = mlp(2, 4 * 8 + 8 + 8 * 3 + 3)

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        sizes = [32, 8, 24, 3]
        first, shift, second, out = self.writer(task).split(sizes, dim=-1)
        hidden = torch.einsum("bi,bih->bh", x, first.view(-1, 4, 8)) + shift
        return torch.einsum("bh,bho->bo", hidden.tanh(), second.view(-1, 8, 3)) + out


@public("odd")
def hyper_network() -> dict[str, Any]:
    return {"model": HyperNetwork, "batch": ((torch.randn(6, 4), torch.randn(6, 2)),
            torch.randn(6, 3)), "loss": F.mse_loss}  # fmt: skip


class EnergyModel(nn.Module):
    """Scores data against samples that Langevin steps draw within the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = mlp(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sample = torch.randn_like(x)
        with torch.enable_grad():
            for _ in range(4):
                sample = sample.detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.energy(sample).sum(), sample)
                sample = sample - 0.1 * slope + 0.1 * torch.randn_like(sample)
        return self.energy(x).mean() - self.energy(sample.detach()).mean()


@public("odd")
def energy_model() -> dict[str, Any]:
    return {"model": EnergyModel, "batch": ((torch.randn(8, 2),), None), "loss": "output"}


class SelfDistilled(nn.Module):
    """Keeps a moving average of itself in buffers, written by each training forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(4, 8)
        self.head = nn.Linear(8, 8)
        self.register_buffer("teacher", self.student.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        target = F.normalize(F.linear(x, self.teacher), dim=-1)
        guess = F.normalize(self.head(self.student(x)), dim=-1)
        if self.training:
            with torch.no_grad():
                self.teacher.lerp_(self.student.weight, 0.05)
        return 2 - 2 * (guess * target).sum(-1).mean()


@public("odd")
def self_distilled() -> dict[str, Any]:
    return {"model": SelfDistilled, "batch": ((torch.randn(6, 4),), None), "loss": "output"}


class Symmetric(nn.Module):
    """A parametrization: the weight is symmetric whatever the parameter is."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@public("odd")
def parametrized() -> dict[str, Any]:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3), nn.Linear(3, 3))
        parametrize.register_parametrization(net[0], "weight", Symmetric())
        parametrizations.weight_norm(net[2])
        parametrizations.orthogonal(net[3])
        return net

    return regression(make)


@public("odd")
def spectral() -> dict[str, Any]:
    def make() -> nn.Module:
        return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 16)), nn.ReLU(),
                             torch.nn.utils.spectral_norm(nn.Linear(16, 3)))  # fmt: skip

    return regression(make)


class ComplexLinear(nn.Module):
    """Complex parameters and activations, a real output."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 8, dtype=torch.cfloat) / 3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x) @ self.weight
        return self.head(torch.log1p(spectrum.abs().square()))


@public("odd")
def complex_parameters() -> dict[str, Any]:
    return regression(ComplexLinear, inputs=8)


class Tags(nn.Module):
    """An embedding bag with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, sparse=True, mode="sum")
        self.head = nn.Linear(8, 5)

    def forward(self, tags: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(tags))


@public("odd")
def sparse_embedding() -> dict[str, Any]:
    return {"model": Tags, "batch": ((ids(6, 4),), labels(6)), "loss": F.cross_entropy}


class TimeFirst(nn.Module):
    """A recurrent net as torch's default has it: time before batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


@public("odd")
def time_first() -> dict[str, Any]:
    return {"model": TimeFirst, "batch": ((torch.randn(7, 4, 3),), torch.randn(7, 4, 2)),
            "loss": F.mse_loss, "batch_dim": 1}  # fmt: skip


@public("odd")
def time_first_undeclared() -> dict[str, Any]:
    fields = time_first()
    del fields["batch_dim"]
    return fields


class CachedPositions(nn.Module):
    """Attention that keeps its rotation table and, in evaluation mode, the last keys it made."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(50, 8), nn.Linear(8, 24), nn.Linear(8, 50)
        self.table: torch.Tensor | None = None
        self.keys: torch.Tensor | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        if self.table is None or self.table.shape[0] < x.shape[1]:
            angle = torch.arange(x.shape[1], device=x.device)[:, None] * torch.tensor(
                [1.0, 0.1], device=x.device
            )
            self.table = torch.cat([angle.sin(), angle.cos(), angle.sin(), angle.cos()], -1)
        x = x + self.table[: x.shape[1]].to(x)
        q, k, v = self.mix(x).chunk(3, -1)
        if not self.training:
            self.keys = k.detach()
        return self.head(x + F.scaled_dot_product_attention(q, k, v, is_causal=True))


@public("odd")
def cached_positions() -> dict[str, Any]:
    return {"model": CachedPositions, "batch": ((ids(4, 9),), ids(4, 9)), "loss": over_tokens}


class Variational(nn.Module):
    """Draws its code in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = mlp(6, 4), mlp(2, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_var = self.encode(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decode(code), 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum(-1)


@public("odd")
def sampled_in_eval() -> dict[str, Any]:
    x = torch.randn(8, 6)
    return {"model": Variational, "batch": ((x,), x.clone()),
            "loss": lambda o, t: F.mse_loss(o[0], t) + 0.01 * o[1].mean()}  # fmt: skip


class Quantiser(nn.Module):
    """Rounds weights and activations to 4 bits, with the straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 3)

    @staticmethod
    def rounded(x: torch.Tensor) -> torch.Tensor:
        step = x.detach().abs().max().clamp(min=1e-6) / 7
        return x + ((x / step).round() * step - x).detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(self.rounded(x), self.rounded(self.first.weight), self.first.bias).relu()
        return F.linear(self.rounded(x), self.rounded(self.second.weight), self.second.bias)


@public("odd")
def quantiser() -> dict[str, Any]:
    return regression(Quantiser)
