"""Amounts that people write: bytes, floating-point operations and percentages, both ways.

Every declared ceiling goes through here, so that one mistyped unit gets one clear error. Imports no
torch: contracts are validated before any tensor exists.
"""

from __future__ import annotations

import math
import re

_BYTES = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", start=1)},
}
_FLOPS = {
    "": 1,
    "flop": 1,
    "flops": 1,
    **{
        f"{letter}{ending}": 1000**power
        for power, letter in enumerate("kmgtp", start=1)
        for ending in ("flop", "flops")
    },
}
_AMOUNT = re.compile(
    r"\s*(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*(?P<unit>[a-z]*)\s*"
)


def _parse(value: float | str, *, what: str, units: dict[str, int], allowed: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(
            f"{what} must be a number or text such as {allowed}; got {type(value).__name__} {value!r}"
        )
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.lower())
        if match is None or match["unit"] not in units:
            raise ValueError(f"{what} must look like {allowed}; got {value!r}")
        amount = float(match["number"].replace("_", "")) * units[match["unit"]]
        if match["number"].replace("_", "").isdigit():  # whole numbers stay exact beyond 2**53
            amount = int(match["number"].replace("_", "")) * units[match["unit"]]
    else:
        amount = value
    if not math.isfinite(amount) or amount < 0:
        raise ValueError(f"{what} must be finite and not negative; got {value!r}")
    if amount != int(amount):
        if not isinstance(value, str) or not units[match["unit"]] > 1:  # type: ignore[index]
            raise ValueError(f"{what} must be a whole number; got {value!r}")
        return math.floor(amount)  # "1.3 KiB" is 1331.2 bytes: the ceiling is the whole ones below
    return int(amount)


def parse_bytes(value: float | str, *, what: str = "memory") -> int:
    """Return a number of bytes.

    Args:
        value: Bytes as a whole number, or text with a unit: ``"64 MiB"`` (powers of 1024), ``"1.5GB"``
            (powers of 1000), ``"96 kB"``; case and blanks do not matter.
        what: What is declared, for the error's first words.

    Returns:
        Whole bytes; a fraction of a byte is dropped.

    Raises:
        TypeError: Neither a number nor text.
        ValueError: An unknown unit, a negative, infinite or fractional number of bytes.
    """
    return _parse(value, what=what, units=_BYTES, allowed='1048576, "64 MiB" or "1.5 GB"')


def parse_flops(value: float | str, *, what: str = "flops") -> int:
    """Return a number of floating-point operations, from ``2_000_000`` or ``"2 GFLOP"``.

    Args:
        value: A whole number, or text with a unit (powers of 1000); a multiply-add counts as two.
        what: What is declared, for the error's first words.

    Raises:
        TypeError: Neither a number nor text.
        ValueError: An unknown unit, a negative, infinite or fractional number.
    """
    return _parse(value, what=what, units=_FLOPS, allowed='2000000, "2 GFLOP" or "1.5 TFLOP"')


def parse_share(value: float | str, *, what: str = "at_least") -> float:
    """Return a share between 0 and 1, from ``0.3`` or ``"30%"``.

    Raises:
        TypeError: Neither a number nor text.
        ValueError: Text without a percent sign, or a share outside 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f'{what} must be a share such as 0.3 or "30%"; got {value!r}')
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", value)
        if match is None:
            raise ValueError(f'{what} must be a share such as 0.3 or "30%"; got {value!r}')
        share = float(match[1]) / 100
    else:
        share = float(value)
    if not 0 <= share <= 1:  # also refuses nan
        raise ValueError(f"{what} must lie between 0 and 1 (0 % and 100 %); got {value!r}")
    return share


def format_bytes(count: float) -> str:
    """Return bytes as people read them: ``"812 B"``, ``"1.5 KiB"``, ``"96.0 MiB"``.

    Signs are kept. Three or four figures; the exact count belongs into a finding's evidence.
    """
    sign, size = ("-" if count < 0 else ""), abs(count)
    if size < 1024:
        return f"{sign}{int(size)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        size /= 1024
        if size < 1023.95 or unit == "PiB":  # 1023.95 would be printed as 1024.0
            return f"{sign}{size:.1f} {unit}"
    raise AssertionError("unreachable")


def format_flops(count: float) -> str:
    """Return floating-point operations as people read them: ``"12.0 MFLOP"``."""
    size = float(count)
    if size < 1000:
        return f"{int(size)} FLOP"
    for unit in ("kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"):
        size /= 1000
        if size < 999.95 or unit == "PFLOP":
            return f"{size:.1f} {unit}"
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """Return a time as people read it: ``"1.52 s"``, ``"3.4 ms"``, ``"812 us"``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
