"""Specs: what one tensor of a batch may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..text.calls import Declaring
from .domains import (
    Context,
    Domain,
    Integers,
    Normal,
    Uniform,
    Unit,
    default_domain,
)
from .sequences import ClassLabels, Masks, TokenIds
from .shape_parsing import parse_shape
from .shapes import Shape, ShapeMismatch, SpecError

if TYPE_CHECKING:
    from collections.abc import Collection

FAMILIES: dict[str, tuple[torch.dtype, ...]] = {
    "floating": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    "integer": (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    "bool": (torch.bool,),
    "complex": (torch.complex64, torch.complex128),
}
"""Families of dtypes, the default member first."""


def parse_dtype(dtype: str | torch.dtype | None, field: str = "dtype") -> tuple[torch.dtype, ...]:
    """The dtypes that a declaration allows, the default first.

    Args:
        dtype: A dtype, its name, a family (``floating``, ``integer``, ``bool``, ``complex``), or None for torch's default.
        field: What to call it in an error.

    Raises:
        SpecError: It is none of these.
    """
    if dtype is None:
        return (torch.get_default_dtype(),)
    if isinstance(dtype, torch.dtype):
        return (dtype,)
    if isinstance(dtype, str):
        if dtype in FAMILIES:
            return FAMILIES[dtype]
        found = getattr(torch, dtype.removeprefix("torch."), None)
        if isinstance(found, torch.dtype):
            return (found,)
    raise SpecError(
        f"{field} = {dtype!r}: not a dtype; allowed: a torch.dtype, its name such as 'float32', "
        f"or a family: {', '.join(FAMILIES)}"
    )


class TensorSpec(metaclass=Declaring):
    """What one tensor may be: its shape, dtype and values.

    Args:
        shape: A shape of the language of `pytest_torchcheck.specs.shapes`, or None to take it from the real batch.
        dtype: A dtype, its name, a family, or None: the real batch's, or that of the model,
            float32 as a rule. Of a family, the first member is the default, and property-based tests draw all of them.
        values: A domain of `pytest_torchcheck.specs.domains`, or None: the real batch's values, or normal ones.
        requires_grad: Whether drawn tensors ask for a gradient.
    """

    __slots__ = ("dtypes", "explicit_dtype", "requires_grad", "shape", "values")
    _refuses: ClassVar[type[Exception]] = SpecError

    shape: Shape | None
    dtypes: tuple[torch.dtype, ...]
    explicit_dtype: bool
    values: Domain | None
    requires_grad: bool

    def __init__(
        self,
        shape: str | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        values: Domain | None = None,
        requires_grad: bool = False,
    ) -> None:
        if values is not None and not isinstance(values, Domain):
            raise SpecError(
                f"values = {values!r}: not a domain of values; allowed: an object with fill, simplest and unit, "
                "such as those of pytest_torchcheck.specs.domains"
            )
        if shape is not None and not isinstance(shape, str):
            raise SpecError(f"shape = {shape!r}: a shape is a string such as 'B 3 H W'")
        name = type(self).__name__
        self._set(
            shape=parse_shape(shape, name) if shape is not None else None,
            dtypes=parse_dtype(dtype, f"{name}: dtype"),
            explicit_dtype=dtype is not None,
            values=values,
            requires_grad=requires_grad,
        )

    def _set(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; create another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; create another one")

    def _key(self) -> tuple[object, ...]:
        return (type(self), self.shape, self.dtypes, self.values, self.requires_grad)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        names = {name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())}
        return (_restore, (type(self), {name: getattr(self, name) for name in names}))

    def __repr__(self) -> str:
        parts = [] if self.shape is None else [repr(self.shape.text)]
        if self.explicit_dtype:
            parts.append(f"dtype={str(self.dtypes[0]).removeprefix('torch.')!r}")
        if self.values is not None:
            parts.append(f"values={self.values!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def dtype(self) -> torch.dtype:
        """The default dtype."""
        return self.dtypes[0]

    @property
    def domain(self) -> Domain:
        """The domain of its values, the default one where none was declared."""
        return self.values or default_domain(self.dtype)

    @property
    def own_values(self) -> bool:
        """Whether values are drawn from the declared domain even beside a real batch."""
        return self.values is not None

    @property
    def unit(self) -> Unit:
        """How far drawn values may be mixed with the simplest ones."""
        return self.domain.unit

    def allows_cut(self, *, row: bool, changed: Collection[str]) -> bool:
        """Whether a piece of such a tensor is such a tensor, see `Domain`."""
        return self.domain.allows_cut(row=row, changed=changed)

    def symbols(self) -> tuple[str, ...]:
        """The symbols of its shape."""
        return self.shape.symbols() if self.shape is not None else ()

    def fill(
        self, shape: tuple[int, ...], context: Context, dtype: torch.dtype | None = None
    ) -> Any:
        """Draw one tensor of this concrete shape."""
        dtype = dtype or self.dtype
        made = (self.values or default_domain(dtype)).fill(shape, dtype, context)
        return self._with_grad(made)

    def simplest(
        self, shape: tuple[int, ...], context: Context, dtype: torch.dtype | None = None
    ) -> Any:
        """The tensor of this shape that a person would write down."""
        dtype = dtype or self.dtype
        return self._with_grad(
            (self.values or default_domain(dtype)).simplest(shape, dtype, context)
        )

    def _with_grad(self, tensor: Tensor) -> Tensor:
        if self.requires_grad and (tensor.is_floating_point() or tensor.is_complex()):
            return tensor.requires_grad_()
        return tensor

    def check(self, tensor: Tensor, sizes: dict[str, int], name: str = "tensor") -> dict[str, int]:
        """Hold a tensor to this spec's shape and dtype.

        Args:
            tensor: Such as a model's output.
            sizes: Sizes that are settled, such as those of the batch.
            name: What to call it in an error.

        Returns:
            ``sizes`` and every symbol that could be read off the tensor.

        Raises:
            ShapeMismatch: Saying which axis is not what the spec says.
        """
        if self.explicit_dtype and tensor.dtype not in self.dtypes:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
            raise ShapeMismatch(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, where its spec says {allowed}"
            )
        if self.shape is None:
            return dict(sizes)
        return self.shape.match(tuple(tensor.shape), sizes, name=name)


def _restore(cls: type[TensorSpec], attributes: dict[str, Any]) -> TensorSpec:
    spec = cls.__new__(cls)
    spec._set(**attributes)
    return spec


class Floats(TensorSpec):
    """A floating tensor: normal, or uniform where a range is declared.

    Args:
        shape: As in `TensorSpec`.
        low, high: Inclusive range of the values, both or neither.
        mean, std: Of the normal values where there is no range.
        dtype: A floating or complex dtype, or such a family; torch's default dtype by default.
        requires_grad: Whether drawn tensors ask for a gradient.
    """

    __slots__ = ()

    def __init__(
        self,
        shape: str | None = None,
        *,
        low: float | None = None,
        high: float | None = None,
        mean: float | None = None,
        std: float | None = None,
        dtype: str | torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> None:
        if (low is None) != (high is None):
            raise SpecError(f"Floats: low={low!r}, high={high!r}: give both or neither")
        values: Domain | None = None
        if low is not None and high is not None:
            if mean is not None or std is not None:
                raise SpecError("Floats: give a range, or mean and std, not both")
            values = Uniform(low, high)
        elif mean is not None or std is not None:
            values = Normal(mean or 0.0, 1.0 if std is None else std)
        super().__init__(
            shape,
            dtype=dtype or torch.get_default_dtype(),
            values=values,
            requires_grad=requires_grad,
        )
        if not all(member.is_floating_point or member.is_complex for member in self.dtypes):
            raise SpecError(f"Floats: dtype = {dtype!r}: neither floating nor complex")


class _Integral(TensorSpec):
    """Base of the specs of whole numbers: it checks the dtype."""

    __slots__ = ()

    def __init__(
        self,
        shape: str | None,
        *,
        dtype: str | torch.dtype | None,
        values: Domain,
        bools: bool = False,
    ) -> None:
        super().__init__(
            shape, dtype=dtype or (torch.bool if bools else torch.int64), values=values
        )
        for member in self.dtypes:
            if (
                member.is_floating_point
                or member.is_complex
                or (member == torch.bool and not bools)
            ):
                raise SpecError(
                    f"{type(self).__name__}: dtype = {dtype!r}: not a dtype of whole numbers"
                )


class Ints(_Integral):
    """Whole numbers in ``[low, high)``.

    Args:
        shape: As in `TensorSpec`.
        low: Smallest value.
        high: One more than the largest.
        dtype: An integer dtype or ``integer``; int64 by default.
    """

    __slots__ = ()

    def __init__(
        self,
        shape: str | None = None,
        *,
        low: int = 0,
        high: int,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, dtype=dtype, values=Integers(low, high))
        for member in self.dtypes:
            info = torch.iinfo(member)
            if low < info.min or high - 1 > info.max:
                raise SpecError(f"Ints: [{low}, {high}) does not fit into {member}")


class Labels(_Integral):
    """Class labels, int64 in ``[0, classes)``.

    Args:
        shape: As in `TensorSpec`.
        classes: Number of classes.
        ignore_index: A further value that the loss ignores; some labels have it.
        dtype: int64 by default.
    """

    __slots__ = ("classes", "ignore_index")

    classes: int
    ignore_index: int | None

    def __init__(
        self,
        shape: str | None = None,
        *,
        classes: int,
        ignore_index: int | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, dtype=dtype, values=ClassLabels(classes, ignore_index))
        self._set(classes=classes, ignore_index=ignore_index)


class Tokens(_Integral):
    """Token ids, int64 in ``[0, vocab)``, padded where ``pad`` is given.

    Args:
        shape: As in `TensorSpec`; the last axis is the sequence.
        vocab: Number of ids.
        pad: The id of padding.
        special: Ids that text does not contain.
        side: Where the padding stands, ``right`` or ``left``.
        lengths: The input that holds the rows' lengths.
        dtype: int64 by default.
    """

    __slots__ = ("pad", "vocab")

    vocab: int
    pad: int | None

    def __init__(
        self,
        shape: str | None = None,
        *,
        vocab: int,
        pad: int | None = None,
        special: tuple[int, ...] = (),
        side: str = "right",
        lengths: str | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        super().__init__(
            shape, dtype=dtype, values=TokenIds(vocab, pad, tuple(special), side, lengths)
        )
        self._set(vocab=vocab, pad=pad)


class Mask(_Integral):
    """Booleans with at least one true per row.

    Args:
        shape: As in `TensorSpec`; the last axis is the row.
        kind: ``random``, or ``right`` or ``left`` for the mask of padding on that side.
        lengths: The input that holds the rows' lengths.
        of: The input of token ids that this is the mask of.
        pad: The id of padding in ``of``.
        dtype: bool by default.
    """

    __slots__ = ()

    def __init__(
        self,
        shape: str | None = None,
        *,
        kind: str = "random",
        lengths: str | None = None,
        of: str | None = None,
        pad: int = 0,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, dtype=dtype, values=Masks(kind, lengths, of, pad), bools=True)
