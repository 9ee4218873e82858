"""The groups of an optimizer: two that share parameters, and parameters that a comprehension or a loop left out."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ... import sources
from ...explanation import Explanation, clipped, listed, on_line
from ...findings import Culprit
from ...lean import dataclass
from ...record.tracing import find_line, line_of
from ..lines.assigned import assigned
from .given_parameters import MOST, Given, given_to_optimizers, list_given
from .given_syntax import names_given, written_to
from .making import making
from .used_up_iterators import used_up, used_up_near

if TYPE_CHECKING:
    from types import FrameType

    import torch

    from ...findings import Location
    from ...subject import Subject
    from ..crashes.scene import Scene
    from .making import Making
    from .used_up_iterators import UsedUp


def groups_overlap(scene: Scene) -> Explanation | None:
    """Explain the error of an optimizer whose groups share parameters, by what its constructor was given."""
    frame = scene.called("add_param_group")
    if frame is None or scene.model is None:
        return None
    latest = list((frame.get("param_group") or {}).get("params", ()))
    earlier = [list(group["params"]) for group in getattr(frame.get("self"), "param_groups", ())]
    ids = {id(p) for p in latest}
    other = next((i for i, g in enumerate(earlier) if any(id(p) in ids for p in g)), None)
    if other is None:
        return None
    number, first = len(earlier), earlier[other]
    held = {id(p) for p in first}
    shared = [p for p in latest if id(p) in held]
    names = _names(scene.model, shared)
    place = scene.location
    texts = dict.fromkeys((other, number), "")
    lines: dict[int, Location] = {}
    for one in texts:
        if place is not None and (found := _group(scene, place, one)) is not None:
            texts[one], lines[one] = clipped(found[0], 40), found[1]
    words = {one: f"group {one}" + (f" ({text})" if text else "") for one, text in texts.items()}
    wide = _wide_group(other, first, latest, number, shared)
    at = lines.get(number if wide is None else wide)
    line = on_line(at)
    shown = listed(names, 3) or f"{len(shared)} parameters"
    if wide is None:
        cause = f"{words[other]} and {words[number]} share {shown}"
        fix = f"remove {shown} from one of the two groups{line}"
    else:
        narrow = number if wide == other else other
        cause = f"{words[wide]} holds every parameter of {words[narrow]} too"
        fix = f"remove {shown} from {words[wide]}{line}"
    place_dead = scene.dead(place.file) if place is not None else frozenset()
    spent = next((u for u in used_up_near(place, place_dead) if u.tested), None) if place else None
    if spent is not None:
        cause, fix, at = f"{cause}: {spent.cause}", spent.fix, spent.made
    made = tuple(
        Culprit("call", texts[one] or words[one], f"creates {words[one].partition(' (')[0]}", lines[one])
        for one in sorted(texts, key=lambda one: one != wide)
        if one in lines and lines[one] != place
    )  # fmt: skip
    return Explanation(
        code="optimizer-parameters",
        summary=f"{shown} {'stands' if len(shared) == 1 else 'stand'} in two groups of the optimizer",
        observed=(f"{words[other]} holds {len(first)} parameters, {words[number]} {len(latest)}; "
            f"{len(shared)} are in both"),
        cause=cause,
        because=f"by identity, {shown} of the model {'is' if len(shared) == 1 else 'are'} in both; {scene.said}",
        fix=fix,
        culprits=(
            *(spent.culprits if spent is not None else ()),
            *(c for c in made if spent is None or c.location != spent.reader),
            Culprit("optimizer", "optimizer", "rejects the groups", place),
            *(Culprit("parameter", name, "in two groups", sources.of_parameter(scene.model, name)) for name in names[:4]),
        ),
        location=at or place,
        evidence={"parameters": names},
    )  # fmt: skip


def _wide_group(
    other: int, first: list[Any], latest: list[Any], number: int, shared: list[Any]
) -> int | None:
    """Return the group that holds all parameters of the other and more, or None."""
    # a group that holds all of the other one and more was meant to hold the rest
    return next(
        (
            one
            for one, own, its in ((other, first, latest), (number, latest, first))
            if len(shared) == len(its) < len(own)
        ),
        None,
    )


def spent_iterator(scene: Scene) -> UsedUp | None:
    """Return the iterator, used up before, that the failing line reads, or through which parameters were chosen."""
    place = scene.location
    if place is None:
        return None
    read = sources.names_read(place.file, place.line)
    found = used_up_near(place, scene.dead(place.file))
    return next((u for u in found if u.tested or u.name in read), None)


def _names(model: torch.nn.Module, parameters: list[torch.Tensor]) -> list[str]:
    named = {id(p): name for name, p in model.named_parameters()}
    return [named[id(p)] for p in parameters if id(p) in named]


def _group(scene: Scene, place: Location, number: int) -> tuple[str, Location] | None:
    """Return how the parameters of a group are written, and the line that makes them."""
    dead = scene.dead(place.file)
    group = _element(place, number, dead)
    if isinstance(group, ast.Name):
        found = assigned(place, group.id, without=dead)
        group = found.value if found is not None else None
    if isinstance(group, ast.Dict):
        keys = [k.value if isinstance(k, ast.Constant) else None for k in group.keys]
        group = group.values[keys.index("params")] if "params" in keys else None
    if group is None:
        return None
    text = ast.unparse(group)
    if isinstance(group, ast.Name) and (made := assigned(place, group.id, without=dead)) is not None:  # fmt: skip
        return text, made.location
    return text, sources.of_line(place.file, group.lineno, place.function)


def _element(place: Location, number: int, dead: frozenset[int]) -> ast.expr | None:
    """Return the expression of a group in the list that the call on a line is given, where it is written out."""
    for call in sources.around(place.file, place.line, ast.Call):
        given = next((k.value for k in call.keywords if k.arg == "params"), None)
        given = call.args[0] if call.args else given
        if isinstance(given, ast.Name):
            made = assigned(place, given.id, without=dead)
            given = made.value if made is not None else None
        if (
            isinstance(given, ast.List | ast.Tuple)
            and number < len(given.elts)
            and not any(isinstance(e, ast.Starred) for e in given.elts)
        ):
            return given.elts[number]
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Where a parameter would have to be added.

    Attributes:
        location: The line.
        words: What the line does, as a clause.
        told: Whether the words say more than the line itself.
        culprits: It and the other lines that give the optimizer parameters, and the one that makes it.
        fix: The edit, where another one than to add the parameter there is called for.
    """

    location: Location
    words: str
    culprits: tuple[Culprit, ...]
    fix: str = ""
    told: bool = False


