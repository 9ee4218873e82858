"""Where the gradient of a parameter is lost: the operation, the user's line, and the measured fact."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ... import sources
from ...lean import dataclass
from ..recorded.flow import CutKind, Flow, Loss
from ..recorded.operations import gradients_kept, record_step
from ..recorded.recording import DERIVATIVE, SWITCHES, Recorder
from ..recorded.unread import Returned
from ..recorded.watch import Op, describe
from .zeros import ZeroGradient, find_zero_gradient, find_zero_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.autograd.graph import Node

    from ...findings import Location
    from ..recorded.values import Call, Value

__all__ = [
    "CutKind",
    "GraphCut",
    "ZeroGradient",
    "find_cut",
    "find_stops",
    "find_zero_gradient",
    "find_zero_gradients",
]

_OUTSIDE = ("item", "numpy", "recreated")
"""Ways of values out of torch and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCut:
    """The place at which parameters lose their gradient.

    Attributes:
        kind: See :data:`CutKind`.
        parameters: Every examined parameter that is lost here.
        op: The operation; None where none is at fault (``never-used``, some ``frozen``).
        location: The user's line of the operation, or the line that builds what is never used; for
            ``not-reaching-loss`` the line of the call that gave the result back, where one did.
        region: For ``no-grad`` the line that turned gradients off: the ``with`` or the decorator.
        module: Qualified name of the module in whose forward it happens.
        fact: What was measured, as a clause: ``Tensor.detach took ... with grad_fn=X and gave ...``.
        losing: Lines of calls that got back nothing with a graph from the function in which it
            happens, the outermost first.
        rivals: Other operations that also lose it on the way to the loss, the likeliest first.
    """

    kind: CutKind
    parameters: tuple[str, ...]
    op: Op | None = None
    location: Location | None = None
    region: Location | None = None
    module: str = ""
    fact: str = ""
    losing: tuple[Location, ...] = ()
    rivals: tuple[Op, ...] = ()


def find_cut(
    run: Callable[[], object], module: nn.Module, parameters: Mapping[str, nn.Parameter]
) -> dict[str, GraphCut]:
    """Find why parameters get no gradient from what ``run`` returns.

    Args:
        run: One forward that returns the loss (or any nest of tensors, which are summed), with or
            without its backward. An error of ``run`` passes through, except that of a ``backward``
            from a tensor that has no graph: then that tensor is the loss.
        module: The model; names modules and gives the lines that build parameters.
        parameters: The parameters to examine, by qualified name.

    Returns:
        The cut of each parameter that got no gradient, by name; parameters lost at the same place
        share one object. Gradients of the module are put back. Cost: one recorded step; holds the
        activations of that step while it runs.
    """
    recorder = Recorder(module, parameters, gradients=True)
    returned = Returned(recorder)
    try:
        with gradients_kept([*parameters.values(), *module.parameters()]):
            roots = record_step(returned.watching(run), recorder)
            without = {name for name, p in parameters.items() if p.grad is None}
        flow = Flow(recorder, parameters, roots)
        # a step that ends in zero_grad leaves no gradient, yet one came
        without -= {name for name, value in flow.values.items() if value.rms is not None}
        cuts = {name: _cut_of(flow, name, returned) for name in parameters if name in without}
        known = {name: _called(cut, returned) for name, cut in cuts.items() if cut is not None}
        return _shared(known, module)
    finally:
        recorder.release()
        returned.release()


def find_stops(
    run: Callable[[], object], module: nn.Module, *, numbers: bool = False
) -> tuple[GraphCut, ...]:
    """Find every operation that loses some parameter's gradient on its way to the loss.

    Unlike :func:`find_cut` this also lists those of parameters that get a gradient by another way,
    such as ``torch.normal(mu, std)`` beside a KL term. Many are legitimate (a stop-gradient, an
    argmax); the caller decides. Arguments and cost as for :func:`find_cut`.

    Args:
        run: One forward that returns the loss.
        module: The model.
        numbers: Also list what leaves torch as a Python number or a NumPy array and comes back.
    """
    recorder = Recorder(module)
    try:
        parameters = dict(module.named_parameters())
        with gradients_kept(parameters.values()):
            roots = record_step(run, recorder, backward=False)
        flow = Flow(recorder, parameters, roots)
        stops = []
        for loss in (*flow.losses, *flow.zero_by_definition()):
            used = loss.value is not None and loss.value in flow.behind_loss
            if numbers and not used and flow.kind_of(loss) in _OUTSIDE:
                used = flow.proven(loss) or flow.comes_back(loss)
            if used and not loss.call.shape_only:
                names = tuple(n for n, bit in flow.bits.items() if loss.bits & bit)
                stops.append(_cut(flow, loss, names))
        return tuple(stops)
    finally:
        recorder.release()


