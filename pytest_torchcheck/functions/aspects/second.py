"""Second derivatives: right, or clearly refused."""

from __future__ import annotations

import ast
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...explanation import listed
from ...findings import Culprit
from ...lean import dataclass
from ...record.tracing import find_line
from ...sources import nodes, of_line, parsed
from ..calls import Call, Run, tensors_of
from ..lines import gradient_line, head, line_with, method_of
from ..relations.experiments import aliases, held_tensors, saved_tensors
from ..relations.jacobians import distance, numerical, real_size, rounding, step_of
from ..target import Outcome, Target, first_line
from .derivatives import check_first

if TYPE_CHECKING:
    from types import FrameType

    from ...findings import Finding, Location
    from ..calls import Run
    from ..target import Target


def check_second(target: Target, *, promised: bool) -> Outcome:
    """Check the gradient's own derivative: right, or clearly refused.

    Args:
        target: What is checked.
        promised: Whether second derivatives are promised; then a refusal and a silent error are
            violations. Otherwise a silent error is only suspicious.
    """
    second = _second_target(target)
    try:
        run = second.call.run()
    except Exception as error:  # the backward of the user may raise anything
        return _refusal(target, error, promised=promised)
    if _marked_once(run):
        return _refusal(target, None, promised=promised)
    if not any(run.outputs[i].requires_grad for i in second.chosen):
        return _constant(target, second, promised=promised)
    try:
        run.grads(
            {
                i: torch.ones_like(run.outputs[i])
                for i in second.chosen
                if run.outputs[i].requires_grad
            }
        )
    except Exception as error:  # a refusal comes as an error of the second backward
        return _refusal(target, error, promised=promised)
    second = replace(second, chosen=tuple(i for i in second.chosen if run.outputs[i].requires_grad))
    found = check_first(second, explain=False)
    if not found.violated:
        return Outcome(held=["second derivatives"])
    if not promised and not target.own:
        return Outcome(held=["second derivatives are wrong, silently (not promised)"])
    return Outcome(
        findings=[_second_wrong(target, f, promised=promised) for f in found.findings[:1]]
    )


def _marked_once(run: Run) -> bool:
    """See whether ``once_differentiable`` put its error into the graph."""
    queue = [out.grad_fn for out in run.outputs]
    seen: set[int] = set()
    while queue:
        node = queue.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if node.name().endswith("::Error"):  # what once_differentiable returns
            return True
        queue.extend(following for following, _ in node.next_functions)
    return False


def _second_target(target: Target) -> Target:
    """Return the call of the gradient: inputs and upstream gradients in, gradients out."""
    call = target.call
    run = call.run()
    upstream = target.upstream(run)
    count = len(call.values)
    chosen = list(upstream)

    def gradient(*flat: Any) -> list[Tensor]:
        with torch.enable_grad():
            given = {i: flat[i] for i in call.wanted}
            leaves = {
                i: t if t.requires_grad else t.detach().requires_grad_() for i, t in given.items()
            }
            arguments = [
                leaves[i].clone() if i in leaves else v for i, v in enumerate(flat[:count])
            ]
            outputs = tensors_of(call(arguments))
            # a scalar, because explicit upstream gradients would load sympy (a second) to compare shapes
            products = [outputs[i] * v.conj() for i, v in zip(chosen, flat[count:], strict=True)]
            total = torch.stack([(p.real if p.is_complex() else p).sum() for p in products]).sum()
            grads = torch.autograd.grad(
                total, list(leaves.values()), create_graph=True, allow_unused=True
            )
        return [
            g if g is not None else torch.zeros_like(leaf)
            for g, leaf in zip(grads, leaves.values(), strict=True)
        ]

    values = (*call.values, *upstream.values())
    _, spec = torch.utils._pytree.tree_flatten((tuple(values), {}))
    second = Call(
        fn=gradient,
        values=values,
        spec=spec,
        names=(*call.names, *(f"grad_output {i}" for i in chosen)),
        wanted=(*call.wanted, *range(count, count + len(chosen))),
        seed=call.seed,
    )
    cost = (sum(target.cost), 2 * sum(target.cost))
    recorded = None
    if target.recorded is not None:  # the gradient's own call, at the values as they were given
        seen = target.recorded.run()
        given = target.upstream(seen)
        recorded = second.with_values((*target.recorded.values, *given.values()))
    return replace(
        target,
        call=second,
        original=None,
        recorded=recorded,
        chosen=tuple(range(len(call.wanted))),
        cost=cost,
        rtol=max(target.rtol, 1e-3),
    )


