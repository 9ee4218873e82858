"""The lines outside of a dataset that findings on data name: its sampler, its loader, what replaces its parts."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)

from pytest_torchcheck import Contract, Labels, sources
from pytest_torchcheck.promises import RandomAugmentation


class Jittered(Dataset):
    def __init__(self, transform=None):
        self.images, self.labels = torch.rand(12, 4), torch.arange(12) % 3
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return (self.transform(image) if self.transform else image), int(self.labels[index])


class Ragged(Jittered):
    def __getitem__(self, index):
        return self.images[index][: 2 + index % 2], int(self.labels[index])


def line(function, text):
    lines, start = inspect.getsourcelines(function)
    (found,) = [start + i for i, each in enumerate(lines) if text in each]
    return found


def told(check, **fields):
    report = Contract(**fields).check([check])
    for finding in report.findings:
        for place in (finding.location, *(one.location for one in finding.culprits)):
            assert place is None or sources.rank(place.file) == 2, finding
    return report.findings


def balanced(dataset, weights):
    given = weights
    return WeightedRandomSampler(given, num_samples=len(dataset))


def test_a_sampler_with_a_weight_for_each_class():
    data = Jittered()
    (found,) = told(
        "loader-order", dataset=data, loader={"sampler": balanced(data, [0.2, 0.5, 0.3])}
    )
    assert (found.status, found.code) == ("violated", "sampler-length")
    assert "never draws 9 of the 12 samples" in found.summary
    assert "one weight for each class" in found.cause
    assert found.location.line == line(balanced, "given = weights")
    assert line(balanced, "WeightedRandomSampler(") in {c.location.line for c in found.culprits}


@pytest.mark.parametrize("inner", [False, True])
def test_a_sampler_with_weights_behind_the_end(inner):
    data = Jittered()
    sampler = balanced(data, [1.0] * 15)
    loader = {"batch_sampler": BatchSampler(sampler, 2, False)} if inner else {"sampler": sampler}
    (found,) = told("loader-order", dataset=data, loader=loader)
    assert "draws indices up to 14, and there are 12 samples" in found.summary


def test_a_sampler_of_another_dataset():
    data = Jittered()
    part = Subset(data, range(4))
    loader = DataLoader(data, sampler=RandomSampler(part), batch_size=2)
    (found,) = told("loader-order", dataset=data, loader=loader)
    assert (found.status, found.code) == ("violated", "sampler-length")
    loader = DataLoader(data, sampler=RandomSampler(range(4)), batch_size=2)
    (found,) = told("loader-order", dataset=data, loader=loader)
    assert found.status == "suspicious"  # a part that may be meant


def test_samplers_of_the_right_length():
    data = Jittered()
    part = Subset(data, range(4))
    for dataset, loader in (
        (data, {"sampler": balanced(data, [1.0] * 12)}),
        (data, {"sampler": balanced(data, [1.0] * 12 + [0.0])}),
        (data, {"sampler": RandomSampler(data, num_samples=3)}),
        (data, DataLoader(data, shuffle=True, batch_size=2)),
        (part, DataLoader(part, sampler=RandomSampler(part), batch_size=2)),
        (data, {"sampler": torch.utils.data.SubsetRandomSampler(range(5))}),
    ):
        (found,) = told("loader-order", dataset=dataset, loader=loader)
        assert found.status in ("passed", "not-applicable"), found


def noisy(image):
    return image + torch.randn(4)


def plain(image):
    return image * 2


def splits(own):
    full = Jittered(noisy)
    train, held_out = random_split(full, [8, 4], generator=torch.Generator().manual_seed(0))
    if own:
        return train, Subset(Jittered(plain), held_out.indices)
    held_out.dataset.transform = plain
    return train, held_out


def test_a_transform_replaced_through_another_split():
    train, _ = splits(own=False)
    (found,) = told("random-augmentation", dataset=train, promises=(RandomAugmentation(),))
    assert found.code == "augmentation-fixed"
    assert found.location.text == "def __getitem__(self, index):"
    assert "Subset of Jittered" in found.summary
    assert line(splits, "held_out.dataset.transform = plain") in {c.location.line for c in found.culprits}  # fmt: skip
    assert "through held_out.dataset" in found.cause
    train, _ = splits(own=True)
    (found,) = told("random-augmentation", dataset=train, promises=(RandomAugmentation(),))
    assert found.status == "passed"


def arguments():
    return {"batch_size": 3, "shuffle": True}


def loaded(data):
    return DataLoader(data, batch_size=5, drop_last=True)


def test_the_loader_without_a_collate_function():
    for loader, maker in ((arguments(), arguments), (loaded(Ragged()), loaded)):
        (found,) = told("samples-valid", dataset=Ragged(), loader=loader)
        assert found.code == "samples-do-not-stack"
        assert line(maker, "return") in {c.location.line for c in found.culprits}


class Windows(Dataset):
    """Windows over a series, each with the values that follow it."""

    def __init__(self, whole):
        self.series, self.whole = torch.arange(40.0), whole

    def __len__(self):
        return len(self.series) - (11 if self.whole else 5)  # the count

    def __getitem__(self, index):
        return self.series[index : index + 8], self.series[index + 8 : index + 12]


def test_windows_past_the_end_are_told_by_the_count():
    (finding,) = told("samples-valid", dataset=Windows(False), loader={"batch_size": 4})
    assert finding.code == "samples-do-not-stack"
    assert "__len__ counts too many" in finding.cause
    assert [one.location.line for one in finding.culprits if one.name == "__len__"] == [
        line(Windows, "# the count")
    ]
    (finding,) = told("samples-valid", dataset=Windows(True), loader={"batch_size": 4})
    assert finding.status == "passed"


class Clips(Dataset):
    def __init__(self, size=4):
        self.clips, self.size = [torch.randn(n, 2) for n in (9, 11, 10)], size
        self.starts = self.find_starts()

    def find_starts(self):
        found = []
        for number, clip in enumerate(self.clips):
            last = len(clip) - self.size + 2
            found.extend((number, start) for start in range(0, last, 3))
        return found

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        number, start = self.starts[index]
        return self.clips[number][start : start + self.size] * 2.0, number


def test_a_table_of_starts_that_goes_too_far():
    (found,) = told("samples-valid", dataset=Clips(), loader={"batch_size": 4})
    assert found.location.line == line(Clips, "last = ")
    assert "6:10 of 9 entries, and gets 3" in found.because


class LabelMaps(Jittered):
    """Images with maps of labels; 9 is ignored."""

    classes = ("sky", "road", "tree")

    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        maps = torch.randint(0, 3, (12, 6, 6), generator=torch.Generator().manual_seed(0))
        self.maps = maps.masked_fill(torch.rand(12, 6, 6) < 0.2, 9)
        self.images = torch.randint(0, 256, (12, 3, 6, 6))

    def resized(self, labels):
        labels = labels[None, None].float()
        labels = F.interpolate(labels, size=(12, 12), mode=self.mode)  # between labels
        return labels[0, 0].round().long()

    def __getitem__(self, index):
        return self.images[index] / 255, self.resized(self.maps[index])


def test_a_label_map_is_told_by_the_line_that_mixes_labels():
    fields = {"targets": Labels(classes=3, ignore_index=9)}
    found = told("dataset-labels", dataset=LabelMaps("bilinear"), **fields)
    (finding,) = [one for one in found if one.code == "label-range"]
    assert finding.location.line == line(LabelMaps, "# between labels")
    found = told("dataset-labels", dataset=LabelMaps("nearest"), **fields)
    assert all(one.status == "passed" for one in found)


class Boxes(Jittered):
    """Images with a table of boxes each; some have none."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept
        self.rows = [[(1.0, 2.0, 3.0, 4.0)] * (index % 4) for index in range(12)]

    def __getitem__(self, index):
        boxes = torch.tensor(self.rows[index])  # of no row
        if self.kept:
            boxes = boxes.reshape(-1, 4)
        return self.images[index], boxes


