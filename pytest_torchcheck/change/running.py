"""One run of a version of a model, in little: outputs, loss, gradients, and the statistics that it updates."""

from __future__ import annotations

import contextlib
import math
import statistics
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from .. import sources
from ..findings import Location
from ..lean import dataclass
from ..objects import trees
from ..state import ModuleState, seed_everything
from ..subject.errors import SubjectError
from ..subject.gradients import clear_gradients
from ..text.printable import message_of
from .sketch import Sketch, digest_of, sketch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..batches import Batch
    from ..subject import Subject

    Load = Callable[[nn.Module], None]

_Kept = TypeVar("_Kept")

JITTER: Final = 0.05  # of the root mean square of a parameter
FROM_ZERO: Final = 0.02  # of a parameter that is zero throughout
SEEDS: Final = 24  # over which the noise of training mode is averaged at least
MOST_SEEDS: Final = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a model is run.

    Attributes:
        batch: Which of the drawn batches.
        train: Mode of the model.
        double: Whether in float64.
    """

    batch: int = 0
    train: bool = False
    double: bool = False

    @property
    def shown(self) -> str:
        """The mode in words."""
        return "training mode" if self.train else "evaluation mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run gave.

    Attributes:
        outputs: Every tensor of the output, by path.
        others: Type or value of every other leaf of the output, by path.
        loss: The loss: the declared one, or a random projection of the output.
        gradients: Of every parameter that requires one, by name; None where it has none.
        buffers: Every buffer after a run in training mode, by name.
        modules: First floating tensor that each module returned first, by its name, in the order in
            which they returned; empty where it was not asked for.
        updates: What one step of the optimizer adds to each parameter; likewise.
        randomness: Digest of torch's random state after the run.
        drew: Whether the run drew random numbers of torch.
        error: What it raised, with the phase; empty where it came to its end.
        line: The user's line that raised it.
    """

    outputs: Mapping[str, Sketch]
    others: Mapping[str, str]
    loss: Sketch | None
    gradients: Mapping[str, Sketch | None]
    buffers: Mapping[str, Sketch]
    randomness: str
    drew: bool
    error: str = ""
    line: Location | None = None
    modules: Mapping[str, Sketch] = field(default_factory=dict)
    updates: Mapping[str, Sketch] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return what ``torch.load`` reads with ``weights_only=True``."""
        return {
            "outputs": _plain(self.outputs), "others": dict(self.others),
            "loss": None if self.loss is None else self.loss.plain(),
            "gradients": _plain(self.gradients), "buffers": _plain(self.buffers),
            "randomness": self.randomness, "drew": self.drew, "error": self.error,
            "line": line_of(self.line),
        }  # fmt: skip

    @classmethod
    def of_plain(cls, data: Mapping[str, Any]) -> Outcome:
        """Rebuild an outcome from :meth:`plain`."""
        made: dict[str, Any] = {
            part: {k: None if v is None else Sketch.of_plain(v) for k, v in data[part].items()}
            for part in ("outputs", "gradients", "buffers")
        }
        loss, line = data["loss"], data["line"]
        made["loss"] = None if loss is None else Sketch.of_plain(loss)
        made["line"] = None if line is None else Location(**line)
        return cls(**{**data, **made})


def _plain(sketches: Mapping[str, Sketch | None]) -> dict[str, Any]:
    return {name: None if one is None else one.plain() for name, one in sketches.items()}


@contextlib.contextmanager
def prepared(subject: Subject, load: Load, way: Way, seed: int) -> Iterator[nn.Module]:
    """Give the model with its weights loaded, in the mode, dtype and random state of a run.

    Args:
        subject: Whose model; its pristine state comes back afterwards.
        load: Loads the weights into it.
        way: How it will be run.
        seed: Decides what the run draws.
    """
    with (
        subject.pristine(steps=True),
        subject.in_double() if way.double else contextlib.nullcontext(),
    ):
        model = subject.model
        if way.double:
            torch.set_default_dtype(torch.float64)
        load(model)
        clear_gradients(model)
        model.train(way.train)
        seed_everything(seed)
        with torch.enable_grad():
            yield model


def batch_for(batch: Batch, way: Way) -> Batch:
    """Return a copy of a batch in the dtype of a run."""
    return batch.to(dtype=torch.float64).clone() if way.double else batch.clone()


def run(
    subject: Subject,
    batch: Batch,
    load: Load,
    way: Way,
    *,
    seed: int,
    describe: Callable[[torch.Tensor], Sketch] = sketch,
) -> Outcome:
    """Run forward, loss and backward and describe them; what the user's code raises is a part of it."""
    output: Any = None
    loss: torch.Tensor | None = None
    error, line = "", None
    with prepared(subject, load, way, seed) as model:
        before = _randomness()
        own = batch_for(batch, way)
        try:
            output = subject.call(model, own)
            loss = _backward(subject, output, own)
        except SubjectError as raised:
            cause = raised.error
            error = f"{raised.phase}: {type(cause).__name__}: {message_of(cause)}"
            line = sources.of_error(cause)
            if raised.phase == "loss" and not way.train:
                error = ""  # such as a loss that a model returns in training mode alone
        after = _randomness()
        named = list(model.named_parameters())
        return Outcome(
            outputs={path: describe(t) for path, t in trees.tensors(output).items()},
            others=_others(output),
            loss=None if loss is None else describe(loss.detach()),
            gradients={
                name: None if p.grad is None else describe(p.grad)
                for name, p in named
                if p.requires_grad and loss is not None
            },
            buffers={n: describe(b) for n, b in model.named_buffers()} if way.train else {},
            randomness=after,
            drew=after != before,
            error=error,
            line=line,
        )


