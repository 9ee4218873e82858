"""Tensors of different dtypes in one op, and kernels that do not exist for a dtype."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import torch
from torch import nn

from ... import sources
from ...explanation import Explanation, describe, dtype_name, dtype_word, listed
from ...findings import Culprit
from ...sources import edits
from ..crashes.scene import Scene, named_source
from ..crashes.table import entry

if TYPE_CHECKING:
    from ...findings import Location
    from ..crashes.history import Fact, Op

_WORD = r"([A-Za-z][\w:. ]{0,40}?)"
_FACTORIES = frozenset(
    {"zeros", "ones", "empty", "full", "arange", "linspace", "tensor", "as_tensor", "from_numpy", "eye", "rand",
     "randn", "new_zeros", "new_ones", "new_full", "new_tensor", "double", "float", "half", "bfloat16", "to",
     "one_hot", "scalar_tensor", "hann_window", "logspace"}
)  # fmt: skip


_CONVERSIONS = frozenset({"double", "float", "half", "bfloat16", "long", "int"})


def _line(scene: Scene) -> str:
    place = scene.location
    return f" on line {place.line}" if place else ""


def _maker(fact: Fact | None, dtype: str) -> Op | None:
    """Return the op that first gave a tensor its dtype, along its history."""
    seen = 0
    while fact is not None and fact.made_by is not None and seen < 60:
        op = fact.made_by
        seen += 1
        source = next((f for f in op.inputs if f.dtype == dtype), None)
        if source is None:
            return op
        fact = source
    return None


_PAIRS = (
    rf"must have the same dtype, but got {_WORD} and {_WORD}(?:$|[^\w])",
    rf"Input type \({_WORD}\) and (?:bias|weight) type \({_WORD}\) should be the same",
    rf"expected scalar type {_WORD} but found {_WORD}(?:$|[^\w])",
    rf"expected m1 and m2 to have the same dtype, but got: {_WORD} != {_WORD}(?:$|[^\w])",
    r"input dtype \((torch\.\w+)\) does not match weight dtype \((torch\.\w+)\)",
    r"to have the same dtype, but got query\.dtype: (\S+) key\.dtype: (\S+) and value\.dtype: (\S+)",
    r"but got attn_mask\.dtype: ((?:c10::)?(?:B?Float|Half|Double|float|double)\w*) and\s+query\.dtype: (\S+)",
    r"source and destination dtypes match, got (\w+) for the destination and (\w+)",
    r"self \((\w+)\) and source \((\w+)\) must have the same scalar type",
    r"to have the same dtype, but got \(self\) (\w+) and \(source\) (\w+)",
    r"to have same dtypes but got ?(\w+) and (\w+)",
    r"must be the same, got: input ([\w ]+), batch1: ([\w ]+), batch2: ([\w ]+)",
    r"input tensors must have the same dtype, but got (\w+), (\w+), and (\w+)",
    r"must have the same dtype, got input1: ([\w ]+), input2: ([\w ]+), weight: ([\w ]+)",
    r"to have (?:the )?same dtype, but found (?:\w+ of type )?(\w+) and (?:\w+ of type )?(\w+)",
    r"to have the same dtype, but got \w+'s dtype (\w+) and \w+'s dtype (\w+)",
    r"the same dtype but tensor \d+ is ([\w ]+?) and tensor \d+ ([\w ]+)",
    r"Type promoting not supported\. Got (\w+) and (\w+)",
    r"expected dtype (\w+) for `\w+` but got dtype (\w+)",
    r"to have the same type as tensor .*type torch\.(\S+)Tensor does not equal torch\.(\S+)Tensor",
    r"Expected object of scalar type (\w+) but got scalar type (\w+) for",
    r"mixed dtype \(CPU\)",
    r"(?:self|tensor) and \w+ .*same (?:scalar type|dtype)",
    r"(?:inputs should have|must be) same dtype",
    r"Expected self\.dtype to be equal to src\.dtype",
    r"get_mkldnn_dtype: unsupported data type",
)
"""Messages of two dtypes in one call; those without groups do not say which."""


def _kinds(facts: tuple[Fact, ...], words: list[str]) -> list[str]:
    """Return the dtypes that do not go together: those of the message, else those of the numbers among the operands."""
    kinds = list(dict.fromkeys(fact.dtype for fact in facts))
    if (len(set(words)) > 1 and set(words) <= set(kinds)) or not kinds:
        return list(
            dict.fromkeys(words)
        )  # the call may also take indices or masks of another dtype
    numbers = [kind for kind in kinds if kind.startswith(("float", "bfloat", "complex"))]
    return numbers if len(numbers) > 1 else kinds


@entry(*_PAIRS)
def pair(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Two dtypes in one op that takes one."""
    words = [dtype_word(word) for word in match.groups() if word]
    words = [word for word in words if hasattr(torch, word)]
    module, place = scene.module, scene.location
    weight = (
        next((p for p in module.parameters(recurse=False)), None) if module is not None else None
    )
    own = dtype_name(weight.dtype) if weight is not None else ""
    given = next((v for v in scene.arguments().values() if isinstance(v, torch.Tensor)), None)
    facts = tuple(scene.failing_op.inputs) if scene.failing_op is not None else ()
    kinds = _kinds(facts, words)
    if (
        own
        and given is not None
        and dtype_name(given.dtype) != own
        and (not kinds or dtype_name(given.dtype) in kinds)
        and isinstance(module, nn.Module)
    ):
        got, want = dtype_name(given.dtype), own
        where = f"{scene.at} has {want} weights and is given {got} {list(given.shape)}"
        if (part := _part_apart(scene, module, want, got)) is not None:
            return part
    else:
        if len(kinds) < 2:
            return None
        model_dtype = _model_dtype(scene)
        want = model_dtype if model_dtype in kinds else kinds[0]
        got = next(kind for kind in kinds if kind != want)
        where = f"{scene.at} combines {' and '.join(kinds[:3])}"
    odd = next((fact for fact in facts if fact.dtype == got), None)
    source = named_source(odd)
    maker = _maker(odd, got)
    made_at = maker.location if maker is not None else None
    if not source:
        source = next(
            (
                k
                for k, v in scene.inputs.items()
                if dtype_name(v.dtype) == got and given is not None and v.shape == given.shape
            ),
            "",
        )
    who = source or (f"the result of {maker.name}" if maker is not None else "one operand")
    culprits = scene.blame(f"{want} against {got}")
    location, because = place, scene.said
    fix = f"call .to({want}) on {source or 'that operand'}{_line(scene)}".replace(
        ".to(", ".to(torch."
    )
    if source and source in scene.inputs:
        culprits = (Culprit(kind="input", name=source, detail=got), *culprits)
        because = f"{source} is {got} when the model is called; {scene.said}"
        if got == "float64":
            cause = f"{source} is float64, NumPy's default dtype, and the model is {want}"
            fix = f"convert {source} where the data is read: torch.from_numpy(a).float(), or a.astype('float32')"
        elif got.startswith(("int", "uint", "bool")):
            cause = f"{source} holds {got}, and {scene.at} computes with {want}"
            fix = f"convert {source} where the data is read: .float()" + (
                " / 255" if got == "uint8" else ""
            )
        else:
            cause = f"{source} is {got}, the model {want}"
            fix = f"convert {source} to the model's dtype, or the model to {got}"
    elif maker is not None and made_at is not None:
        created = maker.name in _FACTORIES - _CONVERSIONS
        same = edits.like_tensor(made_at, "dtype")
        like = f"dtype={same}" if same else ""
        cause = f"{maker.name} on line {made_at.line} makes {_a(got)} tensor" + (
            ", whatever the dtype of the model" if created else ""
        )
        because = f"the history of the {got} operand begins with {maker.name}; {scene.said}"
        location = made_at
        fix = (
            f"give {maker.name} {like or 'the dtype of the data'} on line {made_at.line}"
            if created
            else f"write .to({same}) for .{maker.name}() on line {made_at.line}"
            if maker.name in _CONVERSIONS and same
            else (
                "convert its result to the dtype of the "
                f"model{f' with .to({same})' if same else ''} on line {made_at.line}"
            )
        )
        name = made_at.function.rpartition("<locals>.")[2] or maker.name
        culprits = (
            Culprit(kind="call", name=name, detail=f"{maker.name} makes {got}", location=made_at),
            *culprits,
            *(meeting := scene.meeting(made_at)),
        )
        if meeting and place is not None:
            fix += f", or convert it where it meets {want}, on line {place.line}"
    else:
        cause = f"{who} is {got} where {want} is needed" + (
            "; NumPy's default dtype is float64" if got == "float64" else ""
        )
    return Explanation(
        code="dtype-pair",
        summary=where,
        observed=", ".join(
            f"{fact.name or 'tensor'} {fact.dtype} {list(fact.shape)}" for fact in facts[:4]
        )
        or where,
        cause=cause,
        because=because,
        fix=fix,
        culprits=culprits,
        location=location,
    )


