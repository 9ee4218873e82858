"""The loss and its targets, from the output that was seen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import torch.nn.functional as F

from ..lean import dataclass
from ..objects import trees
from ..specs import Floats, Labels, Probabilities, SpecError, UnitVectors
from .target import TargetError, attribute, parse_target, see_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from ..specs import TensorSpec
    from .trial import Accepted

CLASSES: Final = ("cross_entropy", "nll_loss")
BINARY: Final = ("binary_cross_entropy_with_logits", "binary_cross_entropy")


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss with the code that stands for it.

    Attributes:
        code: Such as ``F.cross_entropy`` or ``lambda output, targets: ...``.
        function: What is called; ``"output"`` where the model returns its own.
        module: Where a loss of the user's own is imported from.
    """

    code: str
    function: Any
    module: str = ""


def loss_of(name: str, /) -> Loss:
    """Return a loss by its name in ``torch.nn.functional``; ``output`` is the model's own."""
    if name == "output":
        return Loss(code='"output"', function="output")
    return Loss(code=f"F.{name}", function=getattr(F, name))


def named_loss(text: str | None, folder: str) -> str | Loss | None:
    """Return a loss of the user's own, imported by its name; another one is its name.

    Args:
        text: One of :data:`.target.LOSSES`, or ``package.module:function``.
        folder: Where to look for modules as well.

    Raises:
        TargetError: It is of another form, cannot be imported, or cannot be called.
    """
    if text is None:
        return None
    see_loss(text)
    if ":" not in text:
        return text
    target = parse_target(text)
    function = attribute(target, folder)
    if not callable(function):
        raise TargetError(
            f"{text!r} is of type {type(function).__name__}; a loss is called as "
            "loss(output, targets)"
        )
    return Loss(code=".".join(target.path), function=function, module=target.module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an output is trained by.

    Attributes:
        loss: The loss.
        targets: Spec of its targets; None where the model returns its own loss.
        output: Spec of the output as a shape, where it is one tensor of a known shape.
    """

    loss: Loss
    targets: TensorSpec | None = None
    output: str | None = None


def outcome_of(found: Accepted, *, loss: str | None = None) -> Outcome | None:
    """Return a loss and targets for what a model returns.

    Args:
        found: The candidate that ran.
        loss: One of :data:`.target.LOSSES`, or None to choose.

    Returns:
        None where no float output with a gradient has a shape that is known at other sizes, or
        where several have one and no loss is named: checks without a loss look at all of them.
    """
    first = found.runs[0].outputs
    if loss == "output" or (loss is None and _is_loss(found)):
        return Outcome(loss=loss_of("output"))
    several = [path for path in found.trains if path in first and first[path].ndim]
    if loss is None and len(several) > 1:
        return None  # a loss of one of them would leave what makes the others without a gradient
    single = next(iter(first.items())) if len(first) == 1 else None
    for path in found.trains:
        leaf = first.get(path)
        if leaf is None or not (leaf.is_floating_point() and leaf.ndim and leaf.numel()):
            continue
        dims = _dims(found, path)
        if dims is None:
            continue
        made = _loss(loss or _choice(leaf, dims, path, found), leaf, dims, path, found)
        if made is not None:
            shown = " ".join(dims) if single is not None and single[0] == "output" else None
            return Outcome(loss=made[0], targets=made[1], output=shown)
    return None


def loss_of_data(outputs: Mapping[str, Tensor], targets: Tensor, name: str) -> Loss:
    """Return a loss of the first output that fits targets; the plain one where none does.

    Args:
        outputs: Output tensors in train mode, by their path.
        targets: Real targets.
        name: A function of ``torch.nn.functional``. For one of classes an output has one axis
            more than the targets: axis 1, or else the last, which is moved there.
    """
    function: Callable[..., Any] = getattr(F, name)
    for path, leaf in outputs.items():
        if not (leaf.requires_grad and leaf.is_floating_point() and leaf.ndim):
            continue
        shape, wanted = list(leaf.shape), list(targets.shape)
        if shape == wanted and (name not in CLASSES or targets.is_floating_point()):
            return _picked(name, function, path)
        if name in CLASSES and leaf.ndim > 1:
            if [shape[0], *shape[2:]] == wanted:
                return _picked(name, function, path)
            if shape[:-1] == wanted:
                return _picked(name, function, path, ".movedim(-1, 1)")
    return loss_of(name)


def _is_loss(found: Accepted) -> bool:
    """Say whether a model returns a loss: one number with a gradient, alone or by its name."""
    first = found.runs[0].outputs
    scalars = [path for path, leaf in first.items() if leaf.ndim == 0 and path in found.trains]
    return any(path in ("output", "output.loss", "output['loss']") for path in scalars)


def _dims(found: Accepted, path: str) -> tuple[str, ...] | None:
    """Return an output's shape in the symbols of the inputs; None where a size follows none."""
    seen = [
        (run.sizes, tuple(run.outputs[path].shape)) for run in found.runs if path in run.outputs
    ]
    if len(seen) < len(found.runs) or len({len(shape) for _, shape in seen}) != 1:
        return None
    dims = []
    for axis in range(len(seen[0][1])):
        dim = _dim([(sizes, shape[axis]) for sizes, shape in seen])
        if dim is None:
            return None
        dims.append(dim)
    return tuple(dims)


def _dim(seen: Sequence[tuple[Mapping[str, int], int]]) -> str | None:
    values = {value for _, value in seen}
    symbols = list(seen[0][0])
    for symbol in symbols:
        pairs = {(sizes[symbol], value) for sizes, value in seen}
        if len({size for size, _ in pairs}) > 1 and all(size == value for size, value in pairs):
            return symbol
    if len(values) == 1:
        return str(values.pop())
    if len(values) > 2:
        return next((text for symbol in symbols if (text := _relation(symbol, seen))), None)
    return None


def _relation(symbol: str, seen: Sequence[tuple[Mapping[str, int], int]]) -> str | None:
    """Return how a size follows from one symbol, where it is shifted, doubled or divided.

    All runs must agree.
    """
    pairs = [(sizes[symbol], value) for sizes, value in seen]
    shifts = {value - size for size, value in pairs}
    if len(shifts) == 1:
        shift = shifts.pop()
        return f"{symbol}+{shift}" if shift > 0 else f"{symbol}-{-shift}"
    for factor in (2, 3, 4, 8):
        if all(value == factor * size for size, value in pairs):
            return f"{factor}*{symbol}"
        if all(value == size // factor for size, value in pairs):
            return f"{symbol}//{factor}"
    return None


def _choice(leaf: Tensor, dims: tuple[str, ...], path: str, found: Accepted) -> str:
    """Choose a loss: cross entropy for scores of classes or tokens, else squared error."""
    named = path == "output" or "logits" in path or path == "output[0]"
    words = leaf.ndim == 3 and _is_vocabulary(leaf, found)
    classes = (leaf.ndim == 2 or words) and dims[-1].isdigit() and int(dims[-1]) > 1
    if not (named and classes) or tuple(leaf.shape) in found.runs[0].inputs.values():
        return "mse_loss"  # what goes in and comes out alike is rather values than scores
    every = found.values(path)
    if _range(every) is not None or all(map(_is_unit, every)):
        return "mse_loss"
    logs = leaf.ndim == 2 and all(_is_distribution(values.exp()) for values in every)
    return "nll_loss" if logs else "cross_entropy"


def _loss(
    name: str, leaf: Tensor, dims: tuple[str, ...], path: str, found: Accepted
) -> tuple[Loss, TensorSpec] | None:
    function: Callable[..., Any] = getattr(F, name)
    if name not in CLASSES:
        return _picked(name, function, path), _values(name, found.values(path), dims)
    if leaf.ndim < 2:
        return None
    last = (
        leaf.ndim > 2
        and (_is_vocabulary(leaf, found) or not dims[1].isdigit())
        and dims[-1].isdigit()
    )
    axis = leaf.ndim - 1 if last else 1
    if not dims[axis].isdigit() or int(dims[axis]) < 2:
        return None
    rest = [dim for i, dim in enumerate(dims) if i != axis]
    targets = Labels(" ".join(rest), classes=int(dims[axis]))
    return _picked(name, function, path, ".movedim(-1, 1)" if last else ""), targets


def _is_vocabulary(leaf: Tensor, found: Accepted) -> bool:
    """Say whether the last axis is as long as the vocabulary of the tokens that go in."""
    return any(
        getattr(spec, "vocab", None) == leaf.shape[-1] for spec in found.source.specs.values()
    )


def _values(name: str, seen: list[Tensor], dims: tuple[str, ...]) -> TensorSpec:
    """Return values that the output can reach, as far as those that were seen tell."""
    shape = " ".join(dims)
    if name in BINARY:
        return Floats(shape, low=0.0, high=1.0)
    if all(map(_is_unit, seen)):
        return UnitVectors(shape)
    if all(map(_is_distribution, seen)):
        return Probabilities(shape)
    span = _range(seen)
    return Floats(shape) if span is None else Floats(shape, low=span[0], high=span[1])


def _range(seen: list[Tensor]) -> tuple[float, float] | None:
    """Return a range that an output keeps to at all weights, as after a sigmoid, ReLU or tanh."""
    low = min(float(values.min()) for values in seen)
    if low >= 0:
        return 0.0, 1.0
    return (-1.0, 1.0) if low >= -1 and all(bool((v <= 1).all()) for v in seen) else None


def _is_distribution(values: Tensor) -> bool:
    several = values.shape[-1] > 1 and bool((values >= 0).all())
    return several and bool((values.sum(-1) - 1).abs().max() < 1e-3)


def _is_unit(values: Tensor) -> bool:
    return values.shape[-1] > 1 and bool((values.norm(dim=-1) - 1).abs().max() < 1e-3)


_SAFE: Final = re.compile(r"output(\.[A-Za-z_]\w*|\[\d+\]|\['[^']*'\])*")


def _picked(name: str, function: Callable[..., Any], path: str, change: str = "") -> Loss:
    """Return a loss of the tensor at a path of the output."""
    if path == "output" and not change:
        return loss_of(name)
    if _SAFE.fullmatch(path) is None:
        raise SpecError(f"the output {path} has no simple name")
    steps = steps_of(path)

    def loss(output: Any, targets: Any) -> Any:
        chosen = trees.pick(output, steps)
        return function(chosen.movedim(-1, 1) if change else chosen, targets)

    return Loss(code=f"lambda output, targets: F.{name}({path}{change}, targets)", function=loss)


def steps_of(path: str) -> tuple[int | str, ...]:
    """Return the attributes, indices and keys of a path such as ``output.logits`` or ``output[0]``."""
    found = re.findall(r"\.([A-Za-z_]\w*)|\[(\d+)\]|\['([^']*)'\]", path)
    return tuple(int(index) if index else attribute or key for attribute, index, key in found)