def left_out(subject: Subject, name: str) -> LeftOut | None:
    """Return where a parameter that no optimizer holds would have to be added; None where the source does not say.

    That is the statement that leaves out a variable which holds it, else the condition that chooses among
    parameters of which it is one, else the list that the optimizer was given by name, else the last statement
    that adds any.
    """
    made = making(subject)
    every = given_to_optimizers(made, subject.model, name)
    if (spent := _spent(made, every)) is not None:
        return LeftOut(
            location=spent.made, words=spent.cause, culprits=spent.culprits, fix=spent.fix
        )
    if (ungiven := _ungiven(made, every, name)) is not None:
        return ungiven
    found = [g for g in every if g.adds]
    if not found:
        return None
    choosing = next((g for g in found if g.conditions), None)
    first = choosing or list_given(made, every) or found[-1]
    words = "a condition selects them" if choosing else "the last line that adds any"
    if first not in found:
        words = f"line {first.place.line} lists what `{written_to(first.statement)}` holds"
    else:
        words += f": line {first.place.line}"
    culprits: dict[tuple[str, int], Culprit] = {}
    for given in (first, *reversed(found)):
        detail = "a condition selects" if given.conditions else "passes parameters to it"
        for line in given.conditions[:2] or [given.place]:
            at = (line.file, line.line)
            culprits.setdefault(at, Culprit("call", "parameters", detail, line))
    kept = list(culprits.values())[:MOST]
    for line in made.optimizers[-1:]:
        if (line.file, line.line) not in culprits:
            kept.append(Culprit("optimizer", "optimizer", "is created here", line))
    return LeftOut(location=first.place, words=words, culprits=tuple(kept))


def _ungiven(made: Making, every: list[Given], name: str) -> LeftOut | None:
    """Return the statement that gives an optimizer all but a variable which holds a parameter, and none of its own."""
    for kept in reversed(made.kept):
        if name not in kept.names or kept.names & made.given:
            continue
        own = [g for g in every if (g.location.file, g.location.function) == (kept.file, kept.function)]  # fmt: skip
        line = _assigned_once(made, own[-1].location, kept.variable) if own else None
        if line is None or any(kept.variable in names_given(g.statement) for g in own):
            continue
        place = sources.of_line(kept.file, own[-1].statement.lineno, kept.function)
        target = written_to(own[-1].statement)
        into = f"in `{target}`" if target else "given to the optimizer"
        culprits = [
            Culprit("call", target or "parameters", f"leaves out {kept.variable}", place),
            Culprit("call", kept.variable, f"holds {name}", line),
            *(Culprit("optimizer", "optimizer", "is created here", p) for p in made.optimizers[-1:] if p != place),
        ]  # fmt: skip
        return LeftOut(
            location=place,
            words=f"`{kept.variable}` (line {line.line}) holds {name} and is not {into}",
            culprits=tuple(culprits),
            fix=f"add `{kept.variable}` {f'to `{target}` ' if target else ''}on line {place.line}, or freeze "
            "what it holds with requires_grad_(False)",
            told=True,
        )
    return None


