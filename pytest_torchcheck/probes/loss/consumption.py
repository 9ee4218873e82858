"""Watch how a loss consumes an output: which loss functions, on what, made by which operation."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...lean import dataclass
from ...objects.weak import ByTensor
from ..gradient.surrogates import DeadTerms
from ..recorded.unread import Reads
from ..recorded.watch import Op, Watch, name_of
from .axes import PRODUCTS, CrossedAxes, FocalMeans, crosses
from .directions import Comparisons
from .noise import NoiseTargets
from .undefined import UndefinedValues
from .unit_vectors import UnitVectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...findings import Location

LOSSES = frozenset(
    {
        "F.cross_entropy", "F.nll_loss", "F.binary_cross_entropy", "F.binary_cross_entropy_with_logits",
        "F.mse_loss", "F.l1_loss", "F.smooth_l1_loss", "F.huber_loss", "F.kl_div", "F.log_softmax",
        "torch.log_softmax", "Tensor.log_softmax", "F.nll_loss_nd", "torch.nll_loss", "F.gaussian_nll_loss",
        "F.poisson_nll_loss", "F.soft_margin_loss", "F.ctc_loss", "F.hinge_embedding_loss", "F.cosine_embedding_loss",
        "F.margin_ranking_loss", "F.multilabel_margin_loss", "F.multilabel_soft_margin_loss",
    }
)  # fmt: skip
COMPARING_TWO = ("F.cosine_embedding_loss", "F.margin_ranking_loss")
_STRETCHING = (
    "mse", "l1", "huber", "binary", "kl_div", "soft_margin", "margin_ranking", "poisson", "gaussian",
)  # fmt: skip
ACTIVATIONS = (
    "softmax", "log_softmax", "sigmoid", "relu", "relu_", "tanh", "softplus", "logsigmoid", "gelu",
)  # fmt: skip
SHAPE_ONLY = frozenset(
    {
        "view", "reshape", "transpose", "permute", "squeeze", "unsqueeze", "flatten", "contiguous", "float",
        "double", "to", "movedim", "T", "mT", "t", "unflatten", "expand", "clone", "type_as", "swapaxes",
    }
)  # fmt: skip
ELEMENTWISE = ("sub", "__sub__", "__rsub__", "rsub", "mul", "__mul__", "__rmul__", "add", "__add__", "__radd__", "pow",
               "eq", "__eq__", "div", "__truediv__", "minimum", "maximum", "hypot", "dist")  # fmt: skip
LINEAR = (
    "linear", "matmul", "mm", "bmm", "addmm", "__matmul__", "__rmatmul__", "einsum", "conv1d", "conv2d", "conv3d",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Producer:
    """What made a tensor: the operation behind any change of shape.

    Attributes:
        op: The operation, with line and module.
        kind: Its bare name, such as ``softmax``.
        operands: Ids of the tensors that it took, and of their bases.
    """

    op: Op
    kind: str
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogOf:
    """A logarithm of what a softmax or a sigmoid gave, picked or subtracted from one at most.

    Attributes:
        op: The logarithm.
        squash: The softmax or sigmoid.
        number: Which call of a squashing function of the run it was, from 0.
    """

    op: Op
    squash: Op
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCall:
    """One call of a loss function.

    Attributes:
        op: The call.
        input: Its first argument, alive only as long as this object.
        target: Its second argument, or the third where two inputs are compared.
        options: Its keyword arguments.
        arguments: All its positional arguments.
        producer: What made the input, or None where no watched operation did.
        passed: What gave the input its shape within the loss, where the loss only reshapes an output; else None.
        target_op: What made the target last, slices included, or None where it came from outside.
        swapped: Whether it was given a target of the batch first, and after it what was computed
            from outputs alone.
    """

    op: Op
    input: Tensor
    target: Tensor | None
    options: dict[str, Any]
    arguments: tuple[Any, ...] = ()
    producer: Producer | None
    passed: Op | None = None
    target_op: Op | None = None
    swapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """An operation that stretched an output and a target, or (``other``) two outputs, against each other.

    ``several``: one of torch's losses compares each output with several values of a target, which differ;
    ``order``: where output and target stand among the operands.
    """

    op: Op
    output: tuple[int, ...]
    target: tuple[int, ...]
    result: tuple[int, ...]
    other: str = "target"
    several: bool = False
    order: tuple[int, int] = (0, 1)


_CLAMPS = frozenset({"clamp", "clamp_min", "clamp_max", "clip"})
_ADDS = frozenset({"add", "__add__", "__radd__"})
_SMALL = 0.01
"""A number that keeps values from 0, and says nothing of them."""
SQUASHING = frozenset({"softmax", "sigmoid"})
_PICKS = SHAPE_ONLY | {
    "__getitem__", "gather", "select", "index_select", "narrow", "take_along_dim", "diagonal", "diag", "masked_select",
}  # fmt: skip
_LOGS = frozenset({"log", "log2", "log10"})


class LossWatch(Watch):
    """Record the loss functions of a forward and its loss.

    Call :meth:`between` after the forward, with the tensors of output and targets.

    Args:
        module: Names are qualified relative to it.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        super().__init__(module)
        self.calls: list[LossCall] = []
        self.broadcasts: list[Broadcast] = []
        self.samples: list[Op] = []
        self.logs: list[LogOf] = []
        self.derivatives = DeadTerms()
        self.axes, self.lengths = CrossedAxes(), UnitVectors()
        self.focal = FocalMeans()
        self.comparisons = Comparisons()
        self.undefined = UndefinedValues()
        self.noise = NoiseTargets()
        self.crosses = False  # whether numbers of all samples meet in a product
        self._squashes = 0
        self._probabilities: ByTensor[tuple[Op, int]] = ByTensor()
        self._logged: ByTensor[LogOf] = ByTensor()
        self._makers: ByTensor[Producer] = ByTensor()
        self._whole: ByTensor[Op] = ByTensor()
        self._passed: ByTensor[Op] = ByTensor()
        self._taint: ByTensor[str] = ByTensor()
        self._losing = self._inside = False
        self._reads = Reads()

    @property
    def loses(self) -> bool:
        """Whether a result that the loss computes is gone, and nothing was given it."""
        return bool(self._reads.unread())

    def inside(self, inputs: Iterable[Tensor]) -> None:
        """Say that the forward computes its own loss: its inputs may be targets, what parameters make of them outputs."""
        self._inside = True
        for tensor in inputs:
            self._taint[tensor] = "target"

    def between(self, outputs: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
        """Say that the forward is over and the loss begins."""
        self._losing = True
        for kind, tensors in (("output", outputs), ("target", targets)):
            for tensor in tensors:
                self._taint[tensor] = kind

    def producer(self, tensor: Tensor) -> Producer | None:
        """Return what made a tensor."""
        return self._makers.get(tensor)

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Note makers, loss functions and broadcasting."""
        name = name_of(func)
        bare = name.rpartition(".")[2]
        inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        with torch._C.DisableTorchFunction():
            self.derivatives.see(name, bare, args, kwargs, result, lambda: self.op(name))
            self.comparisons.see(name, args, kwargs, result, lambda: self.op(name))
            self.axes.see(name, bare, args, kwargs, result, lambda: self.op(name))
            self.lengths.see(bare, args, kwargs, result, lambda: self.op(name))
            self.noise.see(name, bare, args, kwargs, result, lambda: self.op(name))
            self.focal.see(name, bare, args, result, lambda: self.op(name))
            if bare in PRODUCTS and len(inputs) == 2:
                self.crosses = self.crosses or crosses(*inputs)
            if self._losing and not self.scopes:
                self.undefined.see(func, args, kwargs, result, lambda: self.op(name))
            if self._losing and bare != "__get__":
                self._reads.given(inputs)
                self._reads.returned(bare, inputs, result)
            if name in LOSSES and inputs and not any(map(_mapped, inputs)):
                self._loss(name, args, kwargs, inputs)
                if (logged := self._logged.get(inputs[0])) is not None:
                    self.logs.append(logged)
            if bare == "normal" and any(t.requires_grad for t in inputs):
                self.samples.append(self.op(name))
            if isinstance(result, Tensor) and inputs:
                self._probable(bare, name, inputs[0], result)
            if isinstance(result, Tensor):
                if not inputs or not result.is_floating_point():
                    self._whole_made(bare, name, inputs, result)
                self._made(bare, name, args, inputs, result)
                if self._losing or self._inside:
                    self._follow(bare, name, inputs, result)

    def _probable(self, bare: str, name: str, given: Tensor, result: Tensor) -> None:
        """Follow probabilities from what makes them to a logarithm."""
        if bare in SQUASHING:
            self._probabilities[result] = (self.op(name), self._squashes)
            self._squashes += 1
            return
        if (known := self._probabilities.get(given)) is None:
            return
        squash, number = known
        if bare in _PICKS or (bare in ("__rsub__", "rsub") and squash.name.endswith("sigmoid")):
            self._probabilities[result] = known
        elif bare in _LOGS:
            found = LogOf(self.op(name), squash, number)
            self._logged[result] = found
            if self._losing:
                self.logs.append(found)

    def _loss(self, name: str, args: Any, kwargs: Any, inputs: list[Tensor]) -> None:
        first = inputs[0]
        at = 2 if name in COMPARING_TWO else 1
        target = (
            args[at] if len(args) > at and isinstance(args[at], Tensor) else kwargs.get("target")
        )
        options = {key: value for key, value in kwargs.items() if not isinstance(value, Tensor)}
        self.calls.append(
            LossCall(
                op=self.op(name),
                input=first,
                target=target if isinstance(target, Tensor) else None,
                options=options,
                arguments=args,
                producer=self.producer(first),
                passed=self._passed.get(first),
                target_op=self._whole.get(target),
                swapped=isinstance(target, Tensor)
                and target.requires_grad
                and (self._kind(first), self._kind(target)) == ("target", "output"),
            )
        )

    def _whole_made(self, bare: str, name: str, inputs: list[Tensor], result: Tensor) -> None:
        """Note what made a tensor of whole numbers: behind reshapes, the first slice or computation."""
        known = self._whole.get(inputs[0]) if inputs and bare in SHAPE_ONLY else None
        if known is None and bare in SHAPE_ONLY:
            return
        self._whole[result] = known or self.op(name)

    def _made(self, bare: str, name: str, args: Any, inputs: list[Tensor], result: Tensor) -> None:
        if bare in SHAPE_ONLY or (bare == "__getitem__" and inputs):
            maker = self.producer(inputs[0]) if inputs else None
            if self._losing:
                self._passed[result] = self.op(name)
        elif (known := self._guarded(bare, args, inputs)) is not None:
            maker = known
        elif bare in ACTIVATIONS or bare in LINEAR or result.is_floating_point():
            operands = tuple(i for t in inputs for i in (id(t), id(t._base)) if i != id(None))
            maker = Producer(self.op(name), bare, operands)
        else:
            maker = None
        if maker is not None:
            self._makers[result] = maker

    def _guarded(self, bare: str, args: Any, inputs: list[Tensor]) -> Producer | None:
        """Return what made values that are only kept from a bound: clamped, or with a small number added."""
        known = self.producer(inputs[0]) if len(inputs) == 1 else None
        if known is None or (known.kind not in ACTIVATIONS and known.kind not in POSITIVE):
            return None
        small = any(isinstance(a, float) and 0 < a <= _SMALL for a in args)
        return known if bare in _CLAMPS or (bare in _ADDS and small) else None

    def _follow(self, bare: str, name: str, inputs: list[Tensor], result: Tensor) -> None:
        kinds = [self._kind(tensor) for tensor in inputs]
        found = {kind for kind in kinds if kind}
        if found:
            kind = found.pop() if len(found) == 1 else "both"
            if self._inside:
                kind = "output" if result.requires_grad else "target"
            self._taint[result] = kind
        if len(inputs) < 2 or (bare not in ELEMENTWISE and not name.startswith("F.")):
            return
        # what was picked by a target (a chosen action's value) is still an output
        first = next((i for i, kind in enumerate(kinds) if kind in ("output", "both")), None)
        second = next(
            (i for i, kind in enumerate(kinds) if kind in ("target", "both") and i != first), None
        )
        if second is None and all(kinds[:2]) and not self._inside:
            self._doubled(name, inputs, result)
        if first is None or second is None:
            return
        a, b = inputs[first], inputs[second]
        if a.shape == b.shape:
            return
        joint = _broadcast(a.shape, b.shape)
        if joint is None:
            return  # not elementwise: class indices against logits
        if self._inside and sorted((a.shape, b.shape), key=len) != [joint[:1], (joint[0], 1)]:
            return  # one number of each sample against a row of them: anything else may be meant
        if name.startswith("F.") and not any(word in bare for word in _STRETCHING):
            return
        op, shapes = self.op(name), (tuple(a.shape), tuple(b.shape))
        pair = Broadcast(
            op=op, output=shapes[0], target=shapes[1], result=joint, order=(first, second)
        )
        self.broadcasts.append(pair)

    def _doubled(self, name: str, inputs: list[Tensor], result: Tensor) -> None:
        """Note a result whose samples stand along two dimensions, with dimensions of size 1 left between them.

        Pairs that are meant are made of ``x[:, None]`` and leave none.
        """
        a, b = sorted(inputs[:2], key=lambda tensor: -tensor.ndim)
        shape, at = result.shape, a.ndim - b.ndim
        if not b.ndim or len(a) == 1 or 1 not in shape[1:at]:
            return
        if len(a) == len(b) == shape[at] and a.shape[at] == 1:
            output, other, joint = map(tuple, (b.shape, a.shape, result.shape))
            op = self.op(name)
            pair = Broadcast(op=op, output=output, target=other, result=joint, other="output")
            self.broadcasts.append(pair)

    def _kind(self, tensor: Tensor) -> str:
        return self._taint.get(tensor) or ""


def parameter_of(module: nn.Module, producer: Producer | None) -> str | None:
    """Return the name of the parameter that a linear operation multiplied with, or None."""
    if producer is None or producer.kind not in LINEAR:
        return None
    for name, parameter in module.named_parameters():
        if id(parameter) in producer.operands and parameter.dim() >= 2:
            return name
    return None


def line_of(*ops: Op | None) -> Location | None:
    """Return the first known line of some operations."""
    return next((op.location for op in ops if op is not None and op.location is not None), None)


def is_criterion(name: str) -> bool:
    """Say whether a class of this name is one of torch's loss modules."""
    found = getattr(torch.nn.modules.loss, name, None)
    return isinstance(found, type) and issubclass(found, torch.nn.modules.loss._Loss)


POSITIVE = frozenset(
    {"exp", "exp_", "softplus", "relu", "relu_", "sigmoid", "sigmoid_", "square", "softmax"}
)
"""What makes a rate, a variance or a probability, and never a logarithm of one."""


def _mapped(tensor: Tensor) -> bool:
    """Say whether ``vmap`` hides a tensor, which nobody can look at when it is over."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape that two shapes broadcast to, or None; torch's own function imports sympy."""
    made = []
    for first, second in itertools.zip_longest(reversed(a), reversed(b), fillvalue=1):
        if first != second and 1 not in (first, second):
            return None
        made.append(second if first == 1 else first)
    return tuple(reversed(made))