def _a(dtype: str) -> str:
    return f"an {dtype}" if dtype.startswith("int") else f"a {dtype}"


def made_culprit(scene: Scene, fact: Fact | None) -> tuple[Culprit, ...]:
    """Return the line, other than the failing one, on which an operand got its dtype, as a culprit."""
    maker = _maker(fact, fact.dtype) if fact is not None and not named_source(fact) else None
    place = maker.location if maker is not None else None
    if fact is None or maker is None or place is None or not scene.meeting(place):
        return ()
    return (Culprit(kind="call", name=maker.name, detail=f"makes {fact.dtype}", location=place),)


def _part_apart(scene: Scene, module: nn.Module, own: str, rest: str) -> Explanation | None:
    """Explain a part of the model that was converted by itself: all other weights have the dtype that it is given."""
    model, call = scene.model, scene.location
    name = (
        next((n for n, m in model.named_modules() if m is module), "") if model is not None else ""
    )
    if model is None or not name:
        return None
    others = {
        dtype_name(p.dtype)
        for n, p in model.named_parameters()
        if p.is_floating_point() and not n.startswith(f"{name}.")
    }
    if others != {rest}:
        return None
    word = re.escape(name.rpartition(".")[2])
    converted = sources.search(type(model), rf"\b{word}\b.*\.(?:to|double|float|half|bfloat16)\(")
    return Explanation(
        code="dtype-pair",
        summary=f"{name} is {own}, the rest of the model {rest}",
        observed=f"{name} has {own} weights and is given {rest}",
        cause="only a part of the model was converted"
        + (f" on line {converted.line}" if converted is not None else ""),
        because=f"every parameter outside of {name} is {rest}; {scene.said}",
        fix=f"convert the model as a whole, or what goes into {name}{_line(scene)}: x.to({name}.weight.dtype)",
        culprits=(
            Culprit(kind="module", name=name, detail=own, location=converted),
            *scene.call_culprit(),
        ),
        location=converted or call,
    )


