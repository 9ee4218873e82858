"""Watch every tensor's bytes from birth to death, at the level of single operations.

Why not ``torch.distributed._tools.mem_tracker.MemTracker``, which finds the same peaks: it knows no
source line and no phase, marks a whole forward as activations whether or not anything is saved, cannot
tell temporaries of the optimizer from its state, refuses a second call of the same model, puts hooks on
every parameter, and imports ``torch.distributed``, which some builds lack. This one only logs births and
deaths; every judgement (category, peak, breakdown) is made in one replay of the log afterwards.

What is counted: the bytes of every storage that was registered beforehand, or that an operation returned
or received, until that storage dies. What is not: memory that a kernel takes and gives back before it
returns (packed weights, workspaces), and memory that is not torch's. On fake tensors the same operations
return the same sizes, so the count is the same with nothing allocated.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_torchcheck import sources

from .flops import formulas

Phase = Literal["forward", "loss", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "loss", "backward", "optimizer")

Site = tuple[CodeType, int]
"""A line of source while a step runs; it becomes a Location only when it is shown."""

STOPS: set[CodeType] = set()
"""Functions that run the user's step: lines outside them are not part of it."""

_CUDA_BLOCK = (
    512  # kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp; requests are rounded up to it
)
_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_current_node = torch._C._current_autograd_node
_graph_task = torch._C._current_graph_task_id
_sequence_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]

_ranks: dict[CodeType, int] = {}
_wrappers: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


class Allocation:
    """One storage: what it is and when it lived.

    Attributes:
        size: Bytes, as the device's allocator rounds them.
        shape, dtype, device: Of the first tensor seen on it.
        op: The operation that returned it; empty where it was there before.
        phase: The phase in which it was born.
        module: Qualified name of the innermost module that made it.
        site: The user's line that made it, where there is one.
        category: Parameters, buffers, ..., once known; None leaves it to the replay.
        name: Qualified name, of what has one.
        born: Place in the log; -1 for what was there at the start.
        died: Place in the log; None for what is still there at the end.
    """

    __slots__ = (
        "born", "category", "device", "died", "dtype", "module", "name", "op", "phase", "shape",
        "site", "size",
    )  # fmt: skip

    def __init__(
        self,
        tensor: Tensor,
        size: int,
        born: int,
        op: str,
        phase: Phase,
        module: str,
        site: Site | None,
    ) -> None:
        self.size = size
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.op = op
        self.phase = phase
        self.module = module
        self.site = site
        self.category: str | None = None
        self.name = ""
        self.born = born
        self.died: int | None = None


class _StorageRef(weakref.ref[Any]):
    """A weak reference to a storage that knows its allocation and its address."""

    __slots__ = ("address", "allocation")
    allocation: Allocation | None
    address: int


class OutOfBudget(torch.OutOfMemoryError):
    """The simulated out-of-memory error: live bytes would go over the tracker's budget."""


