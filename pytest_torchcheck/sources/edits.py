"""Code that a finding suggests: it parses, and uses names that exist where it is to stand.

Every fragment that a line is to hold goes through :func:`usable`; where it cannot be used there, the caller
says in words what to do. What is left in a fix goes through :func:`clarified`.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from keyword import kwlist
from typing import TYPE_CHECKING

from .syntax import function_around, holds, nodes, tree_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from ..findings import Location
    from .syntax import Function

_OF_TENSORS = frozenset(
    [
        "shape",
        "device",
        "dtype",
        "dim",
        "size",
        "view",
        "reshape",
        "float",
        "long",
        "to",
        "mean",
        "sum",
        "transpose",
        "permute",
        "new_zeros",
        "unsqueeze",
        "squeeze",
        "flatten",
        "softmax",
        "log_softmax",
        "argmax",
        "detach",
        "ndim",
        "numel",
        "contiguous",
    ]
)


def usable(code: str, place: Location | None) -> bool:
    """Say whether a fragment is Python, and all of its names exist at a line.

    Args:
        code: An expression, or the end of one that starts with a dot (``.to(x.device)``), or a
            keyword argument (``device=x.device``).
        place: The line where it is to stand; nothing is known of the names without one.
    """
    whole = f"_{code}" if code.startswith(".") else code
    if re.match(r"\w+=[^=]", whole):
        whole = f"dict({whole})"
    try:
        ast.parse(whole, mode="eval")
    except SyntaxError:
        return False
    names = names_of_code(whole) - {"_", "dict"}
    known = known_names(place)
    return not names if known is None else names <= known


def names_of_code(code: str) -> set[str]:
    """Return the names that a piece of code uses; of what is no Python by itself, its words."""
    try:
        tree = ast.parse(code.strip())
    except SyntaxError:  # the head of a block
        return set(re.findall(r"(?<![\w.\"'])[A-Za-z_]\w*(?!\w*=[^=])", code)) - set(kwlist)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def written(code: str, place: Location | None, otherwise: str) -> str:
    """Return a fragment where it can be used, else what to say instead."""
    return code if code and usable(code, place) else otherwise


_FRAGMENT = re.compile(r"(?<![\w.(\[])(\.?[A-Za-z_][\w.]*\((?:[^()]|\([^()]*\))*\))")
"""A call that stands in prose."""

_ROLES = frozenset(
    [
        "model",
        "optimizer",
        "scheduler",
        "scaler",
        "loss",
        "output",
        "outputs",
        "target",
        "targets",
        "inputs",
        "batch",
        "ctx",
        "self",
        "cls",
    ]
)
"""What docs call by these names, whatever the user does."""


def clarified(fix: str, place: Location | None, sizes: Mapping[str, int]) -> str:
    """Return a fix that says which names and numbers of its code are not to be copied as they are.

    Args:
        fix: What to do, in prose with code in it.
        place: The line that it speaks of.
        sizes: Size of each symbol of the batch: what was drawn says nothing of other batches.
    """
    known = known_names(place)
    if known is None or place is None:
        return fix
    unknown: dict[str, None] = {}
    drawn: dict[str, None] = {}
    for code in _FRAGMENT.findall(fix):
        whole = f"_{code}" if code.startswith(".") else code
        try:
            tree = ast.parse(whole, mode="eval")
        except SyntaxError:
            continue
        if f"{code} on line" in fix:
            unknown |= dict.fromkeys(_unknown(tree, known, place.text))
        if re.search(r"\b(view|reshape|expand|unflatten)\($", whole[: whole.find("(") + 1]):
            numbers = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
            drawn |= {
                f"{number} is {name} here": None
                for name, number in sizes.items()
                if number > 1 and number in numbers and not re.search(rf"\b{number}\b", place.text)
            }
    notes = list(drawn)
    names = [name for name in unknown if not re.search(rf"\b{name} = ", fix)]
    if names:
        stand = "stands" if len(names) == 1 else "stand"
        notes.append(f"{' and '.join(names)} {stand} for your own")
    return f"{fix} ({'; '.join(notes)})" if notes else fix


def _unknown(tree: ast.Expression, known: frozenset[str], line: str) -> list[str]:
    """Return the variables of an expression that neither exist at a line nor are told from what stands there."""
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    fine = known | _ROLES | sys.stdlib_module_names | {"_"}
    fine |= {node.id for node in used if isinstance(node.ctx, ast.Store)}
    free = [node.id for node in used if id(node) not in calls and node.id not in fine]
    return [n for n in free if n.islower() and not re.search(rf"\b{n}\b", line)]


def like_tensor(place: Location | None, attribute: str) -> str:
    """Return ``name.attribute`` of a tensor that the function at a line is given, or an empty string.

    A parameter counts where its function does with it what is done with tensors, and does not read
    it by a key. In the ``forward`` of a module that has none, it is the first parameter of the
    module.
    """
    function = None if place is None else function_around(place.file, place.line)
    if function is None or place is None:
        return ""
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    method = _is_method(function, tree_of(place.file))
    for name in arguments[method:]:
        if _is_tensor(function, name):
            return f"{name}.{attribute}"
    if method and function.name == "forward" and arguments:
        return f"next({arguments[0]}.parameters()).{attribute}"
    return ""


def device_at(place: Location | None) -> str:
    """Return the argument that names the device of the data at a line, in words where no name is known."""
    code = like_tensor(place, "device")
    return written(f"device={code}" if code else "", place, "the device of the other operand")


def argument_texts(place: Location | None, method: str, count: int) -> list[str] | None:
    """Return the source of each argument of the only call of a method at a line, or None where there is none.

    Args:
        place: The line.
        method: Such as ``reshape``.
        count: How many arguments the call has.
    """
    function = None if place is None else function_around(place.file, place.line)
    if function is None or place is None:
        return None
    calls = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and holds(node, place.line)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and len(node.args) == count
        and not any(isinstance(a, ast.Starred) for a in node.args)
    ]
    return [ast.unparse(a) for a in calls[0].args] if len(calls) == 1 else None


_SYMBOLS = {"sub": ast.Sub, "add": ast.Add, "mul": ast.Mult, "div": ast.Div, "truediv": ast.Div}


def operand_texts(place: Location | None, name: str) -> list[str] | None:
    """Return the code of both operands of the only call of a function, or criterion, at a line; None if unclear.

    Args:
        place: The line.
        name: Such as ``F.mse_loss`` or ``Tensor.sub``, which may be written as an operator.
    """
    bare = name.rpartition(".")[2].strip("_")
    own: list[list[ast.expr]] = []
    others: list[list[ast.expr]] = []
    for node in nodes(place.file) if place is not None else ():
        if place is None or not isinstance(node, ast.expr) or not holds(node, place.line):
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, _SYMBOLS.get(bare, ())):
            own.append([node.left, node.right])
        elif isinstance(node, ast.Call) and len(node.args) >= 2:
            called = ast.unparse(node.func).rpartition(".")[2]
            (own if called == bare else others).append(node.args[:2])
    found = own or others
    if len(found) != 1 or any(isinstance(a, ast.Starred) for a in found[0]):
        return None
    plain = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
    return [ast.unparse(a) if isinstance(a, plain) else f"({ast.unparse(a)})" for a in found[0]]


def submodule(model: nn.Module, name: str, owner: str = "self") -> str:
    """Return the expression that reaches a submodule or parameter: ``self.blocks[1].norm``, ``self.heads["a"]``.

    Args:
        model: The model.
        name: Qualified name.
        owner: What the model is called there.
    """
    code, module = owner, model
    for word in name.split("."):
        if hasattr(type(module), "__getitem__") and word.isdigit():
            code += f"[{word}]"
        elif hasattr(type(module), "__getitem__") and word not in vars(type(module)):
            code += f"[{word!r}]".replace("'", '"')
        else:
            code += f".{word}"
        module = module._modules.get(word) or module  # the last word may be a parameter
    return code


def known_names(place: Location | None) -> frozenset[str] | None:
    """Return the names that exist at a line: of its function, its module and Python itself; None if unknown."""
    tree = None if place is None else tree_of(place.file)
    if tree is None or place is None or not tree.body:
        return None
    function = function_around(place.file, place.line)
    found = set(dir(builtins)) | _bound(tree.body)
    if function is not None:
        args = function.args
        every = (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
        found |= {a.arg for a in every if a is not None} | _bound(function.body)
    return frozenset(found)


def _bound(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that statements bind in their own scope."""
    found: set[str] = set()
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        stack.extend(ast.iter_child_nodes(node))
    return found


def _is_method(function: Function, tree: ast.Module | None) -> bool:
    """Say whether a function's first parameter is the object that it belongs to."""
    static = any(
        isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list
    )
    return not static and any(
        isinstance(node, ast.ClassDef) and function in node.body
        for node in (ast.walk(tree) if tree is not None else ())
    )


def _is_tensor(function: Function, name: str) -> bool:
    used = False
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and _names(node.value, name):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                return False
        elif isinstance(node, ast.Attribute) and _names(node.value, name):
            used = used or node.attr in _OF_TENSORS
        elif isinstance(node, ast.BinOp):
            used = used or _names(node.left, name) or _names(node.right, name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            own = isinstance(node.func.value, ast.Name | ast.Attribute)
            used = used or (own and any(_names(a, name) for a in node.args))
    return used


def _names(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