def _cut_of(flow: Flow, name: str, returned: Returned) -> GraphCut | None:
    """Explain why one parameter got no gradient."""
    bit, value = flow.bits[name], flow.values[name]
    if not value.tensor.requires_grad or not value.nodes:
        return _frozen(flow, name)
    readers = [c for c in value.consumers if not c.shape_only and c.op.name not in SWITCHES]
    if not readers:
        return GraphCut(
            kind="never-used", parameters=(name,), fact="no operation of the run read it"
        )
    if _is_read_frozen(flow, name):
        return _frozen(flow, name)
    if any(flow.live(v) & bit for v in flow.behind_loss if v.maker and v is not value):
        connected = _backward_none(flow, name)
        if connected is not None:
            return connected
    candidates = flow.candidates(bit)
    if candidates:
        cut = _cut(flow, candidates[0], (name,))
        rivals = dict.fromkeys(loss.call.op for loss in candidates if flow.proven(loss))
        return replace(cut, rivals=tuple(op for op in rivals if op is not candidates[0].call.op))
    losses = [loss for loss in flow.losses if loss.bits & bit]
    for loss in losses:
        if loss.call.shape_only and loss.value in flow.behind_loss:
            return _cut(flow, loss, (name,))
    return _unused_result(flow, name, losses, returned)


_BY_A_LINE = ("detach", "data", "item", "numpy", "no-grad", "recreated")


def _called(cut: GraphCut, returned: Returned) -> GraphCut:
    """Add the calls of the function in which a line cuts the graph."""
    place = cut.region or (cut.op.location if cut.op is not None else None)
    if cut.kind not in _BY_A_LINE or place is None:
        return cut
    return replace(cut, losing=returned.losing(place))


def _cut(flow: Flow, loss: Loss, names: tuple[str, ...]) -> GraphCut:
    """State a candidate as a result."""
    call = loss.call
    kind = flow.kind_of(loss)
    op = replace(call.op, name=call.sampler) if call.sampler else call.op
    taken = next(
        (
            _described(flow, value, node)
            for value, node in zip(call.inputs, call.nodes, strict=False)
            if flow.reach(node) & loss.bits
        ),
        "a live tensor",
    )
    if loss.value is None:
        given = f"a Python {type(call.left).__name__}"
    elif flow.live(loss.value) & loss.bits:
        given = f"{describe(loss.value.tensor)} whose gradient is zero by definition"
    else:
        given = f"{describe(loss.value.tensor)} with {_grad_fn(loss.value, None)}"
    fact = f"{op.name} took {taken} and gave {given}"
    gone = flow.exit_after(loss)
    if gone is not None and gone is not call and kind in ("numpy", "item"):
        fact += f", which left torch through {gone.op.name}"
    if kind == "no-grad":
        fact += "; gradients were off"
    return GraphCut(
        kind=kind,
        parameters=names,
        op=op,
        location=op.location,
        region=call.region if kind == "no-grad" else None,
        module=op.module,
        fact=fact,
    )


def _described(flow: Flow, value: Value, node: Node | None) -> str:
    """Describe an operand, by its name where it is a parameter."""
    name = next((n for n, known in flow.values.items() if known is value), None)
    prefix = f"{name}, " if name is not None else ""
    return f"{prefix}{describe(value.tensor)} with {_grad_fn(value, node)}"


