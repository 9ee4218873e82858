"""Correct models as people write them, with the declarations that go with them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_torchcheck import Contract, Ints, Labels, Mask, Tokens, promises
from pytest_torchcheck.specs.kinds import Lengths
from tests.soundness.models import classify, sound

IMAGES: dict[str, Any] = {"inputs": "B 3 16 16", "sizes": {"B": (2, 4)}}


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Residual(nn.Module):
    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, 2 * width, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(2 * width), nn.BatchNorm2d(2 * width)
        self.conv2 = nn.Conv2d(2 * width, 2 * width, 3, 1, 1, bias=False)
        self.down = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1, stride, bias=False), nn.BatchNorm2d(2 * width)
        )
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(h + self.down(x), inplace=True)


@sound
def resnet_with_sgd_and_cosine_schedule() -> Contract:
    def optimizer(model: nn.Module) -> Any:
        made = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
        return made, torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=200)

    return classify(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(), Residual(8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Dropout(0.1), nn.Linear(16, 4),
        ),
        **IMAGES, optimizer=optimizer,
    )  # fmt: skip


@sound
def segmentation_with_dice_and_ignored_pixels() -> Contract:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.SiLU())
            self.deep = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(2, 16), nn.SiLU())
            self.up, self.head = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skip = self.down(x)
            return self.head(torch.cat([skip, self.up(self.deep(skip))], 1))

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kept = target != 255
        hot = F.one_hot(target.clamp_max(2), 3).movedim(-1, 1) * kept[:, None]
        share = logits.softmax(1) * kept[:, None]
        dice = 1 - (2 * (share * hot).sum((2, 3)) + 1) / (share.sum((2, 3)) + hot.sum((2, 3)) + 1)
        return F.cross_entropy(logits, target, ignore_index=255) + dice.mean()

    return Contract(
        model=UNet, inputs="B 3 8 8", sizes={"B": (2, 4)}, targets=Labels("B 8 8", classes=3, ignore_index=255),
        output="B 3 8 8", loss=loss,
    )  # fmt: skip


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.kind, self.size = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.body(x)
        return {"kind": self.kind(h), "size": self.size(h).squeeze(-1)}


@sound
def two_tasks_with_dicts() -> Contract:
    return Contract(
        model=TwoHeads, inputs={"x": "B 8"}, sizes={"B": (2, 8)}, targets={"kind": Labels("B", classes=4), "size": "B"},
        loss=lambda o, t: F.cross_entropy(o["kind"], t["kind"]) + 0.5 * F.smooth_l1_loss(o["size"], t["size"]),
    )  # fmt: skip


@sound
def losses_in_a_dict_as_detectors_return_them() -> Contract:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.boxes = nn.Linear(8, 16), nn.Linear(16, 4)
            self.scores = nn.Linear(16, 3)

        def forward(self, x: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
            h = F.relu(self.body(x))
            return {
                "loss_box": F.l1_loss(self.boxes(h), boxes),
                "loss_class": F.cross_entropy(self.scores(h), labels),
            }

    return Contract(
        model=Detector, inputs={"x": "B 8", "boxes": "B 4", "labels": Ints("B", low=0, high=3)}, sizes={"B": (2, 8)},
        loss="output",
    )  # fmt: skip


class Prediction(NamedTuple):
    mean: torch.Tensor
    scale: torch.Tensor


@sound
def named_tuple_of_a_distribution() -> Contract:
    class Heteroscedastic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 32), nn.Linear(32, 2)

        def forward(self, x: torch.Tensor) -> Prediction:
            mean, raw = self.head(torch.tanh(self.body(x))).unbind(-1)
            return Prediction(mean, F.softplus(raw) + 1e-3)

    x = drawn(12, 6)
    return Contract(
        model=Heteroscedastic, inputs="B 6", sizes={"B": (2, 12)}, batch=((x,), x.sum(1)),
        loss=lambda o, t: -torch.distributions.Normal(o.mean, o.scale).log_prob(t).mean(),
    )  # fmt: skip


@sound
def multi_label_with_positive_weights() -> Contract:
    weights = torch.tensor([1.0, 2.0, 4.0])
    return Contract(
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), inputs="B 8", sizes={"B": (2, 8)},
        batch=((drawn(8, 8),), (drawn(8, 3, seed=1) > 0).float()),
        loss=lambda o, t: F.binary_cross_entropy_with_logits(o, t, pos_weight=weights.to(o.device)),
    )  # fmt: skip


@sound
def label_smoothing_and_class_weights() -> Contract:
    return classify(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)),
        loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.0]), label_smoothing=0.1),
        optimizer=lambda m: torch.optim.AdamW(
            [
                {"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": 0.1},
                {"params": [p for p in m.parameters() if p.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=3e-3,
        ),
    )


class Decoder(nn.Module):
    """Learned positions, pre-norm blocks with a causal mask, tied head."""

    def __init__(self, vocab: int = 24, width: int = 16, longest: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(longest, width)
        self.norm1, self.norm2, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return self.head(self.last(x + self.feed(self.norm2(x))))


@sound
def language_model_with_clipping_step() -> Contract:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(*inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    ids = torch.randint(0, 24, (4, 9), generator=torch.Generator().manual_seed(0))
    return Contract(
        model=Decoder, inputs=Tokens("B T", vocab=24), sizes={"B": (1, 4), "T": (1, 16)},
        batch=((ids[:, :-1],), ids[:, 1:].contiguous()),
        loss=lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()), train_step=train_step,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, betas=(0.9, 0.95)),
        promises=(promises.Causal(), promises.ClipsGradients(1.0), promises.Tied("embed.weight", "head.weight")),
    )  # fmt: skip


@sound
def encoder_decoder_with_teacher_forcing() -> Contract:
    class Translate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 20)
            self.body = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            pad, size = source == 0, target.shape[1]
            ahead = torch.ones(size, size, dtype=torch.bool, device=source.device).triu(1)
            h = self.body(
                self.embed(source), self.embed(target), tgt_mask=ahead, src_key_padding_mask=pad,
                memory_key_padding_mask=pad,
            )  # fmt: skip
            return self.head(h)

    return Contract(
        model=Translate, inputs={"source": Tokens("B S", vocab=20, pad=0), "target": Tokens("B T", vocab=20, special=(0,))},
        sizes={"B": (2, 4), "S": (2, 7), "T": (2, 7)}, targets=Ints("B T", low=1, high=20),
        loss=lambda o, t: F.cross_entropy(o.transpose(1, 2), t, ignore_index=0),
        promises=(promises.Causal(input="target"), promises.PaddingInvariant(ids="source")),
    )  # fmt: skip


@sound
def tagger_over_packed_rows() -> Contract:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
            self.head = nn.Linear(12, 5)

        def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            h, _ = nn.utils.rnn.pad_packed_sequence(
                self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1]
            )
            return self.head(h)

    return Contract(
        model=Tagger, inputs={"ids": Tokens("B T", vocab=20), "lengths": Lengths("B", longest="T")},
        sizes={"B": (2, 5), "T": (2, 8)}, targets=Labels("B T", classes=5),
        loss=lambda o, t: F.cross_entropy(o.transpose(1, 2), t), promises=(promises.PaddingInvariant(ids="ids"),),
    )  # fmt: skip


@sound
def causal_convolutions_with_weight_norm() -> Contract:
    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = torch.nn.utils.parametrizations.weight_norm
            self.layers = nn.ModuleList([norm(nn.Conv1d(6, 6, 3, dilation=2**i)) for i in range(3)])
            self.head = nn.Conv1d(6, 6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.transpose(1, 2)
            for i, layer in enumerate(self.layers):
                x = x + torch.tanh(layer(F.pad(x, (2 * 2**i, 0))))
            return self.head(x).transpose(1, 2)

    x = drawn(4, 9, 6)
    return Contract(
        model=Wave, inputs="B T 6", sizes={"B": (1, 4), "T": (2, 12)}, batch=((x,), x.roll(-1, 1)), loss=F.mse_loss,
        promises=(promises.Causal(),),
    )  # fmt: skip


@sound
def recommender_with_negative_samples() -> Contract:
    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(15, 8), nn.Embedding(20, 8)
            self.bias = nn.Embedding(20, 1)

        def forward(self, user: torch.Tensor, liked: torch.Tensor, other: torch.Tensor) -> Any:
            u = self.user(user)
            score = lambda i: (u * self.item(i)).sum(-1) + self.bias(i).squeeze(-1)  # noqa: E731
            return score(liked), score(other)

    return Contract(
        model=Factors, sizes={"B": (2, 8)}, targets="B", loss=lambda o, _: -F.logsigmoid(o[0] - o[1]).mean(),
        inputs={"user": Ints("B", low=0, high=15), "liked": Ints("B", low=0, high=20), "other": Ints("B", low=0, high=20)},
    )  # fmt: skip


@sound
def contrastive_pairs_within_the_batch() -> Contract:
    class Pairs(nn.Module):
        """The loss mixes samples, the outputs do not."""

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 6), nn.Linear(5, 6)
            self.scale = nn.Parameter(torch.tensor(math.log(10.0)))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            return F.normalize(self.left(a), dim=-1) * self.scale.exp(), F.normalize(
                self.right(b), dim=-1
            )

    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        logits = output[0] @ output[1].T
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    return Contract(
        model=Pairs, inputs=("B 8", "B 5"), sizes={"B": (4, 8)}, batch=((drawn(6, 8), drawn(6, 5, seed=1)), torch.arange(6)),
        loss=loss,
    )  # fmt: skip


@sound
def noise_prediction_that_returns_its_loss() -> Contract:
    class Diffusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(7, 32), nn.SiLU(), nn.Linear(32, 6))
            kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, 20), 0)
            self.register_buffer("kept", kept)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            step = torch.randint(0, 20, (len(x),), device=x.device)
            noise, kept = torch.randn_like(x), self.kept[step][:, None].to(x.dtype)
            noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
            guess = self.net(torch.cat([noisy, step[:, None].to(x.dtype) / 20], -1))
            return F.mse_loss(guess, noise)

    return Contract(
        model=Diffusion, inputs="B 6", sizes={"B": (4, 16)}, loss="output",
        promises=(promises.Stochastic(reason="noise and steps are drawn"),),
    )  # fmt: skip


@sound
def noise_prediction_with_given_noise() -> Contract:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
            self.first, self.last = nn.Conv2d(1, 16, 3, 1, 1), nn.Conv2d(16, 1, 3, 1, 1)
            nn.init.zeros_(self.last.weight)

        def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            rate = torch.exp(-math.log(1e4) * torch.arange(4, device=x.device, dtype=x.dtype) / 4)
            angle = step[:, None].to(x.dtype) * rate
            t = self.time(torch.cat([angle.sin(), angle.cos()], -1))
            return self.last(F.silu(self.first(x) + t[:, :, None, None]))

    return Contract(
        model=Denoiser, inputs={"x": "B 1 8 8", "step": Ints("B", low=0, high=100)}, sizes={"B": (2, 4)},
        targets="B 1 8 8", loss=F.mse_loss,
    )  # fmt: skip


@sound
def actor_and_critic_of_two_optimizers() -> Contract:
    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
            self.critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, x: torch.Tensor) -> Any:
            return self.actor(x), self.critic(x).squeeze(-1)

    def train_step(model: Any, optimizers: Any, inputs: Any, targets: Any) -> torch.Tensor:
        logits, value = model(*inputs)
        action, reward = targets["action"], targets["reward"]
        gain = (reward - value).detach()
        actor_loss = (F.cross_entropy(logits, action, reduction="none") * gain).mean()
        critic_loss = F.mse_loss(value, reward)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        (actor_loss + critic_loss).backward()
        for optimizer in optimizers.values():
            optimizer.step()
        return critic_loss.detach()

    return Contract(
        model=ActorCritic, inputs="B 6", sizes={"B": (2, 8)}, targets={"action": Labels("B", classes=3), "reward": "B"},
        optimizer=lambda m: {"actor": torch.optim.Adam(m.actor.parameters(), 1e-3), "critic": torch.optim.Adam(m.critic.parameters(), 1e-2)},
        train_step=train_step,
    )  # fmt: skip


@sound
def accumulation_over_micro_batches() -> Contract:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device=targets.device)
        for x, y in zip(inputs[0].split(2), targets.split(2), strict=True):
            loss = F.cross_entropy(model(x), y, reduction="sum") / len(targets)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return classify(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), train_step=train_step,
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
    )  # fmt: skip


@sound
def real_batches_of_a_loader() -> Contract:
    x = drawn(32, 8)
    data = TensorDataset(x, (x @ drawn(8, 4, seed=1)).argmax(1))
    return Contract(
        model=lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)),
        batch=DataLoader(data, batch_size=8, shuffle=True), dataset=data, loader={"batch_size": 8, "shuffle": True},
        loss=F.cross_entropy,
    )  # fmt: skip


@sound
def momentum_teacher_in_the_step() -> Contract:
    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            self.teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            self.teacher.load_state_dict(self.net.state_dict())
            self.teacher.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                goal = self.teacher(x).softmax(-1)
            return self.net(x), goal

    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        logits, goal = output
        return F.cross_entropy(logits, target) + 0.1 * F.cross_entropy(logits, goal)

    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model(*inputs), targets)
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(
                model.teacher.parameters(), model.net.parameters(), strict=True
            ):
                mine.lerp_(theirs, 0.1)
        return value.detach()

    return classify(
        Student, loss=loss, train_step=train_step,
        optimizer=lambda m: torch.optim.Adam(m.net.parameters(), lr=1e-2),
        promises=(promises.MovingAverage(target="teacher", source="net", decay=0.9),),
    )  # fmt: skip


@sound
def siamese_network_with_a_margin() -> Contract:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, anchor: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> Any:
            return self.body(anchor), self.body(near), self.body(far)

    return Contract(
        model=Siamese, inputs={"anchor": "B 8", "near": "B 8", "far": "B 8"}, sizes={"B": (2, 8)}, targets="B",
        loss=lambda o, _: F.triplet_margin_loss(*o, margin=1.0),
    )  # fmt: skip


@sound
def ordinal_regression_with_sorted_thresholds() -> Contract:
    class Ordinal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
            self.first, self.gaps = nn.Parameter(torch.tensor(-1.0)), nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = torch.cat([self.first[None], F.softplus(self.gaps)]).cumsum(0)
            return self.score(x) - steps

    return Contract(
        model=Ordinal, inputs="B 8", sizes={"B": (2, 8)}, targets=Labels("B", classes=5),
        loss=lambda o, t: F.binary_cross_entropy_with_logits(o, (t[:, None] > torch.arange(4, device=o.device)).to(o.dtype)),
    )  # fmt: skip


@sound
def mixture_density_network() -> Contract:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 32), nn.Linear(32, 12)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(torch.tanh(self.body(x))).chunk(3, -1)

    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        weight, mean, scale = output
        each = torch.distributions.Normal(mean, F.softplus(scale) + 1e-2).log_prob(target[:, None])
        return -(weight.log_softmax(-1) + each).logsumexp(-1).mean()

    return Contract(model=Mixture, inputs="B 3", sizes={"B": (2, 8)}, targets="B", loss=loss)


@sound
def speech_with_ctc() -> Contract:
    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(6, 16, 3, padding=1)
            self.rnn, self.head = (
                nn.GRU(16, 12, batch_first=True, bidirectional=True),
                nn.Linear(24, 7),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
            return self.head(self.rnn(h)[0]).log_softmax(-1)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        count = len(output)
        return F.ctc_loss(
            output.transpose(0, 1),
            target,
            torch.full((count,), output.shape[1], device=target.device),
            torch.full((count,), 3, device=target.device),
        )

    return Contract(
        model=Speech, inputs="B T 6", sizes={"B": (2, 4), "T": (8, 14)}, targets=Ints("B 3", low=1, high=7), loss=loss,
    )  # fmt: skip


@sound
def point_cloud_with_a_mask() -> Contract:
    class Cloud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16))
            self.head = nn.Linear(16, 4)

        def forward(self, points: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            h = self.each(points).masked_fill(~mask[:, :, None], -torch.inf)
            return self.head(h.amax(1))

    return classify(
        Cloud, {"points": "B N 3", "mask": Mask("B N")}, sizes={"B": (2, 5), "N": (2, 9)},
        promises=(
            promises.PermutationInvariant(inputs={"points": 1, "mask": 1}),
            promises.PaddingInvariant(ids="points", mask="mask"),
        ),
    )  # fmt: skip


@sound
def set_transformer_equivariance() -> Contract:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(x + self.attention(x, x, x, need_weights=False)[0]))

    return Contract(
        model=Attend, inputs="B N 8", sizes={"B": (2, 4), "N": (2, 7)}, targets=Labels("B N", classes=4),
        loss=lambda o, t: F.cross_entropy(o.transpose(1, 2), t), promises=(promises.PermutationEquivariant(dim=1),),
    )  # fmt: skip


@sound
def physics_informed_with_derivatives_of_inputs() -> Contract:
    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, t: torch.Tensor) -> Any:
            with torch.enable_grad():
                t = t.requires_grad_() if t.is_leaf else t
                u = self.net(t)
                (slope,) = torch.autograd.grad(u.sum(), t, create_graph=torch.is_grad_enabled())
            return (u, slope) if torch.is_grad_enabled() else (u.detach(), slope.detach())

    t = torch.linspace(0, 1, 12)[:, None]
    return Contract(
        model=Field, inputs="B 1", sizes={"B": (2, 12)}, batch=((t,), torch.exp(-t)),
        loss=lambda o, y: F.mse_loss(o[0], y) + (o[1] + o[0]).square().mean(),
    )  # fmt: skip


@sound
def quantization_aware_training() -> Contract:
    class Fake(nn.Module):
        """Learns its step size: the layer rounds by ``x + (round(x) - x).detach()``."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
            self.step = nn.Parameter(torch.tensor(0.05))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.body.weight / self.step
            weight = (weight + (weight.round() - weight).detach()) * self.step
            return self.head(F.relu(F.linear(x, weight, self.body.bias)))

    return classify(Fake)


