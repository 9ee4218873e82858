"""Who chose an argument: where a function hands a parameter on as it is, the call on the stack that passes it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torch.nn.modules import module as _modules

from .. import sources
from ..lean import dataclass
from .tracing import expression

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType

    from ..findings import Location

_SELF = ("self", "cls")
_OF_OBJECTS = ("__call__", "__init__", "forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The call that passes a value which the functions it calls hand on.

    Attributes:
        location: The line of the value in that call; the call's own where the default stands for it.
        name: The parameter of the function that is called there.
    """

    location: Location
    name: str


def passing(frames: Iterable[FrameType], name: str, position: int) -> Passed | None:
    """Return the call that passes what the innermost call of the user's only hands on.

    None where that call gives the argument a value of its own, or where the source does not say. A parameter that its
    function assigns anew is a value of its own.

    Args:
        frames: The running frames, from the innermost; those of ``nn.Module.__call__`` hand everything on.
        name: The argument of the innermost call; where that is an assignment, it gives the value that is assigned.
        position: Its place among that call's positional arguments.
    """
    stack = [f for f in frames if f.f_code.co_filename != _modules.__file__]
    own = [sources.rank(f.f_code.co_filename) == 2 for f in stack]
    at = own.index(True) if True in own else len(stack)
    code: CodeType | None = None
    found: Passed | None = None
    while at < len(stack) and own[at]:
        frame = stack[at]
        call = expression(frame.f_code, frame.f_lasti)
        value = _argument(call[1], name, position, code) if call is not None else None
        if call is not None and code is None:
            value = value or _assigned(*call)
        if call is None or value is None:
            return found
        file, function = call[0], sources.function_around(call[0], call[1].lineno)
        if code is not None:
            at_line = sources.of_line(file, value.lineno, frame.f_code.co_qualname)
            found = Passed(location=at_line, name=name)
        if function is None or not isinstance(value, ast.Name) or not _hands_on(function, value.id):
            return found
        name, position = value.id, sources.parameters(function).index(value.id)
        while stack[at].f_code.co_name.startswith("<") and at + 1 < len(stack):
            if name in stack[at].f_code.co_varnames:
                return found  # the variable of a comprehension or a lambda
            at += 1
        code = stack[at].f_code
        if code.co_name != function.name:
            return found
        at += 1
    return found


def _argument(call: ast.expr, name: str, position: int, code: CodeType | None) -> ast.expr | None:
    """Return what a call gives a parameter: the call itself where a default stands for it, None where that is not sure.

    Args:
        call: Where it is given.
        name: Of the parameter.
        position: Its place among all parameters, ``self`` included.
        code: Of the user's function that is called; None for a function of torch's.
    """
    if not isinstance(call, ast.Call):
        return None
    if code is not None and code.co_name not in (*_OF_OBJECTS, sources.called(call)):
        return None  # under another name it may be a partial, which shifts what it is given
    if (named := next((k.value for k in call.keywords if k.arg == name), None)) is not None:
        return named
    if any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
        return None
    if code is not None and code.co_varnames[0] in _SELF:
        if call.args and ast.unparse(call.args[0]) in _SELF:
            return None  # Base.method(self, ...), or an object that is given itself
        position -= 1
    positional = code is None or name in code.co_varnames[: code.co_argcount]
    if positional and position < len(call.args):
        return call.args[position]
    function = (
        None if code is None else sources.function_around(code.co_filename, code.co_firstlineno)
    )
    if function is None or any(k.arg is None for k in call.keywords):
        return None
    return call if sources.default_of(function, name) is not None else None


def _assigned(file: str, target: ast.expr) -> ast.expr | None:
    """Return what is assigned to an attribute; None where an expression assigns nothing."""
    statement = sources.statement(file, target.lineno)
    written = () if statement is None else sources.writes(statement)
    return next((value for one, value in written if one is target), None)


def _hands_on(function: ast.AST, name: str) -> bool:
    """Say whether a name is a parameter of a function that the function never assigns."""
    return name in sources.parameters(function) and not any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        for n in ast.walk(function)
    )
