"""Dataclasses whose functions are shared or compiled late do what those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from dataclasses import field
from pathlib import Path
from typing import ClassVar

import pytest

import pytest_torchcheck
from pytest_torchcheck.lean import dataclass as lean

OPTIONS = [
    {},
    {"frozen": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"slots": True},
    {"eq": False},
    {"frozen": True, "slots": True, "repr": False},
    {"order": True},
]


def made(decorator, **options):
    @decorator(**options)
    class Point:
        """A point."""

        kinds: ClassVar[int] = 2
        x: int
        y: list[int] = field(default_factory=list, compare=False)
        name: str = field(default="p", repr=False)
        twice: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.x)

    return Point


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_class_does_what_that_of_the_standard_library_does(options):
    ours, theirs = made(lean, **options), made(dataclasses.dataclass, **options)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    given = {"x": 3, "y": [1]}
    one, other = ours(**given), theirs(**given)
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    if options.get("repr", True):
        assert repr(one) == repr(other)
    assert (one == ours(x=3, y=[2])) == (other == theirs(x=3, y=[2]))
    assert one != ours(x=4, y=[1])
    assert (one == 3) == (other == 3)
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    if options.get("frozen"):
        assert hash(one) == hash(ours(x=3, y=[5]))
    assert dataclasses.replace(one, x=5).twice == 10
    assert copy.deepcopy(one).y == [1]
    assert ours.__match_args__ == theirs.__match_args__


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_a_class_refuses_is_refused(options):
    for decorator in (lean, dataclasses.dataclass):
        point = made(decorator, **options)
        for wrong in ({}, {"x": 1, "z": 2}, {"x": 1, "twice": 2}):
            with pytest.raises(TypeError, match="argument"):
                point(**wrong)
        if options.get("frozen"):
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
                point(x=1).x = 2
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
                del point(x=1).x


@lean(frozen=True, slots=True, kw_only=True)
class Kept:
    """Of this module, so that it can be pickled."""

    size: int
    parts: tuple[str, ...] = ()


def test_a_frozen_class_with_slots_is_pickled_and_copied():
    kept = Kept(size=2, parts=("a",))
    assert pickle.loads(pickle.dumps(kept)) == kept == copy.copy(kept)


@pytest.mark.parametrize("decorator", [lean, dataclasses.dataclass], ids=["lean", "whole"])
def test_a_class_can_be_derived_from(decorator):
    @decorator(frozen=True, kw_only=True)
    class More(Kept):
        """With one field more."""

        last: int = 1

    assert dataclasses.asdict(More(size=3)) == {"size": 3, "parts": (), "last": 1}
    assert More(size=3) == More(size=3) != Kept(size=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        More(size=3).last = 2

    class Plain(Kept):
        """Without fields of its own."""

    plain = Plain(size=4)
    plain.other = 5
    assert (plain.size, plain.other) == (4, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.size = 5


def test_the_package_makes_its_dataclasses_so():
    package = Path(pytest_torchcheck.__file__).parent
    whole = re.compile(r"^from dataclasses import (?:.*\W)?dataclass\b", re.MULTILINE)
    others = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.name != "lean.py" and whole.search(path.read_text("utf-8"))
    ]
    assert not others, "import dataclass from lean: such a class costs a fifth at each start"