@contextlib.contextmanager
def watched(
    model: nn.Module, into: dict[str, _Kept], describe: Callable[[torch.Tensor], _Kept]
) -> Iterator[None]:
    """Keep the first floating tensor that each module returns first, in the order in which they return."""
    names = {id(module): name for name, module in model.named_modules() if name}

    def left(module: nn.Module, args: Any, output: Any) -> None:
        name = names.get(id(module))
        if name is None or name in into:
            return
        first = next(iter(trees.floats(output).values()), None)
        if first is not None:
            into[name] = describe(first)

    handle = register_module_forward_hook(left)
    with handle:
        yield


def noise(
    subject: Subject, batch: Batch, load: Load, *, double: bool = True, seeds: int = SEEDS
) -> dict[str, list[float]]:
    """Return how far training mode is from evaluation mode.

    Args:
        subject: The model.
        batch: What it is given.
        load: Loads the weights into it.
        double: Whether to run in float64.
        seeds: How many of torch's seeds to average over: 1, or so many at least, up to
            :data:`MOST_SEEDS` until the distance of the model's output is known to a twentieth.

    Returns:
        For each module, and ``""`` for the model, in the order in which they return: the mean squared
        difference of the first floating tensor that it returns first, relative to its mean square, and the
        standard error of that mean. A module without such a tensor is left out, and every one where a run
        raises.
    """
    found: dict[str, list[float]] = {}
    own = batch_for(batch, Way(double=double))
    with prepared(subject, load, Way(double=double), subject.seed) as model:  # cast once
        state = ModuleState(model)
        try:
            for index in range(MOST_SEEDS if seeds > 1 else 1):
                if index >= seeds and index % seeds == 0 and _is_known(found.get("", ())):
                    break
                two: list[dict[str, torch.Tensor]] = []
                for train in (False, True):
                    state.restore(parameters=False)
                    load(model)
                    model.train(train)
                    seed_everything(subject.seed + index)
                    two.append(_returned(subject, model, own.clone()))
                for name, far in _distances(*two):
                    found.setdefault(name, []).append(far)
        except SubjectError:
            return {}
        finally:
            state.restore(parameters=False, last=True)
    if not found.get(""):
        return {}
    return {
        name: [statistics.fmean(values), _standard_error(values)]
        for name, values in found.items()
        if len(values) == len(found[""])
    }


def _returned(subject: Subject, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    into: dict[str, torch.Tensor] = {}
    with watched(model, into, lambda t: trees.dense(t).double()):
        output = subject.call(model, batch)
    whole = next(iter(trees.floats(output).values()), None)
    if whole is not None:
        into[""] = trees.dense(whole).double()
    return into


def _distances(
    calm: dict[str, torch.Tensor], noisy: dict[str, torch.Tensor]
) -> Iterator[tuple[str, float]]:
    for name, two in noisy.items():
        one = calm.get(name)
        if one is not None and one.shape == two.shape and one.numel():
            size = float(one.abs().square().mean()) or 1.0
            yield name, float((two - one).abs().square().mean()) / size


def _is_known(values: Sequence[float]) -> bool:
    return not values or _standard_error(values) <= statistics.fmean(values) / 20


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def line_of(place: Location | None) -> dict[str, Any] | None:
    """Return a place as plain data."""
    return None if place is None else asdict(place)


def _backward(subject: Subject, output: Any, batch: Batch) -> torch.Tensor | None:
    """Return the loss of an output after its backward; None where the contract has none and the output no gradient."""
    declared = subject.contract.loss is not None
    if not declared and not any(t.requires_grad for t in trees.floats(output).values()):
        return None
    loss = subject.compute_loss(output, batch)
    with subject.phase("backward", batch):
        loss.sum().backward()
    return loss


def _randomness() -> str:
    return digest_of(torch.get_rng_state())


def _others(output: Any) -> dict[str, str]:
    """Return every leaf of an output that is no tensor: plain values as they are, others by their type."""
    found = {}
    for path, leaf in trees.leaves(output, "output"):
        if isinstance(leaf, torch.Tensor):
            continue
        plain = isinstance(leaf, bool | int | float | str) or leaf is None
        found[path] = repr(leaf) if plain else type(leaf).__name__
    return found


def move_weights(model: nn.Module, seed: int) -> None:
    """Move every parameter at random by a twentieth of its size, in place, and the statistics of norm layers.

    What a layer computes that is initialised with zeros, or a norm layer with its first statistics,
    counts then too.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        made = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        return made.to(device=tensor.device, dtype=tensor.dtype)

    with torch.no_grad():
        for parameter in model.parameters():
            floating = parameter.is_floating_point() or parameter.is_complex()
            if not floating or not parameter.numel() or not trees.computable(parameter.data):
                continue
            size = float(parameter.abs().square().mean().sqrt())
            parameter.add_(noise(parameter), alpha=JITTER * size or FROM_ZERO)
        for module in model.modules():
            mean, variance = (getattr(module, n, None) for n in ("running_mean", "running_var"))
            if isinstance(mean, torch.Tensor) and isinstance(variance, torch.Tensor):
                mean.add_(noise(mean), alpha=0.1)
                variance.mul_(1 + 0.2 * noise(variance).abs())
