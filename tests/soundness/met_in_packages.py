"""Kinds of correct models that public packages hold and that a check once rejected, written anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels
from tests.soundness.models import classify, sound

if TYPE_CHECKING:
    from collections.abc import Callable


@sound
def container_of_registered_layers_made_in_forward() -> Contract:
    class Dropped(nn.Module):
        """Runs a random part of its blocks, put into a container of the moment."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = [b for b in self.blocks if not self.training or torch.rand(()) > 0.3]
            return self.head(torch.tanh(nn.Sequential(*kept, nn.Tanh())(x)))

    return classify(Dropped)


@sound
def gates_that_start_nearly_closed() -> Contract:
    class Gated(nn.Module):
        """A chain of weights of 1e-4: gradients far below the others, and no rounding of zero."""

        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(8, 4)
            self.gates = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)], nn.Linear(8, 4))
            for layer in self.gates:
                nn.init.normal_(layer.weight, std=1e-4)
                nn.init.zeros_(layer.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x
            for layer in self.gates[:-1]:
                h = F.silu(layer(h))
            return self.base(x) + self.gates[-1](h)

    return classify(Gated)


def written_at_run_time() -> Callable[[Any, Any], torch.Tensor]:
    """Compile a function from text, as einsum packages do, that puts a number on its operand's device."""
    names: dict[str, Any] = {"torch": torch}
    text = (
        "def keep(mask, x):\n"
        "    fill = torch.reshape(torch.asarray(0.0, device=x.device), (1, 1))\n"
        "    return torch.where(mask, x, fill)\n"
    )
    exec(compile(text, "<string>", "exec"), names)
    keep: Callable[[Any, Any], torch.Tensor] = names["keep"]
    return keep


@sound
def code_written_at_run_time() -> Contract:
    keep = written_at_run_time()

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(keep(x > -1, torch.tanh(self.body(x))))

    return classify(Masked)


class GraphAttention(nn.Module):
    """One head over a given adjacency; the receiver's score cancels where no rectifier bends."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 8, bias=False)
        self.send, self.receive = nn.Linear(8, 1, bias=False), nn.Linear(8, 1, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, nodes: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        h = self.project(nodes)
        score = F.leaky_relu(self.receive(h) + self.send(h).transpose(0, 1), 0.2)
        return self.head(torch.relu(score.masked_fill(~near, -1e9).softmax(-1) @ h))


def graph_attention(seed: int) -> Contract:

    own = torch.Generator().manual_seed(seed)
    nodes = torch.rand(6, 6, generator=own)  # one sign, as after a rectifier
    near = torch.eye(6, dtype=torch.bool) | (torch.rand(6, 6, generator=own) < 0.3)
    return Contract(
        model=GraphAttention, batch=({"nodes": nodes, "near": near}, torch.tensor([0, 1, 2, 0, 1, 2])),
        loss=F.cross_entropy, batch_dim=None,
    )  # fmt: skip


@sound
def graph_attention_with_scores_of_one_sign() -> Contract:
    return graph_attention(8)


@sound
def flow_that_keeps_volumes() -> Contract:
    class Coupling(nn.Module):
        """Additive couplings: the likelihood has a bound that the loss alone does not show."""

        def __init__(self) -> None:
            super().__init__()
            self.shifts = nn.ModuleList(
                [nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)) for _ in range(4)]
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, -1)
            for shift in self.shifts:
                a, b = b + shift(a), a
            z = torch.cat([a, b], -1)
            return -0.5 * (z.square() + 1.8379).sum(-1)

    return Contract(
        model=Coupling, inputs="B 4", targets="B", sizes={"B": (4, 8)}, loss=lambda o, _: -o.mean()
    )


class Kernel(torch.autograd.Function):
    """Knows its gradient for the scale alone, and says so where another is asked of it."""

    @staticmethod
    def forward(ctx: Any, distance: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if ctx.needs_input_grad[0]:
            raise RuntimeError("no gradient with respect to the distances")
        value = torch.exp(-distance / scale)
        ctx.save_for_backward(distance, scale, value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        distance, scale, value = ctx.saved_tensors
        return None, (gradient * value * distance / scale.square()).sum()


@sound
def function_that_refuses_some_gradients() -> Contract:
    class Covariance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.tensor(1.3)), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(Kernel.apply(x.detach().square(), self.scale))

    return classify(Covariance)


@sound
def centres_laid_out_by_the_first_batch() -> Contract:
    class Clustered(nn.Module):
        """Each sample is compared with centres that the first forward takes from its batch, in either mode."""

        def __init__(self) -> None:
            super().__init__()
            self.into, self.head = nn.Linear(8, 6), nn.Linear(3, 4)
            self.register_buffer("centres", torch.zeros(3, 6))
            self.register_buffer("laid_out", torch.tensor(False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.into(x))
            if not self.laid_out:
                order = torch.arange(3) % len(h)
                self.centres.data.copy_(h.detach()[order] + h.detach().mean(0))
                self.laid_out.data.fill_(True)
            return self.head(torch.softmax(h @ self.centres.T, -1))

    return classify(Clustered)


@sound
def attention_with_an_empty_packed_weight() -> Contract:
    class Attention(nn.Module):
        """Projects by three weights; the packed one that torch's function takes as well is not read then."""

        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x[:, None] * torch.linspace(0.5, 1.0, 3, device=x.device)[:, None]
            h = h.transpose(0, 1)
            bias = torch.cat([self.q.bias, self.k.bias, self.v.bias])
            mixed, _ = F.multi_head_attention_forward(
                h, h.flip(0), h.roll(1, 0), 8, 2, torch.empty([0]), bias, None, None, False, 0.0,
                self.out.weight, self.out.bias, use_separate_proj_weight=True,
                q_proj_weight=self.q.weight, k_proj_weight=self.k.weight,
                v_proj_weight=self.v.weight,
            )  # fmt: skip
            return self.head(mixed[0])

    return classify(Attention)


@sound
def activation_whose_gradient_starts_near_nothing() -> Contract:
    class Snake(nn.Module):
        """A frequency behind small numbers: the epsilon of our own optimizer is above its gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.base, self.alpha = nn.Linear(8, 4), nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = 2e-6 * x[:, :4]
            return 0.01 * self.base(x) + 0.1 * torch.sin(self.alpha * h).square() / self.alpha

    return classify(Snake)


@sound
def loss_of_the_batch_given_to_each_sample() -> Contract:
    class Coded(nn.Module):
        """Returns the size of its codes, one number of the batch, as an entry for each sample beside the scores."""

        def __init__(self) -> None:
            super().__init__()
            self.into, self.head = nn.Linear(8, 6), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = self.into(x)
            return self.head(h), h.square().mean().expand(len(x))

    return Contract(
        model=Coded, inputs="B 8", targets=Labels("B", classes=4), sizes={"B": (4, 8)},
        loss=lambda o, t: F.cross_entropy(o[0], t) + 0.1 * o[1].mean(),
    )  # fmt: skip


@sound
def samples_that_start_almost_equal_beside_a_loss_of_the_batch() -> Contract:
    class Faint(nn.Module):
        """Differences that start far below the output's size; one number of the batch stands before them."""

        def __init__(self) -> None:
            super().__init__()
            self.level, self.head = nn.Parameter(torch.ones(3)), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            penalty = self.head.weight.square().mean().expand(len(x))
            return penalty, self.level + 1e-14 * self.head(x)

    return Contract(
        model=Faint, inputs="B 8", targets="B 3", sizes={"B": (4, 8)},
        loss=lambda o, t: F.mse_loss(o[1], t) + 0.1 * o[0].mean(),
    )  # fmt: skip


@sound
def loss_of_one_entry_with_a_term_of_training() -> Contract:
    class Regularised(nn.Module):
        """Returns its loss as one entry; the size of its weights is part of it where gradients are recorded."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss = (self.head(x) - x[:, :1]).square().mean(0)
            if self.training and torch.is_grad_enabled():
                loss = loss + self.head.weight.square().sum()
            return loss

    return Contract(model=Regularised, inputs="B 8", sizes={"B": (4, 8)}, loss="output")


@sound
def shaped_bias_before_a_normalisation() -> Contract:
    class Spectral(nn.Module):
        """Adds a bias shaped for maps, which the normalisation behind it takes out again."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 1, 3, 3))
            self.bias = nn.Parameter(torch.randn(1, 6, 1, 1))
            self.norm, self.head = nn.InstanceNorm2d(6), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = F.conv2d(x[:, None], self.weight, padding=1) + self.bias
            return self.head(F.gelu(self.norm(h)).mean((2, 3)))

    return Contract(
        model=Spectral, inputs="B 8 8", targets=Labels("B", classes=4), sizes={"B": (4, 8)},
        loss=F.cross_entropy,
    )  # fmt: skip