def _refusal(target: Target, error: Exception | None, *, promised: bool) -> Outcome:
    said = (
        "once_differentiable" if error is None else f"{type(error).__name__}: {first_line(error)}"
    )
    if not promised:
        return Outcome(held=[f"second derivatives are refused ({said[:60]})"])
    return target.broken(
        "double-backward-refused",
        f"{target.backward} cannot be differentiated, though second derivatives are promised",
        location=head(target.function, "backward", "vjp"),
        observed=f"differentiating the gradient is refused: {said}",
        cause="backward is marked once_differentiable or computes outside autograd",
        because=f"the graph of the gradient ends in a refusal ({said[:80]})",
        fix="write backward in differentiable torch operations, or as another Function with its own backward",
    )


def _constant(target: Target, second: Target, *, promised: bool) -> Outcome:
    """No gradient requires grad: right only where the gradient is constant."""
    for index in second.call.wanted:
        width = step_of(second.call.values[index])
        found = numerical(
            second.call,
            index,
            second.chosen,
            columns=range(min(8, real_size(second.call.values[index]))),
        )
        noise = rounding(second.call.evaluate(), second.chosen, width)
        if float(found.abs().max()) > 10 * noise + 1e-6:
            name = second.input_name(index)
            if not promised and not target.own:
                return Outcome(held=["second derivatives are dropped, silently (not promised)"])
            return Outcome(
                findings=[_silent(target, name, float(found.abs().max()), promised=promised)]
            )
    return Outcome(held=["second derivatives (all zero)"])


def _silent(target: Target, name: str, size: float, *, promised: bool) -> Finding:
    return target.finding(
        "violated" if promised else "suspicious",
        "double-backward-silent",
        f"{target.backward} drops the second derivative without an error",
        location=gradient_line(target.function, 0),
        observed=f"the gradient changes by up to {size:.3g} per unit of {name}, yet it does not require a gradient",
        cause="backward computes outside autograd (detach, .data, numpy, no_grad)",
        because="with create_graph=True no returned gradient has a grad_fn",
        fix="decorate backward with torch.autograd.function.once_differentiable, or compute in "
        "differentiable operations",
    )


def _second_wrong(target: Target, found: Finding, *, promised: bool) -> Finding:
    cause = (
        "backward uses a tensor that is no longer connected to the inputs (an intermediate "
        "that was saved, or detached)"
    )
    because = "the gradient's own Jacobian by a second backward differs from central differences of the gradient"
    fix = "save inputs or outputs only and recompute intermediates in backward, or mark it once_differentiable"
    kept = intermediates(target)
    if kept:
        held = listed([one.name for one in kept])
        several = len(kept) > 1
        what = "intermediates" if several else "an intermediate"
        lines = listed(list(dict.fromkeys(f"line {one.saved.line}" for one in kept if one.saved)))
        verb = "reads" if all(one.read for one in kept) else "uses"
        cause = f"backward {verb} {held}, {what} of the forward: a constant there"
        because = (
            f"{held}{f', saved on {lines},' if lines else ''} {'change' if several else 'changes'} with the inputs and "
            f"{'have' if several else 'has'} no grad_fn; {because}"
        )
        bare = listed([one.name.removeprefix("ctx.") for one in kept])
        fix = f"compute {bare} again in backward from the saved inputs, or mark it once_differentiable"
    return target.finding(
        "violated" if promised else "suspicious",
        "double-backward-wrong",
        f"{target.backward} has a wrong second derivative",
        location=kept[0].read or kept[0].saved
        if kept
        else head(target.function, "backward", "vjp"),
        others=[
            Culprit("tensor", one.name, "an intermediate, saved here", one.saved)
            for one in kept[:2]
            if one.saved is not None
        ],
        observed=found.observed,
        cause=cause,
        because=because,
        fix=fix,
        evidence={
            **found.evidence,
            "relation": found.code,
            "attributes": [one.name for one in kept],
        },
    )


_MOVED = 1e-3
"""Share by which inputs are changed to see what follows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor that backward gets and that is neither an input nor an output.

    Attributes:
        name: As the user knows it: ``sig``, or ``ctx.gate``.
        saved: The line of forward that keeps it, where it is known.
        read: The line of backward that reads it, where it is an attribute.
    """

    name: str
    saved: Location | None
    read: Location | None = None


