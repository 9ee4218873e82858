"""The record of one run: which call made which value from which values, and what autograd kept of it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from ...record.applied import Applied
from ...sources import of_frame
from .values import EXITS, Call, CallKind, Origin, Value
from .watch import Watch, in_backward, name_of, readable, storage_of, tensors_in, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle

    from ...record.applied import Application


SHAPE_OF_SECOND = frozenset(
    f"Tensor.{name}" for name in ("view_as", "expand_as", "reshape_as", "type_as", "to")
)
"""Calls that read the values of their first operand, and of the second one only the shape or dtype."""

DERIVATIVE = "torch.autograd.grad"
"""A first derivative; only with ``create_graph=True`` does it have a graph of its own."""


SWITCHES = frozenset({"Tensor.requires_grad_", "Tensor.requires_grad.__set__"})
"""Calls that make a leaf take a gradient or none; recorded though they make no value."""

IMPORTS = frozenset(
    {
        "torch.tensor",
        "torch.as_tensor",
        "torch.asarray",
        "Tensor.new_tensor",
        "Tensor.__array_wrap__",
    }
)
"""Calls that make a tensor from Python or NumPy data."""

_IGNORED = frozenset(
    f"Tensor.{name}" for name in ("grad", "_base", "register_hook", "__repr__", "__format__")
)
_HERE = os.path.dirname(torch.__file__) + os.sep
_DISTRIBUTIONS = _HERE + "distributions" + os.sep


def _in_transform() -> bool:
    """Say whether a derivative of ``torch.func`` (``grad``, ``vjp``, ``jacrev``, ``jvp``) is being taken."""
    if torch._C._functorch.maybe_current_level() is None:
        return False
    kinds = {each.key() for each in torch._C._functorch.get_interpreter_stack() or ()}
    return bool(kinds & _DERIVATIVES)


_DERIVATIVES = {torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp}


class Recorder(Watch):
    """Records the data flow of one run, and the gradients that reach each value.

    Holds every tensor of the run until :meth:`release`; use it for a single step. What runs inside
    a backward pass is not recorded.

    Args:
        module: Names modules; its parameters and buffers are known beforehand.
        parameters: Parameters by name; those of ``module`` by default.
        gradients: Also measure the gradient of every value by a tensor hook.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        parameters: Mapping[str, Tensor] | None = None,
        *,
        gradients: bool = False,
    ) -> None:
        super().__init__(module)
        self.calls: list[Call] = []
        self.backward_roots: list[Tensor] = []
        self._measure = gradients
        self.differentiating = False
        self._values: dict[int, Value] = {}
        self._by_storage: dict[int, dict[int, Value]] = {}
        self._by_node: dict[Node, Value] = {}
        self._functions: dict[Application, Call] = {}
        self._made_inside: dict[int, Call] = {}
        self._kept: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []
        self._applied = Applied()
        if parameters is None and module is not None:
            parameters = dict(module.named_parameters())
        for tensor in (parameters or {}).values():
            self._value(tensor, "parameter")
        for tensor in module.buffers() if module is not None else ():
            self._value(tensor, "input")

    def __enter__(self) -> Self:
        super().__enter__()
        self._until = sys._getframe(1)
        self._applied.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._applied.__exit__(kind, error, traceback)
        super().__exit__(kind, error, traceback)
        self._functions.clear()

    def release(self) -> None:
        """Let go of every tensor, node and hook of the run."""
        for handle in self._hooks:
            handle.remove()
        for store in (self.calls, self.backward_roots, self._hooks, self._kept):
            store.clear()
        for table in (
            self._values,
            self._by_storage,
            self._by_node,
            self._functions,
            self._made_inside,
        ):
            table.clear()

    def value_of(self, tensor: Tensor) -> Value:
        """Return the value that a tensor holds now, noting the node that it has now."""
        with torch._C.DisableTorchFunction():
            return self._operand(tensor)[0]

    def recorded(self, call: Call) -> None:
        """See a call that was just recorded; its inputs and outputs are linked.

        A custom Function is seen once per output, when that output is first read.
        """

    def seen(self, value: Value) -> None:
        """See a tensor that no call of the run made, when it is first read."""

    # events

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note what the operands are before the call may overwrite them."""
        if in_backward():
            return None
        # what a derivative within the forward sends back is not the loss's gradient
        self.differentiating = name_of(func) == DERIVATIVE
        tensors = list(tensors_in((args, kwargs)))
        return [(t, *self._operand(t), version_of(t)) for t in tensors]

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Record the call when it made, changed or gave away values."""
        if token is not None:
            self.differentiating = False
        if token is None or (name := name_of(func)) in _IGNORED:
            return
        known = {id(tensor) for tensor, *_ in token}
        made = [t for t in tensors_in(result) if id(t) not in known or id(t) not in self._values]
        changed = [t for t, _, _, version in token if version_of(t) != version]
        gone = name in EXITS or name in SWITCHES
        if not made and not changed and not gone:
            return
        if (application := self._applied.outermost) is not None:  # its inside is not the graph's
            self._inside_function(application, token, [*made, *changed])
            return
        if name in SHAPE_OF_SECOND:
            token = token[:1]
        call = Call(
            op=self.op(name),
            kind="op",
            inputs=[value for _, value, _, _ in token],
            nodes=[node for _, _, node, _ in token],
            args=args,
            kwargs=kwargs,
            grad_enabled=torch.is_grad_enabled(),
            region=self.where_gradients_stopped(),
            left=result if name in EXITS else None,
            differentiated=_in_transform(),
        )
        if not call.grad_enabled:
            call.sampler = self._sampler()
        self._link(call, made, changed)

    def backward_called(self, root: Tensor) -> None:
        """Remember the tensor that ``backward`` starts from."""
        if not in_backward():
            self.value_of(root)
            self.backward_roots.append(root)

    def module_entered(self, module: nn.Module, args: Any) -> None:
        """Know the inputs of the outermost module as such."""
        if len(self.scopes) == 1 and not in_backward():
            for tensor in tensors_in(args):
                if id(tensor) not in self._values:
                    self._operand(tensor, "input")

    def module_left(self, module: nn.Module, args: Any, result: Any) -> None:
        """Link outputs that no watched call made, as those of scripted modules."""
        if in_backward():
            return
        made = [t for t in tensors_in(result) if not self._known(t)]
        if made:
            self._step(
                "module", type(module).__name__, [*tensors_in(args), *module.parameters()], made
            )

    # the bookkeeping

    def _known(self, tensor: Tensor) -> bool:
        return (
            id(tensor) in self._values
            or id(tensor) in self._made_inside
            or tensor.grad_fn is not None
        )

    def _value(self, tensor: Tensor, origin: Origin, maker: Call | None = None) -> Value:
        value = Value(
            tensor=tensor,
            origin=origin,
            maker=maker,
            in_module=bool(self.scopes),
            seen_at=self._count,
        )
        self._values[id(tensor)] = value
        if (storage := storage_of(tensor)) is not None:
            self._by_storage.setdefault(storage, {})[id(tensor)] = value
        self._note_node(value)
        return value

    def _note_node(self, value: Value) -> Node | None:
        if value.nodes and value.tensor.is_leaf and value.tensor.requires_grad:
            return value.nodes[-1]
        node = _node(value.tensor)
        if node is not None and node not in value.nodes:
            value.nodes.append(node)
            self._by_node[node] = value
            if self._measure and value.tensor.requires_grad:
                hook = value.tensor.register_hook(self._measuring(value))
                self._hooks.append(hook)
        return node

    def _measuring(self, value: Value) -> Callable[[Tensor], None]:
        """Make a hook that keeps the size of a gradient, not the gradient."""

        def measure(gradient: Tensor | None) -> None:
            if self.differentiating:
                return
            if gradient is None or gradient.numel() == 0 or not readable(gradient):
                return  # None: a backward that returned none
            sizes = gradient.detach().abs().to(torch.float64)
            value.rms = float(sizes.square().mean().sqrt())
            if not gradient.is_complex():
                value.sign = int(bool((gradient >= 0).all())) or -int(bool((gradient <= 0).all()))

        return measure

    def _operand(self, tensor: Tensor, origin: Origin = "source") -> tuple[Value, Node | None]:
        value = self._values.get(id(tensor))
        if value is None:
            value = self._discover(tensor, origin)
        return value, self._note_node(value)

    def _discover(self, tensor: Tensor, origin: Origin) -> Value:
        """Place a tensor that no watched call returned."""
        if (call := self._made_inside.get(id(tensor))) is not None:
            self._link(call, [tensor], [], append=False)
            return self._values[id(tensor)]
        siblings = self._siblings(tensor)
        if tensor.grad_fn is not None:
            found = list(self._behind(tensor.grad_fn))
            if found:
                name = tensor.grad_fn.name().removesuffix("Backward")
                return self._step("graph", name, found, [tensor])
        elif any(value.origin in ("op", "parameter") for value in siblings):
            name = "nn.Parameter" if isinstance(tensor, nn.Parameter) else "same memory"
            latest = max(siblings, key=lambda value: value.seen_at)
            return self._step("alias", name, [latest.tensor], [tensor])
        value = self._value(tensor, origin)
        self.seen(value)
        return value

    def _siblings(self, tensor: Tensor) -> list[Value]:
        """Return what the known tensors in the same memory hold now, itself included."""
        storage = storage_of(tensor)
        return [] if storage is None else list(self._by_storage.get(storage, {}).values())

    def _behind(self, node: Node) -> Iterator[Tensor]:
        """Iterate over the known tensors from which a node was computed."""
        seen, stack = {node}, [node]
        while stack:
            for following, _ in stack.pop().next_functions:
                if following is None or following in seen:
                    continue
                seen.add(following)
                if following in self._by_node:
                    yield self._by_node[following].tensor
                else:
                    stack.append(following)

    def _step(
        self, kind: CallKind, name: str, inputs: Iterable[Tensor], made: list[Tensor]
    ) -> Value:
        operands = [self._operand(tensor) for tensor in inputs]
        call = Call(
            op=self.op(name),
            kind=kind,
            inputs=[value for value, _ in operands],
            nodes=[node for _, node in operands],
            grad_enabled=torch.is_grad_enabled(),
            region=self.where_gradients_stopped(),
        )
        self._link(call, made, [])
        return call.outputs[0]

    def _link(
        self, call: Call, made: Iterable[Tensor], changed: Iterable[Tensor], *, append: bool = True
    ) -> None:
        """Give each made or changed tensor its new value, and each view of a changed one too."""
        if append:
            self.calls.append(call)
            for value in call.inputs:
                value.consumers.append(call)
        for tensor in made:
            call.outputs.append(self._value(tensor, "op", call))
        for tensor in changed:
            for view in self._siblings(tensor):
                if view.tensor is not tensor:
                    if view not in call.inputs:
                        call.inputs.append(view)
                        call.nodes.append(view.nodes[-1] if view.nodes else None)
                        view.consumers.append(call)
                    call.outputs.append(self._value(view.tensor, "op", call))
            call.outputs.append(self._value(tensor, "op", call))
        self.recorded(call)

    def _inside_function(self, application: Application, token: Any, made: list[Tensor]) -> None:
        """Fold what a custom Function computes into one call with its inputs and its outputs."""
        call = self._functions.get(application)
        if call is None:
            name = f"{application.function.__name__}.apply"
            line = of_frame(application.caller, until=self._until)
            call = Call(op=self.op(name, line), kind="function", inputs=[], nodes=[])
            self._functions[application] = call
            self.calls.append(call)
        for tensor, value, node, _ in token:
            if self._made_inside.get(id(tensor)) is not call and value not in call.inputs:
                call.inputs.append(value)
                call.nodes.append(node)
                value.consumers.append(call)
        for tensor in made:
            self._kept.append(tensor)
            self._made_inside[id(tensor)] = call

    def _sampler(self) -> str:
        """Name the distribution whose ``sample`` runs now, or return ``""``."""
        for frame in self.frames():
            code = frame.f_code
            if code.co_filename.startswith(_DISTRIBUTIONS) and code.co_name == "sample":
                return f"{type(frame.f_locals.get('self')).__name__}.sample"
        return ""


def _node(tensor: Tensor) -> Node | None:
    """Return the autograd node that a tensor's gradient flows to, or None if it takes none."""
    if not tensor.requires_grad or tensor.grad_fn is not None:
        return tensor.grad_fn
    with torch.enable_grad():  # how torch.autograd.graph finds the accumulator of a leaf
        alias = tensor.view_as(tensor).grad_fn
    # a view taken under no_grad claims requires_grad, and has neither node nor accumulator
    return None if alias is None else alias.next_functions[0][0]
