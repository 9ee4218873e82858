"""Do datasets that are put together agree on which label a class has?

Each part may count its own classes (``class_to_idx``). That is wrong only where the labels read
follow these: a part that maps its labels to common ones is right, whatever it calls its classes.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from torch.utils.data import ConcatDataset, Subset

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...objects import peek
from ...verdicts import suspicious, violated
from ..contents import is_array, is_object_array
from ..explaining.making_lines import files_of
from ..labels import label_path
from ..wording import line_ref

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...findings import Location
    from ..plan import Part
    from ..validity import Survey

_COLUMNS = ("samples", "imgs", "targets", "labels", "target", "label", "y")
_MOST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One dataset that names its classes, and what was read of it.

    Attributes:
        title: How it is called: the class, with its place among those put together.
        dataset: The dataset that holds the names.
        classes: Label of each class by its name.
        read: Label of each class that was read.
        part: What it is a part of.
        constants: Values that are the same in all samples read, by path.
    """

    title: str
    dataset: Any = field(repr=False)
    classes: dict[str, int]
    read: dict[str, int]
    part: Part = field(repr=False)
    constants: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlike:
    """Two datasets that give one class two labels, or two classes one label.

    Attributes:
        first, second: They.
        name: A class that both have.
        labels: Its label in each.
        count: How many classes have two labels.
        told_apart: Whether samples, or the loader, may say which dataset they are of.
    """

    first: Named
    second: Named
    name: str
    labels: tuple[int, int]
    count: int
    told_apart: bool


def unlike_names(surveys: Sequence[Survey]) -> Unlike | None:
    """Compare the names of classes of all datasets of a contract, and of those that are put together; reads nothing."""
    named = [one for survey in surveys for one in _named(survey)]
    for first, second in itertools.combinations(named, 2):
        if first.dataset is second.dataset:
            continue
        both = [name for name in first.read if name in second.read]
        differing = [name for name in both if first.read[name] != second.read[name]]
        if differing:
            name = differing[0]
            return Unlike(
                first=first,
                second=second,
                name=name,
                labels=(first.read[name], second.read[name]),
                count=len(differing),
                told_apart=_told_apart(first, second),
            )
    return None


def _told_apart(first: Named, second: Named) -> bool:
    """Say whether a value of the samples says which of two datasets they are of, or the loader treats them by itself."""
    marks = any(
        path in second.constants and second.constants[path] != value
        for path, value in first.constants.items()
    )
    own = any(
        one.part.plan.collate_fn is not None or one.part.plan.batch_sampler is not None
        for one in (first, second)
    )
    return marks or own


def _named(survey: Survey) -> Iterator[Named]:
    """Yield the datasets of a survey that name their classes and give labels by these names."""
    path = label_path(survey)
    if path is None or not survey.part.is_map_style:
        return
    for place, (dataset, start, stop) in enumerate(_pieces(survey.part.dataset)):
        samples = [one for one in survey.samples if start <= one.index < stop]
        base, indices = _base(dataset, [one.index - start for one in samples])
        classes = _classes(base)
        if not classes or not samples:
            continue
        labels: dict[int, int] = {}
        values: dict[str, set[str | None]] = {}
        for sample, index in zip(samples, indices, strict=True):
            for leaf in sample.leaves:
                if (
                    leaf.path == path
                    and leaf.shape in ((), (1,))
                    and leaf.low is not None
                    and leaf.whole
                ):
                    labels[index] = int(leaf.low)
                elif leaf.path != path:
                    values.setdefault(leaf.path, set()).add(leaf.digest)
        names = _names_read(base, classes, labels) if len(labels) == len(samples) else None
        if names is None:
            continue
        title = type(base).__name__ + (f" {place}" if stop - start < survey.part.length else "")
        yield Named(
            title=survey.part.prefix + title,
            dataset=base,
            classes=classes,
            read={name: classes[name] for name in sorted(names)},
            part=survey.part,
            constants={p: next(iter(v)) or "" for p, v in values.items() if len(v) == 1},
        )


def _pieces(dataset: Any) -> list[tuple[Any, int, int]]:
    """Return the datasets that are put together, with the indices that they have."""
    if not isinstance(dataset, ConcatDataset):
        return [(dataset, 0, len(dataset))]
    starts = [0, *dataset.cumulative_sizes]
    return list(zip(dataset.datasets, starts, starts[1:], strict=False))


