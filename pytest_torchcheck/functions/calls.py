"""One callable with its arguments, run again and again under the same random numbers."""

from __future__ import annotations

import copy
import inspect
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..data.generators import generator_state, set_generator_state
from ..lean import dataclass
from ..objects.peek import closed_over
from ..record.modes import KernelObserver
from ..state import seed_process

if TYPE_CHECKING:
    from collections.abc import Iterator

Layout = Callable[[Tensor], Tensor]
"""A differentiable change of strides: the values stay as they are."""


class _Upstream(torch.autograd.Function):
    """A scalar whose gradient with respect to each output is the given tensor itself."""

    @staticmethod
    def forward(ctx: Any, upstream: tuple[Tensor, ...], *outputs: Tensor) -> Tensor:
        ctx.upstream = upstream
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Any, ...]:
        return (None, *ctx.upstream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One forward.

    Attributes:
        leaves: The tensors with respect to which gradients are taken, by argument index.
        arguments: What the callable got, flat; a differentiable one is a non-leaf copy of its leaf, so
            that the callable may modify it in place.
        outputs: Every tensor that it returned, flat.
    """

    leaves: dict[int, Tensor]
    arguments: list[Any]
    outputs: list[Tensor]

    @property
    def differentiable(self) -> list[int]:
        """Indices of the outputs through which a gradient can flow."""
        return [i for i, out in enumerate(self.outputs) if out.requires_grad and is_float(out)]

    def grads(self, upstream: Mapping[int, Tensor]) -> dict[int, Tensor | None]:
        """Return the gradient of each leaf; the graph is kept.

        Args:
            upstream: Gradient of the outputs, by output index, each of its output's shape; handed to
                backward as it is, in its own strides.
        """
        wanted = [index for index, leaf in self.leaves.items() if leaf.requires_grad]
        # autograd.grad with explicit upstream gradients would load sympy (a second) to compare shapes
        given = [self.outputs[i] for i in upstream]
        with torch.enable_grad():
            end = _Upstream.apply(tuple(upstream.values()), *given)  # type: ignore[no-untyped-call]
        found = torch.autograd.grad(
            end, [self.leaves[i] for i in wanted], retain_graph=True, allow_unused=True
        )
        return dict(zip(wanted, found, strict=True))

    def nodes(self) -> list[Any]:
        """Return the ctx objects of the custom Functions in the graph, the outermost first."""
        seen: set[int] = set()
        queue: list[Any] = [out.grad_fn for out in self.outputs]
        found = []
        while queue:
            node = queue.pop(0)
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            if hasattr(type(node), "_forward_cls"):
                found.append(node)
            queue.extend(following for following, _ in node.next_functions)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A callable, its arguments as flat values, and the seed that every run starts from.

    Attributes:
        fn: ``SomeFunction.apply`` or any callable.
        values: Flat arguments; tensors are detached.
        spec: How to rebuild ``(args, kwargs)``.
        names: A name per flat argument, from the signature.
        wanted: Indices of the arguments that gradients are checked for.
        optional: Those of ``wanted`` for which a gradient of None is accepted.
        carried: Those that require a gradient and are not checked, because forward reads them elsewhere.
        function: The ``autograd.Function`` behind ``fn``, where it is known.
        generators: Generators of its own, each with the state it starts from.
        seed: Every run starts from it.
    """

    fn: Callable[..., Any]
    values: tuple[Any, ...]
    spec: Any
    names: tuple[str, ...]
    wanted: tuple[int, ...]
    optional: tuple[int, ...] = ()
    carried: tuple[int, ...] = ()
    function: type[torch.autograd.Function] | None = None
    generators: tuple[Generator, ...] = ()
    seed: int = 0

    @property
    def asked(self) -> tuple[int, ...]:
        """Arguments that a caller wants the gradient of; all that are checked, where nobody wants any."""
        return tuple(i for i in self.wanted if i not in self.optional) or self.wanted

    def with_values(self, values: Iterable[Any]) -> Call:
        """Return the same call with other flat arguments."""
        return replace(self, values=tuple(values))

    def replaced(self, index: int, value: Any) -> Call:
        """Return the same call with one flat argument changed."""
        return self.with_values([*self.values[:index], value, *self.values[index + 1 :]])

    def cast(self, dtype: torch.dtype, indices: Iterable[int] | None = None) -> Call:
        """Return the call with its floating tensors (and dtype arguments) in another precision."""
        chosen = range(len(self.values)) if indices is None else set(indices)
        return self.with_values(
            _cast(value, dtype, everything=indices is None) if i in chosen else value
            for i, value in enumerate(self.values)
        )

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Call with flat arguments, from the seed."""
        args, kwargs = pytree.tree_unflatten(list(arguments), self.spec)
        seed_generators(self.seed)
        for generator in self.generators:
            generator.rewind(self.seed)
        return self.fn(*args, **kwargs)

    def run(
        self, *, requires: Iterable[int] | None = None, layouts: Mapping[int, Layout] | None = None
    ) -> Run:
        """Run the forward with a graph.

        Args:
            requires: Arguments that require a gradient; all wanted ones by default.
            layouts: Changes of strides, by argument index.
        """
        chosen = set(self.wanted if requires is None else requires)
        leaves: dict[int, Tensor] = {}
        arguments = list(self.values)
        with torch.enable_grad():
            for index, value in enumerate(self.values):
                if not isinstance(value, Tensor):
                    continue
                copy = value.detach().clone()
                if index in self.wanted:
                    leaves[index] = copy.requires_grad_(index in chosen)
                    copy = copy.clone()
                elif index in self.carried:
                    copy.requires_grad_()
                if layouts and index in layouts:
                    copy = layouts[index](copy)
                arguments[index] = copy
            result = self(arguments)
        return Run(leaves=leaves, arguments=arguments, outputs=tensors_of(result))

    def evaluate(self) -> list[Tensor]:
        """Run without a graph and return the tensors, detached copies."""
        with torch.no_grad():
            arguments = [v.clone() if isinstance(v, Tensor) else v for v in self.values]
            return [out.detach().clone() for out in tensors_of(self(arguments))]


def is_float(tensor: Tensor) -> bool:
    """True for real and complex floating dtypes."""
    return tensor.is_floating_point() or tensor.is_complex()


def tensors_of(result: Any) -> list[Tensor]:
    """Return every tensor in a result, flat, each object once."""
    found: list[Tensor] = []
    for value in pytree.tree_leaves(result):
        if isinstance(value, Tensor) and not any(value is other for other in found):
            found.append(value)
    return found


class Runaway(BaseException):
    """Raised where a run calls many times more operations than it should.

    Not an Exception, so that code which tries something and catches errors lets it through.
    """


class OpLimit(KernelObserver):
    """Count kernels, and stop a run that does not come to an end (a solver in half precision)."""

    def __init__(self, most: int | None = None) -> None:
        self.count = 0
        self.most = most

    def around(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run one kernel.

        Raises:
            Runaway: More kernels ran than were allowed.
        """
        self.count += 1
        if self.most is not None and self.count > self.most:
            raise Runaway(f"more than {self.most} operations")
        return func(*args, **kwargs)


def _cast(value: Any, dtype: torch.dtype, *, everything: bool) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(dtype)
    if isinstance(value, Tensor) and value.is_complex():
        return value.to(_complex(dtype))
    if everything and isinstance(value, torch.dtype) and value.is_floating_point:
        return dtype
    if everything and isinstance(value, nn.Module):
        return _cast_module(value, dtype)
    return value


def _cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy in another precision; where it cannot be copied, the module itself."""
    try:
        return copy.deepcopy(module).to(dtype)
    except Exception:  # any object may refuse to be copied, in its own words
        return module


def _complex(dtype: torch.dtype) -> torch.dtype:
    return {torch.float64: torch.complex128, torch.float16: torch.complex32}.get(
        dtype, torch.complex64
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A random generator of the callable's own, and the state in which it was found."""

    generator: Any
    state: Any

    def rewind(self, seed: int = 0) -> None:
        """Set it back to the state in which it was found, or to another seed's."""
        generator = self.generator
        set_generator_state(generator, self.state)
        if not seed:
            return
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, random.Random):
            generator.seed(seed)
        else:
            bits = generator.bit_generator
            bits.state = type(bits)(seed).state


def seed_generators(seed: int) -> None:
    """Seed torch, Python and numpy (where it is loaded)."""
    # torch.manual_seed formats the stack for every backend that is not initialised: 2 ms a call
    seed_process(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def generators_of(fn: Any, function: Any, values: Sequence[Any]) -> Iterator[Generator]:
    """Find the generators that a callable can reach: arguments, globals, closures, class attributes."""
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if (numpy := sys.modules.get("numpy")) is not None:
        kinds = (*kinds, numpy.random.Generator)
    reachable: list[Any] = list(values)
    owners = [fn]
    if function is not None:
        reachable += vars(function).values()
        owners = [
            getattr(function, name) for name in ("forward", "setup_context", "backward", "vjp")
        ]
    for owner in owners:
        plain = inspect.unwrap(getattr(owner, "__func__", owner))
        code = getattr(plain, "__code__", None)
        if code is not None:
            reachable += [plain.__globals__[n] for n in code.co_names if n in plain.__globals__]
            reachable += closed_over(plain).values()
    seen: set[int] = set()
    for thing in reachable:
        if isinstance(thing, kinds) and id(thing) not in seen:
            seen.add(id(thing))
            yield Generator(generator=thing, state=generator_state(thing))
