"""Small programs with one bug each, and the same mended: what the checks of models must find and must leave alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchcheck import Contract, Ints, Labels, Mask, Tokens, promises
from pytest_torchcheck.specs import Edges

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Bug:
    """A program and what is to be found in it.

    ``build(True)`` has the bug; the finding must stand on the line that holds ``line`` and name ``culprit``.
    """

    check: str
    code: str
    build: Callable[[bool], Contract]
    culprit: str = ""
    line: str = ""
    status: str = "violated"


BUGS: dict[str, Bug] = {}


def bug(
    check: str, code: str, culprit: str = "", line: str = "", status: str = "violated"
) -> Callable[[Callable[[bool], Contract]], Any]:
    def register(build: Callable[[bool], Contract]) -> Callable[[bool], Contract]:
        BUGS[build.__name__] = Bug(check, code, build, culprit, line, status)
        return build

    return register


class Net(nn.Module):
    """Two layers and whatever ``middle`` does between them."""

    def __init__(
        self, middle: Callable[[torch.Tensor], torch.Tensor] = torch.relu, classes: int = 4
    ) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, classes)
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.body(x)))


def classify(model: Any, **fields: Any) -> Contract:
    declared = {
        "inputs": "B 6",
        "sizes": {"B": (3, 6)},
        "targets": Labels("B", classes=4),
        "loss": F.cross_entropy,
        **fields,
    }
    return Contract(model=model, **declared)


# gradients


def cut_by(operation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[bool], Contract]:
    return lambda buggy: classify(lambda: Net(operation if buggy else torch.relu))


def by_detach(h: torch.Tensor) -> torch.Tensor:
    return torch.relu(h).detach()


def by_data(h: torch.Tensor) -> torch.Tensor:
    return torch.relu(h.data)


def by_no_grad(h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.tanh(h)


def by_numpy(h: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.tanh(h.detach().numpy()))


def by_new_tensor(h: torch.Tensor) -> torch.Tensor:
    return torch.tensor(h.tolist())


BUGS["cut_by_detach"] = Bug(
    "gradients-exist", "grad-none", cut_by(by_detach), "body.weight", ".detach()"
)
BUGS["cut_by_data"] = Bug("gradients-exist", "grad-none", cut_by(by_data), "body.weight", "h.data")
BUGS["cut_by_no_grad"] = Bug(
    "gradients-exist", "grad-none", cut_by(by_no_grad), "body.weight", "torch.tanh(h)"
)
BUGS["cut_by_numpy"] = Bug(
    "gradients-exist", "grad-none", cut_by(by_numpy), "body.weight", "np.tanh"
)
BUGS["cut_by_new_tensor"] = Bug(
    "gradients-exist", "grad-none", cut_by(by_new_tensor), "body.weight", "h.tolist()"
)


class Unused(nn.Module):
    def __init__(self, used: bool) -> None:
        super().__init__()
        self.body, self.extra, self.head, self.used = (
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 4),
            used,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.body(x))
        if self.used:
            h = torch.relu(self.extra(h))
        return self.head(h)


@bug("gradients-exist", "grad-none", "extra.weight", "self.extra")
def unused_layer(buggy: bool) -> Contract:
    return classify(lambda: Unused(not buggy))


@bug("gradients-exist", "grad-zero", "body.weight", "* 0")
def multiplied_by_zero(buggy: bool) -> Contract:
    def nothing(h: torch.Tensor) -> torch.Tensor:
        return torch.relu(h) * 0

    return classify(lambda: Net(nothing if buggy else torch.relu))


@bug("gradients-exist", "grad-off", "body.weight", "self.body")
def frozen_by_accident(buggy: bool) -> Contract:
    def build() -> nn.Module:
        model = Net()
        model.body.weight.requires_grad_(not buggy)
        return model

    return classify(build, promises=(promises.Trainable("body.*"),))


@bug("gradients-finite", "non-finite-gradient", "body.weight", ".sqrt()")
def sqrt_of_zero(buggy: bool) -> Contract:
    def root(h: torch.Tensor) -> torch.Tensor:
        return (
            h + ((h - h.detach()).square().sum(1, keepdim=True) + (0.0 if buggy else 1e-6)).sqrt()
        )

    return classify(lambda: Net(root))


@bug("gradients-finite", "non-finite-forward", "", "torch.log(h)")
def log_of_negative(buggy: bool) -> Contract:
    def logarithm(h: torch.Tensor) -> torch.Tensor:
        if buggy:
            return torch.log(h)
        return torch.log1p(torch.relu(h))

    return classify(lambda: Net(logarithm))


@bug("inputs-unchanged", "input-mutated", "x", "x += 1")
def writes_its_input(buggy: bool) -> Contract:
    class Shifts(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if buggy:
                x += 1
            else:
                x = x + 1
            return super().forward(x)

    return classify(Shifts)


@bug("sampling-paths", "sample-not-reparameterised", "body", "torch.normal(h, 0.1)")
def draws_without_reparameterisation(buggy: bool) -> Contract:
    def draw(h: torch.Tensor) -> torch.Tensor:
        if buggy:
            return torch.normal(h, 0.1) + 0.1 * h
        return h + 0.1 * torch.randn_like(h)

    return classify(lambda: Net(draw))


@bug("backward", "second-backward", "", "")
def graph_carried_over(buggy: bool) -> Contract:
    class Carries(Net):
        state: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.body(x))
            if self.state is not None:
                h = h + 0.1 * self.state
            self.state = h.mean() if buggy else h.mean().detach()
            return self.head(h)

    return classify(Carries)


# updates


@bug("optimizer-coverage", "optimizer-missing", "head.weight", "model.body.parameters()")
def half_of_the_model(buggy: bool) -> Contract:
    def optimizer(model: Any) -> torch.optim.Optimizer:
        if buggy:
            return torch.optim.SGD(model.body.parameters(), lr=0.1)
        return torch.optim.SGD(model.parameters(), lr=0.1)

    return classify(Net, optimizer=optimizer)


@bug("optimizer-coverage", "optimizer-twice", "head.weight")
def one_parameter_in_two_groups(buggy: bool) -> Contract:
    import warnings

    def optimizer(model: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        if buggy:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made.param_groups.append({**made.param_groups[0], "params": [model.head.weight]})
        return made

    return classify(Net, optimizer=optimizer)


@bug("weights-update", "weight-static", "body.weight", "lr=0.0")
def learning_rate_of_zero(buggy: bool) -> Contract:
    def optimizer(model: Any) -> torch.optim.Optimizer:
        if buggy:
            return torch.optim.SGD(model.parameters(), lr=0.0)
        return torch.optim.SGD(model.parameters(), lr=0.1)

    return classify(Net, optimizer=optimizer)


@bug("frozen-stays", "frozen-moved", "body.weight")
def frozen_by_promise_only(buggy: bool) -> Contract:
    def build() -> nn.Module:
        model = Net()
        model.body.requires_grad_(buggy)
        return model

    return classify(build, promises=(promises.Frozen("body.*", reason="pretrained"),))


@bug("frozen-stays", "frozen-statistics", "norm.running_mean")
def statistics_of_a_frozen_part(buggy: bool) -> Contract:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(6).requires_grad_(False), nn.Linear(6, 4)

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            if not buggy:
                self.norm.eval()
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(x))

    return classify(Probe, promises=(promises.Frozen("norm.*", reason="probe"),))


# loss and labels


@bug("loss-sound", "loss-not-scalar", "", 'reduction="none"')
def loss_without_reduction(buggy: bool) -> Contract:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if buggy:
            return F.cross_entropy(output, target, reduction="none")
        return F.cross_entropy(output, target)

    return classify(Net, loss=loss)


@bug("loss-sound", "loss-recreated", "loss", "requires_grad=True")
def loss_made_anew(buggy: bool) -> Contract:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        value = F.cross_entropy(output, target)
        return torch.tensor(value.item(), requires_grad=True) if buggy else value

    return classify(Net, loss=loss)


@bug("loss-shapes", "loss-broadcast", "loss", "F.mse_loss(output")
def column_against_row(buggy: bool) -> Contract:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output if buggy else output.squeeze(1), target)

    return Contract(
        model=lambda: Net(classes=1), inputs="B 6", targets="B", sizes={"B": (3, 6)}, loss=loss
    )


@bug("loss-shapes", "loss-broadcast", "loss", "output - target")
def column_minus_row(buggy: bool) -> Contract:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        output = output if buggy else output[:, 0]
        return (output - target).abs().mean()

    return Contract(
        model=lambda: Net(classes=1), inputs="B 6", targets="B", sizes={"B": (3, 6)}, loss=loss
    )


class Ending(Net):
    """A net that ends in an activation."""

    def __init__(self, ending: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.ending = ending

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ending(super().forward(x))


def identity(x: torch.Tensor) -> torch.Tensor:
    return x


@bug("loss-input", "double-softmax", "", "x.softmax(dim=1)")
def softmax_then_cross_entropy(buggy: bool) -> Contract:
    def ending(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(dim=1)

    return classify(lambda: Ending(ending if buggy else identity))


@bug("loss-input", "double-softmax", "2", "")
def softmax_module_behind_a_lambda(buggy: bool) -> Contract:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 8), nn.Linear(8, 4), nn.Softmax(dim=1) if buggy else nn.Identity()
        )

    return classify(build, loss=lambda output, target: F.cross_entropy(output, target))


@bug("loss-input", "relu-logits", "", "F.relu(x)")
def relu_then_cross_entropy(buggy: bool) -> Contract:
    def ending(x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)

    return classify(lambda: Ending(ending if buggy else identity))


@bug("loss-input", "double-sigmoid", "", "torch.sigmoid(x)")
def sigmoid_then_bce_with_logits(buggy: bool) -> Contract:
    def ending(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)

    x = torch.randn(6, 6)
    return Contract(
        model=lambda: Ending(ending if buggy else identity), inputs="B 6", sizes={"B": (3, 6)},
        batch=((x,), (torch.rand(6, 4) > 0.5).float()), loss=nn.BCEWithLogitsLoss(),
    )  # fmt: skip


@bug("loss-input", "nll-without-log", "", "")
def nll_of_logits(buggy: bool) -> Contract:
    def ending(x: torch.Tensor) -> torch.Tensor:
        return x if buggy else F.log_softmax(x, dim=1)

    return classify(lambda: Ending(ending), loss=F.nll_loss)


@bug("loss-input", "nll-without-log", "ctc", "logits.softmax(-1)")
def ctc_of_probabilities(buggy: bool) -> Contract:
    labels = torch.tensor([[1, 2, 3], [2, 3, 4], [4, 2, 1]])

    def ctc(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = logits.softmax(-1) if buggy else logits.log_softmax(-1)
        lengths = [torch.full((len(logits),), n) for n in (logits.shape[1], labels.shape[1])]
        return F.ctc_loss(scores.transpose(0, 1), labels, *lengths)

    return Contract(
        model=lambda: nn.Linear(4, 6), batch=((torch.randn(3, 10, 4),), labels), loss=ctc
    )


def rates(
    ending: Callable[[torch.Tensor], torch.Tensor], loss: Callable[..., torch.Tensor]
) -> Contract:
    counts = torch.poisson(3 * torch.rand(6, 4))
    return Contract(model=lambda: Ending(ending), batch=((torch.randn(6, 6),), counts), loss=loss)


@bug("loss-input", "rate-as-log", "", "poisson_nll_loss(output, target)  # the default")
def rate_given_as_its_logarithm(buggy: bool) -> Contract:
    def wrong(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.poisson_nll_loss(output, target)  # the default

    def right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.poisson_nll_loss(output, target, log_input=False)

    return rates(lambda x: F.softplus(x) + 1e-4, wrong if buggy else right)


@bug("loss-input", "rate-as-log", "", "return x.exp()")
def exponential_before_poisson_module(buggy: bool) -> Contract:
    def ending(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    return rates(ending if buggy else identity, nn.PoissonNLLLoss())


@bug("loss-input", "log-as-rate", "", "log_input=False")
def logarithm_given_as_a_rate(buggy: bool) -> Contract:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.poisson_nll_loss(output, target, log_input=False, eps=5.0)

    return rates(identity if buggy else torch.exp, loss)


@bug("loss-input", "kl-of-logits", "", "F.kl_div(student, teacher")
def distillation_of_logits(buggy: bool) -> Contract:
    def loss(output: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        student = output / 2.0
        if not buggy:
            student = student.log_softmax(dim=1)
        return F.kl_div(student, teacher, reduction="batchmean")

    goals = torch.randn(6, 4).softmax(dim=1)
    return Contract(model=Net, batch=((torch.randn(6, 6),), goals), loss=loss)


@bug("loss-sign", "loss-sign", "wrong", "return -F.cross_entropy")
def negated_cross_entropy(buggy: bool) -> Contract:
    def wrong(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -F.cross_entropy(output, target)

    return classify(Net, loss=wrong if buggy else F.cross_entropy)


@bug("loss-sign", "loss-sign", "wrong", "return -(output")
def negated_squared_error(buggy: bool) -> Contract:
    def wrong(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -(output - target).square().mean()

    return Contract(
        model=Net,
        inputs="B 6",
        targets="B 4",
        sizes={"B": (3, 6)},
        loss=wrong if buggy else F.mse_loss,
    )


@bug(
    "loss-at-start",
    "loss-at-start",
    "head.weight",
    "nn.init.normal_(self.head.weight",
    "suspicious",
)
def head_with_unit_weights(buggy: bool) -> Contract:
    class Hot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)
            self.body = nn.Linear(6, 64)
            if buggy:
                nn.init.normal_(self.head.weight, std=1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(self.body(x)))

    return classify(Hot, targets=Labels("B", classes=10))


@bug("label-range", "label-classes", "head.weight", "self.head(self.middle")
def fewer_outputs_than_classes(buggy: bool) -> Contract:
    y = torch.tensor([0, 1, 2, 3, 1, 2])
    return classify(Net, batch=((torch.randn(6, 6),), y), targets=Labels(classes=5 if buggy else 4))


@bug("ignored-targets", "ignored-counted", "loss")
def ignored_targets_are_counted(buggy: bool) -> Contract:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if buggy:
            target = target.clamp(min=0)
        return F.cross_entropy(output, target, ignore_index=-100)

    y = torch.tensor([0, 1, 2, 3, 1, -100])
    return classify(
        Net,
        batch=((torch.randn(6, 6),), y),
        targets=Labels(classes=4, ignore_index=-100),
        loss=loss,
    )


class TinyLM(nn.Module):
    def __init__(self, leak: bool = False) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = (
            nn.Embedding(11, 16),
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, 11),
        )
        self.leak = leak

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.rnn(self.embed(ids))[0]
        if self.leak:
            h = h - h.mean(dim=1, keepdim=True)
        return self.head(h)


def lm_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.transpose(1, 2), target)


def text(shift: int) -> Any:
    ids = torch.randint(0, 11, (4, 12), generator=torch.Generator().manual_seed(1))
    return (ids[:, :9],), ids[:, shift : 9 + shift].contiguous()


@bug("label-shift", "label-shift", "targets")
def unshifted_language_model(buggy: bool) -> Contract:
    return Contract(
        model=TinyLM, inputs=Tokens("B T", vocab=11), batch=text(0 if buggy else 1), loss=lm_loss, promises=(promises.Causal(),),
    )  # fmt: skip


@bug("label-shift", "label-shift", "targets")
def twice_shifted_language_model(buggy: bool) -> Contract:
    return Contract(
        model=TinyLM, inputs=Tokens("B T", vocab=11), batch=text(2 if buggy else 1), loss=lm_loss, promises=(promises.Causal(),),
    )  # fmt: skip


@bug("padding-loss", "padding-counted", "loss")
def loss_over_padding(buggy: bool) -> Contract:
    ids = torch.randint(1, 11, (4, 9), generator=torch.Generator().manual_seed(1))
    ids[:, 6:] = 0
    target = ids.clone() if buggy else torch.where(ids == 0, -100, ids)
    return Contract(
        model=TinyLM, inputs=Tokens("B T", vocab=11), batch=((ids,), target), loss=lm_loss,
        promises=(promises.PaddingInvariant(ids=0, pad=0),),
    )  # fmt: skip


# behaviour


@bug("batch-independence", "samples-mixed", "", "h - h.mean(dim=0)")
def mean_over_the_batch(buggy: bool) -> Contract:
    def centre(h: torch.Tensor) -> torch.Tensor:
        if buggy:
            return torch.tanh(h - h.mean(dim=0))
        return torch.tanh(h - h.mean(dim=1, keepdim=True))

    return classify(lambda: Net(centre))


@bug("batch-independence", "samples-mixed", "", "h.view(12, -1)")
def view_across_the_batch(buggy: bool) -> Contract:
    def turn(h: torch.Tensor) -> torch.Tensor:
        if buggy:
            return torch.tanh(h.view(12, -1).t().contiguous().cumsum(1))
        return torch.tanh(h.cumsum(1))

    return classify(lambda: Net(turn))


@bug("batch-independence", "sample-order", "", "self.table[: len(x)]")
def position_of_the_sample(buggy: bool) -> Contract:
    class Placed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(16, 12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.body(x)
            if buggy:
                h = h + self.table[: len(x)]
            return self.head(torch.tanh(h))

    return classify(Placed)


@bug("batch-sizes", "batch-of-one", "", ".squeeze()")
def squeeze_of_everything(buggy: bool) -> Contract:
    class Squeezes(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)[:, :, None]
            return y.squeeze() if buggy else y.squeeze(2)

    return Contract(model=Squeezes, inputs="B 6", sizes={"B": (1, 6)})


@bug("eval-determinism", "random-in-eval", "F.dropout", "F.dropout(h, 0.5)")
def dropout_in_eval(buggy: bool) -> Contract:
    class Drops(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.body(x))
            h = F.dropout(h, 0.5) if buggy else F.dropout(h, 0.5, self.training)
            return self.head(h)

    return classify(Drops)


@bug("eval-purity", "eval-writes", "peak", "self.peak.copy_(")
def scale_written_in_eval(buggy: bool) -> Contract:
    class Scaled(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("peak", torch.ones(()))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1  # read by nothing: correct in either mode
            if buggy or self.training:
                self.peak.copy_(torch.maximum(self.peak, x.detach().abs().max()))
            return super().forward(x / self.peak)

    return classify(Scaled)


@bug("mode-flags", "mode-stuck", "drop")
def train_without_super(buggy: bool) -> Contract:
    class Stuck(Net):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def train(self, mode: bool = True) -> nn.Module:
            if buggy:
                self.training = mode
                return self
            return super().train(mode)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.drop(self.body(x)))

    return classify(Stuck)


@bug("seeding", "numpy-random", "np.random", "np.random.rand")
def numpy_noise(buggy: bool) -> Contract:
    class Noisy(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                noise = (
                    torch.as_tensor(np.random.rand(6), dtype=x.dtype)
                    if buggy
                    else torch.rand(6, dtype=x.dtype)
                )
                x = x + 0.1 * noise
            return super().forward(x)

    return classify(Noisy)


@bug("seeding", "reseeds", "torch.manual_seed", "torch.manual_seed(0)")
def seeds_in_forward(buggy: bool) -> Contract:
    class Reseeds(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if buggy:
                torch.manual_seed(0)
            return self.head(F.dropout(self.body(x), 0.5, self.training))

    return classify(Reseeds)


@bug("output-spec", "output-shape", "output")
def output_of_another_shape(buggy: bool) -> Contract:
    return classify(Net, output="B 5" if buggy else "B 4")


@bug("output-spec", "output-range", "output")
def output_out_of_range(buggy: bool) -> Contract:
    return Contract(
        model=lambda: Ending(identity if buggy else torch.sigmoid), inputs="B 6", sizes={"B": (3, 6)}, output="B 4", output_range=(0.0, 1.0),
    )  # fmt: skip


@bug("rng-hygiene", "global-state", "torch.is_grad_enabled()")
def leaves_gradients_off(buggy: bool) -> Contract:
    class Off(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            if buggy:
                torch.set_grad_enabled(True)
            return y

    return Contract(model=Off, inputs="B 6", sizes={"B": (3, 6)})


# promises


@bug("causality", "future-leak", "", "h.mean(dim=1, keepdim=True)")
def mean_over_time(buggy: bool) -> Contract:
    return Contract(
        model=lambda: TinyLM(leak=buggy), inputs=Tokens("B T", vocab=11), batch=text(1), loss=lm_loss, promises=(promises.Causal(),),
    )  # fmt: skip


@bug("padding-invariance", "padding-leak")
def mean_over_padding(buggy: bool) -> Contract:
    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 4)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            h = self.embed(ids)
            if buggy:
                return self.head(h.mean(1))
            weight = mask.to(h.dtype)[:, :, None]
            return self.head((h * weight).sum(1) / weight.sum(1))

    return Contract(
        model=Pools, inputs={"ids": Tokens("B T", vocab=11), "mask": Mask("B T")}, sizes={"B": (2, 4), "T": (3, 8)},
        targets=Labels("B", classes=4), loss=F.cross_entropy, promises=(promises.PaddingInvariant(ids="ids", mask="mask"),),
    )  # fmt: skip


@bug("permutation-invariance", "order-dependent")
def order_of_a_set(buggy: bool) -> Contract:
    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.point, self.head = nn.Linear(3, 8), nn.Linear(8, 4)

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.point(points))
            if buggy:
                h = h * torch.arange(h.shape[1])[None, :, None]
            return self.head(h.sum(1))

    return classify(
        Pools,
        inputs="B N 3",
        sizes={"B": (2, 4), "N": (3, 6)},
        promises=(promises.PermutationInvariant(dim=1),),
    )


@bug("permutation-equivariance", "order-dependent")
def order_of_a_sequence(buggy: bool) -> Contract:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.point = nn.Linear(3, 8)

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.point(points))
            return h.cumsum(1) if buggy else h + h.sum(1, keepdim=True)

    return Contract(
        model=Sums, inputs="B N 3", sizes={"B": (2, 4), "N": (3, 6)}, promises=(promises.PermutationEquivariant(dim=1, output_dim=1),),
    )  # fmt: skip


@bug("permutation-equivariance", "order-dependent", "", "2 * h[:1]")
def order_of_nodes(buggy: bool) -> Contract:
    class Neighbours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.node = nn.Linear(3, 8)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            source, target = edge_index
            h = torch.tanh(self.node(x)).index_add(0, target, self.node(x)[source])
            return torch.cat([2 * h[:1], h[1:]]) if buggy else h

    return Contract(
        model=Neighbours, inputs={"x": "N 3", "edge_index": Edges("2 E", nodes="N")},
        sizes={"N": (4, 9), "E": (6, 12)}, batch_dim=None, promises=(promises.PermutationEquivariant(input="x", dim=0),),
    )  # fmt: skip


# influence


@bug("input-influence", "input-ignored", "z", "def forward(self, x: torch.Tensor, z")
def ignored_input(buggy: bool) -> Contract:
    class Two(Net):
        def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return super().forward(x if buggy else x + z)

    return classify(Two, inputs={"x": "B 6", "z": "B 6"})


@bug("input-influence", "input-ignored", "which")
def ignored_ids(buggy: bool) -> Contract:
    class Two(Net):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 6)

        def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
            return super().forward(x + self.embed(which * 0 if buggy else which))

    return classify(Two, inputs={"x": "B 6", "which": Ints("B", low=0, high=5)})


@bug("checkpointing", "checkpoint-differs", "body.weight")
def recomputation_draws_anew(buggy: bool) -> Contract:
    class Recomputes(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def inner(x: torch.Tensor) -> torch.Tensor:
                return F.dropout(torch.relu(self.body(x)), 0.5, self.training)

            return self.head(
                checkpoint(inner, x, use_reentrant=False, preserve_rng_state=not buggy)
            )

    return classify(Recomputes)


@bug("overfit", "overfit-blind", "output")
def cannot_tell_positions_apart(buggy: bool) -> Contract:
    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
            self.head = nn.Linear(32, 5)
            self.each = nn.Linear(32, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.body(x)
            if buggy:
                return self.head(h).mean(1, keepdim=True).expand(-1, 5)
            return self.each(h)

    x = torch.randn(6, 6)
    return Contract(model=Repeats, inputs="B 6", batch=((x,), torch.randn(6, 5)), loss=F.mse_loss)


@bug("overfit", "optimizer-diverges", "optimizer")
def learning_rate_of_a_thousand(buggy: bool) -> Contract:
    return classify(
        Net, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1000.0 if buggy else 0.1)
    )


# lines that hold the setting, not the call that suffers from it


@bug("batch-independence", "sample-order", "rnn", "nn.LSTM(6, 12)")
def time_first_layer_on_batch_first_data(buggy: bool) -> Contract:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(6, 12) if buggy else nn.LSTM(6, 12, batch_first=True)
            self.head = nn.Linear(12, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0].mean(1))

    return classify(Reads, inputs="B T 6", sizes={"B": (3, 6), "T": (3, 6)})


@bug("batch-sizes", "batch-size-dependent", "norm", "track_running_stats=False", "suspicious")
def statistics_of_the_batch_in_eval(buggy: bool) -> Contract:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Conv1d(6, 12, 1), nn.Linear(12, 4)
            if buggy:
                self.norm = nn.BatchNorm1d(12, track_running_stats=False)
            else:
                self.norm = nn.BatchNorm1d(12)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.norm(self.body(x))).mean(-1))

    return classify(Normed, inputs="B 6 5")


class MaskedMixer(nn.Module):
    """Mixes positions by a fixed triangle."""

    def __init__(self, ahead: int, *, kept: bool) -> None:
        super().__init__()
        self.embed, self.score, self.out = (
            nn.Embedding(11, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 11),
        )
        self.ahead = ahead
        self.triangle = None
        if kept:
            self.register_buffer("triangle", torch.ones(9, 9).tril(ahead))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(ids)
        size = ids.shape[1]
        scores = self.score(h) @ h.transpose(1, 2)
        if self.triangle is None:
            seen = torch.ones(size, size, device=ids.device).tril(self.ahead) > 0
        else:
            seen = self.triangle[:size, :size] > 0
        weights = scores.masked_fill(~seen, -1e4).softmax(-1)
        return self.out(h + weights @ h)


@bug("causality", "future-leak", "Tensor.tril", ".tril(self.ahead)")
def triangle_one_too_wide(buggy: bool) -> Contract:
    return Contract(
        model=lambda: MaskedMixer(int(buggy), kept=False), inputs=Tokens("B T", vocab=11), batch=text(1), loss=lm_loss,
        promises=(promises.Causal(),),
    )  # fmt: skip


@bug(
    "frozen-stays",
    "frozen-moved",
    "body.weight",
    "scored = scored + model.head(model.body(x)).pow(2)",
)
def frozen_part_reached_by_a_step(buggy: bool) -> Contract:
    def step(model: Net, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        (x,) = inputs
        optimizer.zero_grad()
        scored = model.head(torch.relu(model.body(x).detach()))
        if buggy:
            scored = scored + model.head(model.body(x)).pow(2)
        loss = F.cross_entropy(scored, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return classify(
        Net, train_step=step, promises=(promises.Frozen("body.*", reason="given"),),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )  # fmt: skip


@bug("gradients-exist", "grad-none", "body.weight", "weight = nn.Parameter(self.body.weight * 2)")
def weight_wrapped_again(buggy: bool) -> Contract:
    class Wraps(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.body.weight * 2
            if buggy:
                weight = nn.Parameter(self.body.weight * 2)

            return self.head(torch.relu(F.linear(x, weight, self.body.bias)))

    return classify(Wraps)


@bug("loss-sign", "loss-sign")
def distance_maximised(buggy: bool) -> Contract:
    class Two(Net):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            h = torch.relu(self.body(x))
            return {"scores": self.head(h), "hidden": h}

    def loss(output: dict[str, torch.Tensor], goal: torch.Tensor) -> torch.Tensor:
        error = (output["scores"] - goal).abs().mean()
        return -error if buggy else error

    return Contract(model=Two, batch=((torch.randn(5, 6),), torch.randn(5, 4)), loss=loss)


@bug("overfit", "overfit-stuck", "last.1", "self.last = nn.Sequential(nn.Linear(12, 2), nn.ReLU())")
def negative_targets_behind_a_rectifier(buggy: bool) -> Contract:
    class Regresses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 12)
            if buggy:
                self.last = nn.Sequential(nn.Linear(12, 2), nn.ReLU())
            else:
                self.last = nn.Sequential(nn.Linear(12, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.tanh(self.body(x)))

    return Contract(
        model=Regresses, batch=((torch.randn(6, 6),), torch.randn(6, 2) - 1), loss=F.mse_loss
    )


@bug("initialisation", "units-equal", "branches.0.weight", "copy.deepcopy(first)")
def branches_copied_from_one(buggy: bool) -> Contract:
    class Averages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first = nn.Linear(6, 4)
            if buggy:
                self.branches = nn.ModuleList(copy.deepcopy(first) for _ in range(3))
            else:
                self.branches = nn.ModuleList(nn.Linear(6, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([torch.tanh(branch(x)) for branch in self.branches]).mean(0)

    return classify(Averages)


@bug("step-leak", "leak-graph", line='kept["sum"] = kept["sum"] + loss')
def sum_of_losses_with_graphs(buggy: bool) -> Contract:
    kept: dict[str, Any] = {"sum": 0.0}

    def step(model: nn.Module, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        if buggy:
            kept["sum"] = kept["sum"] + loss
        else:
            kept["sum"] = kept["sum"] + loss.item()
        return loss.detach()

    return classify(
        Net, train_step=step, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
    )
