"""The rules of the house, read from the package's tree.

A list of exceptions may only shrink: what no longer needs its entry has to leave the list.
"""

import ast
import functools
import graphlib
from collections import Counter, defaultdict
from pathlib import Path

import house_exceptions as known
import pytest

import pytest_torchcheck

ROOT = Path(pytest_torchcheck.__file__).parent
PACKAGE = ROOT.name
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MODES = {"TorchFunctionMode", "TorchDispatchMode"}


def name_of(path):
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@functools.cache
def tree_of(name):
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


@functools.cache
def text_of(name):
    return FILES[name].read_text(encoding="utf-8").splitlines()


@functools.cache
def nodes_of(name):
    """Return every node of a module that some rule looks at, each with whether it is inside a function."""
    kinds = (ast.ImportFrom, ast.Import, ast.ClassDef, ast.Call, ast.Constant, *FUNCTIONS)
    found, todo = [], [(tree_of(name), False)]
    while todo:
        node, inside = todo.pop()
        if isinstance(node, kinds):
            found.append((node, inside))
        inside = inside or isinstance(node, FUNCTIONS)
        todo += [(child, inside) for child in ast.iter_child_nodes(node)]
    return found


def nodes(name, *kinds):
    return [node for node, _ in nodes_of(name) if isinstance(node, kinds)]


@functools.cache
def imports():
    """Return what each module imports of this package: source, target, line, whether inside a function."""
    found = []
    for name, path in FILES.items():
        base = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, inside in nodes_of(name):
            if isinstance(node, ast.ImportFrom):
                up = base.split(".")[: len(base.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*up, *([node.module] if node.module else [])])
                targets = {f"{module}.{a.name}" for a in node.names}
                targets = {target if target in FILES else module for target in targets}
            elif isinstance(node, ast.Import):
                targets = {a.name for a in node.names}
            else:
                continue
            found += [
                (name, target, node.lineno, inside)
                for target in targets
                if target in FILES and target != name
            ]
    return found


def short(name):
    return name.removeprefix(f"{PACKAGE}.")


def test_no_modules_import_each_other():
    """Imports inside functions and for types alone count, but for types that a lower layer's public methods name."""
    edges = {name: set() for name in FILES}
    allowed = set()
    for source, target, _, _ in imports():
        if (short(source), short(target)) in known.TYPES_UPWARDS:
            allowed.add((short(source), short(target)))
        else:
            edges[source].add(target)
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(short(name) for name in error.args[1]))
    assert allowed == set(known.TYPES_UPWARDS)


def test_imports_inside_functions_say_what_they_spare():
    """The comment stands on the line of the import, or above it."""
    silent, lines = [], set()
    for source, _, line, inside in imports():
        if inside:
            text = text_of(source)
            lines.add((source, line))
            if "#" not in text[line - 1] and not text[line - 2].strip().startswith("#"):
                silent.append(f"{short(source)}:{line}")
    assert not silent
    assert len(lines) <= known.IMPORTS_INSIDE_FUNCTIONS


def targets():
    """Return the names that are resolved when they are used: ``"module:function"``, with where each stands."""
    for name in FILES:
        for node in nodes(name, ast.Constant):
            if isinstance(node.value, str):
                module, colon, function = node.value.partition(":")
                if colon and function.isidentifier() and f"{PACKAGE}.{module}" in FILES:
                    yield f"{short(name)}:{node.lineno}", f"{PACKAGE}.{module}", function


def bound(node):
    """Return the names that a statement of a module binds: of a function, a class or a constant."""
    assigned = [*getattr(node, "targets", ()), getattr(node, "target", None)]
    return {
        getattr(node, "name", ""),
        *(each.id for each in assigned if isinstance(each, ast.Name)),
    }


def test_names_that_are_resolved_late_exist():
    missing = [
        (place, module, function)
        for place, module, function in targets()
        if not any(function in bound(node) for node in tree_of(module).body)
    ]
    assert not missing
    assert sum(1 for _ in targets()) > 100


def test_checks_do_not_import_explainers():
    found = [
        f"{short(source)}:{line}: {short(target)}"
        for source, target, line, _ in imports()
        if short(source).startswith(("checks.", "codes.", "runs.", "catalogue."))
        and short(target).startswith(("diagnosis.", "data.explaining.", "ranks.explain"))
    ]
    assert not found


def test_modes_and_line_tracers_stand_in_named_places():
    bases = {
        short(name)
        for name in FILES
        for node in nodes(name, ast.ClassDef)
        if MODES & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    }
    assert bases == known.MODES
    tracing = {
        short(name)
        for name in FILES
        for node in nodes(name, ast.Call)
        if getattr(node.func, "attr", "") == "settrace"
    }
    assert tracing == {"record.lines"}


def test_the_runner_knows_no_check_by_name():
    from pytest_torchcheck.catalogue import catalogue

    texts = {
        node.value
        for node in ast.walk(tree_of(f"{PACKAGE}.runner"))
        if isinstance(node, ast.Constant)
    }
    phase_and_axis = {"backward", "low-precision"}
    assert not texts & set(catalogue()) - phase_and_axis


@functools.cache
def sizes():
    files = {short(n): len(text_of(n)) for n in FILES}
    functions = defaultdict(int)
    for name in FILES:
        for node in nodes(name, *FUNCTIONS):
            key = f"{short(name)}:{node.name}"
            functions[key] = max(functions[key], node.end_lineno - node.lineno + 1)
    folders = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in FILES.values()
        if path.name != "__init__.py"
    )
    return {"files": (files, 400), "functions": (functions, 60), "folders": (folders, 20)}


@pytest.mark.parametrize("kind", ["files", "functions", "folders"])
def test_nothing_new_is_too_large(kind):
    """Files of 400 lines, functions of 60, folders of 20 files beside ``__init__``, at most."""
    measured, most = sizes()[kind]
    large = {name for name, size in measured.items() if size > most}
    listed = getattr(known, kind.upper())
    assert not large - listed, f"above {most}: split them"
    assert not listed - large, f"no longer above {most}: take them off the list"