class MemoryTracker(TorchDispatchMode):
    """Log the birth and death of every storage while a step runs; use it as a context manager.

    Nothing of the model is changed: modules and optimizers are watched by global hooks, which are
    removed at the end. The garbage collector rests meanwhile, so that the same step gives the same log:
    what only it could free counts as live.

    Args:
        model: Its modules give names; its parameters, buffers and gradients count from the start.
        optimizers: Their state counts from the start; others are found when they step.
        inputs: Tensors in any nesting, which count as inputs from the start.
        budget: Raise :class:`OutOfBudget` as soon as more bytes than these would be live.
        flops: Count floating-point operations too, by the formulas of ``torch.utils.flop_counter``.
        correct: Mends what an operation returned: ``(operation, arguments, result) -> result``.

    Attributes:
        before: What was there at the start, each with its bytes.
        log: Whose bytes changed by how much, in order.
        phases: Places in the log at which a phase begins.
        steps: Places in the log at which a step begins.
        recomputed: Spans of the log in which modules ran inside backward, as checkpointing makes them.
        live_bytes: Bytes live now.
        operations: How many operations were seen.
        running: The operation that is running; after an error, the one that raised.
        failed_at: Place in the log at which the first operation raised, or None.
        flops: Phase, count, module and line of every operation that counts, of the last step; or None.
    """

    def __init__(
        self,
        *,
        model: nn.Module | None = None,
        optimizers: Iterable[Optimizer] = (),
        inputs: Any = (),
        budget: int | None = None,
        flops: bool = False,
        correct: Callable[[Any, tuple[Any, ...], Any], Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.budget = budget
        self.before: list[tuple[Allocation, int]] = []
        self.log: list[tuple[Allocation, int]] = []
        self.phases: list[tuple[int, Phase]] = []
        self.steps: list[int] = [0]
        self.recomputed: list[tuple[int, int]] = []
        self.live_bytes = 0
        self.operations = 0
        self.running: Any = None
        self.failed_at: int | None = None
        self._correct = correct
        self.flops: list[tuple[Phase, int, str, Site | None]] | None = [] if flops else None
        self._formulas = formulas() if flops else {}
        self._inputs = inputs
        self._optimizers: dict[int, Optimizer] = {id(o): o for o in optimizers}
        self._live: dict[int, _StorageRef] = {}
        self._modules = {} if model is None else {id(m): name for name, m in model.named_modules()}
        self._parameters: dict[int, str] = {}
        self._stack: list[str] = []
        self._inside_model = 0  # how many of the stack are, or run inside, modules of the model
        self._phase: Phase = "forward"
        self._forward_seen = False
        self._backward_seen = False
        self._stepping = 0
        self._recompute_start = 0
        self._made_by: dict[int, tuple[str, Site | None]] = {}  # sequence number: module and line
        self._handles: list[Any] = []
        self._collecting = False

    # ------------------------------------------------------------------ beginning and end

    def __enter__(self) -> Self:
        self._collecting = gc.isenabled()
        gc.disable()
        self._register_start()
        self._handles = [
            nn.modules.module.register_module_forward_pre_hook(self._enter_module),
            nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._enter_optimizer),
            register_optimizer_step_post_hook(self._leave_optimizer),
        ]
        self._random_state = torch.get_rng_state
        torch.get_rng_state = self._see_random_state
        self.phases.append((0, "forward"))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        torch.get_rng_state = self._random_state
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._collecting:
            gc.enable()
        self._name_owned()
        for reference in self._live.values():
            reference.allocation = None  # what dies from now on is not part of the step
        self._live = {}
        self._made_by = {}
        self._stack = []
        self._inputs = ()
        self._optimizers = {}

    def _register_start(self) -> None:
        if self.model is not None:
            for name, parameter in self.model.named_parameters(remove_duplicate=False):
                self._parameters.setdefault(id(parameter), name)
                self._register(parameter, "parameters", name)
                if parameter.grad is not None:
                    self._register(parameter.grad, "gradients", f"{name}.grad")
            for name, buffer in self.model.named_buffers(remove_duplicate=False):
                self._register(buffer, "buffers", name)
        for optimizer in self._optimizers.values():
            self._register_state(optimizer)
        for name, tensor in named_tensors(self._inputs):
            self._register(tensor, "inputs", name)

    def _name_owned(self) -> None:
        """Name what the model and its optimizers own now, wherever it was made."""
        for optimizer in self._optimizers.values():
            self._register_state(optimizer)
        if self.model is not None:
            for name, parameter in self.model.named_parameters(remove_duplicate=False):
                self._register(parameter, "parameters", name)
                if parameter.grad is not None:
                    self._register(parameter.grad, "gradients", f"{name}.grad")
            for name, buffer in self.model.named_buffers(remove_duplicate=False):
                self._register(buffer, "buffers", name)

    def next_step(self) -> None:
        """Say that another step begins; only the last one's peak is reported, where there are several."""
        self._name_owned()
        self._forward_seen = self._backward_seen = False
        self._phase = "forward"
        self.operations = 0
        if self.flops is not None:
            self.flops = []
        self.steps.append(len(self.log))
        self.phases.append((len(self.log), "forward"))

    def allocations(self) -> list[Allocation]:
        """Return every storage that was seen, each once."""
        found = {id(a): a for a, _ in (*self.before, *self.log)}
        return list(found.values())

    def addresses(self) -> dict[int, Allocation]:
        """Return what lives now by the address of its storage (``untyped_storage()._cdata``)."""
        return {a: r.allocation for a, r in self._live.items() if r.allocation is not None}

    # ------------------------------------------------------------------ one operation

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for kind in types:
            if _is_wrapper(kind):  # the subclass unpacks itself, and its parts come back here
                return NotImplemented
        if (
            torch.is_inference_mode_enabled()
            and (out := self._unfold(func, args, kwargs)) is not NotImplemented
        ):
            return out
        self.running = func
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except Exception:  # told on: only where it happened is kept
            if self.failed_at is None:
                self.failed_at = len(self.log)
            raise
        if self._correct is not None:
            out = self._correct(func, args, out)
        self.operations += 1
        phase = self._update_phase()
        site: Site | None = None
        node = None
        if phase == "backward":
            node = _current_node()
        elif phase != "optimizer" and (number := _sequence_number()) not in self._made_by:
            # the first operation seen after a graph node was numbered is the one that made the node
            site = _site()
            self._made_by[number] = (self._stack[-1] if self._stack else "", site)
        self._see_inputs(args, phase)
        if kwargs:
            self._see_inputs(kwargs.values(), phase)
        self._see_outputs(out, func, phase, site, node)
        if (
            self.flops is not None
            and (count := self._formulas.get(func._overloadpacket)) is not None
        ):
            self.flops.append(
                (phase, count(*args, **(kwargs or {}), out_val=out), *self._maker(node, site))
            )
        self.running = None
        return out

    def _unfold(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a composite operation part by part: under inference mode torch hands it over whole."""
        TorchDispatchMode.__enter__(self)
        try:
            return func.decompose(*args, **(kwargs or {}))
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    def _maker(self, node: Any, site: Site | None) -> tuple[str, Site | None]:
        """Return the module and the line that an operation belongs to, a backward one's by its node."""
        module = self._stack[-1] if self._stack else ""
        if site is None:
            site = _site()
        if node is not None and site is None:  # no line of the user's below backward()
            return self._made_by.get(node._sequence_nr() + 1, (module, None))
        return module, site

    def _update_phase(self) -> Phase:
        phase: Phase
        if self._stepping:
            phase = "optimizer"
        elif _graph_task() != -1:
            phase = "backward"
            self._backward_seen = True
        elif self._inside_model:
            phase = "forward"
            self._backward_seen = False
        elif self._backward_seen:
            phase = "optimizer"  # clipping, averaging and what else follows a backward
        elif self._forward_seen:
            phase = "loss"
        else:
            phase = "forward"
        if phase != self._phase:
            self._phase = phase
            self.phases.append((len(self.log), phase))
        return phase

    def _see_inputs(self, values: Iterable[Any], phase: Phase) -> None:
        live = self._live
        for value in values:
            if isinstance(value, Tensor):
                for storage in storages(value):
                    if storage._cdata not in live and storage.nbytes():
                        # made out of sight, such as by from_numpy or before the step: its line is
                        # the one that first uses it
                        self._add(value, storage, "", phase, "", _site()).category = "other"
            elif isinstance(value, list | tuple):
                self._see_inputs(value, phase)

    def _see_outputs(self, out: Any, func: Any, phase: Phase, site: Site | None, node: Any) -> None:
        if isinstance(out, list | tuple):
            for value in out:
                self._see_outputs(value, func, phase, site, node)
            return
        if not isinstance(out, Tensor):
            return
        for storage in storages(out):
            reference = self._live.get(storage._cdata)
            if reference is not None:
                allocation = reference.allocation
                assert allocation is not None
                if (size := _room(out, storage)) != allocation.size:
                    self._resize(allocation, size)
            elif storage.nbytes():
                module, site = self._maker(node, site)
                allocation = self._add(out, storage, str(func), phase, module, site)
            else:
                continue
            if (
                node is not None
                and allocation.category is None
                and node.name() == "torch::autograd::AccumulateGrad"
            ):
                allocation.category = "gradients"
                if (name := self._parameters.get(id(node.variable))) is not None:
                    allocation.name = f"{name}.grad"

    def _see_random_state(self) -> Tensor:
        """Count the states that checkpointing keeps, 5 kB each: they are made by no operation."""
        state = self._random_state()
        with torch._C._DisableTorchDispatch():
            self._see_outputs(state, "get_rng_state", self._update_phase(), None, None)
        return state

    # ------------------------------------------------------------------ storages

    def _add(
        self, tensor: Tensor, storage: Any, op: str, phase: Phase, module: str, site: Site | None
    ) -> Allocation:
        size = _room(tensor, storage)
        allocation = Allocation(tensor, size, len(self.log), op, phase, module, site)
        self._watch(storage, allocation)
        self.log.append((allocation, size))
        if self.budget is not None and self.live_bytes > self.budget:
            self.failed_at = len(self.log)
            raise OutOfBudget(
                f"simulated out of memory: {op or 'the step'} takes {size} bytes, which makes"
                f" {self.live_bytes} live bytes where {self.budget} are allowed"
            )
        return allocation

    def _watch(self, storage: Any, allocation: Allocation) -> None:
        reference = _StorageRef(storage, self._forget)
        reference.allocation = allocation
        reference.address = storage._cdata
        self._live[reference.address] = reference
        self.live_bytes += allocation.size

    def _forget(self, reference: weakref.ref[Any]) -> None:
        assert isinstance(reference, _StorageRef)
        allocation = reference.allocation
        if allocation is None:
            return
        del self._live[reference.address]
        allocation.died = len(self.log)
        self.log.append((allocation, -allocation.size))
        self.live_bytes -= allocation.size

    def _resize(self, allocation: Allocation, size: int) -> None:
        self.log.append((allocation, size - allocation.size))
        self.live_bytes += size - allocation.size
        allocation.size = size

    def _register(self, tensor: Tensor, category: str, name: str, *, new: bool = False) -> None:
        """Give a tensor's storage its category.

        Args:
            tensor: Any.
            category: What it is.
            name: What it is called.
            new: Whether what was not seen until now was made just now, out of sight, or was there before.
        """
        for storage in storages(tensor):
            reference = self._live.get(storage._cdata)
            if reference is None:
                if not storage.nbytes():
                    continue
                if new:
                    made = self._add(tensor, storage, "", self._phase, "", _site())
                    made.category, made.name = category, name
                    continue
                allocation = Allocation(
                    tensor, _room(tensor, storage), -1, "", "forward", name.rpartition(".")[0], None
                )
                allocation.category, allocation.name = category, name
                self._watch(storage, allocation)
                self.before.append((allocation, allocation.size))
            elif (known := reference.allocation) is not None and known.category in (None, "other"):
                known.category, known.name = category, name

    def _register_state(self, optimizer: Optimizer, *, new: bool = False) -> None:
        for parameter, state in optimizer.state.items():
            owner = self._parameters.get(id(parameter), "")
            for key, tensor in named_tensors(state):
                self._register(
                    tensor, "optimizer_state", f"{key} of {owner}" if owner else key, new=new
                )

    # ------------------------------------------------------------------ modules and optimizers

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        name = self._modules.get(id(module))
        own = name is not None
        if name is None:
            own = self.model is None and not isinstance(module, nn.modules.loss._Loss)
            name = self._stack[-1] if self._stack else type(module).__name__
        if not self._stack:
            self._recompute_start = len(self.log)
        self._stack.append(name)
        if own or self._inside_model:
            self._inside_model += 1

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        inside_backward = _graph_task() != -1
        if self._inside_model:
            self._inside_model -= 1
            if not self._inside_model and not inside_backward:
                self._forward_seen = True
        if not self._stack and inside_backward:
            self.recomputed.append((self._recompute_start, len(self.log)))

    def _enter_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer
            self._register_state(optimizer)
        self._stepping += 1

    def _leave_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepping = max(0, self._stepping - 1)
        self._forward_seen = False
        self._register_state(optimizer, new=True)


def named_tensors(values: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Iterate over the tensors of nested dicts, lists, tuples and dataclass-like objects, with names."""
    if isinstance(values, Tensor):
        yield prefix, values
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from named_tensors(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(values, list | tuple):
        for place, value in enumerate(values):
            yield from named_tensors(value, f"{prefix}[{place}]" if prefix else str(place))
    elif hasattr(values, "__dict__") and not isinstance(values, type | nn.Module):
        for key, value in vars(values).items():
            if isinstance(value, Tensor | list | tuple | dict):
                yield from named_tensors(value, f"{prefix}.{key}" if prefix else key)


def _is_wrapper(kind: type) -> bool:
    known = _wrappers.get(kind)
    if known is None:
        known = _wrappers[kind] = hasattr(kind, "__tensor_flatten__")
    return known


def storages(tensor: Tensor) -> tuple[Any, ...]:
    """Return the untyped storages of a tensor, those of its parts for sparse layouts and wrappers."""
    try:
        return (tensor.untyped_storage(),)
    except (
        NotImplementedError,
        RuntimeError,
    ):  # sparse layouts, wrapper subclasses: their parts have them
        return tuple(storage for part in _parts(tensor) for storage in storages(part))


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    if _is_wrapper(type(tensor)):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return tuple(part for name in names if isinstance(part := getattr(tensor, name), Tensor))
    return ()


def _room(tensor: Tensor, storage: Any) -> int:
    size: int = storage.nbytes()
    if tensor.device.type == "cuda":
        return -(-size // _CUDA_BLOCK) * _CUDA_BLOCK
    return size


def _site() -> Site | None:
    """Return the user's innermost line between the running operation and the start of the step."""
    frame: FrameType | None = sys._getframe(1)
    fallback: Site | None = None
    while frame is not None:
        code = frame.f_code
        value = _ranks.get(code)
        if value is None:
            value = _ranks[code] = sources.rank(code.co_filename)
        if value == 2:
            return code, frame.f_lineno
        if value == 1 and fallback is None:
            fallback = code, frame.f_lineno
        if code is _ENGINE or code in STOPS:
            break
        frame = frame.f_back
    return fallback
