"""Tests such as ``n in no_decay`` that compare a parameter's whole name with texts that are only parts of names."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from ... import sources
from ...explanation import listed
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...loop.closures import functions_of
from ...record.tracing import find_line
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of
from ...verdicts import violated
from .name_tests import rebinds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from ...findings import Location
    from ...subject import Subject

_LEAST = 2  # names with such a part: of one alone nobody knows whether it is meant


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """A condition that looks for names in a collection: ``variable in collection``, in a walk over names."""

    variable: str
    collection: ast.expr
    walked: ast.expr
    lines: range
    location: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unmet:
    """Such a condition that no name meets, or a few by chance (``met``), with the texts, and the parameters whose names have one as a part."""

    test: _Test
    texts: tuple[str, ...]
    names: tuple[str, ...]
    met: tuple[str, ...]
    parts: Mapping[str, Tensor]
    others: tuple[Tensor, ...]


def compared_whole(subject: Subject) -> Finding | None:
    """Return the finding of a name test of the optimizer function that is met by no name, and leaves no trace.

    The texts stand, between dots, in the names of several parameters, and the optimizer has these
    in groups with the very options that the parameters without such a text have. Nothing runs where
    the source has no such test.
    """
    tests = [
        test
        for function in functions_of(subject.contract.optimizer)
        for test in _tests(function.__code__.co_filename, function.__code__.co_firstlineno)
    ]
    if not tests:
        return None
    found: dict[Location, _Unmet] = {}
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        made = _made(subject, model, tests, found)
        if made is None:
            return None
        options = {
            id(p): repr(sorted((k, v) for k, v in group.items() if k != "params"))
            for optimizer in optimizers_of(made)
            for group in optimizer.param_groups
            for p in group["params"]
        }
        named = {id(p): name for name, p in model.named_parameters()}
        unmet = [one for one in found.values() if _without_trace(one, options)]
        return _told(unmet, named) if unmet else None


def _made(subject: Subject, model: nn.Module, tests: list[_Test], found: dict[Location, _Unmet]) -> Any:  # fmt: skip
    """Make the optimizer, and note at each test, as its function has run it, whether any name met it."""
    made: list[Any] = []
    met: set[Location] = set()

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        for test in tests if event != "call" else ():
            if line in test.lines and frame.f_code.co_filename == test.location.file:
                unmet = _unmet(frame, test)
                if unmet == "met":  # the collection may grow while the walk goes on
                    met.add(test.location)
                elif unmet is not None:
                    found[test.location] = unmet
        return False

    def run() -> None:
        try:
            made.append(subject.make_optimizer(model))
        except SubjectError:
            return  # the check that met the error reports it

    find_line(run, watcher)
    for place in met:
        found.pop(place, None)
    return made[0] if made else None


def _without_trace(one: _Unmet, options: Mapping[int, str]) -> bool:
    """Say whether the parameters that were meant have the options that the others have, all of them and no fewer."""
    meant = {options.get(id(p)) for p in one.parts.values()}
    return None not in meant and meant == {options.get(id(p)) for p in one.others} - {None}


def _unmet(frame: FrameType, test: _Test) -> _Unmet | Literal["met"] | None:
    """Return what a running frame tells of a test, ``met`` where a name is in the collection; None where nothing."""
    given = _resolve(frame, test.collection)
    walked = _pairs(frame, test.walked)
    texts = [given] if isinstance(given, str) else given
    if not walked or not isinstance(texts, list | tuple | set | frozenset | dict) or not texts:
        return None
    if not all(isinstance(t, str) for t in texts):
        return None
    met = {name for name, _ in walked if name in given}
    parts = {
        name: p
        for name, p in walked
        if p.requires_grad
        and name not in met
        and any(f".{t.strip('.')}." in f".{name}." for t in texts if t.strip("."))
    }
    # a whole name may be meant; one of several parameters of the same kind, and not its neighbours, is met by chance
    kinds = {_kind(name) for name in parts}
    if any(_kind(name) not in kinds or not _beside(name, parts) for name in met):
        return "met"
    others = tuple(p for name, p in walked if name not in parts and name not in met)
    if len(parts) < _LEAST or not others:
        return None
    return _Unmet(
        test=test,
        texts=tuple(texts),
        names=tuple(n for n, _ in walked),
        met=tuple(sorted(met)),
        parts=parts,
        others=others,
    )


def _kind(name: str) -> str:
    """Return the last two parts of a name, such as ``norm.weight``."""
    return ".".join(name.split(".")[-2:])


def _beside(name: str, parts: Mapping[str, Tensor]) -> bool:
    """Say whether another parameter of the same module is among some, which are treated otherwise."""
    owner = name.rpartition(".")[0]
    return any(other.rpartition(".")[0] == owner for other in parts)


def _told(unmet: list[_Unmet], named: Mapping[int, str]) -> Finding:
    first = unmet[0]
    test = first.test
    what = ast.unparse(test.collection)
    names = [named.get(id(p), name) for name, p in first.parts.items()]
    met = f"any(part in {test.variable} for part in {what})"
    return violated(
        "names-compared-whole",
        f"{test.variable} in {what} is True for {listed(first.met, 2) + ' only' if first.met else 'no parameter'}: "
        "it compares whole names, and "
        f"{names[0]} and {len(names) - 1} more only contain such a part",
        culprits=(
            *(
                Culprit(
                    "call",
                    ast.unparse(one.test.collection),
                    "holds no whole name",
                    one.test.location,
                )
                for one in unmet[:3]
            ),
            Culprit("parameter", names[0], "treated like the others"),
        ),
        location=test.location,
        observed=f"{len(first.met)} of {len(first.names)} names {'is' if len(first.met) == 1 else 'are'} in "
        f"({', '.join(map(repr, sorted(first.texts)[:4]))}); {len(names)} contain one of "
        "them",
        cause="`in` looks up the whole name in the collection, which holds parts of names",
        because=f"{names[0]} is in a group with the same options as parameters that have no such part",
        fix=f"use {met} on line {test.location.line}",
        evidence={"parameters": names},
    )


def _tests(filename: str, line: int) -> Iterator[_Test]:
    """Iterate over the conditions of a function that decide alone by ``variable in collection``."""
    around = [
        n
        for n in sources.nodes(filename)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and _first(n) == line
    ]
    for function in around[:1]:
        for walk in ast.walk(function):
            for variable, walked, conditions in _walks(walk):
                for condition in conditions:
                    for compare in _deciding(condition, variable):
                        statement = _statement(function, compare.lineno)
                        yield _Test(
                            variable=variable,
                            collection=compare.comparators[0],
                            walked=walked,
                            lines=range(statement.lineno, (statement.end_lineno or compare.lineno) + 1),
                            location=sources.of_line(filename, compare.lineno, getattr(function, "name", "")),
                        )  # fmt: skip


def _first(function: ast.AST) -> int:
    decorators = getattr(function, "decorator_list", [])
    lines: list[int] = [getattr(function, "lineno", 0), *(d.lineno for d in decorators)]
    return min(lines)


def _statement(function: ast.AST, line: int) -> Any:
    """Return the innermost statement, or the lambda, that holds a line; of one with a body, its first line alone."""
    around = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and sources.holds(n, line)]
    inner = max(around, key=lambda n: n.lineno, default=function)
    return inner.test if isinstance(inner, ast.If) else inner


def _walks(node: ast.AST) -> Iterator[tuple[str, ast.expr, list[ast.expr]]]:
    """Yield the variable of the names, what is walked over, and the conditions of a walk over names and parameters."""
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        loop = node.generators[0]
        if len(node.generators) == 1 and (variable := _first_name(loop.target)):
            yield variable, loop.iter, loop.ifs
    elif isinstance(node, ast.For):
        variable = _first_name(node.target)
        if variable and not rebinds(node.body, variable):
            inside = [n for part in node.body for n in ast.walk(part)]
            tests = [n.test for n in inside if isinstance(n, ast.If | ast.IfExp)]
            yield variable, node.iter, tests


def _first_name(target: ast.expr) -> str:
    pair = isinstance(target, ast.Tuple) and len(target.elts) == 2
    first = target.elts[0] if isinstance(target, ast.Tuple) and pair else None
    return first.id if isinstance(first, ast.Name) else ""


def _deciding(condition: ast.expr, variable: str) -> Iterator[ast.Compare]:
    """Yield the test of the variable where it is the condition, or the condition cannot be met without it."""
    parts = [condition]
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        parts = [condition.operand]
    elif isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And):
        parts = condition.values
    for part in parts:
        if isinstance(part, ast.Compare) and len(part.ops) == 1:
            alone = len(parts) == 1
            wanted = isinstance(part.ops[0], ast.In) or (
                alone and isinstance(part.ops[0], ast.NotIn)
            )
            if wanted and isinstance(part.left, ast.Name) and part.left.id == variable:
                yield part


def _pairs(frame: FrameType, walked: ast.expr) -> list[tuple[str, Tensor]]:
    """Return the names and parameters that an expression walks over, where a running frame can tell."""
    if (
        isinstance(walked, ast.Call)
        and isinstance(walked.func, ast.Name)
        and walked.func.id in ("list", "tuple", "sorted")
        and len(walked.args) == 1
    ):
        return _pairs(frame, walked.args[0])
    things: Any = None
    if (
        isinstance(walked, ast.Call)
        and isinstance(walked.func, ast.Attribute)
        and not walked.args
        and not walked.keywords
    ):
        owner = _resolve(frame, walked.func.value)
        if walked.func.attr == "named_parameters" and isinstance(owner, nn.Module):
            things = list(owner.named_parameters())
        elif walked.func.attr == "items" and type(owner) is dict:
            things = list(owner.items())
    elif isinstance(walked, ast.Name):
        things = _resolve(frame, walked)
    if not isinstance(things, list | tuple):
        return []
    fitting = all(
        isinstance(t, tuple) and len(t) == 2 and isinstance(t[0], str) and isinstance(t[1], Tensor)
        for t in things
    )
    return list(things) if fitting else []


def _resolve(frame: FrameType, expression: ast.expr) -> Any:
    """Return the value of a name, a literal, or an attribute as a frame knows it; no code of the user's runs."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        owner = _resolve(frame, expression.value)
        if isinstance(owner, nn.Module) and expression.attr in owner._modules:
            return owner._modules[expression.attr]
        held = getattr(owner, "__dict__", {})
        return held.get(expression.attr, vars(type(owner)).get(expression.attr))
    try:
        return ast.literal_eval(expression)
    except ValueError:
        return None