def _assigned_once(made: Making, place: Location, variable: str) -> Location | None:
    """Return the line of a function that gives a variable its value; None where loops give it one after the other."""
    scope = sources.function_around(place.file, place.line) or sources.tree_of(place.file)
    nodes = list(sources.own_nodes(scope))
    loops = [n for n in nodes if isinstance(n, ast.For | ast.While)]
    ran = {(p.file, p.line) for p in made.lines}
    lines = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and any(isinstance(t, ast.Name) and t.id == variable for t, _ in sources.writes(node))
        and any((place.file, n) in ran for n in range(node.lineno, (node.end_lineno or 0) + 1))
    ]
    if not lines or any(sources.holds(loop, lines[-1]) for loop in loops):
        return None
    return sources.of_line(place.file, lines[-1], place.function)


def lost(subject: Subject, name: str) -> LeftOut | None:
    """Return the line after which no list or dict holds a parameter that one held before it."""
    made = making(subject)
    found: list[Location] = []
    held: dict[FrameType, bool] = {}
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        parameter = dict(model.named_parameters())[name]

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            now = any(_holds(value, parameter) for value in frame.f_locals.values())
            if held.get(frame) and not now:
                found.append(line_of(frame.f_code, line))
            held[frame] = now
            return False

        find_line(lambda: subject.make_optimizer(model), watcher)
    if not found:
        return None
    place = found[-1]
    first = _deciding(made, place)
    deciding = first != place
    words = f"line {place.line} drops {name}, which a list held before"
    if deciding:
        words += f"; line {first.line} decides that it runs"
    culprits = [Culprit("call", "parameters", f"drops {name}", place)]
    if deciding:
        culprits.insert(
            0, Culprit("call", sources.assigned_name(first) or "if", "decides it", first)
        )
    return LeftOut(
        location=first,
        words=words,
        culprits=tuple(culprits),
        fix=f"keep what line {place.line} replaces: add to it, or let it run once for each group",
    )


def skipped(subject: Subject, name: str) -> LeftOut | None:
    """Return the one ``continue`` by which a loop of the optimizer function passes over a parameter, or its module.

    None where a list of that function holds the parameter by then: it was skipped because it had been added.
    """
    found: dict[tuple[str, int], Location] = {}
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        parameter = dict(model.named_parameters())[name]
        owner = model.get_submodule(name.rpartition(".")[0])

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            file, known = frame.f_code.co_filename, list(frame.f_locals.values())
            if (
                any(one is parameter or one is owner for one in known)
                and isinstance(sources.statement(file, line), ast.Continue)
                and not any(_holds(one, parameter) for one in known)
            ):
                found[file, line] = line_of(frame.f_code, line)
            return False

        find_line(lambda: subject.make_optimizer(model), watcher)
    if len(found) != 1:
        return None
    (place,) = found.values()
    tests = sources.deciding_lines(place)[:1]
    words = f"the loop passes over {name} on line {place.line}"
    return LeftOut(
        location=place,
        words=words,
        culprits=(
            Culprit("call", "parameters", f"passes over {name}", place),
            *(Culprit("call", "if", "decides it", test) for test in tests),
        ),
        fix=f"add the module's own parameters, {name} among them, before line {place.line}"
        if owner is not subject.model
        else f"add {name} before line {place.line}",
    )


def _deciding(made: Making, place: Location) -> Location:
    """Return the test for a new entry that lets a line of a loop run, or the line of its one name; else the line."""
    loops = sources.around(place.file, place.line, ast.For)
    tests = sources.around(place.file, place.line, ast.If)
    if not loops or not tests or tests[-1].lineno <= loops[-1].lineno:
        return place
    name = ast.unparse(tests[-1].test).removeprefix("not ")
    ran = {(p.file, p.line) for p in made.lines}
    head, *above = sources.deciding_lines(place)
    if not name.isidentifier():
        return head if " in " in name else place
    return next((p for p in above if (p.file, p.line) in ran), head)


def _holds(value: Any, parameter: torch.Tensor, depth: int = 3) -> bool:
    """Say whether a list, set or dict holds a parameter, itself or in another one."""
    if not isinstance(value, list | tuple | set | dict) or not depth:
        return False
    each = value.values() if isinstance(value, dict) else value
    return any(one is parameter or _holds(one, parameter, depth - 1) for one in each)


def spent_of(subject: Subject, name: str) -> UsedUp | None:
    """Return the iterator through which a parameter was chosen after nothing was left in it, or None."""
    made = making(subject)
    return _spent(made, given_to_optimizers(made, subject.model, name))


def _spent(made: Making, found: list[Given]) -> UsedUp | None:
    """Return an iterator that was used up in a function that gave the optimizer parameters, and read again there."""
    lines = {(p.file, p.line) for p in made.lines}
    for given in found:
        file = given.location.file

        def ran(node: ast.stmt, file: str = file) -> bool:
            return any((file, n) in lines for n in range(node.lineno, (node.end_lineno or 0) + 1))

        if spent := used_up(file, given.statement.lineno, ran):
            return spent[0]
    return None
