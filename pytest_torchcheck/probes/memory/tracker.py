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
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from .allocations import (
    Allocation,
    Phase,
    Site,
    StorageLog,
    is_wrapper,
    named_tensors,
    room,
    storages,
    user_site,
)
from .profile import formulas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_current_node = torch._C._current_autograd_node
_graph_task = torch._C._current_graph_task_id
_sequence_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]


class MemoryTracker(StorageLog, TorchDispatchMode):
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

    Attributes, beside those of the log:
        phases: Places in the log at which a phase begins.
        steps: Places in the log at which a step begins.
        recomputed: Spans of the log in which modules ran inside backward, as checkpointing makes them.
        operations: How many operations were seen.
        running: The operation that is running; after an error, the one that raised.
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
        StorageLog.__init__(self, budget)
        TorchDispatchMode.__init__(self)
        self.model = model
        self.phases: list[tuple[int, Phase]] = []
        self.steps: list[int] = [0]
        self.recomputed: list[tuple[int, int]] = []
        self.operations = 0
        self.running: Any = None
        self._correct = correct
        self.flops: list[tuple[Phase, int, str, Site | None]] | None = [] if flops else None
        self._formulas = formulas() if flops else {}
        self._inputs = inputs
        self._optimizers: dict[int, Optimizer] = {id(o): o for o in optimizers}
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
        for reference in self.live.values():
            reference.allocation = None  # what dies from now on is not part of the step
        self.live = {}
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
        return {a: r.allocation for a, r in self.live.items() if r.allocation is not None}

    # ------------------------------------------------------------------ one operation

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for kind in types:
            if is_wrapper(kind):  # the subclass unpacks itself, and its parts come back here
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
            site = user_site()
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
            site = user_site()
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
        live = self.live
        for value in values:
            if isinstance(value, Tensor):
                for storage in storages(value):
                    if storage._cdata not in live and storage.nbytes():
                        # made out of sight, such as by from_numpy or before the step: its line is
                        # the one that first uses it
                        self.add(value, storage, "", phase, "", user_site()).category = "other"
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
            reference = self.live.get(storage._cdata)
            if reference is not None:
                allocation = reference.allocation
                assert allocation is not None
                if (size := room(out, storage)) != allocation.size:
                    self.resize(allocation, size)
            elif storage.nbytes():
                module, site = self._maker(node, site)
                allocation = self.add(out, storage, str(func), phase, module, site)
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

    def _register(self, tensor: Tensor, category: str, name: str, *, new: bool = False) -> None:
        """Give a tensor's storage its category.

        Args:
            tensor: Any.
            category: What it is.
            name: What it is called.
            new: Whether what was not seen until now was made just now, out of sight, or was there
                before.
        """
        for storage in storages(tensor):
            reference = self.live.get(storage._cdata)
            if reference is None:
                if not storage.nbytes():
                    continue
                if new:
                    made = self.add(tensor, storage, "", self._phase, "", user_site())
                    made.category, made.name = category, name
                    continue
                allocation = Allocation(
                    tensor, room(tensor, storage), -1, "", "forward", name.rpartition(".")[0], None
                )
                allocation.category, allocation.name = category, name
                self.watch(storage, allocation)
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
