"""Jacobians as real matrices: by central differences, and by backward one upstream entry at a time.

A complex tensor counts as pairs (real, imaginary), so that one arithmetic serves both. torch's
convention makes the gradient of a complex input ``dL/dRe + i dL/dIm``, which is exactly a row of the
real Jacobian (torch docs, "Autograd for Complex Numbers").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...lean import dataclass
from ..calls import Call, Run, is_float

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

STEP = 1e-6
"""Half width of a central difference in float64, times the scale of the input (torch's gradcheck)."""

RTOL, ATOL = 1e-3, 1e-5
"""torch's gradcheck defaults; ATOL is relative to the largest entry of a block."""

APPROXIMATE = 2e-3
"""Error, relative to the largest entry, up to which a gradient may be one of an iterative solver's."""


def as_real(tensor: Tensor) -> Tensor:
    """Return the entries as a flat float64 vector on the CPU; a complex entry becomes two."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().reshape(-1).to(device="cpu", dtype=torch.float64)


def real_size(tensor: Tensor) -> int:
    """Return the number of real entries."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def unit(like: Tensor, entry: int) -> Tensor:
    """Return a contiguous one-hot tensor; odd entries of a complex tensor are imaginary."""
    flat = torch.zeros(real_size(like), dtype=_real_dtype(like.dtype), device=like.device)
    flat[entry] = 1
    if like.is_complex():
        return torch.view_as_complex(flat.view(*like.shape, 2))
    return flat.view(like.shape)


def shifted(tensor: Tensor, entry: int, amount: float) -> Tensor:
    """Return a copy with one real entry moved."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    flat = (torch.view_as_real(copy) if copy.is_complex() else copy).view(-1)
    flat[entry] += amount
    return copy


def moved(tensor: Tensor, direction: Tensor, amount: float) -> Tensor:
    """Return a copy moved along a flat real direction."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    flat = (torch.view_as_real(copy) if copy.is_complex() else copy).view(-1)
    flat += amount * direction.to(flat)
    return copy


def step_of(tensor: Tensor, step: float = STEP) -> float:
    """Scale a step to a tensor's values; a tensor of ones gets ``step``."""
    if tensor.numel() == 0:
        return step
    size = float(as_real(tensor).square().mean().sqrt())
    return step * min(max(size, 1e-3), 1e3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The Jacobian of all differentiable outputs with respect to one input.

    Attributes:
        index: Flat index of the argument.
        analytical: ``(out, in)`` by backward, float64.
        numerical: The same by central differences.
        noise: Rounding error of a numerical entry, from the size of the outputs.
        missing: True when backward gave None for every upstream.
        rows: Where each output begins, by output index.
    """

    index: int
    analytical: Tensor
    numerical: Tensor
    noise: float
    missing: bool
    rows: dict[int, tuple[int, int]]
    rtol: float = RTOL

    @property
    def error(self) -> Tensor:
        """Absolute difference, with non-finite entries as infinite."""
        difference = (self.analytical - self.numerical).abs()
        return torch.where(self.analytical.isfinite(), difference, torch.inf)

    @property
    def tolerance(self) -> Tensor:
        """What the difference may be: relative to the entry, to the largest entry, and to rounding."""
        size = self.numerical.abs()
        largest = float(size.max()) if size.numel() else 0.0
        return self.rtol * size + ATOL * (self.rtol / RTOL) * largest + self.noise

    @property
    def wrong(self) -> Tensor:
        """Boolean ``(out, in)``: entries that differ."""
        return self.error > self.tolerance

    @property
    def approximate(self) -> bool:
        """True where every entry is a little off and none is far off: an iterative solver inside.

        A wrong formula is exact at the entries that it gets right (to about 1e-9), or far off.
        """
        error, size = self.error, self.numerical.abs()
        if not bool(error.isfinite().all()) or size.numel() == 0:
            return False
        largest = float(error.max())
        typical = (
            float(error[size > self.noise].median()) if bool((size > self.noise).any()) else 0.0
        )
        return largest <= APPROXIMATE * float(size.max()) and typical >= 0.01 * largest

    def close(self, candidate: Tensor, other: Tensor | None = None) -> bool:
        """Say whether a matrix equals the numerical Jacobian (or another) within the tolerance."""
        other = self.numerical if other is None else other
        if candidate.shape != other.shape:
            return False
        largest = float(other.abs().max()) if other.numel() else 0.0
        limit = self.rtol * other.abs() + ATOL * (self.rtol / RTOL) * largest + self.noise
        return bool(((candidate - other).abs() <= limit).all())


def float_outputs(outputs: Sequence[Tensor]) -> list[int]:
    """Indices of the floating outputs."""
    return [i for i, out in enumerate(outputs) if is_float(out)]


def evaluate(call: Call, chosen: Iterable[int]) -> Tensor:
    """Return the chosen outputs as one flat float64 vector, without a graph."""
    outputs = call.evaluate()
    parts = [as_real(outputs[i]) for i in chosen]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def numerical(
    call: Call,
    index: int,
    chosen: Sequence[int],
    *,
    step: float = STEP,
    columns: Iterable[int] | None = None,
) -> Tensor:
    """Return the Jacobian ``(out, columns)`` of the chosen outputs by central differences."""
    value: Tensor = call.values[index]
    width = step_of(value, step)
    entries = range(real_size(value)) if columns is None else columns
    found = [_central(call, index, entry, chosen, width) for entry in entries]
    return torch.stack(found, 1) if found else evaluate(call, chosen).new_zeros(0, 0)


def _central(call: Call, index: int, entry: int, chosen: Sequence[int], width: float) -> Tensor:
    value = call.values[index]
    above, below = shifted(value, entry, width), shifted(value, entry, -width)
    span = float(as_real(above)[entry] - as_real(below)[entry]) or 2 * width
    high = evaluate(call.replaced(index, above), chosen)
    return (high - evaluate(call.replaced(index, below), chosen)) / span


def one_sided(
    call: Call, index: int, entry: int, chosen: Sequence[int], step: float = STEP
) -> tuple[Tensor, Tensor]:
    """Return the derivatives from above and from below of one entry, each ``(out,)``."""
    value = call.values[index]
    width = step_of(value, step)
    here = evaluate(call, chosen)
    above = evaluate(call.replaced(index, shifted(value, entry, width)), chosen)
    below = evaluate(call.replaced(index, shifted(value, entry, -width)), chosen)
    return (above - here) / width, (here - below) / width


def analytical(
    run: Run, chosen: Sequence[int], *, again: Callable[[], Run] | None = None
) -> tuple[dict[int, Tensor], set[int]]:
    """Return the Jacobian of each leaf by backward, row by row, and the leaves that only got None.

    Args:
        run: A forward with a graph.
        chosen: Outputs to differentiate.
        again: Makes a fresh forward for each row, for a backward that works only once.
    """
    wanted = [i for i, leaf in run.leaves.items() if leaf.requires_grad]
    rows: dict[int, list[Tensor]] = {i: [] for i in wanted}
    given: set[int] = set()
    for position in chosen:
        out = run.outputs[position]
        for entry in range(real_size(out)):
            current = run if again is None else again()
            upstream = {i: torch.zeros_like(current.outputs[i]) for i in chosen}
            upstream[position] = unit(out, entry)
            found = current.grads(upstream)
            for i in wanted:
                grad = found[i]
                if grad is None:
                    rows[i].append(torch.zeros(real_size(run.leaves[i]), dtype=torch.float64))
                else:
                    given.add(i)
                    rows[i].append(as_real(grad))
    return {i: torch.stack(rows[i]) for i in wanted if rows[i]}, set(wanted) - given


def spans(outputs: Sequence[Tensor], chosen: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return where the rows of each chosen output begin and end in a stacked Jacobian."""
    found, start = {}, 0
    for i in chosen:
        end = start + real_size(outputs[i])
        found[i] = (start, end)
        start = end
    return found


def rounding(outputs: Sequence[Tensor], chosen: Sequence[int], width: float) -> float:
    """Bound the rounding error of a central difference: 64 ulp of the largest output over its width."""
    sizes = [float(as_real(outputs[i]).abs().max()) for i in chosen if outputs[i].numel()]
    precision = max((_precision(outputs[i].dtype) for i in chosen), default=2.3e-16)
    return 64 * precision * max(sizes, default=0.0) / width


def random_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a contiguous normal tensor of the same shape, dtype and device, on the CPU first."""
    shape = (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    if tensor.is_complex():
        drawn = torch.view_as_complex(drawn)
    return drawn.to(device=tensor.device, dtype=tensor.dtype)


def distance(found: Tensor | None, reference: Tensor | None) -> float:
    """Return the largest difference relative to the largest reference entry; None counts as zeros."""
    if reference is None:
        reference = torch.zeros_like(found) if found is not None else None
    if found is None:
        found = torch.zeros_like(reference) if reference is not None else None
    if found is None or reference is None or reference.numel() == 0:
        return 0.0
    if found.shape != reference.shape:
        return float("inf")
    a, b = as_real(found), as_real(reference)
    if not bool(a.isfinite().all()):
        return (
            0.0 if bool(torch.equal(a.isfinite(), b.isfinite())) and _same(a, b) else float("inf")
        )
    largest = float(b.abs().max())
    gap = float((a - b).abs().max())
    return gap / largest if largest else gap


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, equal_nan=True))


def _real_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _precision(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)