def intermediates(target: Target) -> list[Kept]:
    """Return what is kept, changes with the inputs, and has no graph; a few runs.

    What backward does not use is left out.
    """
    call = target.call
    run = call.run()
    moved = [v * (1 + _MOVED) if i in call.wanted else v for i, v in enumerate(call.values)]
    try:
        other = call.with_values(tuple(moved)).run()
    except Exception:  # the user's forward may refuse other values
        return []
    held, later = held_tensors(run), held_tensors(other)
    found = []
    for name, value in held.items():
        read = line_with(target.function, rf"\.{name}\b", "backward", "vjp")
        if name in later and read is not None and _is_loose(value, later[name], run):
            saved = line_with(target.function, rf"\.{name}\b[^=]*=[^=]", "setup_context", "forward")
            found.append(Kept(name=f"ctx.{name}", saved=saved, read=read))
    before, after = saved_tensors(run, target.function), saved_tensors(other, target.function)
    if len(before) == len(after):
        loose = [
            i
            for i, value in enumerate(before)
            if _is_loose(value, after[i], run) and value is not None and _is_used(target, value)
        ]
        names, place = _saving(target, len(before)) if loose else ([], None)
        reads = _unpacked(target, len(before)) if names else []
        found += [
            Kept(name=names[i], saved=place, read=reads[i] if reads else None)
            for i in (loose if names else ())
        ]
    return found


def _is_loose(value: Tensor | None, other: Tensor | None, run: Run) -> bool:
    """Say whether a tensor follows the inputs and has no graph, and is no output."""
    return (
        value is not None
        and other is not None
        and value.is_floating_point()
        and not value.requires_grad
        and not any(aliases(value, out) for out in run.outputs)
        and (value.shape != other.shape or not torch.equal(value, other))
    )


def _is_used(target: Target, value: Tensor) -> bool:
    """See whether the gradient changes with a tensor that was saved."""

    def unpack(tensor: Tensor) -> Tensor:
        same = tensor.shape == value.shape and torch.equal(tensor, value)
        return tensor * (1 + _MOVED) + _MOVED if same else tensor

    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        run = target.call.run()
    try:
        found = run.grads(target.upstream(run))
    except Exception:  # the user's backward may refuse another value: it reads it
        return True
    plain = target.call.run()
    usual = plain.grads(target.upstream(plain))
    return any(distance(found[i], usual[i]) > 0 for i in found)


def _saving(target: Target, count: int) -> tuple[list[str], Location | None]:
    """Return the arguments of the ``save_for_backward`` that runs, and its line; nothing where they are not so many."""
    methods = [method_of(target.function, name) for name in ("setup_context", "forward")]
    files = {os.path.abspath(m.__code__.co_filename) for m in methods if m is not None}
    ran: dict[tuple[str, int], str] = {}

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        file = os.path.abspath(frame.f_code.co_filename)
        if event != "call" and file in files:
            ran[file, line] = frame.f_code.co_qualname
        return False

    find_line(target.call.run, watcher, least=1)
    calls = [
        (file, node)
        for file in files
        for node in nodes(file)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "save_for_backward"
        and (file, node.lineno) in ran
    ]
    if len(calls) != 1:
        return [], None
    file, node = calls[0]
    if len(node.args) != count or any(isinstance(a, ast.Starred) for a in node.args):
        return [], None
    return [ast.unparse(a) for a in node.args], of_line(file, node.lineno, ran[file, node.lineno])


def _unpacked(target: Target, count: int) -> list[Location | None]:
    """Return where backward first reads each saved tensor, where one statement gives all of them names."""
    method = method_of(target.function, "backward", "vjp")
    tree = None if method is None else parsed(method)
    if method is None or tree is None:
        return []
    for node in ast.walk(tree[0]):
        value = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(node, ast.Assign) or not isinstance(value, ast.Attribute):
            continue
        names = [
            t.id if isinstance(t, ast.Name) else "" for t in getattr(node.targets[0], "elts", ())
        ]
        if value.attr == "saved_tensors" and len(names) == count:
            lines = [_first_read(tree[0], name, node.lineno) for name in names]
            where = method.__qualname__
            return [None if n is None else of_line(tree[1], n, where) for n in lines]
    return []


def _first_read(tree: ast.AST, name: str, after: int) -> int | None:
    reads = [
        n.lineno
        for n in ast.walk(tree)
        if isinstance(n, ast.Name)
        and n.id == name
        and isinstance(n.ctx, ast.Load)
        and n.lineno > after
    ]
    return min(reads, default=None)
