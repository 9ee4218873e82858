"""What an error means, and the words that its parts are put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from . import sources
from .findings import Culprit
from .lean import dataclass
from .objects.peek import signature_of
from .text.wording import counted as counted

if TYPE_CHECKING:
    from .findings import Location, Plain
    from .subject import Subject

Phase = Literal[
    "build", "listing", "batch", "data", "forward", "loss", "backward", "step", "promise"
]
PHASES: tuple[Phase, ...] = get_args(Phase)
PHASE_WORDS: dict[Phase, str] = {
    "build": "building the model",
    "listing": "listing the model's parts",
    "batch": "making the batch",
    "data": "reading the data",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "step": "the training step",
    "promise": "verify() of a promise of your own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why something trains nothing: one of several causes that an explainer tells apart.

    Attributes:
        place: Line to change.
        cause: What is wrong there.
        because: The measured fact that shows it.
        fix: What to do.
        culprits: What takes part in it.
        off: Modules without a gradient that compute it from detached values.
        doubtful: Whether it may be meant.
    """

    place: Location | None
    cause: str
    because: str
    fix: str
    culprits: tuple[Culprit, ...] = ()
    off: tuple[str, ...] = ()
    doubtful: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An exception of the user's code, explained; the fields are those of a finding.

    Attributes:
        code: Stable kebab-case symptom, such as ``matmul-shapes``; ``crash`` where the error is unknown.
        summary: One sentence that stands alone.
        observed: The numbers: shapes, dtypes, devices, indices.
        cause: Why it happens.
        because: The measured fact that shows it, with torch's own words.
        fix: One edit.
        culprits: Modules, parameters, inputs or calls at fault, the first one first.
        location: The line to change or to look at.
        evidence: Further measurements, plain types only.
    """

    code: str
    summary: str
    observed: str = ""
    cause: str = ""
    because: str = ""
    fix: str = ""
    culprits: tuple[Culprit, ...] = ()
    location: Location | None = None
    evidence: Mapping[str, Plain] = field(default_factory=dict)

    def replace(self, **changes: Any) -> Explanation:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def times(sizes: Sequence[int]) -> str:
    """Return sizes as ``3x32x32``; ``scalar`` for none."""
    return "x".join(str(size) for size in sizes) if len(sizes) else "scalar"


def numbers(text: str) -> tuple[int, ...]:
    """Return every integer of a message, such as those of ``[2, 3]`` or ``torch.Size([2, 3])``."""
    found = []
    digits = ""
    for character in text + " ":
        if character.isdigit() or (character == "-" and not digits):
            digits += character
            continue
        if digits.strip("-"):
            found.append(int(digits))
        digits = ""
    return tuple(found)


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


CXX_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "long int": "int64",
    "bool": "bool",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
"""Dtypes by the names that torch's messages use, in lower case."""


def dtype_word(name: str) -> str:
    """Return ``float64`` for ``Double``, ``torch.float64`` or ``torch.DoubleTensor``."""
    plain = name.strip().removeprefix("torch.").removeprefix("cuda.").removesuffix("Tensor")
    return CXX_DTYPES.get(plain.lower(), plain)


def describe(value: object) -> str:
    """Say what a value is: dtype and shape of a tensor, type of the rest; never its contents."""
    if isinstance(value, torch.Tensor):
        if isinstance(
            value,
            torch.nn.parameter.UninitializedParameter | torch.nn.parameter.UninitializedBuffer,
        ):
            return "uninitialised"
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{dtype_name(value.dtype)} {list(value.shape)}{place}"
    if isinstance(value, bool | int | float | str | None):
        return repr(value) if len(repr(value)) <= 40 else type(value).__name__
    if isinstance(value, tuple | list):
        inner = ", ".join(describe(item) for item in value[:4]) + (
            ", ..." if len(value) > 4 else ""
        )
        return f"{type(value).__name__} ({inner})"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key}: {describe(item)}" for key, item in list(value.items())[:4])
        return f"{type(value).__name__} {{{inner}}}"
    return type(value).__name__


def clipped(text: str, most: int) -> str:
    """Return a text of at most so many characters; a longer one ends behind a whole word, with an ellipsis."""
    if len(text) <= most:
        return text
    return text[: most - 3].rpartition(" ")[0].rstrip(" ,.;:(") + "..."


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return ``a``, ``a and b``, ``a, b and 3 more``."""
    if not names:
        return ""
    if len(names) == 1:
        return names[0]
    if len(names) <= most:
        return ", ".join(names[:-1]) + f" and {names[-1]}"
    return ", ".join(names[: most - 1]) + f" and {len(names) - most + 1} more"


def on_line(place: Location | None) -> str:
    """Return `` on line 7`` for a place, and nothing for none."""
    return f" on line {place.line}" if place is not None else ""


def parameter(subject: Subject, name: str, detail: str = "") -> Culprit:
    """Return a parameter as a culprit, with the line that builds it."""
    return Culprit("parameter", name, detail, sources.of_parameter(subject.model, name))


def by_forward(subject: Subject, path: str) -> str:
    """Return an input by the name that ``forward`` gives it, where it is known by its place only."""
    given = subject.batch()
    if len(given.names) >= len(given.args):
        return path
    signature = signature_of(subject.model.forward)
    parameters = [] if signature is None else signature.parameters.values()
    for known, parameter in zip(given.arg_names(), parameters, strict=False):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return path
        if path == known or path.startswith((f"{known}[", f"{known}.")):
            return parameter.name + path[len(known) :]
    return path
