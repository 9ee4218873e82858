"""Which power of a size a measured cost follows: exactly where the numbers are exact, else by fit."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from ..lean import dataclass
from ..text.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

_HIGHEST = 4
_TOLERANCE = 0.01  # of the range of the values: what rounding of sizes (strides, pages) may add


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """How a cost grows.

    Attributes:
        power: The highest power of the size; a whole number unless no polynomial fits.
        exact: Whether the values are those of a polynomial to the last digit, with at least one value
            more than determines it.
        coefficients: Of the polynomial, the constant first; empty where none fits.
        since: The smallest size from which the law holds.
    """

    power: float
    exact: bool
    coefficients: tuple[float, ...] = ()
    since: int = 0

    def text(self, symbol: str, unit: str = "B") -> str:
        """Return the law as people write it, such as ``96.0 KiB·T² + 1.5 MiB·T + 12 B``."""
        if not self.coefficients:
            return f"about {symbol}^{self.power:.2g}"
        terms: list[str] = []
        for power in range(len(self.coefficients) - 1, -1, -1):
            value = self.coefficients[power]
            if not value and (power or terms):
                continue
            sign = " - " if value < 0 else " + "
            amount = _amount(abs(value), unit)
            base = "" if power == 0 else f"·{symbol}{'' if power == 1 else _raised(power)}"
            terms.append((sign if terms else ("-" if value < 0 else "")) + amount + base)
        return "".join(terms)


def _amount(value: float, unit: str) -> str:
    if unit == "B":
        return format_bytes(value) if value >= 1 else f"{value:.2g} B"
    return f"{value:.4g} {unit}".strip()


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def fit_power(sizes: Sequence[int], values: Sequence[int], *, highest: float | None = None) -> Law:
    """Find the power that a cost follows.

    Args:
        sizes: At least three different ones, ascending.
        values: One per size.
        highest: The highest power of any part of the cost, where known: a kink, at which the peak
            moves from one moment to another, looks like a higher power than any part has.

    Returns:
        The exact law of all values; else that of the larger sizes where two values more than needed
        agree, since small ones may have their peak elsewhere; else the lowest power that fits to 1
        % of the range; else the local power at the end.

    Raises:
        ValueError: Fewer than three sizes.
    """
    if len(sizes) < 3 or len(set(sizes)) != len(sizes) or len(values) != len(sizes):
        raise ValueError("a law needs values at three sizes or more")
    spread = max(values) - min(values)
    for start in range(len(sizes) - 2):
        x, y = sizes[start:], values[start:]
        degree = _degree(x, y, spare=2 if start else 1)
        if degree is not None:
            coefficients = _coefficients(x, y, degree)
            # what rounding adds can look like a power of its own, but never like a large one
            if (
                degree < 2
                or abs(coefficients[degree]) * (x[-1] - x[0]) ** degree > 2 * _TOLERANCE * spread
            ):
                return Law(power=degree, exact=True, coefficients=coefficients, since=x[0])
    most = min(_HIGHEST, len(sizes) - 2)
    if highest is not None:
        most = min(most, max(1, round(highest)))
    for degree in range(most + 1):
        found = _least_squares(sizes, values, degree)
        worst = max(
            abs(sum(c * x**k for k, c in enumerate(found)) - y)
            for x, y in zip(sizes, values, strict=True)
        )
        if worst <= _TOLERANCE * spread or (highest is not None and degree == most):
            return Law(power=degree, exact=False, coefficients=found, since=sizes[0])
    if values[-1] <= 0 or values[-2] <= 0:
        return Law(power=0.0, exact=False, since=sizes[0])
    return Law(
        power=math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2]),
        exact=False,
        since=sizes[-2],
    )


def _differences(sizes: Sequence[int], values: Sequence[int]) -> list[Fraction]:
    """Return Newton's divided differences, the first of each order."""
    column = [Fraction(value) for value in values]
    made = [column[0]]
    for order in range(1, len(sizes)):
        column = [
            (column[i + 1] - column[i]) / (sizes[i + order] - sizes[i])
            for i in range(len(column) - 1)
        ]
        made.append(column[0])
    return made


def _degree(sizes: Sequence[int], values: Sequence[int], spare: int) -> int | None:
    """Return the degree of the polynomial through all points, if ``spare`` fewer points determine it."""
    made = _differences(sizes, values)
    degree = max((order for order, value in enumerate(made) if value), default=0)
    return degree if degree <= min(_HIGHEST, len(sizes) - 1 - spare) else None


def _coefficients(sizes: Sequence[int], values: Sequence[int], degree: int) -> tuple[float, ...]:
    made = _differences(sizes, values)
    total = [Fraction(0)] * (degree + 1)
    basis = [Fraction(1)]  # product of (x - size) so far, the constant first
    for order in range(degree + 1):
        for power, value in enumerate(basis):
            total[power] += made[order] * value
        following = [Fraction(0), *basis]
        for power, value in enumerate(basis):
            following[power] -= value * sizes[order]
        basis = following
    return tuple(float(value) for value in total)


def _least_squares(sizes: Sequence[int], values: Sequence[int], degree: int) -> tuple[float, ...]:
    """Solve the normal equations in exact arithmetic: few points, and no rounding to think about."""
    rows = degree + 1
    matrix = [
        [Fraction(sum(x ** (i + j) for x in sizes)) for j in range(rows)]
        + [Fraction(sum(y * x**i for x, y in zip(sizes, values, strict=True)))]
        for i in range(rows)
    ]
    for pivot in range(rows):
        best = next(row for row in range(pivot, rows) if matrix[row][pivot])
        matrix[pivot], matrix[best] = matrix[best], matrix[pivot]
        scale = matrix[pivot][pivot]
        matrix[pivot] = [value / scale for value in matrix[pivot]]
        for row in range(rows):
            if row != pivot and matrix[row][pivot]:
                factor = matrix[row][pivot]
                matrix[row] = [
                    a - factor * b for a, b in zip(matrix[row], matrix[pivot], strict=True)
                ]
    return tuple(float(matrix[row][rows]) for row in range(rows))
