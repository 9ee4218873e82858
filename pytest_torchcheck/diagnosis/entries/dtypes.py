"""Tensors of different dtypes in one op, and kernels that do not exist for a dtype."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import Explanation, describe, dtype_word, listed, on_line
from ...findings import Culprit
from ..crashes.layers import named_source
from ..crashes.table import entry
from .dtype_pairs import CONVERSIONS, FACTORIES, made_culprit, maker_of, with_article

if TYPE_CHECKING:
    from ...findings import Location
    from ..crashes.scene import Scene


@entry(r"result type (\w+) can't be cast to the desired output type (\w+)")
def written(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A result that is written into a tensor whose dtype cannot hold it."""
    result, held = dtype_word(match[1]), dtype_word(match[2])
    op = scene.failing_op
    if op is None or not (op.name.endswith("_") or re.match(r"__i[a-z]+__$", op.name)):
        return None
    facts, word = op.inputs, op.name
    target = next((fact for fact in facts if fact.dtype == held), None)
    source = named_source(target)
    maker = maker_of(target, held) if not source else None
    made_at = maker.location if maker is not None else None
    shown = f"{source or 'a tensor'} {held}" + (f" {list(target.shape)}" if target else "")
    line = on_line(made_at)
    kind = "complex" if result.startswith("complex") else "floating-point"
    fixes = [f"call .to(torch.{result}) on {source or 'it'} first{scene.on_line}"]
    if maker is not None and made_at is not None and maker.name in FACTORIES - CONVERSIONS:
        fixes.insert(0, f"give {maker.name} a {kind} dtype{line}")
    else:
        fixes.append("write to a new tensor instead of modifying it in place")
    return scene.explain(
        code="dtype-pair",
        summary=f"{scene.at}: {word} gives {result}, and its output is {with_article(held)} tensor",
        observed=shown,
        cause=f"{source or 'the tensor'} holds {held}, which cannot represent {kind} numbers"
        + (f"; {maker.name}{line} creates it" if maker is not None and line else ""),
        fix=", or ".join(fixes),
        culprits=(*scene.blame(f"{word} of {held}"), *made_culprit(scene, target)),
    )


@entry(r"\"?(?<!\w)(\w+)\"? not implemented for '(\w+)'",
       r"(?<!\S)(\S+): Low precision dtypes not supported\. Got (\w+)",
       r"(?<!\S)(\S+): Expected a floating point or complex tensor as input\. Got (\w+)",
       r"(mean|var|std)\(\).*[Ii]nput dtype must be either a floating point or complex dtype\. Got: (\w+)",
       r"result type (\w+) can't be cast to the desired output type (\w+)",
       r"(?:Subtra|Nega)(ction|tion), the `-` operator, (?:with|on) (?:an?|two) (bool)",
       r"(?<!\w)(\w+)\(?\)?:? does not support (bool) input",
       r"(multinomial) only supports floating-point dtypes for input, got: (\w+)",
       r"Expected (theta) to have floating point type, but got (\S+)",
       r"(view_as_complex) is only supported for half, float and double tensors, but got a tensor of scalar type: (\w+)",
       r"(Unsupported) dtype (B?Float\d+|Half)\b")  # fmt: skip
