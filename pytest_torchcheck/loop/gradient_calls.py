"""The calls that make, scale, clip and clear gradients, as events of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from .. import sources
from ..probes.recorded.watch import tensors_in, version_of
from .naming import is_spent, iterator_lines, name_in, user_frame
from .notes import Notes
from .trace import Backward, Clip, Event

if TYPE_CHECKING:
    from ..findings import Location


class GradientCalls(Notes):
    """Notes the calls that make, scale, clip and clear gradients."""

    def _backward(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = args[0] if args else kwargs["tensors"]
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        common = self.common("backward", roots[0], "backward", "loss")
        self.ledger.settle()
        before = {key: account.signature() for key, account in self.ledger.accounts.items()}
        stale = {
            key
            for key, account in self.ledger.accounts.items()
            if account.sources and not account.pending()
        }
        scale = self.scaled.get(id(roots[0]), 1.0)
        repeats = _within(roots, self.roots)
        args, kwargs = _amplified(roots, args, kwargs, self.amplify)
        self.reached.clear()
        result = original(*args, **kwargs)
        place = len(self.events)
        create = bool(kwargs.get("create_graph") or (len(args) > 3 and args[3]))
        retained = bool(kwargs.get("retain_graph") or (len(args) > 2 and args[2])) and not create
        if retained:
            self.gone_through[place] = _listen_to(roots)
        if not create:
            # one that differentiates its own gradient may go through its root again, for its saved
            # result
            self.roots += [(place, root.grad_fn) for root in roots if root.grad_fn is not None]
        touched = [
            key
            for key, account in self.ledger.accounts.items()
            if account.signature() != before[key]
        ]
        moved: set[str] = set()
        rewritten: set[str] = set()
        for key in touched:
            account = self.ledger.accounts[key]
            if account.written_since(self.step):
                rewritten.add(account.name)
            if account.sources and account.version != version_of(account.tensor):
                moved.add(account.name)
            account.version = version_of(account.tensor)
            account.sources.append(place)
            account.scale = scale if scale != 1.0 else account.scale
        names = {key: account.name for key, account in self.ledger.accounts.items()}
        self.events.append(
            Backward(
                **common,
                leaf=all(root.grad_fn is None for root in roots),
                touched=frozenset(names[key] for key in touched),
                stale=frozenset(names[key] for key in touched if key in stale),
                norm=self.ledger.norm(),
                scale=scale,
                repeats=repeats,
                retained=retained,
                moved=frozenset(moved),
                rewritten=frozenset(rewritten),
                through=frozenset(self.reached | self.unfollowed),
            )
        )
        if self.after_backward is not None:
            self.after_backward(self.model)
        return result

    def follow_graph(self, output: Any) -> None:
        """Note the forward that is about to become an event in each backward pass that goes through its outputs."""
        place, reached = len(self.events), self.reached
        nodes = {t.grad_fn for t in tensors_in(output) if t.grad_fn is not None}
        for node in nodes:
            node.register_prehook(lambda gradients: reached.add(place))
        if not nodes:
            self.unfollowed.add(place)

    def _zero_grad(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thing = args[0]
        if isinstance(thing, torch.optim.Optimizer):
            self.known(thing)
        common = self.common("zero-grad", thing, "zero_grad", _fallback(thing))
        self.ledger.settle()
        before = {
            key: account.pending()
            for key, account in self.ledger.accounts.items()
            if account.sources
        }
        result = original(*args, **kwargs)
        self.ledger.clear(len(self.events), before)
        self.events.append(Event(**common))
        return result

    def _scale(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.depth["scale"] == 0:
            self.events.append(Event(**self.common("scale", args[0], "scale", "scaler")))
        with self.deeper("scale"):
            result = original(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            self.keep += [args[0], result]
            self.scaled[id(result)] = float(args[0].get_scale())
        return result

    def _unscale(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.events.append(Event(**self.common("unscale", args[0], "unscale_", "scaler")))
        result = original(*args, **kwargs)
        for account in self.ledger.of(self.parameters(args[1])):
            account.scale = 1.0
        return result

    def _scaler_step(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.keep.append(args[0])
        self.events.append(Event(**self.common("scaler-step", args[0], "step", "scaler")))
        with self.deeper("scaler-step"):
            return original(*args, **kwargs)

    def _clip_norm(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        limit = args[1] if len(args) > 1 else kwargs["max_norm"]
        return self._clip(original, args, kwargs, limit, "norm")

    def _clip_value(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        limit = args[1] if len(args) > 1 else kwargs["clip_value"]
        return self._clip(original, args, kwargs, limit, "value")

    def _clip(
        self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit: Any, by: Any
    ) -> Any:
        given = args[0] if args else kwargs["parameters"]
        spent = is_spent(given)
        parameters = [given] if isinstance(given, torch.Tensor) else list(given)
        if parameters and isinstance(given, Iterator):
            self.iterators[id(given)] = given
        accounts = self.ledger.of(parameters)
        self.ledger.settle()
        _, place = self.call(None, "", "")
        self.events.append(
            Clip(
                kind="clip", step=self.step, name=f"clip_grad_{by}_", owner=0, place=place,
                by=by, limit=float(limit), parameters=frozenset(account.name for account in accounts),
                pending=any(account.pending() for account in accounts),
                scaled=any(account.scale != 1.0 for account in accounts), norm=self.ledger.norm(),
                own=self.ledger.norm(parameters),
                **(self._some(given, len(accounts)) if parameters else self._nothing(given, place, spent)),
            )
        )  # fmt: skip
        if args:
            return original(parameters, *args[1:], **kwargs)
        return original(**{**kwargs, "parameters": parameters})

    def _some(self, given: Any, count: int) -> dict[str, Any]:
        """Say where a clipping of a part of the parameters gets the name of what it is given."""
        frame = user_frame(within=self.within)
        if frame is None or count == len(self.ledger.accounts):
            return {}
        name = name_in(frame, given)
        return {"made": sources.assigned_above(frame, name) if name else None}

    def _nothing(self, given: Any, place: Location | None, spent: bool | None) -> dict[str, Any]:
        """Say what a clipping was given that holds no parameter, and whether something has used it up."""
        frame = user_frame(within=self.within)
        name = name_in(frame, given)
        found: dict[str, Any] = {"given": name or type(given).__name__}
        if not isinstance(given, Iterator):
            return found
        if id(given) in self.iterators:  # an earlier call has clipped what it gave
            found |= {"used_up": True, "reader": place}
        if frame is not None:
            made, reader = iterator_lines(frame.f_code.co_filename, name, given)
            found["made"] = made
            if spent is not False and reader is not None and not _same_line(reader, place):
                found |= {"used_up": True, "reader": reader}
        return found


def _amplified(
    roots: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], factor: float
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a backward pass with its gradient multiplied by a factor."""
    if factor == 1.0 or len(roots) != 1:
        return args, kwargs
    given = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    given = given[0] if isinstance(given, tuple | list) and given else given
    if given is None:  # a gradient of its own would make torch import its symbolic shapes
        with torch.enable_grad():
            root = roots[0] * factor
        rest = {key: value for key, value in kwargs.items() if key != "tensors"}
        return (root, *args[1:]), rest
    grad = cast("torch.Tensor", given) * factor
    rest = {key: value for key, value in kwargs.items() if key not in ("tensors", "grad_tensors")}
    return (roots[0], grad, *args[2:]), rest


def _listen_to(roots: list[torch.Tensor], most: int = 20_000) -> list[Any]:
    """Return a list that gets an entry whenever a node of these graphs runs again; leaves belong to every graph."""
    ran: list[Any] = []
    seen: set[Any] = set()
    stack = [root.grad_fn for root in roots]
    while stack and len(seen) < most:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() != "torch::autograd::AccumulateGrad":
            node.register_prehook(lambda gradients: ran.append(None))
        stack += [following for following, _ in node.next_functions]
    return ran


def _within(roots: list[torch.Tensor], earlier: list[tuple[int, Any]]) -> int | None:
    """Return the place of an earlier pass whose root's graph is a part of the one to come, or None."""
    if not earlier:
        return None
    seen: set[Any] = set()
    stack = [root.grad_fn for root in roots]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack += [following for following, _ in node.next_functions]
    # one that stands at the top is the same pass again, as a double backward with retain_graph makes it
    return next((place for place, node in earlier if node in seen), None)


def _same_line(one: Location, other: Location | None) -> bool:
    return other is not None and (one.file, one.line) == (other.file, other.line)


def _fallback(thing: Any) -> str:
    return "optimizer" if isinstance(thing, torch.optim.Optimizer) else "model"
