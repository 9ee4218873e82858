"""Ignored inputs and recomputation that goes its own way, explained."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import by_forward, counted
from ...findings import Culprit, Finding, Location
from ...probes.gradient.provenance import find_cut, find_zero_gradients
from ...probes.gradient.recompute_divergence import (
    find_recompute_divergence,
    watch_checkpointing,
)
from ...probes.holding.holders import lines_run
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...text.wording import names_text
from ...verdicts import violated
from ..gradient import unused_results as unused
from ..gradient.zero import LOSSES_OF_VALUES
from ..lines.omitted_arguments import edit, without_input
from ..lines.overwritten import argument_overwritten

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...probes.gradient.provenance import GraphCut, ZeroGradient
    from ...subject import Subject


def ignored(subject: Subject, paths: list[str]) -> Finding:
    """Explain inputs that change nothing."""
    lost = _lost(subject, paths[0]) if len(paths) == 1 else None
    place = sources.of_object(type(subject.model).forward) if lost is None else lost.location
    names = [by_forward(subject, path) for path in paths]
    mend, without = _left_out(subject, paths[0], names[0], lost)
    if lost is None and without and without[0].location is not None:
        place = without[0].location
    return violated(
        "input-ignored",
        f"{names_text(names)} {'has' if len(paths) == 1 else 'have'} no influence on the output",
        culprits=[
            Culprit("input", name, f"no influence ({path})", place)
            for name, path in zip(names, paths, strict=True)
        ]
        + without,
        location=place,
        observed="its gradient is None or zero, and changing it leaves every output bit-equal in "
        "either mode",
        cause="the forward does not use it, or overwrites it before use"
        if lost is None
        else LOSSES_OF_VALUES.get(lost.kind, "its values are lost on the way"),
        because="only this input differed between two forwards with the same seed"
        + ("" if lost is None or not lost.fact else f"; {lost.fact}"),
        fix=mend or "use it in forward, or drop it from the inputs"
        if mend or lost is None or lost.location is None
        else f"keep its values on line {lost.location.line}, or drop it from the inputs",
    )


def _left_out(
    subject: Subject, path: str, name: str, lost: GraphCut | ZeroGradient | None
) -> tuple[str, list[Culprit]]:
    """Return the edit and lines where an input, or what is computed from it, is lost: bound anew, or not given to a call."""
    if lost is not None and lost.location is not None and lost.kind == "not-reaching-loss":
        return unused.bound(subject, lost.location)[1:]
    batch = subject.batch().clone()
    leaf = dict(batch.input_leaves())[path]

    def run() -> object:
        seed_everything(subject.seed)
        return subject.call(subject.model, batch)

    with subject.pristine() as model, torch.no_grad():
        model.train()
        calls = without_input(run, leaf)
    place = sources.of_object(type(subject.model).forward)
    if not calls and lost is None and place is not None and name.isidentifier():
        with subject.pristine(), torch.no_grad():
            _, anew = argument_overwritten(place, name, run)
        if anew is not None:
            detail = "reassigned before it is read"
            culprit = Culprit("input", name, detail, anew)
            return f"let line {anew.line} read {name}, or drop it from the inputs", [culprit]
        if (twice := _read_twice(place, name, run)) is not None:
            line = "a line" if twice.location is None else f"line {twice.location.line}"
            return f"let {line} read {name}, or drop it from the inputs", [twice]
    mend = f"{edit(calls)}, or drop it from the inputs" if calls else ""
    return mend, [one.culprit("has no influence") for one in calls]


def _read_twice(forward: Location, name: str, run: Callable[[], object]) -> Culprit | None:
    """Return the line of a forward that repeats a call with another argument, where none that runs reads this one."""
    function = sources.function_around(forward.file, forward.line)
    if function is None:
        return None
    given = sources.parameters(function)
    with lines_run() as ran:
        run()
    nodes = [n for n in ast.walk(function) if (forward.file, getattr(n, "lineno", 0)) in ran]
    if name not in given or any(isinstance(n, ast.Name) and n.id == name for n in nodes):
        return None
    calls: dict[tuple[str, str], list[int]] = {}
    for node in nodes:
        argument = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else None
        if isinstance(argument, ast.Name) and argument.id in given:
            calls.setdefault((ast.unparse(node), argument.id), []).append(node.lineno)  # type: ignore[attr-defined]
    repeated = (
        (text, other, lines) for (text, other), lines in calls.items() if len(set(lines)) > 1
    )
    for text, other, lines in repeated:
        line = max(lines) if given.index(name) > given.index(other) else min(lines)
        place = sources.of_line(forward.file, line, forward.function)
        detail = f"is called with {other} more than once, and with {name} never"
        return Culprit("call", text, detail, place)
    return None


def _lost(subject: Subject, path: str) -> GraphCut | ZeroGradient | None:
    """Return the operation behind which a floating input no longer counts, where one of the user's lines has it."""
    batch = subject.batch().clone()
    leaf = dict(batch.input_leaves())[path]
    if not leaf.is_floating_point():
        return None
    leaf.requires_grad_(True)

    def run() -> torch.Tensor:
        clear_gradients(subject.model)
        subject.model.train()
        seed_everything(subject.seed)
        with torch.enable_grad():
            return subject.compute_loss(subject.call(subject.model, batch), batch, "probe")

    found: GraphCut | ZeroGradient | None
    try:
        with subject.pristine() as model:
            found = find_zero_gradients(run, model, (), inputs={path: leaf}).get(path)
            found = found or find_cut(run, model, {path: leaf}).get(path)
    except SubjectError:  # some operations refuse an input that requires a gradient
        return None
    if found is None or found.location is None or found.kind == "never-used":
        return None
    return found if sources.rank(found.location.file) == 2 else None