def _base(dataset: Any, indices: list[int]) -> tuple[Any, list[int]]:
    while isinstance(dataset, Subset):
        indices = [int(dataset.indices[index]) for index in indices]
        dataset = dataset.dataset
    return dataset, indices


def _classes(dataset: Any) -> dict[str, int]:
    """Return the label of each class by its name, as a dataset tells it."""
    found = peek.attribute(dataset, "class_to_idx")
    if isinstance(found, Mapping):
        return {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, int)}
    found = peek.attribute(dataset, "classes")
    if isinstance(found, list | tuple) and all(isinstance(one, str) for one in found):
        return {name: label for label, name in enumerate(found)}
    return {}


def _names_read(dataset: Any, classes: dict[str, int], labels: dict[int, int]) -> set[str] | None:
    """Return the classes of the samples read, by a stored column that the labels follow; None where none is found."""
    by_label = {label: name for name, label in classes.items()}
    if not labels or len(by_label) < len(classes):
        return None
    for attribute, column in list(peek.attributes(dataset).items()):
        listed = isinstance(column, list | tuple) or is_array(column) or is_object_array(column)
        if not listed or not _is_long(column, len(dataset)):
            continue
        names = {i: _name_of(column[i], classes, by_label, attribute) for i in labels}
        if all(name is not None and classes[name] == labels[i] for i, name in names.items()):
            return {name for name in names.values() if name is not None}
    return None


def _is_long(column: Any, count: int) -> bool:
    return getattr(column, "shape", (1,)) != () and len(column) == count


def _name_of(
    row: Any, classes: dict[str, int], by_label: dict[int, str], attribute: str
) -> str | None:
    """Return the class that a row of a column names: by its name, a folder of its path, or a label."""
    if isinstance(row, list | tuple):
        found = {_name_of(one, classes, by_label, attribute) for one in row[:4]} - {None}
        return found.pop() if len(found) == 1 else None
    if isinstance(row, str | os.PathLike):
        words = (
            re.split(r"[/\\]", os.fspath(row))
            if not isinstance(row, str) or row not in classes
            else [row]
        )
        names = {word for word in map(str, words) if word in classes}
        return names.pop() if len(names) == 1 else None
    if attribute in _COLUMNS and not isinstance(row, bool | float):
        try:
            return by_label.get(int(row))
        except (TypeError, ValueError, RuntimeError):
            return None
    return None


def differing(found: Unlike, declared: Location | None) -> Finding:
    """One class has two labels in datasets that are put together."""
    first, second = found.first, found.second
    together = first.part is second.part
    attribute = "class_to_idx" if peek.attribute(first.dataset, "class_to_idx") else "classes"
    places = _calls(
        first.part, "ConcatDataset" if together else type(second.dataset).__name__, declared
    )
    made = sources.of_assignment(first.dataset, attribute)
    place = places[0] if len(places) == 1 else made or first.part.class_line
    here = "combined here" if together else "created here"
    make = suspicious if found.told_apart else violated
    return make(
        "class-index-differs",
        f"{found.name!r} is label {found.labels[0]} in {first.title} and label "
        f"{found.labels[1]} in {second.title}: each numbers its own classes",
        culprits=(
            Culprit("dataset", attribute, "of each dataset by itself", made),
            *(
                Culprit("call", one.text, here + (" or elsewhere" * (len(places) > 1)), one)
                for one in places
            ),
        ),
        location=place,
        observed=f"{found.count} of {len(first.read.keys() & second.read.keys())} classes that "
        "were read from both have two labels",
        cause=f"{attribute} is computed from the classes that each dataset happens to contain",
        because=f"the labels read follow {attribute}: {_shown(first.classes)} there, "
        f"{_shown(second.classes)} here",
        fix=f"create one list of all classes, and pass it to every dataset at {line_ref(place)}",
    )


def _shown(classes: dict[str, int]) -> str:
    pairs = [f"{name}={label}" for name, label in list(classes.items())[:4]]
    return ", ".join(pairs) + (", ..." if len(classes) > 4 else "")


def _calls(part: Part, name: str, declared: Location | None) -> tuple[Location, ...]:
    """Return the lines at hand that call a class, one or two; none where there are more."""
    found = [
        sources.of_line(file, node.lineno)
        for file in files_of(part, declared)
        for node in sources.nodes(file)
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", "") or getattr(node.func, "attr", "")) == name
    ]
    return tuple(found) if len(found) <= _MOST else ()