def joined(items):
    images, boxes = zip(*items, strict=True)
    return torch.stack(images), torch.cat([table[:, :2] for table in boxes])


def test_a_table_without_rows_is_told_by_the_line_that_makes_it():
    loader = {"batch_size": 4, "collate_fn": joined}
    (finding,) = told("samples-valid", dataset=Boxes(False), loader=loader)
    assert finding.code == "batch-not-collatable"
    assert "sample 0 has shape [n] at sample[1], most have [n, 4]" in finding.cause
    assert finding.culprits[0].location.line == line(Boxes, "# of no row")
    (finding,) = told("samples-valid", dataset=Boxes(True), loader=loader)
    assert finding.status == "passed"


class Charts(Dataset):
    """One kind of sample goes another way."""

    def __init__(self, *, kind="shape"):
        self.pages, self.kind = torch.rand(9, 6), kind

    def __len__(self):
        return len(self.pages)

    def __getitem__(self, index):
        page, label = self.pages[index], index % 2
        if index in (4, 7):
            page = self.unlike(page)
        return page, label

    def unlike(self, page):
        if self.kind == "shape":
            page = page * 2
            return page.repeat(2)  # longer
        return page.double()  # wider


@pytest.mark.parametrize(("kind", "text"), [("shape", "# longer"), ("dtype", "# wider")])
def test_the_line_that_only_unlike_samples_run_is_named(kind, text):
    (finding,) = told("samples-valid", dataset=Charts(kind=kind), loader={"batch_size": 3})
    assert finding.status == "violated"
    assert text in finding.location.text
    assert "only such samples run" in finding.because


