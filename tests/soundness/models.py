"""Correct models that unsound checks reject: each must pass every check of the catalogue."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints, Labels, Mask, Tokens, promises

if TYPE_CHECKING:
    from collections.abc import Callable

SOUND: dict[str, Callable[[], Contract]] = {}


def sound(factory: Callable[[], Contract]) -> Callable[[], Contract]:
    SOUND[factory.__name__] = factory
    return factory


def classify(model: Any, inputs: Any = "B 8", classes: int = 4, **fields: Any) -> Contract:
    declared = {
        "inputs": inputs,
        "sizes": {"B": (2, 8)},
        "targets": Labels("B", classes=classes),
        "loss": F.cross_entropy,
        **fields,
    }
    return Contract(model=model, **declared)


@sound
def mlp() -> Contract:
    return classify(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
        sizes={"B": (1, 8)},
        output="B 4",
    )


@sound
def conv_global_pool() -> Contract:
    return classify(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        ),
        "B 3 H W", sizes={"B": (2, 6), "H": (4, 12), "W": (4, 12)}, output="B 4",
    )  # fmt: skip


@sound
def batchnorm_batch_of_one() -> Contract:
    return classify(
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)),
        sizes={"B": (1, 8)},
    )


class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 10, num_layers=2, batch_first=True), nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


@sound
def lstm() -> Contract:
    return classify(LSTMClassifier, "B T 6", sizes={"B": (1, 6), "T": (1, 9)})


class LSTMStates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 10, num_layers=4, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.lstm(x)


@sound
def lstm_tuple_states_batch_equals_layers() -> Contract:
    return Contract(
        model=LSTMStates, inputs="B T 6", sizes={"B": (1, 4), "T": (2, 6)}, batch=((torch.randn(4, 5, 6),), torch.randn(4, 5, 10)),
        loss=lambda output, target: F.mse_loss(output[0], target),
    )  # fmt: skip


@sound
def time_first_gru() -> Contract:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(6, 10), nn.Linear(10, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.gru(x)[0][-1])

    return classify(TimeFirst, "T B 6", sizes={"B": (1, 6), "T": (1, 9)}, batch_dim=1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(ids)).mean(1))


@sound
def transformer_encoder() -> Contract:
    return classify(Encoder, Tokens("B T", vocab=30), sizes={"B": (1, 6), "T": (1, 9)})


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> Any:
        mean, logvar = self.encoder(x).chunk(2, -1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        z = mean + torch.exp(0.5 * logvar) * noise
        kl = 0.5 * (logvar.exp() + mean.square() - 1 - logvar).sum(-1)
        return self.decoder(z), kl


@sound
def vae() -> Contract:
    x = torch.randn(8, 3) @ torch.randn(3, 12)
    return Contract(
        model=VAE, inputs="B 12", sizes={"B": (1, 8)}, batch=((x,), x.clone()),
        loss=lambda output, target: F.mse_loss(output[0], target) + 1e-3 * output[1].mean(),
    )  # fmt: skip


@sound
def stochastic_eval_declared() -> Contract:
    class Sampler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(F.dropout(x, 0.2, training=True))

    return classify(Sampler, promises=(promises.Stochastic(reason="Monte-Carlo dropout"),))


class TiedLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.norm = nn.LayerNorm(12)
        self.mid = nn.Linear(12, 12)
        self.head = nn.Linear(12, 20, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(ids) + torch.tanh(self.mid(self.embed(ids)))))


@sound
def tied_weights() -> Contract:
    ids = torch.randint(0, 20, (4, 7))
    return Contract(
        model=TiedLM, inputs=Tokens("B T", vocab=20), sizes={"B": (1, 4), "T": (1, 7)}, batch=((ids[:, :-1],), ids[:, 1:].contiguous()),
        loss=lambda o, t: F.cross_entropy(o.transpose(1, 2), t), promises=(promises.Tied("embed.weight", "head.weight"), promises.Causal()),
    )  # fmt: skip


@sound
def lazy_modules() -> Contract:
    return classify(lambda: nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4)))


@sound
def lazy_instance() -> Contract:
    return classify(nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4)))


class PlainOutput:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


@sound
def plain_object_output() -> Contract:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> PlainOutput:
            return PlainOutput(self.head(x))

    return classify(Model, loss=lambda output, target: F.cross_entropy(output.logits, target))


@dataclass
class Outputs:
    logits: torch.Tensor
    hidden: torch.Tensor


@sound
def dataclass_output_own_loss() -> Contract:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.head(torch.relu(self.body(x)))
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    return Contract(
        model=Model,
        inputs={"x": "B 8", "labels": Ints("B", low=0, high=4)},
        sizes={"B": (2, 8)},
        loss="output",
    )


@sound
def complex_parameters() -> Contract:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(0.3 * torch.randn(5, dtype=torch.complex64))
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8))

    return classify(Spectral)


@sound
def old_weight_norm() -> Contract:
    import warnings

    def build() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = torch.nn.utils.weight_norm(nn.Linear(8, 16))
        return nn.Sequential(first, nn.ReLU(), nn.Linear(16, 4))

    return classify(build)


@sound
def old_weight_norm_instance() -> Contract:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = torch.nn.utils.weight_norm(nn.Linear(8, 16))
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(16, 4))
    model(torch.randn(2, 8))  # the weight is now a tensor inside a graph: deepcopy refuses it
    return classify(model)


@sound
def parametrized_weight_norm_and_spectral_norm() -> Contract:
    return classify(
        lambda: nn.Sequential(
            torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(),
            torch.nn.utils.parametrizations.spectral_norm(nn.Linear(16, 4)),
        )
    )  # fmt: skip


class TopOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList([nn.Linear(8, 4) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros(len(x), 4, dtype=x.dtype, device=x.device)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, weight[rows, None] * expert(x[rows]))
        return out


@sound
def moe_top1() -> Contract:
    return classify(TopOne, sizes={"B": (2, 16)})


@sound
def stochastic_depth() -> Contract:
    class Depth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                if not self.training or torch.rand(()) > 0.4:
                    x = x + torch.tanh(layer(x))
            return self.head(x)

    return classify(Depth)


@sound
def zero_initialised_head() -> Contract:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        nn.init.zeros_(model[2].weight)
        nn.init.zeros_(model[2].bias)
        return model

    return classify(build)


@sound
def lora() -> Contract:
    class LoRA(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(8, 8).requires_grad_(False)
            self.a, self.b = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.zeros(2, 8))
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.base(x) + x @ self.a @ self.b))

    return classify(LoRA, promises=(promises.Frozen("base.*", reason="LoRA"),))


class EMATarget(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(8, 6), nn.Linear(8, 6).requires_grad_(False)
        self.predictor = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                for mine, theirs in zip(
                    self.target.parameters(), self.online.parameters(), strict=True
                ):
                    mine.lerp_(theirs, 0.01)
        with torch.no_grad():
            goal = self.target(x)
        return self.predictor(self.online(x)), goal


@sound
def ema_target_network() -> Contract:
    return Contract(
        model=EMATarget, inputs="B 8", targets="B", sizes={"B": (2, 8)}, loss=lambda output, _: F.mse_loss(output[0], output[1]),
    )  # fmt: skip


@sound
def frozen_backbone() -> Contract:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(
                nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()
            ).requires_grad_(False)
            self.head = nn.Linear(8, 4)

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.backbone(x))

    return classify(
        Probe, promises=(promises.Frozen("backbone.*", reason="linear probe"),),
        optimizer=lambda m: torch.optim.AdamW((p for p in m.parameters() if p.requires_grad), lr=1e-2),
    )  # fmt: skip


@sound
def sparse_embedding() -> Contract:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.EmbeddingBag(30, 8, sparse=True), nn.Linear(8, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    return classify(Bag, Ints("B 5", low=0, high=30))


@sound
def packed_sequence() -> Contract:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            return self.head(self.lstm(packed)[1][0][-1])

    return classify(Packed, {"x": "B 7 6", "lengths": Ints("B", low=1, high=8)})


@sound
def masked_autoencoder() -> Contract:
    class MAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc, self.dec = nn.Linear(6, 8), nn.Linear(8, 6)
            self.token = nn.Parameter(torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            keep = (torch.arange(x.shape[1], device=x.device) % 4 == 0)[None, :, None]
            h = torch.where(keep, self.enc(x), self.token)
            return self.dec(torch.tanh(h + h.mean(1, keepdim=True)))

    x = torch.randn(6, 1, 3).matmul(torch.randn(3, 6)).expand(6, 8, 6).contiguous()
    return Contract(
        model=MAE, inputs="B 8 6", sizes={"B": (1, 6)}, batch=((x,), x.clone()), loss=F.mse_loss
    )


@sound
def pointnet_pooling() -> Contract:
    class PointNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.point, self.head = nn.Sequential(nn.Linear(3, 16), nn.ReLU()), nn.Linear(16, 4)

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            return self.head(self.point(points).amax(1))

    return classify(
        PointNet,
        "B N 3",
        sizes={"B": (2, 6), "N": (1, 20)},
        promises=(promises.PermutationInvariant(dim=1),),
    )


@sound
def strided_one_by_one_convolution() -> Contract:
    return classify(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 4)
        ),
        "B 3 6 6",
    )


@sound
def vector_quantizer() -> Contract:
    class VQ(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc, self.dec, self.codes = nn.Linear(12, 4), nn.Linear(4, 12), nn.Embedding(6, 4)

        def forward(self, x: torch.Tensor) -> Any:
            z = self.enc(x)
            q = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
            vq = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
            return self.dec(z + (q - z).detach()), vq

    x = torch.randn(8, 3) @ torch.randn(3, 12)
    return Contract(
        model=VQ, inputs="B 12", sizes={"B": (1, 8)}, batch=((x,), x.clone()), loss=lambda o, t: F.mse_loss(o[0], t) + o[1],
        skip=None,
    )  # fmt: skip


@sound
def warm_up_schedule() -> Contract:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.optim.lr_scheduler.LambdaLR(made, lambda step: min(1.0, step / 10))
        return made

    return classify(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), optimizer=optimizer
    )


class GAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
        self.critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(), nn.Linear(16, 1))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.critic(self.generator(z))


@sound
def gan_pair() -> Contract:
    def optimizers(model: Any) -> Any:
        return torch.optim.Adam(model.generator.parameters(), 1e-3), torch.optim.Adam(
            model.critic.parameters(), 1e-3
        )

    def train_step(model: Any, made: Any, inputs: Any, real: torch.Tensor) -> torch.Tensor:
        generator, critic = made
        fake = model.generator(inputs[0])
        critic.zero_grad()
        loss = (
            F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(fake.detach())).mean()
        )
        loss.backward()
        critic.step()
        generator.zero_grad()
        for p in model.critic.parameters():
            p.requires_grad_(False)
        other = F.softplus(-model.critic(fake)).mean()
        other.backward()
        for p in model.critic.parameters():
            p.requires_grad_(True)
        generator.step()
        return loss.detach()

    return Contract(
        model=GAN, inputs="B 4", targets="B 6", sizes={"B": (2, 8)}, optimizer=optimizers, train_step=train_step,
    )  # fmt: skip


@sound
def sam_style_closure() -> Contract:
    def train_step(model: nn.Module, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        with torch.no_grad():
            steps = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
            for p, e in zip(model.parameters(), steps, strict=True):
                p.add_(e)
        optimizer.zero_grad()
        F.cross_entropy(model(*inputs), targets).backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), steps, strict=True):
                p.sub_(e)
        optimizer.step()
        return loss.detach()

    return classify(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), train_step=train_step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.2, momentum=0.9),
    )  # fmt: skip


class Rotary(nn.Module):
    """Registers and resizes its cache in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(30, 16), nn.Linear(16, 4)
        self.register_buffer("cache", torch.zeros(0, 16), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        x = self.embed(ids)
        if self.cache.shape[0] < length or self.cache.dtype != x.dtype:
            self.cache = torch.cos(
                torch.arange(length, device=ids.device)[:, None] * torch.ones(16, device=ids.device)
            ).to(x.dtype)
        return self.head((x * self.cache[:length]).mean(1))


@sound
def rotary_cache() -> Contract:
    return classify(Rotary, Tokens("B T", vocab=30), sizes={"B": (1, 6), "T": (1, 9)})


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.lock = nn.Linear(8, 4), threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            return self.body(x)


@sound
def holds_a_lock() -> Contract:
    return classify(Locked())


@sound
def integer_inputs_only() -> Contract:
    return classify(
        lambda: nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(24, 4)),
        Ints("B 3", low=0, high=9),
    )


