"""Find the tensors in whatever a model takes or returns, each with its path."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeGuard

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..objects.peek import closed_over
from ..text.printable import shown
from .kinds import COMPARED_AS, here
from .peek import PLAIN, attribute, attributes, slots, tuple_like

_DEPTH = 8
_DEEPEST = 100  # Python ends after 1000 calls, and some walks take three for each
_MOST = 10_000


def is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Say whether a value is a tensor, not only something whose ``__class__`` says so, as a mock's does."""
    return issubclass(type(value), torch.Tensor)


def leaves(value: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Iterate over ``(path, leaf)`` of tensors and plain values in nested containers and objects.

    Dicts, tuples, lists, sets, views and stored iterators, named tuples, dataclasses,
    PackedSequence, distributions, plain objects (their slots too) and what a function closes over
    are entered; what holds no tensor is a leaf. The elements of a set have no order: they are put
    in that of their values, and their paths hold a brace.
    """
    return _leaves(value, path, depth, ())


def _leaves(value: Any, path: str, depth: int, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if is_tensor(value) or depth == 0 or type(value) in PLAIN:
        yield path, value
        return
    parts = None if id(value) in above else _parts(value)
    if parts is None:
        yield path, value
        return
    above = (*above, id(value))
    for piece, item in parts:
        yield from _leaves(item, f"{path}{piece}", depth - 1, above)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return what a value is made of, each with its piece of path; None for a leaf."""
    if isinstance(value, PackedSequence):
        return [(".data", value.data), (".batch_sizes", value.batch_sizes)]
    if type(value) is dict or isinstance(value, Mapping):
        return [(f"[{shown(key)}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, _SEQUENCES):
        items = value.items if isinstance(value, Kept) else value
        return [(f"[{place}]", item) for place, item in enumerate(items)]
    if isinstance(value, set | frozenset):
        ordered = sorted(value, key=_by_values)
        return [(f"{{{place}}}", item) for place, item in enumerate(ordered)]
    if isinstance(value, torch.distributions.Distribution | torch.distributions.Transform):
        return _of_distribution(value)
    if isinstance(value, torch.nn.Module):
        return []
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f".{name}", attribute(value, name)) for name in names]
    if isinstance(value, types.FunctionType):
        return _of_closure(value)
    held = {**attributes(value), **slots(value)}
    return [(f".{k}", item) for k, item in held.items() if not k.startswith("__")] or None


def _of_distribution(value: Any) -> list[tuple[str, Any]]:
    """Return the parameters of a distribution or transform, and the distributions that it is built from."""
    held = {
        k: item for k, item in attributes(value).items() if not k.startswith(("_cached", "_inv"))
    }
    named = attribute(value, "arg_constraints") or held
    own = sorted(k for k, item in held.items() if is_tensor(item) and k in named)
    built = [
        k for k, item in held.items()
        if isinstance(item, torch.distributions.Distribution | torch.distributions.Transform)
        or (isinstance(item, list) and k in ("transforms", "parts"))
    ]  # fmt: skip
    return [(f".{name}", held[name]) for name in (*own, *built)]


def _of_closure(function: types.FunctionType) -> list[tuple[str, Any]] | None:
    """Return the tensors that a function closes over, also in lists; None where there is none."""
    kinds = (torch.Tensor, list, tuple, dict)
    held = closed_over(function).items()
    return [(f".<{name}>", item) for name, item in held if isinstance(item, kinds)] or None


def _by_values(item: Any) -> tuple[str, list[float]]:
    """Order the elements of a set by what they hold, so that equal sets give equal sequences."""
    if not is_tensor(item):
        return shown(item), []
    if item.device.type == "meta":
        return f"{item.dtype} {list(item.shape)}", []
    values = dense(item).flatten()[:64]
    plain = torch.view_as_real(values).flatten() if values.is_complex() else values
    return f"{item.dtype} {list(item.shape)}", plain.double().nan_to_num().tolist()


class Kept(Iterator[Any]):
    """What a generator yielded, to be read as often as is wanted: by the loss and by the checks.

    Args:
        items: All that it yielded.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = list(items)
        self._next = 0

    def __iter__(self) -> Self:
        """Go on; start from the first where all were read."""
        if self._next == len(self.items):
            self._next = 0
        return self

    def rewind(self) -> None:
        """Start from the first."""
        self._next = 0

    def __next__(self) -> Any:
        """Return the next one."""
        if self._next == len(self.items):
            raise StopIteration
        self._next += 1
        return self.items[self._next - 1]


_SEQUENCES: tuple[type[Any], ...] = (
    list, tuple, collections.deque, Kept,
    type({}.keys()), type({}.values()), type({}.items()),
)  # fmt: skip


class NestedTooDeepError(Exception):
    """An output of more containers in each other than are followed."""


def keep(output: Any, depth: int = _DEEPEST) -> Any:
    """Run what a forward returned to be run later: generators and maps are read to their end.

    Their code is a part of the forward: it runs in its mode and raises in it. More than 10,000 items are
    taken for an endless stream, which stays as it is. Up to ``depth`` tuples, lists and dicts may stand in each other.
    """
    if not depth:
        raise NestedTooDeepError(f"the output is nested more than {_DEEPEST} containers deep")
    if isinstance(output, types.GeneratorType | map | filter | zip):
        items = list(itertools.islice(output, _MOST))
        return itertools.chain(items, output) if len(items) == _MOST else Kept(items)
    if type(output) in (tuple, list):
        made = [keep(item, depth - 1) for item in output]
        changed = any(new is not old for new, old in zip(made, output, strict=True))
        return type(output)(made) if changed else output
    if type(output) is dict:
        kept = {key: keep(item, depth - 1) for key, item in output.items()}
        return kept if any(kept[key] is not output[key] for key in kept) else output
    return output


def substitute(value: Any, others: Mapping[int, torch.Tensor]) -> Any:
    """Return a structure with some of its tensors replaced.

    Args:
        value: Nested dicts, tuples, lists and dataclasses.
        others: By ``id()`` of a tensor, what takes its place.

    Returns:
        The new structure, or None for one that cannot be rebuilt.
    """
    if is_tensor(value):
        return others.get(id(value), value)
    if isinstance(value, dict):
        made = {key: substitute(item, others) for key, item in value.items()}
        if type(value) is dict:
            return made
        try:
            return type(value)(**{str(k): v for k, v in made.items()})
        except TypeError:
            return None
    if isinstance(value, tuple):
        return tuple_like(value, [substitute(item, others) for item in value])
    if isinstance(value, list):
        return type(value)(substitute(item, others) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        again = object.__new__(type(value))  # no method of the user's runs
        for name, item in {**attributes(value), **slots(value)}.items():
            object.__setattr__(again, name, substitute(item, others))
        return again
    return None if floats(value) else value


def tensors(value: Any, root: str = "output") -> dict[str, torch.Tensor]:
    """Return every tensor of ``value`` by its path below ``root``."""
    return {path: leaf for path, leaf in leaves(value, root) if is_tensor(leaf)}


def floats(value: Any, root: str = "output") -> dict[str, torch.Tensor]:
    """Return the floating-point and complex tensors of ``value`` by path."""
    return {
        path: tensor
        for path, tensor in tensors(value, root).items()
        if tensor.is_floating_point() or tensor.is_complex()
    }


def signature(value: Any) -> tuple[tuple[str, str], ...]:
    """Return the structure: path and type (tensors: dtype and rank) of every leaf."""
    return tuple(
        (
            path,
            f"{leaf.dtype} rank {leaf.dim()}" if is_tensor(leaf) else type(leaf).__name__,
        )
        for path, leaf in leaves(value)
    )


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a strided, detached view or copy of any tensor, in a dtype that can be compared.

    Quantized tensors are dequantized, nested ones flattened and joined, distributed ones give their
    local part, and eight-bit floats, 32-bit complex numbers and wide unsigned integers become a
    wider dtype.
    """
    tensor = tensor.detach()
    tensor = here(tensor)
    if tensor.is_nested:
        parts = tensor.unbind()
        return torch.cat([p.reshape(-1) for p in parts]) if parts else torch.zeros(0)
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor if (wide := COMPARED_AS.get(tensor.dtype)) is None else tensor.to(wide)


def address(tensor: torch.Tensor) -> int | None:
    """Return where a tensor's values lie; None where that is not one place, or nowhere.

    Sparse and nested tensors have several places, wrappers and those on meta none of their own.
    """
    if tensor.layout != torch.strided or tensor.is_nested:
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:  # a subclass without a storage of its own
        return None


def storage_of(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's memory, shared by its views, or None if it has none."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse, nested, functorch wrappers
        return None


def is_freed(tensor: torch.Tensor) -> bool:
    """Say whether the memory of a plain tensor was given back while the tensor lives, as sharding does: reading it crashes."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and tensor.numel() > 0
        and tensor.untyped_storage().nbytes() == 0
    )


def computable(tensor: torch.Tensor) -> bool:
    """Say whether torch computes on a tensor's own memory: strided, with values, in a dtype of arithmetic."""
    return (
        tensor.layout == torch.strided
        and not (tensor.is_nested or tensor.is_meta or tensor.is_quantized or tensor.is_inference())
        and tensor.dtype not in COMPARED_AS
        and not is_traceable_wrapper_subclass(tensor)
        and not is_freed(tensor)
    )


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Say whether two tensors are bit-equal, counting NaN as equal to NaN."""
    if a.is_nested != b.is_nested or a.dtype != b.dtype:
        return False
    if a.is_nested:
        return _same_each(a.unbind(), b.unbind())
    if a.shape != b.shape:
        return False
    if a.device != b.device or a.device.type == "meta":
        return a.device == b.device
    a, b = dense(a), dense(b)
    if a.shape != b.shape:  # a part of one that is distributed, and the whole of one that is not
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _same_each(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return ``max|a - b|``; infinite where only one of them is finite or the shapes differ."""
    if a.device.type == "meta" and b.device.type == "meta":
        return 0.0 if a.shape == b.shape else float("inf")
    a, b = dense(a), dense(b)
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0 or (a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)):
        return 0.0
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    gap = (x - y).abs()
    equal = (x == y) | ((x != x) & (y != y))
    far = gap.nan_to_num(nan=math.inf, posinf=math.inf)
    return float(torch.where(equal, torch.zeros_like(gap), far).max())


def apart(found: torch.Tensor, wanted: torch.Tensor, zero: float = 1e-30) -> float:
    """Return ``max|found - wanted|`` relative to the largest magnitude wanted, and 0 for equal bits.

    Args:
        found: One of the two, of any shape; infinitely far away where it is another.
        wanted: The other, which sets the scale.
        zero: The scale of what is wanted where all of that is zero. With 1.0 the difference is then
            absolute.
    """
    gap = worst(found, wanted)
    return gap / (scale(wanted) or zero) if gap else 0.0


def scale(tensor: torch.Tensor) -> float:
    """Return the largest finite magnitude, 0 for a tensor that is empty or holds no values."""
    if tensor.device.type == "meta":
        return 0.0
    values = dense(tensor)
    if values.numel() == 0:
        return 0.0
    if values.dtype in (torch.float32, torch.float64):
        largest = max(abs(float(end)) for end in values.aminmax())  # NaN comes out as NaN
        if math.isfinite(largest):
            return largest
    values = values.to(torch.uint8) if values.dtype == torch.bool else values
    magnitude = values.abs().to(torch.float64)
    return float(magnitude.nan_to_num(nan=0.0, posinf=0.0).max())


def pick(value: Any, path: int | str | tuple[int | str, ...] | None) -> Any:
    """Return the part of an output that a path names; the first tensor when the path is None.

    Raises:
        KeyError: Nothing stands at that path.
    """
    if path is None:
        found = floats(value) or tensors(value)
        if not found:
            raise KeyError("the output holds no tensor")
        return next(iter(found.values()))
    for step in path if isinstance(path, tuple) else (path,):
        try:
            keyed = isinstance(value, Mapping) and step in value  # not the method "values", say
            if isinstance(step, str) and not keyed and hasattr(value, step):
                value = getattr(value, step)
            else:
                value = value[step]
        except (TypeError, LookupError):
            raise KeyError(
                f"the output has no {step!r}; it holds {', '.join(tensors(value)) or 'no tensor'}"
            ) from None
    return value


def steps_of(path: str) -> tuple[int | str, ...] | None:
    """Return what :func:`pick` takes for a path as :func:`tensors` writes it; None for the output itself."""
    found = re.findall(r"\[(\d+)\]|\[['\"](.+?)['\"]\]|\.(\w+)", path)
    return tuple(int(n) if n else key or name for n, key, name in found) or None


def place_of(entry: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index of a flat entry (torch.unravel_index loads sympy)."""
    place = []
    for size in reversed(shape):
        entry, index = divmod(entry, size)
        place.append(index)
    return tuple(reversed(place))
