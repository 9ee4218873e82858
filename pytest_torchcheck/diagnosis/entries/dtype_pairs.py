"""Two dtypes in one operation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import nn

from ... import sources
from ...explanation import Explanation, dtype_name, dtype_word, on_line
from ...findings import Culprit, Location
from ...sources import edits
from ..crashes.layers import named_source
from ..crashes.table import entry

if TYPE_CHECKING:
    from ..crashes.history import Fact, Op
    from ..crashes.scene import Scene


_WORD = r"([A-Za-z][\w:. ]{0,40}?)"


FACTORIES = frozenset(
    {"zeros", "ones", "empty", "full", "arange", "linspace", "tensor", "as_tensor", "from_numpy", "eye", "rand",
     "randn", "new_zeros", "new_ones", "new_full", "new_tensor", "double", "float", "half", "bfloat16", "to",
     "one_hot", "scalar_tensor", "hann_window", "logspace"}
)  # fmt: skip


CONVERSIONS = frozenset({"double", "float", "half", "bfloat16", "long", "int"})


def maker_of(fact: Fact | None, dtype: str) -> Op | None:
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
    words = [word for word in map(dtype_word, filter(None, match.groups())) if hasattr(torch, word)]
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
        where = f"{scene.at} has {want} weights and receives {got} {list(given.shape)}"
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
    maker = maker_of(odd, got)
    made_at = maker.location if maker is not None else None
    source = _input_like(source, scene, got, given)
    who = source or (f"the result of {maker.name}" if maker is not None else "one operand")
    culprits = scene.blame(f"{want} against {got}")
    location, because = place, scene.said
    fix = _conversion(want, source, scene)
    if source and source in scene.inputs:
        culprits, because, cause, fix = _input_cause(source, got, culprits, scene, want, fix)
    elif maker is not None and made_at is not None:
        cause, because, location, fix, culprits = _maker_cause(
            maker, made_at, got, scene, culprits, place, want
        )
    else:
        cause = _plain_cause(who, got, want)
    return scene.explain(
        code="dtype-pair",
        summary=where,
        observed=", ".join(
            f"{fact.name or 'tensor'} {fact.dtype} {list(fact.shape)}" for fact in facts[:4]
        )
        or where,
        cause=cause,
        because=because,
        fix=fix,
        culprits=(*culprits, *_handed_on(scene, location)),
        location=location,
    )


def _handed_on(scene: Scene, place: Location | None) -> list[Culprit]:
    """Return the lines of the forwards that were running: where the value can be converted on its way."""
    running = [
        sources.of_line(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in scene.frames
        if frame.f_code.co_name == "forward" and sources.rank(frame.f_code.co_filename) == 2
    ]
    return [Culprit("call", at.function, "hands it on", at) for at in running[-2:] if at != place]


def _conversion(want: str, source: str, scene: Scene) -> str:
    """Say which operand to convert."""
    return f"call .to({want}) on {source or 'that operand'}{scene.on_line}".replace(
        ".to(", ".to(torch."
    )


def _plain_cause(who: str, got: str, want: str) -> str:
    """Say which dtype is given where another one is needed."""
    return f"{who} is {got} where {want} is required" + (
        "; NumPy's default dtype is float64" if got == "float64" else ""
    )


def _input_like(source: str, scene: Scene, got: str, given: torch.Tensor | None) -> str:
    """Return the name of the input with this dtype and shape, where there is one."""
    if not source:
        source = next(
            (
                k
                for k, v in scene.inputs.items()
                if dtype_name(v.dtype) == got and given is not None and v.shape == given.shape
            ),
            "",
        )
    return source


def _input_cause(
    source: str, got: str, culprits: tuple[Culprit, ...], scene: Scene, want: str, fix: str
) -> tuple[tuple[Culprit, ...], str, str, str]:
    """Return why an input has another dtype, and where to convert it."""
    culprits = (Culprit("input", source, got), *culprits)
    because = f"{source} is {got} when the model is called; {scene.said}"
    if got == "float64":
        cause = f"{source} is float64, NumPy's default dtype, and the model is {want}"
        fix = (
            f"convert {source} where the data is read: torch.from_numpy(a).float(), or "
            "a.astype('float32')"
        )
    elif got.startswith(("int", "uint", "bool")):
        cause = f"{source} holds {got}, and {scene.at} computes with {want}"
        fix = f"convert {source} where the data is read: .float()" + (
            " / 255" if got == "uint8" else ""
        )
    else:
        cause = f"{source} is {got}, the model {want}"
        fix = f"convert {source} to the model's dtype, or the model to {got}"
        if want in ("bfloat16", "float16", "float64"):
            fix = (
                f"give {source} in {want}: Floats(..., dtype=torch.{want}), which a spec without a dtype "
                f"does by itself; {source}.to(torch.{want}) in a batch of your own"
            )
    return culprits, because, cause, fix


def _maker_cause(
    maker: Op,
    made_at: Location,
    got: str,
    scene: Scene,
    culprits: tuple[Culprit, ...],
    place: Location | None,
    want: str,
) -> tuple[str, str, Location, str, tuple[Culprit, ...]]:
    """Return why a call makes another dtype, and what to write on its line."""
    created = maker.name in FACTORIES - CONVERSIONS
    same = _dtype_at(scene, made_at)
    like = f"dtype={same}" if same else ""
    cause = f"{maker.name} on line {made_at.line} creates {with_article(got)} tensor" + (
        ", regardless of the model's dtype" if created else ""
    )
    because = f"the history of the {got} operand begins with {maker.name}; {scene.said}"
    location = made_at
    fix = (
        f"give {maker.name} {like or 'the dtype of the data'} on line {made_at.line}"
        if created
        else f"write .to({same}) for .{maker.name}() on line {made_at.line}"
        if maker.name in CONVERSIONS and same
        else (
            "convert its result to the dtype of the "
            f"model{f' with .to({same})' if same else ''} on line {made_at.line}"
        )
    )
    name = made_at.function.rpartition("<locals>.")[2] or maker.name
    culprits = (
        Culprit("call", name, f"{maker.name} creates {got}", made_at),
        *culprits,
        *(meeting := scene.meeting(made_at)),
    )
    if meeting and place is not None:
        fix += f", or convert it where it is combined with {want}, on line {place.line}"
    return cause, because, location, fix, culprits


def _dtype_at(scene: Scene, place: Location) -> str:
    """Return what a line may call the dtype of activations: a tensor's, else that of the layer that takes them."""
    same = edits.like_tensor(place, "dtype")
    ran = (place.file, place.function)
    frames = (frame for frame, _ in reversed(scene.frames))
    frame = next((f for f in frames if (f.f_code.co_filename, f.f_code.co_qualname) == ran), None)
    known = scene.inputs if frame is None else frame.f_locals
    value = known.get(same.partition(".")[0])
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point:
        return same
    owner = None if frame is None else frame.f_locals.get("self")
    if isinstance(owner, nn.Module) and isinstance(
        scene.module, nn.Linear | nn.modules.conv._ConvNd
    ):
        for name, module in owner.named_modules():
            if name and module is scene.module:
                return f"{edits.submodule(owner, name)}.weight.dtype"
    return ""


