"""Backward that fails: no graph, a freed graph, not a scalar; Functions with wrong returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import Explanation, clipped, describe, on_line
from ...findings import Culprit, Location
from ..crashes.inference_tensors import made_in_inference
from ..crashes.table import entry
from .second_backward import loss_tensor_of

if TYPE_CHECKING:
    import re

    from ..crashes.history import Fact, Op
    from ..crashes.scene import Scene


_CUTS = frozenset({"detach", "detach_", "data", "item", "numpy", "tolist", "argmax", "argmin", "long", "int", "bool",
                   "round", "sign", "floor", "ceil", "tensor", "as_tensor", "gt", "lt", "ge", "le", "eq", "ne",
                   "__gt__", "__lt__", "__ge__", "__le__", "__eq__", "topk", "multinomial", "one_hot"})  # fmt: skip

_STEPS = _CUTS - {"detach", "detach_", "data", "item", "numpy", "tolist", "tensor", "as_tensor"}


def _cut(fact: Fact | None) -> Op | None:
    """Return the op nearest to a tensor that took inputs with a gradient and gave none."""
    seen: set[int] = set()
    queue = [fact] if fact is not None else []
    while queue:
        current = queue.pop(0)
        op = current.made_by
        if op is None or id(op) in seen:
            continue
        seen.add(id(op))
        if any(f.requires_grad for f in op.inputs) and not any(f.requires_grad for f in op.outputs):
            return op
        queue.extend(op.inputs)
    return None


@entry(r"element (\d+) of tensors does not require grad")
def no_graph(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Backward of a loss that nothing trainable leads to."""
    loss = loss_tensor_of(scene)
    place = scene.location
    op = scene.failing_op
    fact = op.inputs[0] if op is not None and op.inputs else None
    observed = (
        f"loss {describe(loss)}, grad_fn=None" if loss is not None else "the loss has grad_fn=None"
    )
    frozen = scene.model is not None and not any(p.requires_grad for p in scene.model.parameters())
    if frozen:
        return scene.explain(
            code="no-graph",
            summary="no parameter of the model requires a gradient, so the loss has no graph",
            observed=observed,
            cause="every parameter is frozen",
            because="requires_grad is False for every parameter",
            fix="set requires_grad on the parameters to train",
            culprits=(Culprit("loss", "loss", "grad_fn=None", place),),
        )
    again = scene.replay()
    cut = _cut(fact)
    last = (
        next(
            (
                o
                for o in reversed(again.ops)
                if o.name in _CUTS and any(f.requires_grad for f in o.inputs)
            ),
            None,
        )
        if again
        else None
    )
    cut = cut or last
    if cut is not None:
        return _cut_at(cut, observed, scene, place)
    return scene.explain(
        code="no-graph",
        summary="the loss has no graph: it does not depend on any trainable parameter",
        observed=observed,
        cause="between output and loss the tensor is detached, computed under no_grad, or "
        "rebuilt (torch.tensor, .item(), NumPy)",
        fix=f"compute the loss from the model's output with torch functions only{scene.on_line}",
        culprits=(Culprit("loss", "loss", "grad_fn=None", place),),
    )


def _cut_at(cut: Op, observed: str, scene: Scene, place: Location | None) -> Explanation | None:
    """Explain the operation that cuts the graph of the loss."""
    at = cut.location
    holder = (at.function.rpartition("<locals>.")[2] if at else "") or cut.module or cut.name
    word = f".{cut.name}" if cut.name in _CUTS else cut.name
    why = (
        f"the result of {word}{on_line(at)} has no graph"
        if cut.name in _CUTS
        else f"{word}{on_line(at)} runs under no_grad (or inference_mode): it records nothing"
    )
    fix = (
        f"take the call{on_line(at)} out of no_grad"
        if cut.name not in _CUTS
        else f"compute the loss from the values before {word}{on_line(at)}: a comparison, a "
        "rounding or an index has no gradient (use the probabilities, or a straight-through "
        "estimator)"
        if cut.name in _STEPS
        else f"drop {word}(){on_line(at)}"
    )
    if cut.name == "grad":
        word = "autograd.grad"
        why = "the derivative does not depend on any trainable parameter"
        fix = "train on a value that depends on the parameters"
        if "create_graph=False" in cut.arguments:
            why = f"{word}{on_line(at)} without create_graph=True gives a gradient without a graph"
            fix = f"pass create_graph=True to {word}{on_line(at)}"
    return scene.explain(
        code="no-graph",
        summary=f"the loss has no graph: {holder} cuts it at {word}",
        observed=observed,
        cause=why,
        because=f"an operand of {word} requires a gradient, its result does not; {scene.said}",
        fix=fix,
        culprits=(
            Culprit("call", holder, f"{word} cuts the graph", at),
            Culprit("loss", "loss", "grad_fn=None"),
        ),
        location=at or place,
    )