@sound
def hypernetwork() -> Contract:
    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make = nn.Linear(5, 8 * 4)

        def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bi,bio->bo", x, self.make(task).unflatten(-1, (8, 4)) / 3)

    return classify(Hyper, ("B 8", "B 5"))


@sound
def memory_of_a_recurrent_policy() -> Contract:
    class Policy(nn.Module):
        """Takes and returns its state; nothing stays in the module."""

        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRUCell(6, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> Any:
            state = self.cell(x, state)
            return self.head(state), state

    return classify(
        Policy, {"x": "B 6", "state": "B 8"}, loss=lambda o, t: F.cross_entropy(o[0], t)
    )


@sound
def shared_encoder_called_twice_with_checkpointing() -> Contract:
    class Match(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8)
            )
            self.head = nn.Linear(16, 2)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:
                return self.body(x)
            out: torch.Tensor = torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
            return out

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([self.encode(a), self.encode(b)], -1))

    return classify(Match, ("B 8", "B 8"), classes=2)


@sound
def half_frozen_with_two_rates() -> Contract:
    class Tuned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).requires_grad_(False)
            self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(F.relu(self.body(self.stem(x))))

    return classify(
        Tuned, promises=(promises.Frozen("stem.*", reason="pretrained"),),
        optimizer=lambda m: torch.optim.AdamW(
            [{"params": m.body.parameters(), "lr": 1e-3}, {"params": m.head.parameters(), "lr": 1e-2}]
        ),
    )  # fmt: skip


