"""What else holds, declared: small frozen values, each checked by a check of its own.

A project adds its own by subclassing :class:`Promise` and writing :meth:`Promise.verify`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from .nearest import unknown

if TYPE_CHECKING:
    from typing import Self

    from .findings import Finding
    from .subject import Subject

__all__ = [
    "Accumulates",
    "AllowsTF32",
    "Autocasts",
    "CapturesGraph",
    "Causal",
    "Checkpoints",
    "ClipsGradients",
    "Deterministic",
    "Differentiable",
    "Frozen",
    "FullyShards",
    "Matches",
    "MayChange",
    "MayLackGradient",
    "MovingAverage",
    "PaddingInvariant",
    "PermutationEquivariant",
    "PermutationInvariant",
    "Promise",
    "RandomAugmentation",
    "Replicated",
    "Schedule",
    "SharesData",
    "SkipsNonFinite",
    "Stochastic",
    "StraightThrough",
    "Tied",
    "Trainable",
    "TwiceDifferentiable",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):  # Python itself looks for what need not be there
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise AttributeError(unknown("pytest_torchcheck.promises", name, __all__))


class Promise:
    """Base of all promises; subclass it to add one of your own."""

    __slots__ = ()

    def __new__(cls, *_: Any, **fields: Any) -> Self:
        """Refuse an unknown argument as any other misuse, before Python refuses it in its own words."""
        taken = inspect.signature(cls.__init__).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
            allowed = [name for name in taken if name != "self"]
            for name in fields:
                if name not in taken:
                    raise PromiseError(unknown(f"{cls.__name__}()", name, allowed))
        return super().__new__(cls)

    def verify(self, subject: Subject) -> Iterable[Finding]:
        """Check a promise of your own; the built-in ones are checked by the catalogue.

        Args:
            subject: The model under test, with its batches and steps.
        """
        raise TypeError(
            f"{type(self).__name__} defines no verify(subject); "
            "write it, and yield findings from pytest_torchcheck.verdicts"
        )


class PromiseError(ValueError):
    """A promise was declared with arguments that make no sense."""


def _globs(owner: str, globs: tuple[Any, ...]) -> tuple[str, ...]:
    if not globs:
        raise PromiseError(
            f'{owner}() needs at least one glob of qualified names, such as {owner}("encoder.*")'
        )
    for glob in globs:
        if not isinstance(glob, str) or not glob:
            raise PromiseError(
                f'{owner} takes globs of qualified names (str), such as "encoder.*"; got {glob!r}'
            )
    return globs


def _reason(owner: str, reason: Any, *, required: bool = True) -> str:
    if not isinstance(reason, str) or (required and not reason.strip()):
        raise PromiseError(f"{owner}(reason=) must say why, as a non-empty str; got {reason!r}")
    return reason


def _dim(owner: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PromiseError(f"{owner}({name}=) must be a dimension (int); got {value!r}")
    return value


def _input(owner: str, name: str, value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PromiseError(
            f"{owner}({name}=) must be an input's position (int) or name (str); got {value!r}"
        )
    return value


@dataclass(frozen=True, slots=True, init=False)
class _Names(Promise):
    """Qualified names chosen by globs."""

    globs: tuple[str, ...]
    reason: str

    def matches(self, name: str) -> bool:
        """Say whether a qualified name is meant."""
        return any(fnmatchcase(name, glob) for glob in self.globs)


@dataclass(frozen=True, slots=True, init=False)
class Frozen(_Names):
    """These parameters and buffers stay as they are, statistics and weight decay included."""

    def __init__(self, *globs: str, reason: str) -> None:
        object.__setattr__(self, "globs", _globs("Frozen", globs))
        object.__setattr__(self, "reason", _reason("Frozen", reason))


@dataclass(frozen=True, slots=True, init=False)
class Trainable(_Names):
    """These parameters must require gradients, get them and move."""

    def __init__(self, *globs: str, reason: str = "") -> None:
        object.__setattr__(self, "globs", _globs("Trainable", globs))
        object.__setattr__(self, "reason", _reason("Trainable", reason, required=False))


@dataclass(frozen=True, slots=True, init=False)
class MayLackGradient(_Names):
    """These parameters may go without a gradient, for the reason given."""

    def __init__(self, *globs: str, reason: str) -> None:
        object.__setattr__(self, "globs", _globs("MayLackGradient", globs))
        object.__setattr__(self, "reason", _reason("MayLackGradient", reason))


@dataclass(frozen=True, slots=True, init=False)
class MayChange(_Names):
    """These buffers may change in eval mode, for the reason given: caches, counters."""

    def __init__(self, *globs: str, reason: str) -> None:
        object.__setattr__(self, "globs", _globs("MayChange", globs))
        object.__setattr__(self, "reason", _reason("MayChange", reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class Causal(Promise):
    """The output at position t does not depend on the input after t.

    Attributes:
        dim: Dimension of the input that is time.
        input: Position or name of the input.
        output: Path of the output tensor (position, name or tuple of them); the only or first one
            by default.
        output_dim: Dimension of the output that is time.
    """

    dim: int = 1
    input: int | str = 0
    output: int | str | tuple[int | str, ...] | None = None
    output_dim: int = 1

    def __post_init__(self) -> None:
        _dim("Causal", "dim", self.dim)
        _dim("Causal", "output_dim", self.output_dim)
        _input("Causal", "input", self.input)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingInvariant(Promise):
    """What stands at padded positions, and how many there are, does not change the rest.

    Attributes:
        ids: Position or name of the padded input.
        mask: Position or name of its mask (true or 1 where real), if the model takes one.
        pad: Value that pads.
        side: Where the padding goes.
        dim: Dimension that is padded.
    """

    ids: int | str
    mask: int | str | None = None
    pad: float = 0
    side: Literal["right", "left"] = "right"
    dim: int = 1

    def __post_init__(self) -> None:
        _input("PaddingInvariant", "ids", self.ids)
        if self.mask is not None:
            _input("PaddingInvariant", "mask", self.mask)
        if self.side not in ("right", "left"):
            raise PromiseError(
                f'PaddingInvariant(side=) must be "right" or "left"; got {self.side!r}'
            )
        if isinstance(self.pad, bool) or not isinstance(self.pad, int | float):
            raise PromiseError(f"PaddingInvariant(pad=) must be a number; got {self.pad!r}")
        _dim("PaddingInvariant", "dim", self.dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Permutation(Promise):
    dim: int | None = None
    input: int | str = 0
    inputs: Mapping[int | str, int] | None = None

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if (self.dim is None) == (self.inputs is None):
            raise PromiseError(
                f"{owner} takes either dim= (with input=) or inputs={{name: dim}} of tensors "
                f"permuted together; got dim={self.dim!r}, inputs={self.inputs!r}"
            )
        if self.dim is not None:
            _dim(owner, "dim", self.dim)
            _input(owner, "input", self.input)
        else:
            if not isinstance(self.inputs, Mapping) or not self.inputs:
                raise PromiseError(f"{owner}(inputs=) must map names to dims; got {self.inputs!r}")
            for name, dim in self.inputs.items():
                _input(owner, "inputs", name)
                _dim(owner, f"inputs[{name!r}]", dim)

    @property
    def dims(self) -> Mapping[int | str, int]:
        """The permuted inputs and their dimension."""
        return self.inputs if self.inputs is not None else {self.input: self.dim or 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationInvariant(_Permutation):
    """Permuting the inputs along a dimension leaves the output as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationEquivariant(_Permutation):
    """Permuting the inputs along a dimension permutes the output along ``output_dim``."""

    output_dim: int | None = None

    def __post_init__(self) -> None:
        _Permutation.__post_init__(self)
        if self.output_dim is not None:
            _dim("PermutationEquivariant", "output_dim", self.output_dim)


