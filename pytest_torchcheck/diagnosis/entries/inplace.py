"""Tensors changed in place that autograd still needs, or that may not be changed."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ... import sources
from ...explanation import Explanation, numbers, on_line
from ...findings import Culprit, Location
from ...record.tracing import find_line, line_giving
from ..crashes.inference_tensors import made_in_inference
from ..crashes.table import entry
from ..lines.layer_sizes import building_line

if TYPE_CHECKING:
    from types import FrameType

    from ..crashes.history import Fact, Op, Replay
    from ..crashes.inference_tensors import Inference
    from ..crashes.scene import Scene

_OPERATORS = {"__iadd__": "+=", "__isub__": "-=", "__imul__": "*=", "__itruediv__": "/=", "__idiv__": "/=",
              "__setitem__": "an indexed assignment", "add_": "add_ (or +=)", "sub_": "sub_ (or -=)",
              "mul_": "mul_ (or *=)", "div_": "div_ (or /=)"}  # fmt: skip


def _word(op: Op) -> str:
    if any(
        "inplace=True" in text or text == "True" for text in op.arguments
    ) and not op.name.endswith("_"):
        return f"{op.name}(inplace=True)"
    return _OPERATORS.get(op.name, op.name)


def _in_words(op: Op) -> str:
    """Return the edit that makes an op leave its input alone."""
    place = op.location
    line = on_line(place)
    if "inplace" in _word(op):
        return f"write inplace=False{line}"
    new, name = _out_of_place(place.text if place else "")
    if new:
        return f"make a new tensor{line}: {new}"
    if op.name == "__setitem__":
        copy = f"{name} = {name}.clone() first" if name else "clone it first"
        return f"change a copy ({copy}), or use torch.where{line}"
    what = op.name.strip("_").removeprefix("i") if op.name.startswith("__") else op.name.rstrip("_")
    return f"use {what}{line} so that it returns a new tensor, not in place"


def _out_of_place(text: str) -> tuple[str, str]:
    """Return the assignment that does the same as a line without writing to what it changes, and what it writes to."""
    try:
        body = ast.parse(text.strip()).body
    except SyntaxError:
        return "", ""
    found = [made for made in map(_rewritten, body) if any(made)]
    return found[0] if len(found) == 1 else ("", "")


def _rewritten(node: ast.stmt) -> tuple[str, str]:
    """Return the same of one statement; empty where it writes to nothing."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return "", ast.unparse(node.targets[0].value)
    if isinstance(node, ast.AugAssign):
        if isinstance(node.target, ast.Subscript):
            return "", ast.unparse(node.target.value)
        name, value = ast.unparse(node.target), ast.BinOp(node.target, node.op, node.value)
        return f"{name} = {ast.unparse(value)}", name
    call = node.value if isinstance(node, ast.Expr | ast.Assign | ast.Return) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return "", ""
    method, name = call.func.attr, ast.unparse(call.func.value)
    if not method.endswith("_") or method.endswith("__"):
        return "", ""
    call.func.attr = method.rstrip("_")
    if not isinstance(node, ast.Expr):
        return ast.unparse(node), name
    named = isinstance(call.func.value, ast.Name | ast.Attribute)
    return (f"{name} = {ast.unparse(call)}" if named else ""), name


def _changer(
    again: Replay, node: str, shape: tuple[int, ...], expected: int
) -> tuple[Op, Fact] | None:
    """Return the op that changed the tensor of the message, by its node, shape and count of versions."""
    changes = [(op, fact) for op in again.ops for fact in op.changed]
    exact = [c for c in changes if c[1].shape == shape and node and c[1].grad_fn.startswith(node)]
    leaf = [c for c in changes if c[1].shape == shape and not c[1].grad_fn]
    same_shape = [c for c in changes if c[1].shape == shape]
    memory = {
        f.storage
        for op in again.ops
        for f in op.outputs
        if f.shape == shape and f.grad_fn.startswith(node or " ")
    }
    shared = [c for c in changes if c[1].storage and c[1].storage in memory]
    # a parameter or its transpose, before what an optimizer keeps of the same shape
    parameters = [c for c in leaf if c[1].name]
    transposed = [c for c in changes if c[1].name and c[1].shape == shape[::-1]]
    for group in (exact, shared, parameters, transposed, leaf, same_shape):
        if not group:
            continue
        storage = group[0][1].storage
        on_it = [c for c in changes if c[1].storage == storage] if storage else group
        # versions count every change; the first one past the version that was saved is the culprit
        return on_it[expected] if expected < len(on_it) else on_it[-1]
    return None


def _alike(again: Replay, name: str) -> list[str]:
    """Return the other parameters of the same sizes that something changes in place."""
    facts = {fact.name: fact.shape for op in again.ops for fact in op.changed if fact.name}
    return [other for other in facts if other != name and facts[other] == facts.get(name)]


