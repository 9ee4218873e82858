"""What is checked: one callable on small float64 arguments, and how its findings are worded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..findings import Culprit, Finding, Location, Plain, Status
from ..lean import dataclass
from ..sources import of_object, rank
from ..text.printable import message_of
from .lines import error_line, gradient_line, head
from .relations.jacobians import RTOL, STEP, random_like, real_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .calls import Call, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """A gradient that is meant to differ from forward's derivative.

    Attributes:
        of: The function whose derivative backward gives, called with the same arguments; None where it
            has none that can be written down, and then the values of the gradient are not compared.
        reason: Why the estimator is wanted.
    """

    reason: str
    of: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One callable under check.

    Attributes:
        name: The name the user knows, such as ``FusedAffine``.
        call: The call to check, in ``dtype``, small where that was possible.
        original: The call as given, in ``dtype``, where it was cut down; else None.
    recorded: The call with the values as given, in ``dtype``, where others were drawn or sizes cut.
        chosen: The differentiable floating outputs.
        dtype: ``float64``, or ``float32`` where the callable refuses that.
        rtol, step: Tolerance and step that fit the dtype.
        surrogate: A declared estimator, or None. origin: The only Function in the graph of a
            callable that is not one itself.
        used_at: Where the user's code applies it, where that was seen.
        cost: Seconds of one forward and of one backward. stochastic: Whether the outputs change
            with the seed. notes: What was done to the arguments, in words.
    """

    name: str
    call: Call
    original: Call | None = None
    recorded: Call | None = None
    chosen: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64
    rtol: float = RTOL
    step: float = STEP
    surrogate: Surrogate | None = None
    origin: type[torch.autograd.Function] | None = None
    used_at: Location | None = None
    cost: tuple[float, float] = (0.0, 0.0)
    stochastic: bool = False
    notes: tuple[str, ...] = ()

    @property
    def function(self) -> type[torch.autograd.Function] | None:
        """The Function behind the call: the one applied, or the only one in its graph."""
        return self.call.function or self.origin

    @property
    def own(self) -> bool:
        """Whether the code is the user's own, and so theirs to mend, rather than a package's."""
        place = of_object(self.function or self.call.fn)
        return place is None or rank(place.file) != 1

    @property
    def backward(self) -> str:
        """How a sentence about its gradient begins."""
        return self.part("backward")

    def part(self, method: str) -> str:
        """How a sentence about one of its methods begins."""
        if self.call.function is not None:
            return f"{self.name}.{method}"
        if self.origin is not None:
            return f"{self.name} ({self.origin.__name__}.{method})"
        return self.name if method == "backward" else f"{self.name} ({method})"

    @property
    def entries(self) -> tuple[int, int]:
        """Real entries of the checked inputs and of the chosen outputs."""
        outputs = self.call.evaluate()
        return (
            sum(real_size(self.call.values[i]) for i in self.call.wanted),
            sum(real_size(outputs[i]) for i in self.chosen),
        )

    def input_name(self, index: int) -> str:
        """Return the name of a flat argument."""
        return self.call.names[index]

    def position(self, index: int) -> int | None:
        """Return where backward returns the gradient of a flat argument, where that is known."""
        return index if self.call.function is not None else None

    def upstream(self, run: Run, seed: int = 1) -> dict[int, Tensor]:
        """Draw a contiguous upstream gradient for every differentiable output."""
        generator = torch.Generator().manual_seed(0x5EED + seed)
        return {i: random_like(run.outputs[i], generator) for i in self.chosen}

    def finding(
        self,
        status: Status,
        code: str,
        summary: str,
        *,
        location: Location | None = None,
        inputs: Mapping[int, str] | None = None,
        others: Sequence[Culprit] = (),
        evidence: Mapping[str, Plain] | None = None,
        **fields: Any,
    ) -> Finding:
        """Build a finding; the culprits are the Function, others where there are any, and the inputs concerned."""
        place = location or head(self.function, "backward", "vjp") or self.used_at
        culprits = [Culprit("function", self.name, location=place), *others]
        culprits += [
            Culprit("input", self.input_name(i), detail) for i, detail in (inputs or {}).items()
        ]
        if self.used_at is not None and self.used_at != place:
            culprits.append(Culprit("call", f"{self.name}.apply", "applied here", self.used_at))
        return Finding(
            status=status,
            code=code,
            summary=summary,
            culprits=tuple(culprits),
            location=place,
            evidence={
                "function": self.name if self.origin is None else self.origin.__name__,
                "arguments": self.described(),
                **(evidence or {}),
            },
            dtype=str(self.dtype).removeprefix("torch."),
            **fields,
        )

    def broken(self, code: str, summary: str, *, doubtful: bool = False, **fields: Any) -> Outcome:
        """Return the outcome of an aspect that is violated, or suspicious; see :meth:`finding`."""
        status: Status = "suspicious" if doubtful else "violated"
        return Outcome(findings=[self.finding(status, code, summary, **fields)])

    def raised(self, code: str, summary: str, error: Exception, **fields: Any) -> Outcome:
        """Return the outcome of an aspect in which the user's code raised, at the line that did."""
        fields = {"observed": f"{type(error).__name__}: {first_line(error)}", **fields}
        return self.broken(code, summary, location=error_line(self.function, error), **fields)

    def described(self) -> list[Plain]:
        """Return the arguments in words, as plain data."""
        return [_describe(n, v) for n, v in zip(self.call.names, self.call.values, strict=True)]