@dataclass(frozen=True, slots=True)
class _Pair(Promise):
    a: str
    b: str

    def __post_init__(self) -> None:
        for name in (self.a, self.b):
            if not isinstance(name, str) or not name:
                raise PromiseError(
                    f"{type(self).__name__} takes two qualified names (str); got {name!r}"
                )
        if self.a == self.b:
            raise PromiseError(
                f"{type(self).__name__} needs two different names; got {self.a!r} twice"
            )


@dataclass(frozen=True, slots=True)
class Tied(_Pair):
    """Two names, one storage, after every operation that can untie them."""


@dataclass(frozen=True, slots=True)
class Replicated(_Pair):
    """Two parameters that stay equal after every training step."""


@dataclass(frozen=True, slots=True)
class TwiceDifferentiable(Promise):
    """Second derivatives of the contract's functions are right."""


@dataclass(frozen=True, slots=True)
class Differentiable(Promise):
    """The whole model's gradients are its derivatives: of every parameter and floating input, in float64.

    Not for models that stop gradients on purpose (a target network, a codebook, a teacher).
    """


@dataclass(frozen=True, slots=True)
class Accumulates(Promise):
    """``n`` micro-batches through ``micro_step`` give the full batch's gradient.

    Attributes:
        n: How many micro-batches.
        micro_step: ``(model, inputs, targets, ...)`` of the user's loop, or None to use ``train_step``.
    """

    n: int
    micro_step: Callable[..., Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 2:
            raise PromiseError(f"Accumulates(n) must be an int of at least 2; got {self.n!r}")
        if self.micro_step is not None and not callable(self.micro_step):
            raise PromiseError(
                f"Accumulates(micro_step=) must be callable; got {self.micro_step!r}"
            )


@dataclass(frozen=True, slots=True)
class Schedule(Promise):
    """The learning rate meant for each step: a function of the step from 0, or a sequence."""

    lr: Callable[[int], float] | Iterable[float]

    def __post_init__(self) -> None:
        if callable(self.lr):
            return
        values = (
            tuple(self.lr) if isinstance(self.lr, Iterable) and not isinstance(self.lr, str) else ()
        )
        if not values or not all(isinstance(v, int | float) for v in values):
            raise PromiseError(
                f"Schedule(lr) must be a function step -> lr or a non-empty sequence of numbers; got {self.lr!r}"
            )
        object.__setattr__(self, "lr", values)


@dataclass(frozen=True, slots=True)
class ClipsGradients(Promise):
    """The total norm of the gradients is at most ``max_norm`` when the optimizer steps."""

    max_norm: float

    def __post_init__(self) -> None:
        if (
            isinstance(self.max_norm, bool)
            or not isinstance(self.max_norm, int | float)
            or self.max_norm <= 0
        ):
            raise PromiseError(
                f"ClipsGradients(max_norm) must be a positive number; got {self.max_norm!r}"
            )


@dataclass(frozen=True, slots=True)
class SkipsNonFinite(Promise):
    """A gradient that is NaN or infinite never reaches the weights: the step is skipped, or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingAverage(Promise):
    """After every step, one part of the model is the moving average of another one.

    Attributes:
        target: Qualified name of the averaged module.
        source: Qualified name of the module that trains.
        decay: Share of its old value that the average keeps.
    """

    target: str
    source: str
    decay: float

    def __post_init__(self) -> None:
        for field_, name in (("target", self.target), ("source", self.source)):
            if not isinstance(name, str) or not name:
                raise PromiseError(
                    f"MovingAverage({field_}=) must be a module's qualified name; got {name!r}"
                )
        if (
            isinstance(self.decay, bool)
            or not isinstance(self.decay, int | float)
            or not 0 <= self.decay < 1
        ):
            raise PromiseError(f"MovingAverage(decay=) must be in [0, 1); got {self.decay!r}")


@dataclass(frozen=True, slots=True)
class RandomAugmentation(Promise):
    """Items of the dataset are random: they differ between workers and epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stochastic(Promise):
    """The output is random in eval mode by design (Monte-Carlo dropout, sampling decoders)."""

    reason: str

    def __post_init__(self) -> None:
        _reason("Stochastic", self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class StraightThrough(Promise):
    """The backward of these autograd Functions is a surrogate by design.

    Attributes:
        functions: Class names of the Functions.
        reason: Why.
        of: The function whose derivative the backward gives, called with the same arguments, such as
            ``lambda x: x`` for a rounding passed straight through; the gradient is then held to it.
            None where there is none, and then its values are not compared.
    """

    functions: tuple[str, ...] = field(kw_only=False)
    reason: str
    of: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.functions, str):
            object.__setattr__(self, "functions", (self.functions,))
        if (
            not isinstance(self.functions, (tuple, list))
            or not self.functions
            or not all(isinstance(name, str) for name in self.functions)
        ):
            raise PromiseError(
                f"StraightThrough(functions=) must name autograd Functions (str); got {self.functions!r}"
            )
        _reason("StraightThrough", self.reason)
        if self.of is not None and not callable(self.of):
            raise PromiseError(f"StraightThrough(of=) must be callable; got {self.of!r}")


def _function(owner: str, name: str, value: Any, signature: str) -> None:
    if not callable(value):
        raise PromiseError(f"{owner}({name}=) must be callable as {signature}; got {value!r}")


@dataclass(frozen=True, slots=True)
class Matches(Promise):
    """With the same weights, the model gives what another version of it gives: one that is known to work.

    Attributes:
        reference: A factory ``() -> nn.Module``, or a module, which is left as it is.
        rename: Makes the reference's ``state_dict`` of the model's, where names or layouts differ.
    """

    reference: Callable[[], Any]
    rename: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        _function("Matches", "reference", self.reference, "() -> nn.Module")
        if self.rename is not None:
            _function("Matches", "rename", self.rename, "(state_dict) -> state_dict")


@dataclass(frozen=True, slots=True)
class SharesData(Promise):
    """Ranks share each epoch's samples out evenly, in another order each time.

    Attributes:
        run: ``(model, optimizer)``: the user's own loop over two epochs or more, on every rank with the wrapped
            model; it makes its loaders itself, as in training.
    """

    run: Callable[..., Any]

    def __post_init__(self) -> None:
        _function("SharesData", "run", self.run, "run(model, optimizer)")


@dataclass(frozen=True, slots=True)
class Checkpoints(Promise):
    """What the ranks save with the wrapped model, one process loads into the plain one.

    Attributes:
        save: ``(model, path)``: called on every rank with the wrapped model.
        load: ``(model, path)``: called with a plain model.
    """

    save: Callable[..., Any]
    load: Callable[..., Any]

    def __post_init__(self) -> None:
        _function("Checkpoints", "save", self.save, "save(model, path)")
        _function("Checkpoints", "load", self.load, "load(model, path)")


@dataclass(frozen=True, slots=True)
class FullyShards(Promise):
    """Sharded by FSDP2 (``fully_shard``), the model computes what it computes in one process.

    Attributes:
        wrap: ``(model)``: shards the model in place, as the user's training does; by default every module of a
            ``ModuleList`` and the model itself are sharded.
        meta: Whether the model can also be built on meta, sharded, given memory (``to_empty``) and then its
            state_dict; a function ``(model)`` where more than ``to_empty`` is needed.
    """

    wrap: Callable[..., Any] | None = None
    meta: bool | Callable[..., Any] = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.wrap is not None:
            _function("FullyShards", "wrap", self.wrap, "wrap(model)")
        if not isinstance(self.meta, bool):
            _function("FullyShards", "meta", self.meta, "meta(model)")


@dataclass(frozen=True, slots=True)
class AllowsTF32(Promise):
    """With TF32 allowed, results on the GPU stay within the rounding of its products."""


@dataclass(frozen=True, slots=True)
class CapturesGraph(Promise):
    """The forward can be captured as a CUDA graph and replayed with new inputs."""


@dataclass(frozen=True, slots=True)
class Deterministic(Promise):
    """Under ``torch.use_deterministic_algorithms`` a step runs, and gives the same each time, bit by bit."""


@dataclass(frozen=True, slots=True, init=False)
class Autocasts(Promise):
    """Under autocast the model runs, and errs no more than rounding every layer would.

    Attributes:
        dtypes: ``bfloat16``, ``float16`` or both; float16 is for GPUs.
    """

    dtypes: tuple[str, ...]

    def __init__(self, *dtypes: str) -> None:
        names = tuple(str(dtype).removeprefix("torch.") for dtype in dtypes or ("bfloat16",))
        for name in names:
            if name not in ("bfloat16", "float16"):
                raise PromiseError(f"Autocasts() takes bfloat16 and float16; got {name!r}")
        object.__setattr__(self, "dtypes", names)