@sound
def lbfgs_with_its_closure() -> Contract:
    def train_step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(*inputs), targets)
            loss.backward()
            return loss

        value: torch.Tensor = optimizer.step(closure)
        return value.detach()

    x = drawn(10, 4)
    return Contract(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), batch=((x,), x.sum(1, keepdim=True)),
        loss=F.mse_loss, optimizer=lambda m: torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=5), train_step=train_step,
    )  # fmt: skip


@sound
def density_that_returns_its_own_loss() -> Contract:
    """The lowest loss is log(sigma sqrt(2 pi)), not zero."""

    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return -torch.distributions.Normal(self.mean(x), 3.0).log_prob(y).mean()

    return Contract(model=Gaussian, batch=((drawn(8, 4), drawn(8, 3, seed=1)), None), loss="output")


@sound
def decoder_with_a_key_and_value_cache() -> Contract:
    """Gives its keys and values back with the logits, and takes earlier ones where they are given."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, ids: torch.Tensor, past: Any = None) -> dict[str, Any]:
            x = self.embed(ids)
            q, k, v = self.qkv(x).chunk(3, -1)
            if past is not None:
                k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
            here, there = q.shape[1], k.shape[1]
            seen = torch.ones(here, there, dtype=torch.bool, device=ids.device).tril(there - here)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
            return {"logits": self.head(x), "past": (k.detach(), v.detach())}

    def loss(output: dict[str, Any], targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output["logits"].transpose(1, 2), targets)

    return Contract(
        model=Decoder, inputs=Tokens("B T", vocab=12), sizes={"B": (2, 4), "T": (3, 8)},
        targets=Labels("B T", classes=12), loss=loss, promises=(promises.Causal(output="logits"),),
    )  # fmt: skip


@sound
def trained_head_on_a_quantized_body() -> Contract:
    """The body's weights are integers with a scale, as after loading an 8-bit checkpoint: buffers, nothing to train."""

    class Int8Linear(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            weight = torch.randn(outputs, inputs) / math.sqrt(inputs)
            scale = weight.abs().amax(1, keepdim=True) / 127
            self.register_buffer("weight", (weight / scale).round().to(torch.int8))
            self.register_buffer("scale", scale)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))

    return classify(
        lambda: nn.Sequential(Int8Linear(8, 32), nn.ReLU(), Int8Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)),
        inputs="B 8", sizes={"B": (2, 6)},
    )  # fmt: skip
