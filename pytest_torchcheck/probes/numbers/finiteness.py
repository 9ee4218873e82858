"""The operation that makes the first NaN or infinity, forward or backward, and what it was given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ...objects.peek import tuple_like
from ...record.modes import KernelObserver
from ..recorded.operations import gradients_kept
from ..recorded.watch import Op, Watch, describe, in_backward, name_of, storage_of, tensors_in
from .domains import (
    NonFinite,
    Origin,
    any_nonfinite,
    backward_domain,
    forward_domain,
    holds_nonfinite,
    readable_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.autograd.graph import Node


def find_nonfinite(run: Callable[[], object], module: nn.Module | None = None) -> NonFinite | None:
    """Find what makes the result of a run, or else its gradients, not finite.

    Args:
        run: Returns the loss or outputs, with or without a backward; where it runs none and its
            result is finite, a backward is run here.
        module: Names modules and parameters; its gradients are put back.

    Returns:
        The operation behind a non-finite number in what ``run`` returned, else behind one in a
        gradient, or None where all are finite. Numbers that never reach either do not count.
        Cost: one step with a reduction per operation, about three times a plain one.
    """
    parameters = dict(module.named_parameters()) if module is not None else {}
    watch = _FiniteWatch(module)
    try:
        with gradients_kept(parameters.values()):
            with watch, watch.kernels:
                result = list(tensors_in(run()))
                ran = watch.backward_ran
                live = [t for t in result if t.requires_grad]
                finite = not any_nonfinite(result)
                if live and finite and not ran:
                    torch.autograd.backward(live, [torch.ones_like(t) for t in live])
            gradients = [p.grad for p in parameters.values() if p.grad is not None]
            for tensor in (*result, *gradients):
                if holds_nonfinite(tensor) and (event := watch.kernels.behind(tensor)) is not None:
                    return event if any_nonfinite(result) else watch.kernels.with_hidden(event)
        return watch.kernels.first_backward if module is None else None
    finally:
        watch.release()


def find_overflow(run: Callable[[], object], module: nn.Module) -> NonFinite | None:
    """Find the first operation of a forward that computes an infinity from finite numbers.

    Unlike :func:`find_nonfinite` it counts also where later operations make the result finite
    again, as a division by the infinity does.

    Args:
        run: The forward; runs without gradients.
        module: Names modules and parameters.

    Returns:
        The operation, or None where every infinity was written on purpose.
    """
    watch = _FiniteWatch(module)
    try:
        with torch.no_grad(), watch, watch.kernels:
            run()
        return watch.kernels.first_overflow
    finally:
        watch.release()


class _FiniteWatch(Watch):
    """Knows the running torch function, and the forward operation of every autograd node."""

    def __init__(self, module: nn.Module | None) -> None:
        super().__init__(module)
        self.running: list[Op] = []
        self.nodes: dict[Node, Op] = {}
        self.backward_ran = False
        self.kernels = _Kernels(self, module)

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note the function that is about to call kernels."""
        op = self.op(name_of(func))
        self.running.append(op)
        return op

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Give every node that the function made its operation."""
        self.running.pop()
        for tensor in tensors_in(result):
            self._claim(tensor.grad_fn, token)

    def raised(self, func: Callable[..., Any], token: Any) -> None:
        """Forget a function that raised."""
        self.running.pop()

    def backward_called(self, root: Tensor) -> None:
        """Note that the run does its own backward."""
        self.backward_ran = True

    def release(self) -> None:
        """Let go of the graph and of what was seen."""
        self.nodes.clear()
        self.running.clear()
        self.kernels.release()

    def current(self) -> Op:
        """Return the operation that a kernel runs for now."""
        if self.running and self.running[-1].backward:
            return self.running[-1]
        if in_backward():
            node = torch._C._current_autograd_node()
            if node in self.nodes and not isinstance(
                node, torch.autograd.function.BackwardCFunction
            ):
                return self.nodes[node]
            name = node.name() if node is not None else "backward"
            return self.op(name)
        return self.running[-1] if self.running else self.op("torch")

    def _claim(self, node: Node | None, op: Op) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            if node is not None and node not in self.nodes and not hasattr(node, "variable"):
                self.nodes[node] = op
                stack.extend(following for following, _ in node.next_functions)


_CONSTANTS = frozenset(
    {"full", "full_like", "new_full", "fill", "fill_", "masked_fill", "masked_fill_", "scalar_tensor",
     "lift_fresh", "lift_fresh_copy", "index_fill", "index_fill_", "where", "index_put", "index_put_",
     "_local_scalar_dense", "constant_pad_nd"}
)  # fmt: skip
"""Kernels that write numbers which they are given and compute none."""

_OVERWRITING = frozenset(
    {"fill_", "zero_", "copy_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
     "log_normal_", "cauchy_", "geometric_", "set_"}
)  # fmt: skip
"""Kernels that write their first operand without reading it."""

_WRITING = frozenset({"setitem", "where", "masked_fill", "fill", "index_fill", "full", "pad"})
"""Operations that write a number which they are given, without the underscores around their names."""

_ROWWISE = frozenset({"_softmax", "_log_softmax", "logsumexp", "_safe_softmax"})

_EMPTY = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_"}
)


class _Kernels(KernelObserver):
    """Looks at what every kernel gives, and remembers behind which memory an infinity or NaN stands."""

    def __init__(self, watch: _FiniteWatch, module: nn.Module | None) -> None:
        self._watch = watch
        self._origins: dict[int, NonFinite] = {}
        self._parents: dict[int, list[NonFinite]] = {}
        self._dropping: dict[int, Op] = {}  # by index of the operation whose result is dropped
        self._names: dict[int | None, str] = {}
        if module is not None:
            for kind, tensors in (
                ("parameter", module.named_parameters()),
                ("buffer", module.named_buffers()),
            ):
                for name, tensor in tensors:
                    self._names[storage_of(tensor)] = f"{kind} {name}, {describe(tensor)},"
        self.first_backward: NonFinite | None = None
        self.first_overflow: NonFinite | None = None

    def release(self) -> None:
        """Forget everything."""
        self._origins.clear()
        self._parents.clear()

    def around(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one kernel and look at its results."""
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)  # a higher-order operator such as cond: one opaque call
        with torch._C.DisableTorchFunction():
            overwrites = func.overloadpacket.__name__ in _OVERWRITING
            read = (args[1:] if overwrites else args, kwargs)
            given = [t for t in tensors_in(read) if readable_values(t)]
            # a batch norm writes its running statistics, and its schema does not say so
            mutates = func._schema.is_mutable or "batch_norm" in func.overloadpacket.__name__
            before = [t.clone() for t in given] if mutates else given
            result = func(*args, **kwargs)
            shared = set() if overwrites else {storage_of(t) for t in given}
            for tensor in tensors_in(result):
                if readable_values(tensor):
                    key = storage_of(tensor)
                    if not mutates and key in shared:
                        continue  # a view has no numbers of its own
                    self._look(func, (args, kwargs), given, before, tensor, key)
        return result

    def behind(self, tensor: Tensor) -> NonFinite | None:
        """Return the operation that is to blame for what a tensor holds."""
        event = self._origins.get(storage_of(tensor) or -1)
        if event is None:
            return self._given(tensor)
        rowwise = event.kernel.removeprefix("aten.") in _ROWWISE
        for parent in self._parents.get(id(event), []):
            if rowwise and not parent.upward:
                # a row that is all -inf: that is the fault, however the mask was computed
                event = replace(event, written=parent)
                continue
            if parent.origin in ("computed", "uninitialised"):
                return replace(parent, then=event.op)
            if event.written is None:
                event = replace(event, written=parent)
        return event

    def with_hidden(self, event: NonFinite) -> NonFinite:
        """Add what dropped the result of the forward operation that a gradient is not finite for."""
        return replace(event, hidden=self._dropping.get(event.op.index))

    def _look(
        self,
        func: Any,
        call: tuple[Any, Any],
        given: list[Tensor],
        before: list[Tensor],
        made: Tensor,
        key: int | None,
    ) -> None:
        if key is None:
            return
        if not holds_nonfinite(made):
            if self._origins and not in_backward():
                for tensor in given:
                    event = self._origins.get(storage_of(tensor) or -1)
                    if event is not None and event.phase == "forward" and holds_nonfinite(tensor):
                        self._dropping.setdefault(event.op.index, self._watch.current())
            if made.numel() * made.element_size() >= made.untyped_storage().nbytes():
                self._origins.pop(key, None)
            return
        kernel = func.overloadpacket.__name__
        has_nan = bool(made.isnan().any())
        carriers = [
            (old, now)
            for old, now in zip(before, given, strict=True)
            if bool(old.isnan().any() if has_nan else old.isinf().any())
        ]
        if carriers:
            old, now = carriers[0]
            event = self._origins.get(storage_of(now) or -1) or self._given(old, now)
            if event is not None:
                self._origins[key] = event
            return
        event = self._event(func, kernel, call, given, before, made, "nan" if has_nan else "inf")
        infinite = [now for old, now in zip(before, given, strict=True) if holds_nonfinite(old)]
        found = [self._origins.get(storage_of(t) or -1) or self._given(t) for t in infinite]
        self._parents[id(event)] = [parent for parent in found if parent is not None]
        self._origins[key] = event
        if event.phase == "backward" and self.first_backward is None:
            self.first_backward = event
        if (event.phase, event.kind, event.origin) == ("forward", "inf", "computed") and (
            self.first_overflow is None and not infinite
        ):
            self.first_overflow = event

    def _event(
        self,
        func: Any,
        kernel: str,
        call: tuple[Any, Any],
        given: list[Tensor],
        before: list[Tensor],
        made: Tensor,
        kind: Literal["nan", "inf"],
    ) -> NonFinite:
        backward = in_backward()
        op = self._watch.current()
        count = int((~made.isfinite()).sum())
        origin: Origin = "computed"
        if kernel in _EMPTY:
            origin, fact = "uninitialised", f"memory of {op.name} was read before it was written"
        elif kernel in _CONSTANTS:
            sign = "-inf" if kind == "inf" and bool((made == -torch.inf).any()) else kind
            origin = "constant"
            fact = (
                f"{op.name} wrote {sign} to {count} of {made.numel()} elements"
                if made.dim()
                else f"{op.name} writes {sign}"
            )
        else:
            swapped = {id(now): old for old, now in zip(before, given, strict=True)}
            arguments = _replaced(call, swapped)
            node = torch._C._current_autograd_node() if backward else None
            fact = (backward_domain(node) if node is not None else None) or forward_domain(
                func, kernel, arguments[0], arguments[1], made
            )
            if node is not None:
                fact += f", in the backward of {op.name} ({node.name()})"
        return NonFinite(
            kind=kind,
            phase="backward" if backward else "forward",
            origin=origin,
            op=op,
            location=op.location,
            module=op.module,
            kernel=f"aten.{kernel}",
            fact=fact,
            result=describe(made),
            count=count,
            upward=not made.is_complex() and bool(made.isposinf().any()),
        )

    def _given(self, old: Tensor, now: Tensor | None = None) -> NonFinite | None:
        """Blame a tensor that the run did not compute."""
        key = storage_of(old if now is None else now)
        bad = ~old.isfinite()
        op = self._watch.current() if self._watch.running else self._watch.op("torch")
        name = self._names.get(key, f"a tensor that the run was given, {describe(old)},")
        if (
            old.dim() == 0
            and key not in self._names
            and old.isinf().any()
            and op.name.rpartition(".")[2].strip("_") in _WRITING
        ):
            return self._number_written(op, old)
        nans = int(old.isnan().sum())
        what = f"{nans} NaN" if nans else f"{int(bad.sum())} infinities"
        event = NonFinite(
            kind="nan" if nans else "inf",
            phase="backward" if in_backward() else "forward",
            origin="given",
            op=op,
            location=op.location,
            module=op.module,
            kernel="",
            fact=f"{name} holds {what} when {op.name} first reads it",
            result=describe(old),
            count=int(bad.sum()),
            upward=not old.is_complex() and bool(old.isposinf().any()),
        )
        if key is not None:
            self._origins[key] = event
        return event

    def _number_written(self, op: Op, number: Tensor) -> NonFinite:
        """Tell of an infinite number that an operation was given to write, as ``x[mask] = -inf`` is."""
        return NonFinite(
            kind="inf",
            phase="backward" if in_backward() else "forward",
            origin="constant",
            op=op,
            location=op.location,
            module=op.module,
            kernel="",
            fact=f"{op.name} writes {float(number)}",
            result=describe(number),
            count=1,
            upward=bool(number.isposinf()),
        )


def _replaced(thing: Any, swapped: Mapping[int, Tensor]) -> Any:
    """Return arguments with tensors that were written in place as they were before."""
    if isinstance(thing, Tensor):
        return swapped.get(id(thing), thing)
    if isinstance(thing, tuple):
        return tuple_like(thing, [_replaced(item, swapped) for item in thing])
    if isinstance(thing, list):
        return [_replaced(item, swapped) for item in thing]
    if isinstance(thing, dict):
        return {key: _replaced(item, swapped) for key, item in thing.items()}
    return thing
