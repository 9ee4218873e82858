"""Series, spikes and differential equations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo import labels, public


def series(model: Any, inputs: torch.Tensor, target: torch.Tensor, loss: Any = F.mse_loss) -> Any:
    """Return the fields for a model of one input."""
    return {"model": model, "batch": ((inputs,), target), "loss": loss}


@public("neuralop")
def fourier() -> dict[str, Any]:
    from neuralop.models import FNO

    return series(lambda: FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8,
                              n_layers=2), torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16))  # fmt: skip


@public("neuralop")
def tensorised() -> dict[str, Any]:
    from neuralop.models import TFNO

    return series(lambda: TFNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8,
                               n_layers=2, factorization="Tucker", rank=0.3),
                  torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16))  # fmt: skip


@public("neuralop")
def u_shaped() -> dict[str, Any]:
    from neuralop.models import UNO

    return series(lambda: UNO(1, 1, hidden_channels=8, uno_out_channels=[8, 8, 8],
                              uno_n_modes=[[4, 4]] * 3,
                              uno_scalings=[[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]], n_layers=3,
                              channel_mlp_skip="linear"),
                  torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16))  # fmt: skip


@public("torchdiffeq")
def second_order() -> dict[str, Any]:
    from torchdiffeq import odeint

    class Oscillator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.force = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

        def flow(self, t: torch.Tensor, state: tuple[torch.Tensor, ...]) -> Any:
            position, velocity = state
            return velocity, self.force(torch.cat([position, velocity], -1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            times = torch.linspace(0, 1, 4).to(x)
            state = (x[:, :2], x[:, 2:])
            return odeint(self.flow, state, times, method="midpoint")[0].transpose(0, 1)

    return series(Oscillator, torch.randn(5, 4), torch.randn(5, 4, 2))


@public("torchcde")
def controlled() -> dict[str, Any]:
    import torchcde

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh())

        def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.net(z).view(*z.shape[:-1], 4, 3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.field, self.head = nn.Linear(3, 4), Field(), nn.Linear(4, 5)

        def forward(self, coefficients: torch.Tensor) -> torch.Tensor:
            path = torchcde.CubicSpline(coefficients)
            z = torchcde.cdeint(X=path, func=self.field, z0=self.start(path.evaluate(0.0)),
                                t=path.interval, adjoint=False, method="rk4",
                                options={"step_size": 1.0})  # fmt: skip
            return self.head(z[:, -1])

    x = torchcde.hermite_cubic_coefficients_with_backward_differences(torch.randn(4, 6, 3))
    return series(Model, x, labels(4), F.cross_entropy)


@public("torchsde")
def latent() -> dict[str, Any]:
    import torchsde

    class Model(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.net, self.prior = nn.Linear(3, 3), nn.Linear(3, 3)
            self.scale = nn.Parameter(torch.zeros(3))

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.net(y)

        def h(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.prior(y)

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.softplus(self.scale).expand_as(y) + 0.1

        def forward(self, x: torch.Tensor) -> Any:
            times = torch.linspace(0, 0.4, 3).to(x)
            path, divergence = torchsde.sdeint(self, x, times, dt=0.1, method="euler", logqp=True)
            return path[-1], divergence.sum(0).mean()

    return series(Model, torch.randn(5, 3), torch.randn(5, 3),
                  lambda o, t: F.mse_loss(o[0], t) + 0.01 * o[1])  # fmt: skip


@public("snntorch")
def spiking() -> dict[str, Any]:
    import snntorch as snn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 5)
            self.hidden, self.out = snn.Leaky(beta=0.9), snn.Leaky(beta=0.9, learn_beta=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = self.hidden.init_leaky(), self.out.init_leaky()
            levels = []
            for _ in range(6):
                spikes, a = self.hidden(self.first(x), a)
                _, b = self.out(self.second(spikes), b)
                levels.append(b)
            return torch.stack(levels).mean(0)

    return series(Model, torch.rand(6, 6) * 2, labels(6), F.cross_entropy)


@public("spikingjelly")
def integrate_and_fire() -> dict[str, Any]:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            spike = surrogate.ATan()
            self.net = nn.Sequential(layer.Linear(6, 16), neuron.LIFNode(surrogate_function=spike),
                                     layer.Linear(16, 5), neuron.LIFNode(surrogate_function=spike))  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            functional.reset_net(self.net)
            return torch.stack([self.net(2 * x) for _ in range(5)]).mean(0)

    return series(Model, torch.rand(6, 6) * 2, labels(6), F.cross_entropy)


@public("ncps")
def wired() -> dict[str, Any]:
    from ncps.torch import LTC
    from ncps.wirings import AutoNCP

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = LTC(3, AutoNCP(8, 2), batch_first=True, ode_unfolds=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]

    return series(Model, torch.randn(4, 5, 3), torch.randn(4, 5, 2))


@public("torch")
def packed() -> dict[str, Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8, padding_idx=0)
            self.rnn = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
            self.head = nn.Linear(16, 5)

        def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embed(tokens), lengths.cpu(), batch_first=True, enforce_sorted=True)  # fmt: skip
            _, (hidden, _) = self.rnn(packed)
            return self.head(torch.cat([hidden[0], hidden[1]], -1))

    lengths = torch.tensor([7, 5, 4, 2])
    tokens = torch.randint(1, 50, (4, 7)) * (torch.arange(7) < lengths[:, None])
    return {"model": Model, "batch": ((tokens, lengths), labels(4)), "loss": F.cross_entropy}


@public("torch")
def ctc() -> dict[str, Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 6, 1))

        def forward(self, x: torch.Tensor, y: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            scores = self.body(x).permute(2, 0, 1).log_softmax(-1)
            frames = torch.full((x.shape[0],), x.shape[2], device=x.device)
            return F.ctc_loss(scores, y, frames, lengths, zero_infinity=True)

    return {"model": Model, "batch": ((torch.randn(3, 4, 16), torch.randint(1, 6, (3, 4)),
                                       torch.tensor([4, 2, 3])), None), "loss": "output"}  # fmt: skip


@public("pytorch_forecasting")
def n_beats() -> dict[str, Any]:
    from pytorch_forecasting.models.nbeats.sub_modules import NBEATSGenericBlock

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            blocks = (NBEATSGenericBlock(units=16, thetas_dim=4, num_block_layers=2,
                                         backcast_length=12, forecast_length=4) for _ in range(2))  # fmt: skip
            self.blocks = nn.ModuleList(blocks)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total: Any = 0
            for block in self.blocks:
                back, ahead = block(x)
                x, total = x - back, total + ahead
            return total

    return series(Model, torch.randn(6, 12), torch.randn(6, 4))


@public("pytorch_forecasting")
def gated_residual() -> dict[str, Any]:
    from pytorch_forecasting.models.temporal_fusion_transformer import sub_modules as s

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grn = s.GatedResidualNetwork(6, 8, 8, dropout=0.1)
            self.attention = s.InterpretableMultiHeadAttention(2, 8, dropout=0.1)
            self.add, self.head = s.GateAddNorm(8, 8, 8, dropout=0.1), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.grn(x)
            mixed, _ = self.attention(h, h, h)
            return self.head(self.add(mixed, h))

    def quantiles(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        error = t[..., None] - o
        level = torch.tensor([0.1, 0.5, 0.9])
        return torch.maximum(level * error, (level - 1) * error).mean()

    return series(Model, torch.randn(4, 7, 6), torch.randn(4, 7), quantiles)