@entry(
    r"one of the variables needed for gradient computation has been modified by an inplace operation: "
    r"\[torch\.(?:cuda\.)?(\w+)Tensor \[([\d, ]*)\]\](?:, which is output \d+ of (\w+))?(?:, )?.*?is at version (\d+); expected version (\d+)"
)
def saved(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A tensor that backward needs was changed after it was saved."""
    shape, node, version, expected = numbers(match[2]), match[3] or "", int(match[4]), int(match[5])
    maker = re.sub(r"Backward\d*$", "", node)
    what = f"the output of {maker}" if maker else "a tensor"
    observed = f"{what} {list(shape)} is at version {version}, backward needs version {expected}"
    again = scene.replay(anomaly=True)
    found = _changer(again, node, shape, expected) if again is not None else None
    saver = again.saved_at if again is not None else None
    saving = re.sub(r"Backward\d*$", "", again.failed_node) if again is not None else ""
    if found is None:
        return _unknown_change(scene, what, shape, observed, saver)
    op, fact = found
    place = op.location
    name = fact.name
    holder = (place.function.rpartition("<locals>.")[2] if place else "") or op.module or op.name
    where = op.module if op.module and op.module != holder else ""
    target = name or (f"the output of {maker}" if maker else f"a tensor {list(shape)}")
    line = on_line(place)
    # the flag of a module is changed where the module is built
    built = building_line(scene.model, op.module) if op.module and "inplace" in _word(op) else None
    needed = (
        f"{saving or 'backward'} on line {saver.line} ({saver.text}) needs its old value"
        if saver
        else "backward needs its old value"
    )
    module = op.module
    culprits = _change_culprits(module, op, scene, holder, target, place, saver)
    alike = _alike(again, name) if again is not None else []
    stepped = place is not None and ".step(" in place.text
    early = _computed_early(scene, saver, place) if name and stepped else None
    if name and stepped:
        target, culprits, cause, fix = _stepped_over(
            alike, name, scene, saver, place, culprits, target, line, early
        )
    else:
        cause = f"{_word(op)}{line} overwrites {target}, and {needed}"
        fix = f"write inplace=False on line {built.line}" if built else _in_words(op)
    return scene.explain(
        code="inplace-saved",
        summary=f"optimizer.step() changes {target} before backward needs it"
        if name and stepped
        else (
            f"{holder}{f' ({where})' if where else ''} modifies {target} in place ({_word(op)}) "
            "before backward needs it"
        ),
        observed=observed,
        cause=cause,
        because=f"in a second run {_word(op)}{line} took it from version {expected} to {expected + 1}"
        + (f", and {saving} saved it on line {saver.line}" if saver and saving else ""),
        fix=fix,
        culprits=culprits,
        location=built or early or place,
    )


def _computed_early(scene: Scene, saver: Location | None, step: Location | None) -> Location | None:
    """Return the statement that computes, forward included, the loss that the failing line differentiates.

    It can be moved behind the step by itself; of a loss that shares its forward with others, or that
    is used before the step, it is the step that comes too early.
    """
    failing, frame = scene.location, scene.frame
    call = sources.statement(failing.file, failing.line) if failing is not None else None
    value = getattr(call, "value", None)
    called = value.func if isinstance(value, ast.Call) else None
    if scene.rerun is None or frame is None or saver is None or called is None:
        return None
    if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)):
        return None
    name, code = called.value.id, frame.f_code
    ran: set[int] = set()

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if (frame.f_code.co_filename, line) == (saver.file, saver.line):
            caller: FrameType | None = frame
            while caller is not None and caller.f_code is not code:
                caller = caller.f_back
            if caller is not None:
                ran.add(line if caller is frame else caller.f_lineno)
        return False

    find_line(scene.rerun, watcher)
    place = line_giving(scene.rerun, code, name) if ran else None
    if place is None or place.line not in ran or step is None or step.file != place.file:
        return None
    used = any(
        isinstance(node, ast.Name) and node.id == name and place.line < node.lineno <= step.line
        for node in sources.nodes(place.file)
    )
    return None if used else place


def _stepped_over(
    alike: list[str],
    name: str,
    scene: Scene,
    saver: Location | None,
    place: Location | None,
    culprits: tuple[Culprit, ...],
    target: str,
    line: str,
    early: Location | None,
) -> tuple[str, tuple[Culprit, ...], str, str]:
    """Explain a parameter that the optimizer changes before a later backward."""
    if alike:  # which of them it was, the message does not tell
        target = f"{name} or {alike[0]}"
    failing = scene.location
    if failing is not None and failing != saver and failing != place:
        culprits += (Culprit("call", failing.text, "needs the old value", failing),)
    cause = f"{target} is changed by the optimizer{line} between forward and backward"
    fix = f"call step(){line} after every backward that uses {target}"
    if failing is not None and place is not None and failing.file == place.file:
        fix = (
            f"move step(){line} after the backward on line {failing.line}, or compute again "
            f"after line {place.line} what line {failing.line} differentiates"
        )
        if early is not None:
            fix = f"move line {early.line} behind line {place.line}, so that it computes with the new weights; "
            fix += f"or step(){line} after the backward on line {failing.line}"
            cause = f"{early.text.partition('=')[0].strip()} is computed on line {early.line}, before the "
            cause += f"optimizer changes {target}{line}, and differentiated after it, on line {failing.line}"
    return target, culprits, cause, fix


def _unknown_change(
    scene: Scene, what: str, shape: tuple[int, ...], observed: str, saver: Location | None
) -> Explanation | None:
    """Explain a change that a second run does not show."""
    inplace = (
        [name for name, m in scene.model.named_modules() if getattr(m, "inplace", False)]
        if scene.model
        else []
    )
    hint = f"; built with inplace=True: {', '.join(inplace[:3])}" if inplace else ""
    return scene.explain(
        code="inplace-saved",
        summary=f"{what} {list(shape)} is modified in place before backward needs it",
        observed=observed + hint,
        cause="an in-place operation overwrites a value that backward needs",
        because=scene.said.split(" Hint:")[0],
        fix="replace the in-place operation on it by one that returns a new tensor"
        + (f" (line {saver.line} is where backward needs it)" if saver else ""),
        culprits=tuple(
            Culprit("module", n, "inplace=True", building_line(scene.model, n)) for n in inplace[:3]
        )
        or scene.blame(),
        location=saver,
    )


def _change_culprits(
    module: str,
    op: Op,
    scene: Scene,
    holder: str,
    target: str,
    place: Location | None,
    saver: Location | None,
) -> tuple[Culprit, ...]:
    """Return the module, the change and the call that saved the tensor."""
    culprits: tuple[Culprit, ...] = ()
    if module and "inplace" in _word(op):
        culprits += (Culprit("module", module, "inplace=True", building_line(scene.model, module)),)
    culprits += (Culprit("call", holder, f"{_word(op)} changes {target}", place),)
    if saver is not None and (
        place is None or saver.line != place.line or saver.file != place.file
    ):
        culprits += (
            Culprit(
                "call",
                saver.function.rpartition("<locals>.")[2] or saver.text,
                "saved the tensor",
                saver,
            ),
        )
    return culprits


@entry(r"a (view of a )?leaf Variable that requires grad is being used in an in-place operation")
def leaf(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A parameter, or an input that requires a gradient, changed in place outside no_grad."""
    op = scene.failing_op
    fact = op.inputs[0] if op is not None and op.inputs else None
    name = fact.name if fact is not None and fact.name else ""
    name = name or (_leaf_name(fact) if fact is not None else "")
    place = scene.location
    line = on_line(place)
    view = "a view of " if match[1] else ""
    return scene.explain(
        code="inplace-leaf",
        summary=f"{scene.at} changes {view}{name or 'a leaf that requires a gradient'} in place",
        observed=f"{_word(op) if op is not None else 'an in-place operation'} on {name or 'a leaf'}"
        + (f" {list(fact.shape)}" if fact is not None else ""),
        cause="a parameter cannot be modified in place while autograd records",
        fix=(
            f"wrap the change{line} in torch.no_grad() if it is an initialisation or update, "
            "else work on a copy (x = x + ...)"
        ),
        culprits=(*((Culprit("parameter", name),) if name else ()), *scene.blame()),
    )


def _leaf_name(fact: Fact | None) -> str:
    for _ in range(20):
        if fact is None:
            return ""
        if fact.name:
            return fact.name
        fact = fact.made_by.inputs[0] if fact.made_by is not None and fact.made_by.inputs else None
    return ""


@entry(r"Output (\d+) of (\w+) is a view and is being modified inplace",
       r"()more than one element of the written-to tensor refers to a single memory location()",
       r"()[Ii]nplace update to inference tensor outside InferenceMode()")  # fmt: skip
def view(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A tensor that may not be written to: one of several views, an expanded one, an inference tensor."""
    op = scene.failing_op
    fact = op.inputs[0] if op is not None and op.inputs else None
    shown = f" {list(fact.shape)}" if fact is not None else ""
    maker = fact.made_by if fact is not None else None
    made = f", created by {maker.name}" if maker is not None else ""
    made += f" on line {maker.location.line}" if maker is not None and maker.location else ""
    place = scene.location
    line = on_line(place)
    mode: Inference | None = None
    if match[2]:
        cause = (
            f"{re.sub('Backward[0-9]*$', '', match[2])} returns several views of one tensor, "
            "and autograd cannot track an in-place change of one of them"
        )
        code = "inplace-view"
    elif "memory" in match[0]:
        cause = "the tensor is expanded: several of its elements share one memory location"
        code = "inplace-expanded"
    else:
        cause, code = "the tensor was created under inference_mode", "inplace-inference"
        mode = made_in_inference(scene)
        if mode.line is not None:
            cause += f" on line {mode.line.line}"
    return scene.explain(
        code=code,
        summary=f"{scene.at} writes to a tensor{shown} that cannot be modified in place{made}",
        observed=f"{_word(op) if op is not None else 'an in-place operation'} on a "
        f"tensor{shown}{made}",
        cause=cause,
        fix=f"write x = x.clone() before the change{line}, or use an operation that returns a new "
        "tensor",
        culprits=(*scene.blame(), *(mode.culprits if mode is not None else ())),
    )