@sound
def attention_with_mask() -> Contract:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(30, 16, padding_idx=0), nn.Linear(16, 4)
            self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            h = self.layer(self.embed(ids), src_key_padding_mask=~mask)
            weight = mask.to(h.dtype)[:, :, None]
            return self.head((h * weight).sum(1) / weight.sum(1))

    return classify(
        Masked, {"ids": Tokens("B T", vocab=30), "mask": Mask("B T")}, sizes={"B": (1, 6), "T": (1, 9)},
        promises=(promises.PaddingInvariant(ids="ids", mask="mask", pad=0),),
    )  # fmt: skip


@sound
def shared_layer_albert() -> Contract:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = x + torch.tanh(self.layer(x))
            return self.head(x)

    return classify(Shared)


@sound
def checkpointed() -> Contract:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 8)
            )
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False))

    return classify(Checkpointed)


@sound
def quantized() -> Contract:
    class Fake(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127)
            return self.head(torch.relu(self.body(x)))

    return classify(Fake)


@sound
def regression_negative_loss() -> Contract:
    def gaussian_nll(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mean, logvar = output.unbind(-1)
        return (0.5 * (logvar + (target - mean).square() / logvar.exp())).mean() - 3.0

    x = torch.randn(8, 6)
    return Contract(
        model=lambda: nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)), inputs="B 6", sizes={"B": (1, 8)},
        batch=((x,), x[:, 0] * 2 + 1), loss=gaussian_nll,
    )  # fmt: skip