class Mirrored(Dataset):
    """Some pages are read backwards, which torch does not take from NumPy."""

    def __init__(self, backwards):
        self.pages, self.backwards = np.arange(60.0).reshape(10, 6), backwards

    def __len__(self):
        return len(self.pages)

    def __getitem__(self, index):
        page = self.pages[index]
        if self.backwards[index]:
            page = page[::-1]  # backwards
        return torch.from_numpy(page), index % 2


@pytest.mark.parametrize("readable", [7, 1])  # some samples fail, and all but one
def test_the_line_that_only_failing_samples_run_is_named(readable):
    dataset = Mirrored([index >= readable for index in range(10)])
    (finding,) = told("samples-valid", dataset=dataset, loader={"batch_size": 2})
    assert finding.code == "sample-raises"
    assert any("# backwards" in one.location.text for one in finding.culprits if one.location)
    assert "only samples that fail run" in finding.because


class Prepared(Dataset):
    """Jitters its images once, when it is made."""

    def __init__(self, *, early):
        images = torch.rand(12, 4)
        self.early = early
        self.images = [image + 0.1 * torch.randn(4) for image in images]  # once

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return (image if self.early else image + 0.1 * torch.randn(4)), index % 2


def test_what_was_augmented_once_is_named_where_it_was_made():
    fields = {"loader": {"batch_size": 4}, "promises": [RandomAugmentation()]}
    (finding,) = told("random-augmentation", dataset=Prepared(early=True), **fields)
    assert finding.code == "augmentation-fixed"
    assert any(one.name == "images" and "# once" in one.location.text for one in finding.culprits)
    (finding,) = told("random-augmentation", dataset=Prepared(early=False), **fields)
    assert finding.status == "passed"


class Shifted(Dataset):
    """Binds a stored row to a name like that of the store, and moves it."""

    def __init__(self):
        self.wave = torch.rand(10, 5, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return 10

    def __getitem__(self, i):
        wave = self.wave[i]
        wave -= 0.25
        return wave, i % 2


def test_a_variable_and_what_it_is_a_part_of_are_told_apart():
    (found,) = Contract(dataset=Shifted()).check(["samples-unchanged"]).findings
    assert found.code == "dataset-mutated"
    assert found.cause == (
        "the variable wave shares memory with wave of Shifted and is modified in place"
    )