def _model_dtype(scene: Scene) -> str:
    if scene.model is None:
        return ""
    counts: dict[str, int] = {}
    for parameter in scene.model.parameters():
        counts[dtype_name(parameter.dtype)] = (
            counts.get(dtype_name(parameter.dtype), 0) + parameter.numel()
        )
    return max(counts, key=lambda name: counts[name]) if counts else ""


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
    maker = _maker(target, held) if not source else None
    made_at = maker.location if maker is not None else None
    shown = f"{source or 'a tensor'} {held}" + (f" {list(target.shape)}" if target else "")
    line = f" on line {made_at.line}" if made_at is not None else ""
    kind = "complex" if result.startswith("complex") else "floating-point"
    fixes = [f"call .to(torch.{result}) on {source or 'it'} first{_line(scene)}"]
    if maker is not None and made_at is not None and maker.name in _FACTORIES - _CONVERSIONS:
        fixes.insert(0, f"give {maker.name} a {kind} dtype{line}")
    else:
        fixes.append("write to a new tensor instead of in place")
    return Explanation(
        code="dtype-pair",
        summary=f"{scene.at}: {word} gives {result}, and is to write it into {_a(held)} tensor",
        observed=shown,
        cause=f"{source or 'the tensor'} holds {held}, which has no place for {kind} numbers"
        + (f"; {maker.name}{line} makes it" if maker is not None and line else ""),
        because=scene.said,
        fix=", or ".join(fixes),
        culprits=(*scene.blame(f"{word} of {held}"), *made_culprit(scene, target)),
        location=scene.location,
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
        cause = f"torch has no {got} kernel of {word}{where}"
        fix = f"call .float() on its input and convert the result back{_line(scene)}, or leave {got} out of dtypes="
    elif got == "bool" and "argm" in word:
        cause = f"{word} compares numbers, and bool tensors hold none"
        fix = f"call .int() on {source or 'its input'}{_line(scene)}"
    elif got == "bool":
        cause = "arithmetic is not defined for bool tensors"
        fix = f"use ~mask, ^ or .float(){_line(scene)}"
    elif got.startswith("complex"):
        cause = f"{source or 'its input'} holds {got}, and {word} is defined for real numbers only"
        fix = f"take .abs(), .real or torch.view_as_real of {source or 'its input'}{_line(scene)}"
    elif got == "float32":
        cause = f"{source or 'its input'} holds {got}, and {word} takes whole numbers"
        fix = f"call .long() on {source or 'its input'}{_line(scene)}"
    elif got == "float64":
        cause = f"torch has no {got} kernel of {word}{where}"
        fix = f"call .float() on {source or 'its input'}{_line(scene)}"
    else:
        cause = f"{source or 'its input'} holds {got}, and {word} needs floating-point numbers"
        fix = f"call .float() on {source or 'its input'}{_line(scene)}"
    return Explanation(
        code="kernel-missing",
        summary=f"{scene.at}: {word} is not implemented for {got}",
        observed=f"{source or 'input'} {got}{shown}{where}",
        cause=cause,
        because=scene.said,
        fix=fix,
        culprits=(*scene.blame(f"{word} of {got}"), *made_culprit(scene, odd)),
        location=scene.location,
    )


@entry(r"masked_fill_? only supports boolean masks, but got (?:mask with )?dtype (\w+)",
       r"only supports boolean masks.*?(\w+)$",
       r"Expected attn_mask dtype to be bool or .{0,200}got attn_mask\.dtype: (.{1,60}?) and",
       r"Expected attn_mask dtype to be bool or .*got.*?(\w+)",
       r"where expected condition to be a boolean tensor, but got a tensor with dtype (\w+)",
       r"masked_select: expected BoolTensor for mask()")  # fmt: skip
def mask_dtype(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A mask that is no bool tensor."""
    facts = scene.failing_op.inputs if scene.failing_op is not None else ()
    got = dtype_word(match[1]) or next((f.dtype for f in facts[1:]), "no bool tensor")
    odd = next((f for f in reversed(facts) if f.dtype == got and named_source(f)), None)
    odd = odd or next((f for f in reversed(facts) if f.dtype == got), None)
    source = named_source(odd)
    return Explanation(
        code="mask-dtype",
        summary=f"{scene.at}: the mask {source + ' ' if source else ''}is {got}, and must be bool",
        observed=f"mask {got}",
        cause=f"{source or 'the mask'} holds numbers instead of True and False",
        because=scene.said,
        fix=f"write mask.bool() (or mask == 0){_line(scene)}",
        culprits=(*scene.blame(), *made_culprit(scene, odd)),
        location=scene.location,
    )


@entry(r"Only Tensors of floating point and complex dtype can require gradients")
def integer_gradient(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """requires_grad on an integer tensor."""
    data = scene.argument("data")
    return Explanation(
        code="integer-gradient",
        summary=f"{scene.at}: an integer tensor is to require a gradient",
        observed=describe(data) if data is not None else scene.values(),
        cause="gradients exist for floating-point and complex numbers only",
        because=scene.said,
        fix=f"make it a float tensor, or a buffer (register_buffer) if it is not trained{_line(scene)}",
        culprits=scene.blame(),
        location=scene.location,
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
    line = f" on line {made.line}" if made is not None else ""
    return Explanation(
        code="float16-gradients",
        summary=f"the scaler cannot unscale the gradients of {shown}: the weights are float16",
        observed=f"{len(held)} of {total} parameters of the optimizer are float16",
        cause="the weights themselves are float16, so that their gradients are, too; a scaler needs float32 ones"
        + (f"; the only conversion to float16 that was found is{line}" if made is not None else ""),
        because=scene.said,
        fix=(f"keep the weights in float32{f', without the conversion{line}' if made else ''}, "
            "and let torch.autocast compute in float16"),
        culprits=(
            *((Culprit(kind="call", name=made.text, detail="converts to float16", location=made),) if made else ()),
            Culprit(kind="call", name="unscale_", detail="refuses float16 gradients", location=place),
            *(Culprit(kind="parameter", name=name, detail="float16") for name in names[:4]),
        ),
        location=made or place,
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