@sound
def no_parameters() -> Contract:
    return Contract(
        model=lambda: nn.Sequential(nn.AvgPool2d(2), nn.ReLU()),
        inputs="B 3 8 8",
        sizes={"B": (1, 4)},
    )


@sound
def half_the_batch_frozen_norm_none() -> Contract:
    return classify(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.GroupNorm(4, 16), nn.SiLU(), nn.Linear(16, 4)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    )


class Distilled(nn.Module):
    """A student beside a frozen teacher, whose scores are an output too."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        self.teacher = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 4)).requires_grad_(
            requires_grad=False
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"student": self.student(x), "teacher": self.teacher(x)}


def distillation(output: dict[str, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    """Hard labels and a teacher that disagrees with them: the loss has a floor far above zero."""
    hard = F.cross_entropy(output["student"], y)
    soft = F.kl_div(
        F.log_softmax(output["student"], -1),
        F.softmax(output["teacher"], -1),
        reduction="batchmean",
    )
    return hard + 4 * soft


@sound
def distilled_from_a_teacher() -> Contract:
    return classify(
        Distilled, loss=distillation, promises=(promises.Frozen("teacher.*", reason="given"),)
    )


class Compared(nn.Module):
    """Scores two candidates; the last bias shifts both."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, better: torch.Tensor, worse: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.score(better).squeeze(-1), self.score(worse).squeeze(-1)


@sound
def ranking_with_margins() -> Contract:
    """The target is a margin between two outputs, not the goal of either."""
    return Contract(
        model=Compared,
        batch=((torch.randn(6, 8), torch.randn(6, 8)), 1 + torch.rand(6)),
        loss=lambda scores, margin: F.relu(margin - (scores[0] - scores[1])).mean(),
    )


class Adversarial(nn.Module):
    """The generator's side of a GAN: the score, and the image for which it is."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        image = self.generator(z)
        return self.critic(image), image


@sound
def generator_loss_of_the_score() -> Contract:
    return Contract(
        model=Adversarial,
        batch=((torch.randn(6, 8),), torch.randn(6, 8)),
        loss=lambda output, _real: F.softplus(-output[0]).mean(),
    )


class SharplyGated(nn.Module):
    """A mixture whose gate gives all but nothing to most experts: their gradient is real, and tiny."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList([nn.Linear(8, 4) for _ in range(3)])
        with torch.no_grad():
            self.gate.bias.copy_(torch.tensor([0.0, 0.0, -60.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        return sum(w[:, None] * e(x) for w, e in zip(weights.unbind(-1), self.experts, strict=True))


@sound
def gate_that_favours_some_experts() -> Contract:
    return classify(SharplyGated)