@entry(r"grad can be implicitly created only for (real )?scalar outputs")
def not_scalar(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Backward of a loss with more than one element."""
    loss = loss_tensor_of(scene)
    place = scene.location
    shape = list(loss.shape) if loss is not None else None
    kind = "complex" if match[1] else f"of shape {shape}" if shape is not None else "not a scalar"
    node = type(loss.grad_fn).__name__ if loss is not None and loss.grad_fn is not None else ""
    return scene.explain(
        code="loss-not-scalar",
        summary=f"the loss is {kind}; backward needs one real number",
        observed=f"loss {describe(loss)}" + (f", grad_fn={node}" if node else "")
        if loss is not None
        else scene.first_line,
        cause="the loss is complex: take its absolute value or real part"
        if match[1]
        else (
            "the loss is not reduced (reduction='none'?), or the model's output is used as the loss"
        ),
        fix=f"reduce it: loss.abs().mean(){scene.on_line}"
        if match[1]
        else f"reduce it: loss.mean(){scene.on_line}",
        culprits=(Culprit("loss", "loss", str(shape or kind), place),),
    )


@entry(r"'(float|int|NoneType|tuple|list|dict|ndarray)' object has no attribute 'backward'",
       r"the loss must be a tensor; it is a (\w+)",
       r'(loss="output") needs a model that returns .*; it returned (.*)')  # fmt: skip
def not_a_tensor(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A loss that is no tensor."""
    place = scene.location
    kind = match[1]
    if kind.startswith("loss"):
        return scene.explain(
            code="loss-not-tensor",
            summary=f"the model returns no loss: {match[2]}",
            observed=f"{kind} is declared; in train mode the model returned {match[2]}",
            cause="a loss is a scalar tensor, under the key or name loss, or each value of a dict of scalars",
            because=scene.said.replace("torch said", "the error says"),
            fix="return the loss with the output, or declare loss=(output, targets) -> scalar",
        )
    cause = {
        "NoneType": "the loss function returns nothing",
        "float": "the loss was turned into a Python number (.item(), float())",
        "int": "the loss was turned into a Python number",
        "tuple": "the loss function returns several values",
        "dict": "the loss function returns a dict",
        "ndarray": "the loss is computed with NumPy",
    }.get(kind, "the loss function does not return a tensor")
    return scene.explain(
        code="loss-not-tensor",
        summary=f"the loss is a {kind}, not a tensor",
        observed=f"type {kind}",
        cause=cause,
        because=scene.said.replace("torch said", "the error says"),
        fix=f"return the scalar tensor itself{scene.on_line}",
        culprits=(Culprit("loss", "loss", kind, place),),
    )


@entry(r"Can't call numpy\(\) on Tensor that requires grad")
def numpy_call(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """NumPy inside the graph."""
    training = scene.phase in ("forward", "loss", "step")
    return scene.explain(
        code="numpy-in-graph",
        summary=f"{scene.at} calls .numpy() on a tensor that requires a gradient",
        observed=scene.values(),
        cause="NumPy records no gradient"
        + (": values computed from it cannot be trained" if training else ""),
        fix=f"use the torch function instead{scene.on_line}; .detach().numpy() is right only for logging",
    )


@entry(r"One of the differentiated Tensors appears to not have been used in the graph",
       r"The differentiated Tensor at index (\d+) appears to not have been used in the graph")  # fmt: skip
def unused(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """autograd.grad of something that the output does not depend on."""
    which = f"tensor {match[1]}" if match.groups() and match[1] else "a tensor"
    return scene.explain(
        code="grad-unused",
        summary=f"{scene.at}: {which} given to autograd.grad is not part of the graph",
        observed=scene.values(),
        cause="the output does not depend on it: it was re-created or detached, or a different "
        "tensor was used",
        because=scene.quote(),
        fix="differentiate with respect to the tensor that the output was computed "
        f"from{scene.on_line}",
    )


@entry(r"Inference tensors cannot be saved for backward")
def inference(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A tensor made under inference_mode in a training graph."""
    made = made_in_inference(scene)
    name = next((f.name for f in made.facts if f.name), "")
    shape = next((list(f.shape) for f in made.facts), None)
    at = made.line
    what = name or (f"a tensor {shape}" if shape is not None else "a tensor")
    return scene.explain(
        code="inference-tensor",
        summary=f"{scene.at} trains on {what} created under inference_mode",
        observed=scene.values(),
        cause="inference_mode creates tensors that autograd cannot use",
        because=scene.quote(),
        fix=f"use torch.no_grad() instead of inference_mode{on_line(at)}"
        if at is not None
        else "create it under torch.no_grad() instead, or clone it first",
        culprits=(*made.culprits, *scene.blame()),
        location=at,
    )


@entry(r"[Ff]unction (\w+)Backward returned an (?:incorrect number of gradients \(expected (\d+), got (\d+)\))",
       r"[Ff]unction (\w+)Backward returned an invalid gradient at index (\d+) - (got .*)",
       r"(?<!\w)(\w+)\.forward: expected Tensor or tuple of Tensor .*()()",
       r"()Legacy autograd function with non-static forward method()")  # fmt: skip
def function_returns(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A custom autograd Function whose backward returns the wrong things."""
    name = match[1] or "the autograd Function"
    cls = _function_class(match[1]) if match[1] else None
    place = None
    if cls is not None:
        place = sources.search(cls.backward, r"^\s*return") or sources.of_object(cls.backward)
    place = place or scene.location
    if "incorrect number" in match[0]:
        summary = (
            f"{name}.backward returns {match[3]} "
            f"{'gradient' if match[3] == '1' else 'gradients'} for {match[2]} inputs of forward"
        )
        cause = f"backward must return one value per argument of forward: {match[2]}"
        fix = f"return {match[2]} values, None for arguments that need no gradient{on_line(place)}"
        observed = (
            f"{match[3]} {'value' if match[3] == '1' else 'values'} returned, {match[2]} "
            "arguments of forward besides ctx"
        )
        code = "function-gradients"
    elif "invalid gradient" in match[0]:
        summary = f"{name}.backward returns a gradient of the wrong shape for input {match[2]}"
        cause = (
            "the gradient of an input must have its shape, dtype and device; a broadcast input "
            "needs a sum over the broadcast dimensions"
        )
        fix = f"reduce or reshape gradient {match[2]}{on_line(place)}"
        observed = f"input {match[2]}: {match[3]}"
        code = "function-gradient-shape"
    else:
        summary = f"{name}: {clipped(scene.first_line, 110)}"
        cause = (
            "an autograd Function has static forward(ctx, ...) and backward(ctx, ...) and is "
            "called with .apply"
        )
        fix = f"make both @staticmethod and call .apply{on_line(place)}"
        observed = scene.values()
        code = "function-form"
    return scene.explain(
        code=code,
        summary=summary,
        observed=observed,
        cause=cause,
        fix=fix,
        culprits=(Culprit("function", name, location=place),),
        location=place,
    )


def _function_class(name: str) -> type[torch.autograd.Function] | None:
    stack: list[type] = [torch.autograd.Function]
    while stack:
        cls = stack.pop()
        if cls.__name__ == name:
            return cls
        stack.extend(cls.__subclasses__())
    return None