def with_article(dtype: str) -> str:
    """Return a dtype with its article."""
    return f"an {dtype}" if dtype.startswith("int") else f"a {dtype}"


def made_culprit(scene: Scene, fact: Fact | None) -> tuple[Culprit, ...]:
    """Return the line, other than the failing one, on which an operand got its dtype, as a culprit."""
    maker = maker_of(fact, fact.dtype) if fact is not None and not named_source(fact) else None
    place = maker.location if maker is not None else None
    if fact is None or maker is None or place is None or not scene.meeting(place):
        return ()
    return (Culprit("call", maker.name, f"gives {fact.dtype}", place),)


def _part_apart(scene: Scene, module: nn.Module, own: str, rest: str) -> Explanation | None:
    """Explain a part of the model that was converted by itself: all other weights have the dtype that it is given."""
    model, _call = scene.model, scene.location
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
    return scene.explain(
        code="dtype-pair",
        summary=f"{name} is {own}, the rest of the model {rest}",
        observed=f"{name} has {own} weights and receives {rest}",
        cause="only a part of the model was converted" + on_line(converted),
        because=f"every parameter outside {name} is {rest}; {scene.said}",
        fix=(
            f"convert the model as a whole, or its input {name}{scene.on_line}: "
            f"x.to({name}.weight.dtype)"
        ),
        culprits=(
            Culprit("module", name, own, converted),
            *scene.call_culprit(),
        ),
        location=converted,
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
