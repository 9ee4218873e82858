"""Maps that a random flip or rotation turns apart from their images; and what equal images may have unequal targets for."""

from __future__ import annotations

import inspect
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract
from pytest_torchcheck.data.plan import parts
from pytest_torchcheck.data.relations.flipped_apart import flipped_apart
from pytest_torchcheck.data.validity import survey
from pytest_torchcheck.promises import RandomAugmentation

SIDE = 12


def coin():
    return bool(torch.rand(()) < 0.5)


def turned(image, often):
    if often:
        image = image.rot90(1, (-2, -1))
    return image


class Scenes(Dataset):
    """Images and their maps; ``parts`` gives a sample."""

    def __init__(self, count=10):
        generator = torch.Generator().manual_seed(3)
        self.images = torch.rand(count, 3, SIDE, SIDE, generator=generator)
        self.maps = torch.randint(0, 5, (count, SIDE, SIDE), generator=generator)
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.parts(self.images[i], self.maps[i])


class Together(Scenes):
    def parts(self, image, target):
        if coin():
            image, target = image.flip(-1), target.flip(-1)
        return image, target


class DrawnTwice(Scenes):
    def parts(self, image, target):
        if coin():
            image = image.flip(-1)
        mirror = coin()  # for the map
        if mirror:
            target = target.flip(-1)
        return image, target


class PassedOn(Scenes):
    def parts(self, image, target):
        for_image, for_map = coin(), coin()  # both
        return turned(image, for_image), turned(target, for_map)


class InOneExpression(Scenes):
    """NumPy, channels last, in a dict without a name that is a target's by convention; draws of its own generator."""

    def parts(self, image, target):
        image, mask = image.permute(1, 2, 0).numpy(), target.numpy()
        image = image[:, ::-1] if self.rng.random() < 0.5 else image
        mask = mask[:, ::-1] if self.rng.random() < 0.5 else mask  # the mask
        return {"image": image, "mask": mask, "name": "scene"}


class AxesDrawn(Scenes):
    """A map of half the resolution, in a dict of targets."""

    def parts(self, image, target):
        both = [(-1,), (-2,)]
        image = image.flip(random.choice(both))
        axes = random.choice(both)  # of the map
        return {"x": image, "labels": {"coarse": target[::2, ::2].flip(axes), "scene": 1}}


class Named(Scenes):
    """The last of a sample is its name, no map."""

    def parts(self, image, target):
        image = turned(image, coin())
        return image, turned(target, coin()), "scene"  # and the map


class Depth(Scenes):
    def parts(self, image, target):
        depth = target.float().unsqueeze(0)
        if coin():
            image = image.flip(-2)
        return image, depth.flip(-2) if coin() else depth


class Restored(Scenes):
    """A dark image and the same one in light: the target is an image as well."""

    def parts(self, image, target):
        dark = image**2
        return dark.flip(-1) if coin() else dark, image.flip(-1) if coin() else image


def told(dataset, *, promised=True):
    promises = [RandomAugmentation()] if promised else []
    report = Contract(dataset=dataset, promises=promises).check(["dataset-labels"])
    assert not [f for f in report.findings if f.status == "error"]
    return [f for f in report.findings if f.code == "target-flipped-apart"]


def line(owner, text):
    lines, start = inspect.getsourcelines(owner)
    (found,) = [start + i for i, each in enumerate(lines) if text in each]
    return found


@pytest.mark.parametrize(
    ("cls", "text", "name", "how"),
    [
        (DrawnTwice, "# for the map", "mirror", "mirrored"),
        (PassedOn, "# both", "for_map", "rotated"),
        (InOneExpression, "# the mask", "", "mirrored"),
        (AxesDrawn, "# of the map", "axes", "mirrored"),
        (Named, "# and the map", "often", "rotated"),
        (Depth, "return image, depth", "", "mirrored"),
    ],
)
def test_maps_that_are_turned_apart(cls, text, name, how):
    (found,) = told(cls())
    assert found.status == "violated"
    assert found.location.line == line(cls, text)
    assert how in found.summary
    drawn = [culprit.name for culprit in found.culprits[1:] if culprit.detail != "calls it"]
    assert drawn == [name] * bool(name)


def test_it_is_found_without_a_promise_too():
    assert told(DrawnTwice(), promised=False)


def test_a_target_that_is_an_image_may_be_unpaired():
    (found,) = told(Restored())
    assert found.status == "suspicious"


class Blank(Together):
    def __init__(self):
        super().__init__()
        self.images = torch.zeros_like(self.images)


class Noisy(DrawnTwice):
    def parts(self, image, target):
        image, target = super().parts(image, target)
        return image + torch.rand(()), target


class Views(Scenes):
    def parts(self, image, target):
        return image.flip(-1) if coin() else image, image.flip(-1) if coin() else image


class Hidden(Scenes):
    """Which patches of an image are to be filled in."""

    def parts(self, image, target):
        hidden = torch.zeros(16, dtype=torch.bool)
        hidden[torch.randperm(16)[:1]] = True
        return image, hidden.reshape(4, 4)


class Shuffled(Scenes):
    """Rows of objects in any order."""

    def parts(self, image, target):
        return image, target[:2, :4][torch.randperm(2)]


class Mixed(Scenes):
    def parts(self, image, target):
        other = self.maps[int(torch.randint(0, len(self), ()))]
        return image, torch.where(torch.rand(SIDE, SIDE) < 0.5, target, other)


class Classes(Scenes):
    def parts(self, image, target):
        return image.flip(-1) if coin() else image, int(target.sum()) % 4


class Untouched(Scenes):
    def parts(self, image, target):
        return image, target


@pytest.mark.parametrize(
    "cls", [Together, Blank, Noisy, Views, Hidden, Shuffled, Mixed, Classes, Untouched]
)
def test_sound_samples(cls):
    assert not told(cls())


def test_one_sample_is_not_enough():
    assert not told(DrawnTwice(count=1))


@pytest.mark.parametrize(
    ("cls", "most"), [(Untouched, 1), (Classes, 0), (Noisy, 13), (Together, 19)]
)
def test_few_reads_where_all_is_well(cls, most):
    class Counting(cls):
        reads = 0

        def __getitem__(self, i):
            type(self).reads += 1
            return super().__getitem__(i)

    (part,) = parts(Counting(), None)
    found = survey(part)
    before = Counting.reads
    assert flipped_apart(found) is None
    assert Counting.reads - before <= most
