"""Datasets and loaders with one planted bug each, and their mended twins.

Every function takes ``buggy`` and returns the fields of a contract. The line whose mending cures the
bug ends in ``# BUG``; ``EXPECTED`` says which check finds it, its code, and the culprit's name.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    get_worker_info,
)

from pytest_torchcheck import Labels
from pytest_torchcheck.promises import RandomAugmentation

EXPECTED: dict[str, tuple[str, str, str]] = {
    "lambda_in_nested_transform": ("dataset-pickling", "not-picklable", "transforms[1].function"),
    "open_file": ("dataset-pickling", "not-picklable", "file"),
    "local_collate": ("dataset-pickling", "not-picklable", "collate_fn"),
    "clamp_in_place": ("samples-unchanged", "dataset-mutated", "images"),
    "noise_in_place_in_transform": ("samples-unchanged", "dataset-mutated", "samples[0][0]"),
    "annotation_popped": ("samples-unchanged", "dataset-mutated", "annotations[0]"),
    "one_buffer_for_all": ("samples-unchanged", "sample-overwritten", "buffer"),
    "worker_init_constant_seed": ("random-augmentation", "augmentation-duplicated", "np.random"),
    "generator_in_dataset": ("random-augmentation", "augmentation-duplicated", "rng"),
    "reseeded_in_getitem": ("random-augmentation", "augmentation-fixed", "torch.manual_seed(0)"),
    "fresh_generator": ("random-augmentation", "augmentation-unseeded", "rng"),
    "division_by_zero_norm": ("samples-valid", "sample-nan", "sample[0]"),
    "nan_rows_stored": ("samples-valid", "sample-nan", "features[3]"),
    "length_one_too_long": ("samples-valid", "sample-raises", "Pairs[9]"),
    "crop_at_the_border": ("samples-valid", "samples-do-not-stack", "Crops[9]"),
    "label_type_depends_on_branch": ("samples-valid", "sample-dtype-varies", "Mixed[3]"),
    "index_ignored": ("samples-valid", "samples-identical", "Same"),
    "bytes_not_scaled": ("samples-valid", "sample-range", "sample[0]"),
    "labels_from_one": ("dataset-labels", "label-range", "labels"),
    "labels_as_floats": ("dataset-labels", "label-dtype", "labels"),
    "label_counted_on": ("dataset-labels", "label-range", "sample[1]"),
    "windows_behind_the_end": ("samples-valid", "sample-raises", "__len__"),
    "spread_of_a_constant": ("samples-valid", "sample-nan", "spread"),
    "labels_shifted": ("dataset-labels", "label-shifted", "labels"),
    "label_of_first_sample": ("dataset-labels", "label-constant", "labels"),
    "validation_overlaps": ("split-hygiene", "split-overlap", "eval[0]"),
    "validation_drops_last": ("last-batch", "evaluation-drops-samples", "eval: drop_last"),
    "batch_of_one": ("last-batch", "last-batch-fails", "1"),
    "sampler_ignores_epoch": ("loader-order", "order-fixed", "EpochSampler"),
    "sampler_reseeded": ("loader-order", "order-fixed", "AlikeSampler"),
    "sampler_unseeded": ("loader-order", "order-not-repeatable", "FreshSampler"),
    "stream_not_sharded": ("worker-sharding", "worker-duplicates", "Stream"),
}


class Function:
    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


def double(x):
    return x * 2


class Transformed(Dataset):
    def __init__(self, transforms):
        self.images, self.transforms = torch.rand(12, 3, 4, 4), transforms

    def __len__(self):
        return 12

    def __getitem__(self, i):
        x = self.images[i]
        for transform in self.transforms:
            x = transform(x)
        return x, i % 3


def lambda_in_nested_transform(buggy):
    last = Function(lambda x: x * 2) if buggy else Function(double)  # BUG
    return {"dataset": Transformed([Function(double), last]), "loader": {"num_workers": 2}}


class Lines(Dataset):
    def __init__(self, buggy):
        self.path = __file__
        if buggy:
            self.file = Path(self.path).open()  # noqa: SIM115  # BUG
        self.offsets = list(range(16))

    def __del__(self):
        if hasattr(self, "file"):
            self.file.close()

    def __len__(self):
        return 16

    def __getitem__(self, i):
        file = getattr(self, "file", None) or Path(self.path).open()  # noqa: SIM115
        file.seek(self.offsets[i])
        byte = ord(file.read(1))
        if file is not getattr(self, "file", None):
            file.close()
        return torch.tensor([float(byte), float(i)]), i % 2


def open_file(buggy):
    return {
        "dataset": Lines(buggy),
        "loader": {"num_workers": 1, "multiprocessing_context": "spawn"},
    }


def stack(samples):
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])


def local_collate(buggy):
    pad = 0

    def padded(samples):  # BUG
        return torch.stack([x + pad for x, _ in samples]), torch.tensor([y for _, y in samples])

    return {
        "dataset": Transformed([]),
        "loader": {"num_workers": 2, "collate_fn": padded if buggy else stack},
    }


class Noisy(Dataset):
    def __init__(self, buggy):
        self.images, self.buggy = np.random.RandomState(0).rand(10, 8, 8).astype("float32"), buggy

    def __len__(self):
        return 10

    def __getitem__(self, i):
        image = self.images[i] if self.buggy else self.images[i].copy()  # BUG
        image *= 0.5 + np.random.rand()
        return torch.from_numpy(image), i % 5


def clamp_in_place(buggy):
    return {"dataset": Noisy(buggy)}


class Cutout:
    def __init__(self, buggy):
        self.buggy = buggy

    def __call__(self, x):
        x = x if self.buggy else x.clone()
        at = int(torch.randint(0, 5, ()))
        x[..., at : at + 2, :] = 0.0  # BUG
        return x


class Cut(Dataset):
    def __init__(self, buggy):
        self.samples = [(torch.rand(1, 6, 6), i % 2) for i in range(9)]
        self.transform = Cutout(buggy)

    def __len__(self):
        return 9

    def __getitem__(self, i):
        return self.transform(self.samples[i][0]), self.samples[i][1]


def noise_in_place_in_transform(buggy):
    return {"dataset": Cut(buggy)}


class Boxes(Dataset):
    def __init__(self, buggy):
        self.annotations = [{"box": torch.rand(4), "label": i % 3, "crowd": 0} for i in range(8)]
        self.buggy = buggy

    def __len__(self):
        return 8

    def __getitem__(self, i):
        target = self.annotations[i] if self.buggy else dict(self.annotations[i])  # BUG
        target.pop("crowd")
        return target["box"], target["label"]


def annotation_popped(buggy):
    return {"dataset": Boxes(buggy)}


class Frames(Dataset):
    def __init__(self, buggy):
        self.video, self.buggy = torch.rand(10, 3, 4), buggy
        self.buffer = torch.zeros(3, 4)

    def __len__(self):
        return 10

    def __getitem__(self, i):
        self.buffer.copy_(self.video[i]).mul_(2)
        frame = self.buffer if self.buggy else self.buffer.clone()
        return frame, i % 2  # BUG


def one_buffer_for_all(buggy):
    return {"dataset": Frames(buggy)}


class Jitter(Dataset):
    def __init__(self):
        self.images = torch.rand(12, 4)

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.images[i] + float(np.random.normal()), i % 3


def init_constant(worker):
    np.random.seed(0)  # BUG


def init_by_worker(worker):
    np.random.seed(torch.initial_seed() % 2**32)


def worker_init_constant_seed(buggy):
    return {
        "dataset": Jitter(),
        "loader": {"num_workers": 4, "worker_init_fn": init_constant if buggy else init_by_worker},
        "promises": (RandomAugmentation(),),
    }


class Own(Dataset):
    def __init__(self, buggy):
        self.images = torch.rand(12, 4)
        self.buggy = buggy
        if buggy:
            self.rng = np.random.default_rng(0)  # BUG

    def __len__(self):
        return 12

    def __getitem__(self, i):
        shift = float(self.rng.normal()) if self.buggy else float(torch.randn(()))
        return self.images[i] + shift, i % 3


def generator_in_dataset(buggy):
    return {
        "dataset": Own(buggy),
        "loader": {"num_workers": 2},
        "promises": (RandomAugmentation(),),
    }


class Reseeded(Dataset):
    def __init__(self, buggy):
        self.images, self.buggy = torch.rand(12, 4), buggy

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if self.buggy:
            torch.manual_seed(0)  # BUG
        return self.images[i] + torch.randn(4), i % 3


def reseeded_in_getitem(buggy):
    return {"dataset": Reseeded(buggy), "promises": (RandomAugmentation(),)}


class Fresh(Dataset):
    def __init__(self, buggy):
        self.images, self.buggy = torch.rand(12, 4), buggy

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if self.buggy:
            rng = np.random.default_rng()  # BUG
        else:
            rng = np.random.default_rng(int(torch.randint(0, 2**31, ())))
        return self.images[i] + float(rng.normal()), i % 3


def fresh_generator(buggy):
    return {"dataset": Fresh(buggy), "promises": (RandomAugmentation(),)}


class Unit(Dataset):
    def __init__(self, buggy):
        self.vectors, self.buggy = torch.randn(12, 4), buggy
        self.vectors[5] = 0.0

    def __len__(self):
        return 12

    def __getitem__(self, i):
        v = self.vectors[i]
        norm = v.norm() if self.buggy else v.norm().clamp_min(1e-6)
        unit = v / norm  # BUG
        return unit, i % 3


def division_by_zero_norm(buggy):
    return {"dataset": Unit(buggy)}


class Table(Dataset):
    def __init__(self, buggy):
        features = torch.randn(12, 4)
        features[3, 1] = float("nan")
        if not buggy:
            features = features.nan_to_num(0.0)
        self.features = features  # BUG

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.features[i], i % 3


def nan_rows_stored(buggy):
    return {"dataset": Table(buggy)}


class Pairs(Dataset):
    def __init__(self, buggy):
        self.series, self.buggy = torch.randn(10, 3), buggy

    def __len__(self):
        return len(self.series) - (not self.buggy)

    def __getitem__(self, i):
        return self.series[i], self.series[i + 1]  # BUG


def length_one_too_long(buggy):
    return {"dataset": Pairs(buggy)}


class Crops(Dataset):
    def __init__(self, buggy):
        self.signal, self.buggy = torch.randn(42), buggy

    def __len__(self):
        return 10

    def __getitem__(self, i):
        start = i * 4 if self.buggy else min(i * 4, 42 - 8)
        crop = self.signal[start : start + 8]
        return crop, i % 2  # BUG


def crop_at_the_border(buggy):
    return {"dataset": Crops(buggy), "loader": {"batch_size": 5}}


class Mixed(Dataset):
    def __init__(self, buggy):
        self.images, self.buggy = torch.rand(12, 4), buggy

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i % 8 == 3 and self.buggy:
            return self.images[i].double(), i % 3  # BUG
        return self.images[i], i % 3


def label_type_depends_on_branch(buggy):
    return {"dataset": Mixed(buggy), "loader": {"batch_size": 4}}


class Same(Dataset):
    def __init__(self, buggy):
        self.images, self.buggy = torch.rand(12, 4), buggy

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if self.buggy:
            return self.images[0], i % 3  # BUG
        return self.images[i], i % 3


def index_ignored(buggy):
    return {"dataset": Same(buggy)}


class Bytes(Dataset):
    def __init__(self, buggy):
        self.images, self.buggy = torch.randint(0, 256, (12, 4, 4), dtype=torch.uint8), buggy

    def __len__(self):
        return 12

    def __getitem__(self, i):
        image = self.images[i]
        pixels = image.float() / (1.0 if self.buggy else 255.0)  # BUG
        return pixels, i % 3


class Head(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        return self.linear(x.flatten(1))


def bytes_not_scaled(buggy):
    from pytest_torchcheck import Floats

    return {
        "dataset": Bytes(buggy), "model": Head(16, 3), "inputs": Floats("B 4 4", low=0.0, high=1.0),
        "targets": Labels("B", classes=3), "loss": nn.functional.cross_entropy,
    }  # fmt: skip


class Labelled(Dataset):
    def __init__(self, labels, convert=int, offset=0):
        self.images, self.labels = torch.rand(len(labels), 4), labels
        self.convert, self.offset = convert, offset

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.convert(self.labels[i + self.offset])  # BUG


def _labelled(dataset):
    return {
        "dataset": dataset, "model": Head(4, 5), "inputs": "B 4", "targets": Labels("B", classes=5),
        "loss": nn.functional.cross_entropy,
    }  # fmt: skip


def labels_from_one(buggy):
    return _labelled(Labelled([i % 5 + (1 if buggy else 0) for i in range(20)]))


def labels_as_floats(buggy):
    return _labelled(Labelled([i % 5 for i in range(20)], float if buggy else int))


def labels_shifted(buggy):
    labels = torch.randint(0, 5, (20,), generator=torch.Generator().manual_seed(0))
    return _labelled(Labelled(labels, offset=-1 if buggy else 0))


class First(Dataset):
    def __init__(self, buggy):
        self.images, self.labels, self.buggy = torch.rand(20, 4), [i % 5 for i in range(20)], buggy

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return self.images[i], self.labels[0 if self.buggy else i]  # BUG


def label_of_first_sample(buggy):
    return {"dataset": First(buggy)}


def validation_overlaps(buggy):
    base = TensorDataset(torch.rand(40, 3), torch.arange(40) % 4)
    start = 25 if buggy else 30
    return {"dataset": {"train": Subset(base, range(30)), "eval": Subset(base, range(start, 40))}}


def validation_drops_last(buggy):
    base = TensorDataset(torch.rand(40, 3), torch.arange(40) % 4)
    return {
        "dataset": {"train": Subset(base, range(30)), "eval": Subset(base, range(30, 40))},
        "loader": {"eval": {"batch_size": 4, "drop_last": buggy}},
    }


def batch_of_one(buggy):
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    return {
        "model": model, "inputs": "B 3", "targets": Labels("B", classes=4), "loss": nn.functional.cross_entropy,
        "dataset": TensorDataset(torch.rand(17, 3), torch.arange(17) % 4),
        "loader": {"batch_size": 4, "shuffle": True, "drop_last": not buggy},
    }  # fmt: skip


class EpochSampler(Sampler):
    def __init__(self, count, buggy):
        self.count, self.buggy, self.epoch = count, buggy, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator()
        generator.manual_seed(0 if self.buggy else self.epoch)
        return iter(torch.randperm(self.count, generator=generator).tolist())

    def __len__(self):
        return self.count


def sampler_ignores_epoch(buggy):
    dataset = TensorDataset(torch.rand(24, 3), torch.arange(24) % 4)
    return {"dataset": dataset, "loader": DataLoader(dataset, 4, sampler=EpochSampler(24, buggy))}


class AlikeSampler(Sampler):
    """Half of a shuffle on which two processes agree, without ``set_epoch``."""

    def __init__(self, count, buggy):
        self.count, self.buggy, self.passes = count, buggy, 0

    def __iter__(self):
        source = torch.Generator()
        source.manual_seed(11 if self.buggy else 11 + self.passes)  # BUG
        self.passes += 1
        return iter(torch.randperm(self.count, generator=source)[::2].tolist())

    def __len__(self):
        return self.count // 2


def sampler_reseeded(buggy):
    dataset = TensorDataset(torch.rand(24, 3), torch.arange(24) % 4)
    return {"dataset": dataset, "loader": {"batch_size": 4, "sampler": AlikeSampler(24, buggy)}}


class FreshSampler(Sampler):
    def __init__(self, count, buggy):
        self.count, self.random = count, random.SystemRandom() if buggy else random

    def __iter__(self):
        order = list(range(self.count))
        self.random.shuffle(order)
        return iter(order)

    def __len__(self):
        return self.count


def sampler_unseeded(buggy):
    dataset = TensorDataset(torch.rand(24, 3), torch.arange(24) % 4)
    batches = BatchSampler(FreshSampler(24, buggy), 4, False)
    return {"dataset": dataset, "loader": {"batch_sampler": batches}}


class Stream(IterableDataset):
    def __init__(self, buggy):
        self.rows, self.buggy = torch.rand(40, 3), buggy

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None or self.buggy else (info.id, info.num_workers)
        for i in range(start, 40, step):
            yield self.rows[i], i % 2


def stream_not_sharded(buggy):
    return {"dataset": Stream(buggy), "loader": {"batch_size": 4, "num_workers": 2}}


class Named(Dataset):
    NAMES = ("a", "b", "c", "d", "e")

    def __init__(self, buggy):
        self.images, self.names = torch.rand(20, 4), [self.NAMES[i % 5] for i in range(20)]
        self.buggy = buggy

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        label = self.NAMES.index(self.names[i])
        if self.buggy:
            label = label + 1  # BUG
        return self.images[i], label


def label_counted_on(buggy):
    return _labelled(Named(buggy))


class Windows(Dataset):
    def __init__(self, buggy):
        self.series, self.buggy = torch.randn(20, 3), buggy

    def __len__(self):
        if self.buggy:
            return len(self.series) - 4  # BUG
        return len(self.series) - 5

    def __getitem__(self, i):
        past = self.series[i : i + 5]
        return past, self.series[i + 5]


def windows_behind_the_end(buggy):
    return {"dataset": Windows(buggy)}


class Standardised(Dataset):
    def __init__(self, buggy):
        self.rows = torch.randn(12, 4)
        self.rows[:, 2] = 1.0
        self.spread = self.rows.std(0)  # BUG
        if not buggy:
            self.spread = self.spread.clamp_min(1e-6)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return (self.rows[i] - 1.0) / self.spread, i % 3


def spread_of_a_constant(buggy):
    return {"dataset": Standardised(buggy)}