def _frozen(flow: Flow, name: str) -> GraphCut:
    switched = [call for call in _of(flow, name) if call.op.name in SWITCHES]
    op = ([c for c in switched if _is_off(c)] or switched)[-1].op if switched else None
    again = op is not None and flow.values[name].tensor.requires_grad
    return GraphCut(
        kind="frozen",
        parameters=(name,),
        op=op,
        location=op.location if op else None,
        module=op.module if op else "",
        fact="requires_grad is False"
        + (" where it is read, and True again afterwards" if again else ""),
    )


def _of(flow: Flow, name: str) -> list[Call]:
    """Return the calls that a parameter was given to, in order."""
    return [call for call in flow.recorder.calls if flow.values[name] in call.inputs]


def _is_off(call: Call) -> bool:
    return False in (*call.args[1:2], call.kwargs.get("requires_grad"))


def _is_read_frozen(flow: Flow, name: str) -> bool:
    """Say whether a parameter that requires a gradient is read only where it is switched off."""
    off, read = False, False
    for call in _of(flow, name):
        if call.op.name in SWITCHES:
            off = _is_off(call)
        elif not call.shape_only:
            if not off:
                return False
            read = True
    return read


def _backward_none(flow: Flow, name: str) -> GraphCut | None:
    stopped = flow.ahead.stopped(flow.values[name])
    if stopped is None or stopped.value.rms is not None:
        return None
    if all(value.tensor.is_leaf for value in stopped.call.outputs):
        return None  # what it gave was made to require a gradient afterwards: it has no backward
    op = stopped.call.op
    fact = f"{op.name} got a gradient with rms {stopped.reached:.3g} and its backward returned None"
    derived = op.name == DERIVATIVE
    if derived:
        fact = f"the backward of what {op.name} gave reached other parameters, and this one not"
    return GraphCut(
        kind="differentiated" if derived else "backward-none",
        parameters=(name,),
        op=op,
        location=op.location,
        module=op.module,
        fact=fact,
    )


def _unused_result(flow: Flow, name: str, losses: list[Loss], returned: Returned) -> GraphCut:
    bit = flow.bits[name]
    makers = [
        (value.maker, value)
        for call in flow.recorder.calls
        for value in call.outputs
        if value.maker is not None and flow.live(value) & bit
    ]
    if not makers:  # read only where nothing can follow, and for no visible purpose
        call = losses[0].call if losses else flow.values[name].consumers[0]
        loss = losses[0] if losses else Loss(call, None, bit)
        return _cut(flow, loss, (name,))
    call, value = max(makers, key=lambda pair: pair[0].op.index)
    count = len({id(v.maker) for v in flow.behind_loss if v.maker is not None})
    fact = (
        f"the last of its results, {describe(value.tensor)} of {call.op.name} with "
        f"{_grad_fn(value, None)}, feeds none of the {count} operations behind the loss"
    )
    line = returned.line(value, call)
    if line is not None and line != call.op.location:
        fact += f"; line {line.line} gets it back, and nothing that reaches the loss reads it"
    return GraphCut(
        kind="not-reaching-loss",
        parameters=(name,),
        op=call.op,
        location=line or call.op.location,
        module=call.op.module,
        fact=fact,
    )


def _grad_fn(value: Value, node: Node | None) -> str:
    node = node or (value.nodes[-1] if value.nodes else None)
    if node is None:
        return "grad_fn=None"
    name = node.name()
    return "requires_grad=True" if name.endswith("AccumulateGrad") else f"grad_fn={name}"


def _shared(cuts: Mapping[str, GraphCut], module: nn.Module) -> dict[str, GraphCut]:
    """Give parameters that are lost at one place one object, and unused ones the line that builds them."""
    places: dict[object, list[str]] = {}
    lines: dict[str, Location | None] = {}
    for name, cut in cuts.items():
        lines[name] = cut.location or (
            sources.of_parameter(module, name) if cut.op is None else None
        )
        place = (cut.kind, cut.op.index if cut.op else lines[name] or name)
        places.setdefault(place, []).append(name)
    shared: dict[str, GraphCut] = {}
    for names in places.values():
        first = cuts[names[0]]
        one = replace(first, parameters=tuple(names), location=lines[names[0]])
        shared.update(dict.fromkeys(names, one))
    return {name: shared[name] for name in cuts}
