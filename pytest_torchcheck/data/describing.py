"""Describe samples in plain numbers: structure, shapes, dtypes, ranges, and a digest of the contents."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import numbers
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch

from ..lean import dataclass
from ..objects.peek import attribute
from .contents import is_of_objects, raw_bytes

TARGET_KEYS = ("target", "targets", "label", "labels", "y")


_PLAIN = (torch.Tensor, int, float, str, type(None))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a sample with their path: ``0``, ``image``, ``1.boxes``.

    The parts of a nested tensor are leaves of their own.
    """
    if isinstance(value, torch.Tensor) and value.is_nested:
        value = value.unbind()
    if isinstance(value, _PLAIN):  # first, because asking for a Mapping is slow
        yield path, value
        return
    dot = f"{path}." if path else ""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{dot}{key}")
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", range(len(value)))
        for key, item in zip(names, value, strict=False):
            yield from leaves(item, f"{dot}{key}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{dot}{field.name}")
    else:
        yield path, value


Kind = Literal["tensor", "array", "number", "text", "none", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value of a sample, described.

    Attributes:
        path: Where it stands in the sample.
        kind: ``number`` is a Python or NumPy scalar; ``other`` is what cannot be looked into.
        type: Name of its class.
        shape, dtype, device: Of tensors and arrays; a number has shape ``()``.
        low, high: Smallest and largest finite value, None where there is none.
        nan, inf: How many elements are NaN, or infinite.
        whole: True when every finite value is a whole number.
        mean, std: Of the finite values, None where there is none.
        digest: Equal for equal contents, dtype and shape; None where it cannot be told.
        attached: True when it carries an autograd graph.
    """

    path: str
    kind: Kind
    type: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = "cpu"
    low: float | None = None
    high: float | None = None
    nan: int = 0
    inf: int = 0
    whole: bool = False
    mean: float | None = None
    std: float | None = None
    digest: str | None = None
    attached: bool = False

    @property
    def is_floating(self) -> bool:
        """Say whether it holds floats."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


_NO_AMINMAX = (torch.bool, torch.uint16, torch.uint32, torch.uint64)


def describe(sample: Any) -> tuple[Leaf, ...]:
    """Describe every leaf of a sample; holds no tensor."""
    return tuple(describe_leaf(path, value) for path, value in leaves(sample))


def describe_leaf(path: str, value: Any) -> Leaf:
    """Describe one value: tensors, arrays and scalars by their numbers, the rest by a digest."""
    name = type(value).__name__
    if value is None:
        return Leaf(path=path, kind="none", type=name, digest="none")
    if isinstance(value, torch.Tensor):
        return _tensor(path, "tensor", value)
    if isinstance(value, int | float) or (
        isinstance(value, numbers.Number) and not isinstance(value, complex)
    ):
        return _number(path, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
        # a copy, because torch takes neither negative strides nor read-only memory
        array = numpy.array(value, order="C", copy=True)
        try:
            tensor = torch.from_numpy(array)
        except TypeError:  # a dtype that torch does not have
            digest = _digest(array.tobytes(), str(value.dtype))
            return Leaf(
                path=path,
                kind="array",
                type=name,
                shape=value.shape,
                dtype=str(value.dtype),
                digest=digest,
            )
        return _tensor(path, "array", tensor, name)
    if isinstance(value, str | bytes):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        return Leaf(path=path, kind="text", type=name, digest=_digest(data, name))
    return Leaf(path=path, kind="other", type=name, digest=_opaque(value))


def _number(path: str, value: Any) -> Leaf:
    number = float(value)
    finite = math.isfinite(number)
    dtype = str(value.dtype) if hasattr(value, "dtype") else type(value).__name__
    return Leaf(
        path=path,
        kind="number",
        type=type(value).__name__,
        dtype="float64" if dtype == "float" else dtype,
        low=number if finite else None,
        high=number if finite else None,
        nan=int(math.isnan(number)),
        inf=int(math.isinf(number)),
        whole=finite and number.is_integer(),
        mean=number if finite else None,
        std=0.0 if finite else None,
        digest=f"{dtype}{value!r}",
    )


def _tensor(path: str, kind: Kind, tensor: torch.Tensor, name: str = "") -> Leaf:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)[6:]
    name, device, attached = (
        name or type(tensor).__name__,
        tensor.device,
        tensor.grad_fn is not None,
    )
    tensor = tensor.detach()
    digest, low, high = None, None, None
    nan, inf, whole = 0, 0, False
    mean, std = None, None
    if device.type != "meta" and not tensor.is_quantized:
        dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
        digest = _digest(raw_bytes(dense), f"{dtype}{shape}")
        if dense.numel():
            low, high, nan, inf, whole = _numbers(dense)
            mean, std = _moments(dense, finite=not nan and not inf)
    return Leaf(
        path=path, kind=kind, type=name, shape=shape, dtype=dtype, device=str(device), attached=attached,
        digest=digest, low=low, high=high, nan=nan, inf=inf, whole=whole, mean=mean, std=std,
    )  # fmt: skip


def _numbers(tensor: torch.Tensor) -> tuple[float | None, float | None, int, int, bool]:
    """Return the finite range, how many elements are NaN and infinite, and whether the rest are whole."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype in _NO_AMINMAX:
        tensor = tensor.to(torch.int64)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.float()
    low, high = (bound.item() for bound in torch.aminmax(tensor))
    if not tensor.is_floating_point():
        return float(low), float(high), 0, 0, True
    nan = inf = 0
    if not (math.isfinite(low) and math.isfinite(high)):  # NaN goes through aminmax
        nan, inf = int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum())
        tensor = tensor[torch.isfinite(tensor)]
        if not tensor.numel():
            return None, None, nan, inf, False
        low, high = (bound.item() for bound in torch.aminmax(tensor))
    whole = (
        float(low).is_integer()
        and float(high).is_integer()
        and bool((tensor == tensor.round()).all())
    )
    return low, high, nan, inf, whole


def _moments(tensor: torch.Tensor, *, finite: bool) -> tuple[float | None, float | None]:
    """Return mean and deviation of the finite values, in float32, which is near enough to look at."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = tensor.to(torch.float32) if tensor.dtype != torch.float64 else tensor
    values = values if finite else values[torch.isfinite(values)]
    if not values.numel():
        return None, None
    std, mean = torch.std_mean(values, correction=0)
    return mean.item(), std.item()


def _digest(data: Any, salt: str) -> str:
    digest = hashlib.sha1(data, usedforsecurity=False)  # the fastest there is with hardware support
    digest.update(salt.encode())
    return digest.hexdigest()


def _opaque(value: Any) -> str | None:
    if is_of_objects(value):  # its bytes are addresses
        return join_digests(leaf.digest for leaf in describe(value.tolist()))
    # an image of PIL
    if attribute(value, "tobytes") is not None and attribute(value, "size") is not None:
        return _digest(value.tobytes(), f"{type(value).__name__}{value.size}")
    try:
        return _digest(pickle.dumps(value), type(value).__name__)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample, described.

    Attributes:
        index: Which one, or its place in the stream of an iterable dataset.
        leaves: Its values.
        structure: Class names of its containers, to tell a tuple from a dict.
        target: Path of its target by convention (the last of a tuple; ``label`` and the like of a
            mapping), or None.
    """

    index: int
    leaves: tuple[Leaf, ...]
    structure: str
    target: str | None

    @property
    def digest(self) -> str | None:
        """Equal for samples of equal contents; None where a leaf cannot be compared."""
        return join_digests(leaf.digest for leaf in self.leaves)

    @property
    def inputs(self) -> tuple[Leaf, ...]:
        """The leaves that are not the target."""
        return tuple(leaf for leaf in self.leaves if not is_under(leaf.path, self.target))

    @property
    def targets(self) -> tuple[Leaf, ...]:
        """The leaves of the target."""
        return tuple(leaf for leaf in self.leaves if is_under(leaf.path, self.target))


def is_under(path: str, target: str | None) -> bool:
    """Say whether a leaf's path is the target's or lies in it."""
    return target is not None and (path == target or path.startswith(f"{target}."))


def join_digests(digests: Any) -> str | None:
    """Join digests; None when one is unknown."""
    found = list(digests)
    return (
        None
        if any(digest is None for digest in found)
        else _digest("".join(found).encode(), "sample")
    )


def target_path(sample: Any) -> str | None:
    """Return the path of a sample's target by convention, or None."""
    if isinstance(sample, Mapping):
        return next((key for key in TARGET_KEYS if key in sample), None)
    if isinstance(sample, list | tuple) and len(sample) >= 2:
        names = getattr(sample, "_fields", None)
        return str(names[-1]) if names else str(len(sample) - 1)
    return None


def _structure(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return f"{type(sample).__name__}[{', '.join(sorted(map(str, sample)))}]"
    if isinstance(sample, list | tuple):
        return f"{type(sample).__name__}[{len(sample)}]"
    return type(sample).__name__


def input_digest(sample: Any, most: int | None = None) -> str | None:
    """Return what `Sample.inputs` of a sample have for digests, joined, without describing them otherwise.

    Args:
        sample: What a dataset returned.
        most: Look at so many elements of a tensor alone, evenly spread: unlike digests then still mean
            unlike inputs, and equal ones say nothing.

    Equal for samples of equal inputs; None where one cannot be compared.
    """
    target = target_path(sample)
    found: list[str | None] = []
    for path, value in leaves(sample):
        if is_under(path, target):
            continue
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
        if plain and value.device.type != "meta" and not value.is_quantized:
            dense = value.detach()
            salt = f"{str(dense.dtype)[6:]}{tuple(dense.shape)}"
            if most is not None and dense.numel() > most:
                dense = dense.reshape(-1)[:: dense.numel() // most]
            found.append(_digest(raw_bytes(dense), salt))
        else:
            found.append(describe_leaf(path, value).digest)
    return join_digests(found)


def describe_sample(index: int, sample: Any) -> Sample:
    """Describe a sample; holds no tensor."""
    return Sample(
        index=index,
        leaves=describe(sample),
        structure=_structure(sample),
        target=target_path(sample),
    )
