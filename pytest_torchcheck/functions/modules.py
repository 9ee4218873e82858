"""Gradcheck of a whole module, over inputs and parameters: by random directions, then down to the submodule."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..findings import Culprit, Finding, Location
from ..record.hooks import hooked
from ..sources import of_object, of_parameter, rank
from ..state import ModuleState, randomness_kept
from ..text.printable import message_of
from .binding import make_call
from .defined import short_name
from .discovery import record_functions
from .engine import check_call
from .relations.jacobians import as_real, random_like
from .slopes import Point, Subject, confirmed, make_subject, screen


def check_module(
    module: nn.Module, inputs: Any, *, name: str | None = None, seed: int = 0
) -> list[Finding]:
    """Compare the gradients of a module's inputs and parameters with central differences.

    Works in float64 on copies: the module's parameters, buffers and attributes are put back. Fast:
    one backward and two forwards for every 16 tensors. What differs is then located in the smallest
    submodule that is wrong on its own, and in the custom Function that it applies. A module that
    stops gradients on purpose (``detach``) differs too: the check is for modules that promise to be
    differentiable.

    Args:
        module: Any module, in the mode in which it is.
        inputs: A tuple of positional arguments, a dict of keyword arguments, or one tensor.
        name: How the findings call it; its class by default.
        seed: Every run starts from it.

    Returns:
        One or more findings.
    """
    label = name or type(module).__name__
    kept = ModuleState(module)
    try:
        with randomness_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _check(module, inputs, label, seed)
    finally:
        kept.restore(parameters=True, last=True)


def _check(module: nn.Module, inputs: Any, label: str, seed: int) -> list[Finding]:
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else ()
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
    if isinstance(inputs, Tensor):
        args = (inputs,)
    subject = make_subject(module, "", args, kwargs, seed)
    try:
        subject.run(subject.tensors)
    except Exception as error:  # the user's module may refuse float64 in any way
        return [
            _inconclusive(
                label, f"{label} cannot run in float64: {type(error).__name__}: {message_of(error)}"
            )
        ]
    screened = screen(subject)
    if isinstance(screened, str):
        return [_inconclusive(label, f"{label}: {screened}")]
    culprit = _culprit(subject, *screened) if screened[1] else None
    if culprit is None:
        entries = sum(t.numel() for t in subject.tensors.values())
        count = len(subject.tensors)
        because = (
            f"{label}: {entries} entries of {count} tensors along random directions in float64"
        )
        return [Finding(status="passed", code="held", summary=because, dtype="float64")]
    return _located(subject, label, *culprit)


def _inconclusive(label: str, reason: str) -> Finding:
    culprit = Culprit("module", label)
    return Finding(
        status="inconclusive", code="not-differentiable", summary=reason[:300], culprits=(culprit,)
    )


def _culprit(
    subject: Subject, point: Point, suspects: Sequence[str]
) -> tuple[Subject, dict[str, tuple[float, float]]] | None:
    """Descend to the smallest submodule that is wrong by itself, with its wrong tensors.

    A submodule is confirmed tensor by tensor only where none of its children is wrong: what differs
    together may be a kink.
    """
    # a wrong backward spoils what ran before it, so the last one that is wrong is met first
    for name, child, args, kwargs in reversed(_children_calls(subject)):
        path = f"{subject.path}.{name}".lstrip(".")
        inner = _unstuck(make_subject(child, path, args, kwargs, subject.seed))
        try:
            screened = screen(inner)
        except Exception:  # a submodule may not run alone
            continue
        if isinstance(screened, str) or not screened[1]:
            continue
        if (found := _culprit(inner, *screened)) is not None:
            return found
    wrong = confirmed(subject, suspects, point)
    return (subject, wrong) if wrong else None


def _located(
    subject: Subject, label: str, culprit: Subject, blamed: Mapping[str, tuple[float, float]]
) -> list[Finding]:
    """Name the submodule, the Function that it applies, and the tensors."""
    path = culprit.path or label
    functions = _wrong_functions(culprit)
    where = f" in {path} ({type(culprit.module).__name__})" if culprit.path else ""
    names = [f"{culprit.path}.{n}".lstrip(".") for n in blamed]
    if functions:
        return [_through(f, label, path, names, where) for f in functions]
    ratios = {a / n for a, n in blamed.values() if n}
    factor = next(iter(ratios)) if len(ratios) == 1 else None
    place = _forward_of(culprit.module) or _parameter_line(subject.module, names)
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    first, (a, n) = next(iter(blamed.items()))
    cut = [m for m, (x, _) in blamed.items() if x == 0]
    cause = f"backward of {path} is wrong: its children are right by themselves, so the error is in its own forward"
    if cut:
        cause = f"{path} cuts the graph (detach, no_grad, .data, .item()) on the way of {', '.join(cut[:4])}"
    return [
        Finding(
            status="violated",
            code="gradcheck-module",
            summary=f"{label} has a wrong gradient of {shown}{where}",
            culprits=(
                Culprit("module", path, location=place),
                *(Culprit(_kind(m), m) for m in names),
            ),
            location=place,
            observed=f"{first}: analytical {a:.6g}, numerical {n:.6g} along a random direction (float64)",
            cause=cause,
            because=f"{path} differs when it is run alone on the inputs that it got, none of its children does",
            fix="mend the custom gradient applied there; if the gradient is stopped on "
            "purpose, do not promise Differentiable",
            evidence={"analytical": a, "numerical": n, "factor": factor, "tensors": list(names)},
            dtype="float64",
        )
    ]


def _kind(name: str) -> Any:
    return "input" if "input " in name else "parameter"


def _through(finding: Finding, label: str, path: str, names: Sequence[str], where: str) -> Finding:
    shown = ", ".join(names[:4])
    return finding.replace(
        summary=f"{finding.summary}; {label} has a wrong gradient of {shown}{where}",
        culprits=(
            *finding.culprits,
            Culprit("module", path),
            *(Culprit(_kind(m), m) for m in names),
        ),
        evidence={**finding.evidence, "module": path, "tensors": list(names)},
    )


def _unstuck(subject: Subject) -> Subject:
    """Move the inputs off ties and kinks, where an activation before has put them (zeros behind a ReLU)."""
    generator = torch.Generator().manual_seed(0x0FF)
    moved = dict(subject.tensors)
    for name in subject.places:
        tensor = moved[name]
        spread = float(as_real(tensor).abs().max()) if tensor.numel() else 0.0
        moved[name] = tensor + 0.01 * (spread or 1.0) * random_like(tensor, generator)
    leaves = list(subject.leaves)
    for name, index in subject.places.items():
        leaves[index] = moved[name]
    return replace(subject, tensors=moved, leaves=tuple(leaves))


def _children_calls(parent: Subject) -> list[tuple[str, nn.Module, Any, Any]]:
    """Return what each child was called with first; children of containers that are not called count too."""
    seen: dict[str, tuple[str, nn.Module, Any, Any]] = {}
    handles = []
    for name, child in _callable_children(parent.module):

        def keep(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            if name not in seen:
                copies = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), (args, kwargs))
                seen[name] = (name, module, *copies)

        handles.append(child.register_forward_pre_hook(keep, with_kwargs=True))
    with hooked(handles), torch.no_grad():
        parent.run(parent.tensors)
    return list(seen.values())


def _callable_children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            for inner, grandchild in _callable_children(child):
                yield f"{name}.{inner}", grandchild
        else:
            yield name, child


def _wrong_functions(subject: Subject) -> list[Finding]:
    """Check the custom Functions that the module applies itself."""
    with torch.enable_grad():
        leaves = {n: t.clone().requires_grad_() for n, t in subject.tensors.items()}
        calls = record_functions(lambda: subject.run(leaves))
    findings: list[Finding] = []
    seen: set[Any] = set()
    for call in calls:
        if call.function in seen or call.kind != "function" or not call.whole:
            continue
        seen.add(call.function)
        made = make_call(
            call.apply, call.args, wanted=call.requires, linked=call.linked, kwargs=call.kwargs
        )
        found = check_call(made, short_name(call.function), used_at=call.location, only_first=True)
        findings += [f for f in found if f.status == "violated"]
    return findings


def _forward_of(module: nn.Module) -> Location | None:
    place = of_object(type(module).forward)
    return place if place is not None and rank(place.file) else None


def _parameter_line(root: nn.Module, names: Sequence[str]) -> Location | None:
    return next((found for n in names if (found := of_parameter(root, n)) is not None), None)