def recomputed(
    subject: Subject, gradients: dict[str, float], missing: list[str], regions: int
) -> Finding:
    """Explain a step that differs between kept and recomputed activations."""

    def run() -> torch.Tensor:
        batch = subject.batch().clone()
        subject.model.train()
        seed_everything(subject.seed)
        with torch.enable_grad():
            loss = subject.compute_loss(subject.call(subject.model, batch), batch)
            loss.backward()
        return loss

    with subject.pristine() as model:
        found = find_recompute_divergence(run, model)
    region = None if found is None else found.region
    with subject.pristine() as model, watch_checkpointing(preserve=True):
        drawn = region is not None and find_recompute_divergence(run, model) is None
    worst = max(gradients, key=lambda name: gradients[name], default="")
    names = [name.removeprefix("gradient ") for name in (*gradients, *missing)]
    place = (found.location if found is not None else None) or _region_line(subject)
    because = "the same step without checkpointing gives different values"
    fix = "keep preserve_rng_state=True, use_reentrant=False, and no side effects inside the checkpointed function"
    if found is not None:
        because = found.fact
    if drawn and region is not None:
        because += f"; with preserve_rng_state=True on line {region.line} it gives the same values"
        fix = f"keep preserve_rng_state=True on line {region.line}"
    return violated(
        "checkpoint-differs",
        f"activation checkpointing changes the gradient of {names_text(names)}",
        culprits=[
            *([Culprit("call", found.op.name, "recomputed differently", place)] if found else []),
            *([Culprit("call", "checkpoint", "recomputes it", region)] if region else []),
            *(Culprit("parameter", name, "gradient differs") for name in names[:8]),
        ],
        location=region if drawn else place,
        observed=f"{counted(regions, 'checkpointed region')}; "
        f"{counted(len(gradients), 'value differs', 'values differ')} by up to "
        f"{gradients.get(worst, 0.0):.3g} (relative), {len(missing)} are missing",
        cause="the recomputation in the backward does not repeat the forward",
        because=because,
        fix=fix,
        evidence={"gaps": dict(gradients), "missing": list(missing)},
    )


def _region_line(subject: Subject) -> Location | None:
    """Return the line that enters a checkpointed region."""
    for module in subject.model.modules():
        place = sources.search(type(module), r"checkpoint(_sequential)?\(")
        if place is not None and sources.rank(place.file):
            return place
    return None