@dataclass(slots=True)
class Outcome:
    """What one aspect found, and what it looked at for the final word."""

    findings: list[Finding] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Append another aspect's findings and facts."""
        self.findings += other.findings
        self.held += other.held

    @property
    def violated(self) -> bool:
        """True when something is violated."""
        return any(finding.status == "violated" for finding in self.findings)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, else its type."""
    return (message_of(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _describe(name: str, value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{name}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{name}: {value!r}"[:80]


EXACT = 1e-9
"""Relative difference allowed in float64 between two ways to compute the same thing (CHECKS R2)."""

MEANT = "declare promises.StraightThrough"
"""What to do where a gradient differs on purpose."""

Grads = Mapping[int, Tensor | None]


def tolerance(target: Target) -> float:
    """Return what two runs of the same mathematics may differ by, relative to the largest entry."""
    return EXACT if target.dtype == torch.float64 else 1e-3


def line_of(target: Target, index: int) -> Location | None:
    """Return the line of backward that computes the gradient of a flat argument."""
    return gradient_line(target.function, target.position(index))


def reference_of(target: Target) -> tuple[Run, dict[int, Tensor], Grads]:
    """Run once, draw the upstream gradient, and return both with the gradients."""
    run = target.call.run()
    upstream = target.upstream(run)
    return run, upstream, run.grads({i: g.clone() for i, g in upstream.items()})


def passes_values(target: Target, call: Call, index: int) -> bool:
    """Say whether forward returns this input as it is, but for bounds: such a Function is written for its gradient."""
    if len(target.chosen) != 1:
        return False
    output, value = call.run().outputs[target.chosen[0]].detach(), call.values[index]
    if output.shape != value.shape:
        return False
    kept = output == value
    return bool(kept.any()) and output[~kept].unique().numel() <= 2


def keeps_nothing(target: Target, call: Call) -> bool:
    """Say whether forward hands nothing on to backward: no tensor that is saved, and no attribute of ``ctx``."""
    run = call.run()  # a graph whose outputs are gone keeps no tensors
    nodes: list[Any] = [run.outputs[i].grad_fn for i in target.chosen]
    own = [node for node in nodes if isinstance(node, torch.autograd.function.BackwardCFunction)]
    return bool(own) and not any(vars(node) or node.saved_tensors for node in own)


def only_passes_on(target: Target, call: Call) -> bool:
    """Say whether every output is one of the inputs as it is: such a Function does nothing but to gradients."""
    run = call.run()
    given = [v for v in call.values if isinstance(v, Tensor)]
    return all(
        any(value.dtype == output.dtype and torch.equal(value, output.detach()) for value in given)
        for output in (run.outputs[i] for i in target.chosen)
    )