def kernel(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """An op that has no kernel for a dtype."""
    op = scene.failing_op
    got = dtype_word(match[2])
    word = op.name if op is not None else match[1].removesuffix("_cpu").removesuffix("_cuda")
    facts = op.inputs if op is not None else ()
    odd = next((fact for fact in facts if fact.dtype == got), None)
    source = named_source(odd)
    shown = f" {list(odd.shape)}" if odd is not None else ""
    where = f" on {scene.device}" if scene.device else ""
    if got in ("float16", "bfloat16"):
        cause = f"torch has no {got} kernel for {word}{where}"
        fix = (
            f"call .float() on its input and convert the result back{scene.on_line}, or leave "
            f"{got} out of dtypes="
        )
    elif got == "bool" and "argm" in word:
        cause = f"{word} compares numbers, and bool tensors do not hold numbers"
        fix = f"call .int() on {source or 'its input'}{scene.on_line}"
    elif got == "bool":
        cause = "arithmetic is not defined for bool tensors"
        fix = f"use ~mask, ^ or .float(){scene.on_line}"
    elif got.startswith("complex"):
        cause = f"{source or 'its input'} holds {got}, and {word} is defined for real numbers only"
        fix = f"take .abs(), .real or torch.view_as_real of {source or 'its input'}{scene.on_line}"
    elif got == "float32":
        cause = f"{source or 'its input'} holds {got}, and {word} takes integers"
        fix = f"call .long() on {source or 'its input'}{scene.on_line}"
    elif got == "float64":
        cause = f"torch has no {got} kernel for {word}{where}"
        fix = f"call .float() on {source or 'its input'}{scene.on_line}"
    else:
        cause = f"{source or 'its input'} holds {got}, and {word} needs floating-point numbers"
        fix = f"call .float() on {source or 'its input'}{scene.on_line}"
    return scene.explain(
        code="kernel-missing",
        summary=f"{scene.at}: {word} is not implemented for {got}",
        observed=f"{source or 'input'} {got}{shown}{where}",
        cause=cause,
        fix=fix,
        culprits=(*scene.blame(f"{word} of {got}"), *made_culprit(scene, odd)),
    )


@entry(r"masked_fill_? only supports boolean masks, but got (?:mask with )?dtype (\w+)",
       r"only supports boolean masks.*?(\w+)$",
       r"Expected attn_mask dtype to be bool or .{0,200}got attn_mask\.dtype: (.{1,60}?) and",
       r"Expected attn_mask dtype to be bool or .*got.*?(\w+)",
       r"where expected condition to be a boolean tensor, but got a tensor with dtype (\w+)",
       r"masked_select: expected BoolTensor for mask()")  # fmt: skip
def mask_dtype(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A mask that is not a bool tensor."""
    facts = scene.failing_op.inputs if scene.failing_op is not None else ()
    got = dtype_word(match[1]) or next((f.dtype for f in facts[1:]), "not a bool tensor")
    odd = next((f for f in reversed(facts) if f.dtype == got and named_source(f)), None)
    odd = odd or next((f for f in reversed(facts) if f.dtype == got), None)
    source = named_source(odd)
    return scene.explain(
        code="mask-dtype",
        summary=f"{scene.at}: the mask {source + ' ' if source else ''}is {got}, and must be bool",
        observed=f"mask {got}",
        cause=f"{source or 'the mask'} holds numbers instead of True and False",
        fix=f"write mask.bool() (or mask == 0){scene.on_line}",
        culprits=(*scene.blame(), *made_culprit(scene, odd)),
    )


@entry(r"Only Tensors of floating point and complex dtype can require gradients")
def integer_gradient(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """requires_grad on an integer tensor."""
    data = scene.argument("data")
    return scene.explain(
        code="integer-gradient",
        summary=f"{scene.at}: an integer tensor cannot require a gradient",
        observed=describe(data) if data is not None else scene.values(),
        cause="gradients exist for floating-point and complex numbers only",
        fix=(
            "make it a float tensor, or a buffer (register_buffer) if it is not "
            f"trained{scene.on_line}"
        ),
    )


@entry(r"Attempting to unscale FP16 gradients")
def float16_gradients(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A GradScaler whose optimizer holds float16 weights."""
    frame = scene.called("unscale_") or {}
    groups = getattr(frame.get("optimizer"), "param_groups", ())
    held = [p for group in groups for p in group["params"] if p.dtype == torch.float16]
    named = {} if scene.model is None else {id(p): n for n, p in scene.model.named_parameters()}
    names = [named[id(p)] for p in held if id(p) in named]
    place = scene.location
    made = _only_half(scene)
    total = sum(len(group["params"]) for group in groups)
    shown = listed(names, 3) or "the weights"
    line = on_line(made)
    return scene.explain(
        code="float16-gradients",
        summary=f"the scaler cannot unscale the gradients of {shown}: the weights are float16",
        observed=f"{len(held)} of {total} parameters of the optimizer are float16",
        cause=("the weights themselves are float16, so their gradients are too; a scaler needs "
            "float32 gradients")
        + (f"; the only conversion to float16 found is{line}" if made is not None else ""),
        fix=(f"keep the weights in float32{f', without the conversion{line}' if made else ''}, "
            "and let torch.autocast compute in float16"),
        culprits=(
            *((Culprit("call", made.text, "converts to float16", made),) if made else ()),
            Culprit("call", "unscale_", "refuses float16 gradients", place),
            *(Culprit("parameter", name, "float16") for name in names[:4]),
        ),
        location=made,
        evidence={"parameters": names},
    )  # fmt: skip


_HALF = frozenset({"torch.float16", "torch.half", "'float16'"})


def _only_half(scene: Scene) -> Location | None:
    """Return the only line that converts something to float16, outside of forwards, in the files that ran."""
    files = {frame.f_code.co_filename for frame, _ in scene.frames}
    defined = sources.of_object(type(scene.model)) if scene.model is not None else None
    files |= {defined.file} if defined is not None else set()
    found: dict[tuple[str, int], Location] = {}
    for file in files:
        tree = sources.tree_of(file) if sources.rank(file) == 2 else None
        pending: list[ast.AST] = [] if tree is None else [tree]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                continue
            pending += ast.iter_child_nodes(node)
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            given = {ast.unparse(a) for a in (*node.args, *(k.value for k in node.keywords))}
            name = node.func.attr
            if name == "half" or (name in ("to", "type", "from_pretrained") and given & _HALF):
                place = sources.of_line(file, node.lineno)
                found[place.file, place.line] = place
    return next(iter(found.values())) if len(found) == 1 else None
