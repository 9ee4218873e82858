"""Forward mode, vmap, activation checkpointing and compilation of one callable."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from ..calls import Call, is_float, tensors_of
from ..explanation import shapes_of
from ..lines import error_line, gradient_line, head, overrides
from ..relations.jacobians import (
    Block,
    as_real,
    distance,
    numerical,
    real_size,
    rounding,
    spans,
    step_of,
    unit,
)
from ..relations.search import find_relation
from ..target import Outcome, Target, first_line, reference_of, tolerance

if TYPE_CHECKING:
    from collections.abc import Callable


def check_forward_mode(target: Target) -> Outcome:
    """Compare an offered ``jvp`` with central differences."""
    if not overrides(target.function, "jvp"):
        return Outcome()
    call = target.call
    if any(call.values[i].is_complex() for i in call.wanted) or target.surrogate is not None:
        return Outcome()
    run = call.run()
    rows = spans(run.outputs, target.chosen)
    blocks = []
    try:
        for index in call.wanted:
            columns = [
                _jvp(call, index, e, target.chosen) for e in range(real_size(call.values[index]))
            ]
            blocks.append(
                Block(
                    index=index,
                    analytical=torch.stack(columns, 1),
                    numerical=numerical(call, index, target.chosen, step=target.step),
                    noise=rounding(run.outputs, target.chosen, step_of(call.values[index])),
                    missing=False,
                    rows=rows,
                    rtol=target.rtol,
                )
            )
    except Exception as error:  # the jvp of the user may raise anything
        return _jvp_raised(target, error)
    for block in blocks:
        if not bool(block.wrong.any()):
            continue
        name = target.input_name(block.index)
        peers = [(target.input_name(b.index), b) for b in blocks if b.index != block.index]
        relation = find_relation(block, shapes_of(target, call, run, block.index), peers)
        worst = int((block.error - block.tolerance).argmax())
        a, n = float(block.analytical.flatten()[worst]), float(block.numerical.flatten()[worst])
        return target.broken(
            "forward-mode",
            f"{target.part('jvp')} gives {_as_tangent(relation.symptom)}",
            location=gradient_line(target.function, 0, method="jvp"),
            inputs={
                block.index: f"{int(block.wrong.sum())} of {block.wrong.numel()} entries differ"
            },
            observed=f"for example jvp {a:.6g}, numerical {n:.6g}",
            cause=_as_tangent(relation.cause),
            because=_as_tangent(relation.because),
            fix=f"mend the tangent of {name} in jvp (backward is right)",
            evidence={**relation.evidence, "relation": relation.code, "input": name},
        )
    return Outcome(held=["forward mode (jvp)"])


def _as_tangent(text: str) -> str:
    return (
        text.replace("gradient", "tangent")
        .replace("backward", "jvp")
        .replace("Jacobian", "derivative")
    )


def _jvp(call: Call, index: int, entry: int, chosen: tuple[int, ...]) -> Tensor:
    arguments = [v.clone() if isinstance(v, Tensor) else v for v in call.values]
    with forward_ad.dual_level():
        arguments[index] = forward_ad.make_dual(arguments[index], unit(arguments[index], entry))
        outputs = tensors_of(call(arguments))
        tangents = []
        for i in chosen:
            primal, tangent = forward_ad.unpack_dual(outputs[i])
            tangents.append(as_real(torch.zeros_like(primal) if tangent is None else tangent))
        return torch.cat(tangents)


def _jvp_raised(target: Target, error: Exception) -> Outcome:
    return target.raised(
        "forward-mode",
        f"{target.part('jvp')} raises {type(error).__name__}: {first_line(error)}",
        error,
        cause="jvp is offered and does not work",
        because="forward and backward of the same call work",
        fix="mend jvp (ctx.save_for_forward what it needs), or remove it",
    )


def check_vmap(target: Target) -> Outcome:
    """Compare ``torch.vmap`` with a loop, where a rule is offered: every input batched, each alone, other axes."""
    function = target.function
    if not (getattr(function, "generate_vmap_rule", False) or overrides(function, "vmap")):
        return Outcome()
    call = target.call
    tensors = list(call.wanted)
    patterns = [("all inputs batched", dict.fromkeys(tensors, 0))]
    if len(tensors) > 1:
        patterns += [(f"only {target.input_name(i)} batched", {i: 0}) for i in tensors]
    if all(call.values[i].dim() > 0 for i in tensors):
        patterns.append(("batched along axis 1", dict.fromkeys(tensors, 1)))
    for label, dims in patterns:
        try:
            gap = _vmap_gap(target, dims)
        except Exception as error:  # the rule of the user may raise anything
            return _vmap_finding(
                target, label, f"{type(error).__name__}: {first_line(error)}", error
            )
        if gap > tolerance(target):
            return _vmap_finding(target, label, f"relative difference {gap:.3g} from a loop", None)
    return Outcome(held=["vmap"])


def _vmap_gap(target: Target, dims: dict[int, int]) -> float:
    call = target.call
    generator = torch.Generator().manual_seed(5)
    stacks = {i: _stack(call.values[i], generator) for i in dims}
    batched = {i: stacks[i].movedim(0, d) for i, d in dims.items()}

    def apply(*changing: Tensor) -> tuple[Tensor, ...]:
        arguments = [v.clone() if isinstance(v, Tensor) else v for v in call.values]
        for i, value in zip(dims, changing, strict=True):
            arguments[i] = value.clone()
        outputs = tensors_of(call(arguments))
        return tuple(outputs[i] for i in target.chosen)

    def gradient(*changing: Tensor) -> tuple[Tensor, ...]:
        def loss(*inner: Tensor) -> Tensor:
            parts = [
                (out * torch.arange(1.0, out.numel() + 1, device=out.device).view(out.shape)).sum()
                for out in apply(*inner)
            ]
            return torch.stack([p.real if p.is_complex() else p for p in parts]).sum()

        grads: tuple[Tensor, ...] = torch.func.grad(loss, argnums=tuple(range(len(dims))))(
            *changing
        )
        return grads

    gap = 0.0
    for run in (apply, gradient):
        with torch.no_grad():
            together = torch.vmap(run, in_dims=tuple(dims.values()))(*batched.values())
            alone = [run(*(stacks[i][k] for i in dims)) for k in range(2)]
        for position, value in enumerate(together):
            wanted = torch.stack([a[position] for a in alone])
            gap = max(gap, distance(value, wanted))
    return gap


def _stack(value: Tensor, generator: torch.Generator) -> Tensor:
    factor = 0.9 + 0.05 * torch.rand(value.shape, generator=generator, dtype=torch.float64)
    return torch.stack([value, value * factor.to(value)])


def _vmap_finding(target: Target, label: str, observed: str, error: Exception | None) -> Outcome:
    generated = bool(getattr(target.function, "generate_vmap_rule", False))
    place = error_line(target.function, error) if error is not None else None
    return target.broken(
        "vmap",
        f"{target.name} is wrong under torch.vmap with {label}",
        location=place or head(target.function, "vmap", "forward"),
        observed=observed,
        cause="the vmap rule does not hold for this choice of batched inputs"
        if not generated
        else "generate_vmap_rule needs forward and backward in vmap-able torch operations",
        because="a loop over the samples gives the reference",
        fix="read in_dims for every input (None: not batched) and return the outputs' own batch axes"
        if not generated
        else "write a vmap staticmethod, or use torch operations without .item() and in-place writes",
        evidence={"batched": label},
    )


def check_checkpoint(target: Target) -> Outcome:
    """Run forward a second time for backward, as activation checkpointing does.

    Checkpointing puts torch's random state back before it recomputes, and nothing else; backward
    then uses what the second forward saved. This does the same without torch.utils.checkpoint,
    which loads torch._dynamo (seconds).
    """
    return _same_as_plain(
        target,
        _recomputed,
        "checkpointed",
        "under activation checkpointing",
        "forward gives something else when it is run again (state outside ctx, randomness of its own)",
        "make forward a function of its arguments and of torch's random generator alone",
    )


def _recomputed(fn: Callable[..., Any]) -> Callable[..., Any]:
    def again(*args: Any, **kwargs: Any) -> Any:
        state = torch.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        _, first = _counted(fn, args, kwargs)
        torch.set_rng_state(state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        result, second = _counted(fn, args, kwargs)
        if first != second:
            raise RuntimeError(
                f"the recomputed forward saves {second} tensors, the first one {first}"
            )
        return result

    return again


def _counted(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, int]:
    saved = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += 1
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = fn(*args, **kwargs)
    return result, saved


def check_compiled(target: Target) -> Outcome:
    """Compile with the ``aot_eager`` backend; costs seconds, so only on demand."""

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(
            lambda *a, **k: fn(*a, **k), backend="aot_eager"
        )
        return compiled

    return _same_as_plain(
        target,
        wrap,
        "compiled",
        "under torch.compile",
        "forward or backward depends on something that is not traced (data pointers, Python state, writes in place)",
        "register it as a torch.library.custom_op, or exclude it with torch.compiler.disable",
    )


def _same_as_plain(
    target: Target,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
    code: str,
    how: str,
    cause: str,
    fix: str,
) -> Outcome:
    run, upstream, reference = reference_of(target)
    other = replace(target.call, fn=wrap(target.call.fn))
    try:
        changed = other.run()
        found = changed.grads({i: g.clone() for i, g in upstream.items()})
    except Exception as error:  # the callable of the user may raise anything
        observed, place = (
            f"{type(error).__name__}: {first_line(error)}",
            error_line(target.function, error),
        )
    else:
        pairs = [(a, b) for a, b in zip(changed.outputs, run.outputs, strict=False) if is_float(b)]
        gap = max(
            [distance(a, b) for a, b in pairs] + [distance(found[i], reference[i]) for i in found]
        )
        if gap <= tolerance(target):
            return Outcome(held=[how])
        observed, place = f"relative difference {gap:.3g}", None
    return target.broken(
        code,
        f"{target.name} is wrong {how}",
        location=place or head(target.function, "forward"),
        observed=observed,
        cause=cause,
        because=f"the same call without it is the reference ({how.split()[-1]} is all that changed)",
        fix=fix,
    )
