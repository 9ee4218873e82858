"""What a Function writes and keeps: inputs changed in place, tensors on ctx, outputs that never die."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...probes.holding.aliasing import find_alias
from ..lines import Trace, first_write, head, line_with, storage_of
from ..relations.experiments import aliases, held_tensors
from ..relations.jacobians import as_real, distance
from ..target import Outcome, Target, reference_of, tolerance
from .reentrancy import once_only

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...probes.holding.aliasing import Alias
    from ..calls import Call, Run


def check_state(target: Target) -> Outcome:
    """Look at what forward writes, what ctx keeps, and what a later in-place change does."""
    outcome = _mutation(target)
    outcome.add(_kept(target))
    return outcome


def _mutation(target: Target) -> Outcome:
    """See that forward and backward write into no input that they have not marked."""
    call = target.call
    with Trace(target.function) as trace:
        run = call.run()
        forward_ops = len(trace.ops)
    upstream = target.upstream(run)
    asked = [
        i for i in call.wanted if i not in call.optional
    ]  # a buffer that is updated is no input
    changed = [i for i in asked if _changed(run.arguments[i], call.values[i])]
    unmarked = [i for i in changed if not _marked(run.arguments[i])]
    if unmarked:
        index = unmarked[0]
        op = first_write(trace.ops[:forward_ops], storage_of(run.arguments[index]))
        alias = _forward_alias(target, index, op.line if op else None)
        return _unmarked(target, index, op.line if op else None, op.name if op else "", alias)
    before = {i: run.arguments[i].detach().clone() for i in asked}
    try:
        with Trace(target.function) as back:
            run.grads(upstream)
    except Exception as error:  # the backward of the user may raise anything
        return once_only(target, error)
    spoiled = [i for i in asked if _changed(run.arguments[i], before[i])]
    if spoiled:
        index = spoiled[0]
        op = first_write(back.ops, storage_of(run.arguments[index]))
        again = call.run()
        alias = find_alias(
            lambda: again.grads(upstream), again.arguments[index], op.line if op else None
        )
        return _spoiled(target, index, op.line if op else None, alias)
    held = ["inputs stay as they are"]
    if changed:
        held = [
            f"{', '.join(target.input_name(i) for i in changed)} changed in place and marked dirty"
        ]
    return Outcome(held=held)


def _changed(now: Tensor, before: Tensor) -> bool:
    a, b = as_real(now), as_real(before)
    return a.shape != b.shape or not bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


def works_in_place(target: Target) -> bool:
    """Say whether forward changes one of the checked inputs."""
    run = target.call.run()
    return any(_changed(run.arguments[i], target.call.values[i]) for i in target.call.wanted)


def _marked(argument: Tensor) -> bool:
    """mark_dirty makes the Function the history of its input."""
    return hasattr(type(argument.grad_fn), "_forward_cls")


def _forward_alias(target: Target, index: int, line: Location | None) -> Alias | None:
    """Return the line of forward by which an input gets the name that is written to."""
    call = target.call
    arguments = list(call.values)
    with torch.enable_grad():
        for i in call.wanted:
            arguments[i] = call.values[i].detach().clone().requires_grad_().clone()
    return find_alias(lambda: call(arguments), arguments[index], line)


def _unmarked(
    target: Target, index: int, line: Location | None, op: str, alias: Alias | None
) -> Outcome:
    name = target.input_name(index)
    return target.broken(
        "input-mutated",
        f"{target.part('forward')} modifies {name} in place without ctx.mark_dirty",
        location=line or head(target.function, "forward"),
        inputs={index: "changed by forward"},
        others=[alias.culprit(name)] if alias is not None else [],
        observed=f"the values of {name} differ after forward",
        cause="autograd does not know of the change: every other use of that tensor gets a wrong gradient, silently",
        because=(f"{op} wrote into its memory" if op else f"{name} was compared before and after")
        + (f", by the name {alias.name}" if alias is not None else "")
        + "; its grad_fn is not the Function's",
        fix=f"ctx.mark_dirty({name}) and return it, or {alias.fix if alias is not None else 'work on a copy'}",
    )


def _spoiled(target: Target, index: int, line: Location | None, alias: Alias | None) -> Outcome:
    name = target.input_name(index)
    return target.broken(
        "input-mutated",
        f"{target.backward} modifies {name} in place",
        location=line,
        inputs={index: "changed by backward"},
        others=[alias.culprit(name)] if alias is not None else [],
        observed=f"the values of {name} differ after backward",
        cause="backward writes into a saved input",
        because=f"{name} was compared before and after backward",
        fix=alias.fix if alias is not None else "use the out-of-place operation on saved tensors",
    )


def _kept(target: Target) -> Outcome:
    """Change inputs and outputs in place after forward: backward must refuse or be right."""
    held = []
    for index in target.call.asked:
        finding = _stale_input(target, index)
        if finding is not None:
            return Outcome(findings=[finding])
        held.append(target.input_name(index))
    for output in target.chosen:
        finding = _stale_output(target, output)
        if finding is not None:
            return Outcome(findings=[finding])
    return Outcome(held=[f"{', '.join(held)} and the outputs changed in place before backward"])


def _stale_input(target: Target, index: int) -> Finding | None:
    _, upstream, reference = reference_of(target)
    run = target.call.run()
    argument = run.arguments[index]
    if _marked(argument):
        return None
    try:
        with torch.no_grad():
            argument.mul_(1.5).add_(0.25)
        found = run.grads(upstream)
    except Exception:  # a refusal (the version counter's) is the right answer
        return None
    wrong = [i for i in found if distance(found[i], reference[i]) > tolerance(target)]
    if not wrong:
        return None
    return _on_ctx(target, run, argument, target.input_name(index), wrong, leak=False)


def _stale_output(target: Target, output: int) -> Finding | None:
    _, upstream, reference = reference_of(target)
    run = target.call.run()
    leak = _leaks(target.call, output)
    wrong: list[int] = []
    try:
        with torch.no_grad():
            run.outputs[output].mul_(1.5).add_(0.25)
        found = run.grads(upstream)
        wrong = [i for i in found if distance(found[i], reference[i]) > tolerance(target)]
    except Exception:  # a refusal (the version counter's) is the right answer
        wrong = []
    if not wrong and not leak:
        return None
    name = "its output" if len(target.chosen) == 1 else f"output {output}"
    return _on_ctx(target, run, run.outputs[output], name, wrong, leak=leak)


def _leaks(call: Call, output: int) -> bool:
    """See whether an output outlives its last reference, through a cycle over ctx."""
    on = gc.isenabled()
    gc.disable()
    try:
        run = call.run()
        out = run.outputs[output]
        if not any(value is out or aliases(value, out) for value in held_tensors(run).values()):
            return False
        watch = weakref.ref(out)
        del run, out
        return watch() is not None
    finally:
        if on:
            gc.enable()


def _on_ctx(
    target: Target, run: Run, tensor: Tensor, name: str, wrong: list[int], *, leak: bool
) -> Finding:
    attributes = [key for key, value in held_tensors(run).items() if aliases(value, tensor)]
    attribute = attributes[0] if attributes else ""
    pattern = rf"ctx\.{attribute}\s*=" if attribute else r"detach\(|\.data\b|numpy|=\s*\w+$"
    facts = []
    if wrong:
        names = ", ".join(target.input_name(i) for i in wrong)
        facts.append(
            f"after an in-place change of {name} backward gave a wrong gradient of {names} without an error"
        )
    if leak:
        facts.append(
            f"{name} stayed alive after its last reference was gone, until the garbage collector ran"
        )
    held = f"ctx.{attribute}" if attribute else "something other than save_for_backward"
    # it bites only after an in-place change: of another's Function, or of an output that is kept detached,
    # as reversible networks do to make no cycle
    itself = any(held_tensors(run)[key] is tensor for key in attributes) or not attributes
    detached = not itself and any(tensor is output for output in run.outputs)
    latent = not leak and (not target.own or detached)
    return target.finding(
        "suspicious" if latent else "violated",
        "saved-on-ctx",
        f"{target.part('forward')} keeps {name} on {held} instead of save_for_backward"
        if attribute
        else f"{target.backward} reads {name} past the version counter",
        location=line_with(target.function, pattern, "setup_context", "forward")
        or head(target.function, "setup_context", "forward"),
        inputs=dict.fromkeys(wrong, "stale gradient"),
        observed="; ".join(facts),
        cause=f"{held} bypasses the version counter"
        + (" and makes a reference cycle" if leak else ""),
        because=f"{held} shares memory with {name}"
        if attribute
        else "a saved tensor would have raised an error",
        fix=f"ctx.save_for_backward({name if name.isidentifier() else 'the output'}) and read "
        "it from ctx.saved_tensors",
        evidence={"attribute": attribute, "leak": leak, "stale": bool(wrong)},
    )
