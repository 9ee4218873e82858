"""Sources of batches: specs, real data, and other sizes derived from it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from pytest_torchcheck.batches import Batch, BatchSource
from pytest_torchcheck.batches.recipe import Recipe
from pytest_torchcheck.specs import (
    Edges,
    Floats,
    Ints,
    Labels,
    Lengths,
    Mask,
    Packed,
    ShapeMismatch,
    Sparse,
    SpecError,
    TensorSpec,
    Tokens,
)  # fmt: skip

IMAGES = {"B": (2, 8), "H": (16, 64), "W": (16, 64)}


def shapes(batch: Batch | None) -> dict[str, tuple[int, ...]]:
    assert batch is not None
    return {path: tuple(tensor.shape) for path, tensor in batch.tensors().items()}


# Specs alone


def test_symbols_are_shared_by_inputs_and_targets() -> None:
    source = BatchSource("B 3 H W", Labels("B", classes=10), IMAGES)
    for seed in range(30):
        made = source.draw(seed)
        assert shapes(made) == {
            "x": (made.sizes["B"], 3, made.sizes["H"], made.sizes["W"]),
            "y": (made.sizes["B"],),
        }
        assert all(made.sizes[name] in source.symbols[name] for name in IMAGES)
        assert made.origin == "drawn"
    assert source.batch_symbol == "B"
    assert source.declared_sizes
    assert not source.has_real


def test_the_base_batch_is_typical_and_its_sizes_differ() -> None:
    sizes = BatchSource("B 3 H W", Labels("B", classes=10), IMAGES).base().sizes
    assert sizes["B"] == 5
    assert 16 < sizes["H"] < 24
    assert 16 < sizes["W"] < 24
    assert sizes["H"] != sizes["W"]


def test_the_same_seed_gives_the_same_batch() -> None:
    source = BatchSource({"ids": Tokens("B T", vocab=50, pad=0), "x": "B D"}, "B D", {"T": (1, 99)})
    one, two, other = source.draw(3), source.draw(3), source.draw(4)
    assert one.sizes == two.sizes
    assert all(torch.equal(a, two.tensors()[path]) for path, a in one.tensors().items())
    assert one.sizes != other.sizes


def test_the_values_of_one_input_do_not_depend_on_the_others() -> None:
    alone = BatchSource({"x": "4 5"}).base(7).x
    beside = BatchSource({"a": "9 9", "x": "4 5"}, "4").base(7).x
    assert torch.equal(alone, beside)


def test_values_are_the_same_as_ever() -> None:
    """A pinned draw: the same on every Python, in every worker, and in every later version."""
    made = BatchSource({"x": "2 2", "n": Ints("3", high=1000)}).base(42)
    assert made.n.tolist() == [370, 910, 909]
    assert [round(v, 4) for v in made.x.flatten().tolist()] == [-1.1264, -0.0055, 0.2094, -0.3905]


def test_relations_steps_and_variadic_axes() -> None:
    source = BatchSource(
        ("*batch H W", "*batch (H*W)", "T? D"), None, {"H": (4, 16, 4), "W": "H", "batch": (2, 3)}
    )
    seen = set()
    for seed in range(60):
        made = source.draw(seed)
        x, flat, optional = (tuple(tensor.shape) for tensor in made.args)
        assert x[-1] == x[-2]
        assert x[-1] % 4 == 0
        assert flat == (*x[:-2], x[-1] * x[-2])
        assert all(size in (2, 3) for size in x[:-2])
        seen.add((len(x), len(optional)))
    assert seen == {(rank, kind) for rank in (2, 3, 4) for kind in (1, 2)}


def test_masks_follow_the_tensor_they_refer_to_whatever_the_order() -> None:
    source = BatchSource(
        {
            "mask": Mask("B T", of="ids", pad=0),
            "ids": Tokens("B T", vocab=9, pad=0, lengths="lengths"),
            "lengths": Lengths("B", longest="T"),
        },
        sizes={"B": 4, "T": (2, 9)},
    )
    made = source.draw(1)
    assert torch.equal(made.mask.sum(1), made.lengths)
    assert list(made.kwargs) == ["mask", "ids", "lengths"]


def test_trees_of_specs_keep_their_form_and_their_constants() -> None:
    source = BatchSource(
        ({"x": "B D", "flag": True}, ["B", 0.5]), (Labels("B", classes=2),), {"B": 3}
    )
    made = source.base()
    assert made.args[0]["flag"] is True
    assert made.args[1][1] == 0.5
    assert made.targets[0].shape == (3,)


class Scene:
    """A plain object."""

    def __init__(self, image: Any, boxes: Any) -> None:
        self.image, self.boxes = image, boxes


class Slotted:
    """An object that keeps what it holds in slots, one of which is not set."""

    __slots__ = ("absent", "image", "name")

    def __init__(self, image: Any) -> None:
        self.image, self.name = image, 3


class Registered:
    """A pytree that is registered with torch, and of which nothing else is known."""

    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


torch.utils._pytree.register_pytree_node(
    Registered,
    lambda node: ([node.x], None),
    lambda children, _: Registered(next(iter(children))),
    serialized_type_name="tests.Registered",
)


def test_objects_whose_parts_are_specs() -> None:
    source = BatchSource(
        (
            Scene(TensorSpec("B 3 H"), [Floats("B 4", low=0.0, high=1.0)]),
            Registered(TensorSpec("B H")),
            Slotted(TensorSpec("B H")),
        ),
        sizes={"B": (1, 4), "H": (2, 9)},
    )
    made = source.at(0, B=3, H=5)
    assert made is not None
    scene, registered, slotted = made.args
    assert slotted.image.shape == (3, 5)
    assert slotted.name == 3
    assert type(scene) is Scene
    assert scene.image.shape == (3, 3, 5)
    assert scene.boxes[0].shape == (3, 4)
    assert type(registered) is Registered
    assert registered.x.shape == (3, 5)
    real = BatchSource(batch=((scene, registered, slotted), None))
    smaller = real.at(0, B=2)
    assert smaller is not None
    assert smaller.args[0].image.shape == (2, 3, 5)
    assert smaller.args[1].x.shape == (2, 5)
    assert smaller.args[2].image.shape == (2, 5)
    assert not hasattr(smaller.args[2], "absent")
    assert slotted.image.shape == (3, 5)
    assert scene.image.shape == (3, 3, 5)


def test_structures_are_drawn_at_other_sizes() -> None:
    source = BatchSource(
        (Packed("B T D"), Sparse("N M")), None, {"B": (1, 4), "T": (2, 9), "N": (3, 5), "M": 4}
    )
    made = source.at(0, B=3, T=9, N=5)
    assert made is not None
    packed, sparse = made.args
    assert packed.batch_sizes[0] == 3
    assert len(packed.batch_sizes) == 9
    assert sparse.shape == (5, 4)


def test_an_empty_batch_where_that_is_allowed() -> None:
    source = BatchSource("B D", Labels("B", classes=3), {"B": (0, 4)})
    assert shapes(source.at(0, B=0, D=2)) == {"x": (0, 2), "y": (0,)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": Labels(classes=3)}, "has no shape, and there is no real batch"),
        ({"inputs": 3}, "inputs = 3: not a spec"),
        ({"inputs": ("B", object())}, r"inputs\[1\] = .*: not a spec"),
        ({"inputs": {"x": "B !"}}, r"inputs\['x'\]: unexpected '!'"),
        ({"inputs": "B", "sizes": {"B": (3, 1)}}, r"sizes\['B'\]"),
        ({"inputs": "B D", "sizes": {"B": "D", "D": "B"}}, "cannot be worked out"),
    ],
)
def test_errors_say_where_and_what(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        BatchSource(**arguments)


def test_an_unknown_symbol_is_an_error() -> None:
    with pytest.raises(SpecError, match="no symbol 'Q'; there are: B, D"):
        BatchSource("B D").at(0, Q=3)


def test_unused_sizes_are_an_error() -> None:
    assert BatchSource("B D", sizes={"B": 2, "C": 4}, output="B C").unused_sizes == ()
    with pytest.raises(SpecError, match=r"sizes\['Z'\]: no spec has the symbol 'Z'"):
        BatchSource("B D", sizes={"B": 2, "Z": 3, "C": 4}, output="B C")


# Real data


def real(**options: Any) -> BatchSource:
    x = torch.arange(4 * 3 * 6 * 8, dtype=torch.float32).view(4, 3, 6, 8)
    batch = ((x,), torch.tensor([3, 1, 2, 0]))
    return BatchSource(
        "B 3 H W", batch=batch, sizes={"B": (1, 8), "H": (2, 9), "W": (2, 9)}, **options
    )


def test_the_real_batch_is_copied() -> None:
    source = real()
    source.real().x.zero_()
    assert source.real().x[0, 0, 0, 1] == 1
    assert source.base().origin == "real"
    assert source.real().sizes == {"B": 4, "H": 6, "W": 8}


def test_smaller_sizes_are_cut_out_and_larger_ones_wrap_around() -> None:
    source = real()
    whole = source.real().x
    small = source.at(0, B=2, H=4, W=3)
    assert small is not None
    assert torch.equal(small.x, whole[:2, :, :4, :3])
    assert small.targets.tolist() == [3, 1]
    large = source.at(0, B=6, H=8)
    assert large is not None
    assert torch.equal(large.x[:4, :, :6], whole)
    assert torch.equal(large.x[4:, :, :6], whole[:2])
    assert torch.equal(large.x[:4, :, 6:], whole[:, :, :2])
    assert large.targets.tolist() == [3, 1, 2, 0, 3, 1]


def test_the_seed_says_which_rows_come_first_and_labels_stay_with_them() -> None:
    made = real().at(3, B=2)
    assert made is not None
    assert made.targets.tolist() == [0, 3]
    assert made.x[0, 0, 0, 0] == 3 * 3 * 6 * 8


def test_declared_domains_are_drawn_and_others_keep_their_values() -> None:
    ids = torch.full((4, 6), 7)
    source = BatchSource(
        {"ids": Ints("B T", low=0, high=5), "other": "B T"},
        sizes={"T": (1, 12)},
        batch=({"ids": ids % 5, "other": ids}, ids),
    )
    made = source.at(0, T=12)
    assert made is not None
    assert set(made.ids.flatten().tolist()) == {0, 1, 2, 3, 4}
    assert (made.other == 7).all()
    assert made.targets.shape == (4, 12)
    same = source.at(0, T=6)
    assert same is not None
    assert (same.ids == 2).all()


def test_labels_without_a_shape_take_the_real_one() -> None:
    made = real(targets=Labels(classes=4)).at(0, B=8)
    assert made is not None
    assert made.targets.shape == (8,)
    assert made.targets.max() < 4


def test_declared_labels_of_a_real_batch_stay_with_their_rows() -> None:
    made = real(targets=Labels(classes=4)).at(0, B=7)
    assert made is not None
    assert made.targets.tolist() == [3, 1, 2, 0, 3, 1, 2]


def test_the_batch_is_found_beside_scalars() -> None:
    assert BatchSource({"t": "", "x": "B D"}).batch_symbol == "B"
    assert BatchSource("3 H W").batch_symbol is None
    assert BatchSource("... D").batch_symbol is None
    assert BatchSource("T B D", batch_dim=1).batch_symbol == "B"
    assert BatchSource("N D", batch_dim=None).batch_symbol is None
    assert BatchSource(batch=((torch.tensor(0.5), torch.zeros(3, 2)), None)).real().sizes == {
        "B": 3
    }


def test_distinct_batches_stay_consistent() -> None:
    specs = {"mask": Mask("B T", of="ids"), "ids": Tokens("B T", vocab=9, pad=0)}
    ids = torch.tensor([[3, 4, 0], [5, 6, 7]])
    source = BatchSource(specs, batch=({"mask": ids != 0, "ids": ids}, torch.arange(2)))
    for seed in range(5):
        other = source.distinct(source.real(), seed)
        assert torch.equal(other.mask, other.ids != 0)
        assert other.targets.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("target", "output", "sizes", "known"),
    [
        ((4,), None, {"H": 9}, True),  # one label per image
        ((4, 6, 8), None, {"H": 9}, True),  # the axes of the input, in order
        ((4, 3, 6, 8), None, {"H": 9}, True),
        ((4, 5), None, {"H": 9}, False),  # 5 is nowhere in the input
        ((4, 5), None, {"B": 2}, True),
        ((4, 5), "B 5", {"H": 9}, True),  # the output says that it is fixed
        ((4, 8, 6), None, {"H": 9}, False),  # not in the input's order
        ((4, 8, 6), "B W H", {"H": 9}, True),
        ((24,), None, {"B": 2}, False),  # no axis of the batch: whatever it is, it does not follow
        ((), None, {"B": 2, "H": 9}, True),
    ],
)
def test_targets_are_followed_where_their_axes_are_plain(
    target: tuple[int, ...], output: str | None, sizes: dict[str, int], known: bool
) -> None:
    source = BatchSource(
        "B 3 H W",
        batch=(torch.zeros(4, 3, 6, 8), torch.zeros(target)),
        sizes={"H": (2, 9), "W": (2, 9)},
        output=output,
    )
    made = source.at(0, **sizes)
    assert (made is not None) == known
    drawn = source.draw(0)
    if made is None:
        assert drawn.sizes["H"] == 6 or set(sizes) == {"B"}


def test_equal_sizes_are_ambiguous_unless_order_decides() -> None:
    square = BatchSource(
        "B H W", batch=(torch.zeros(4, 6, 6), torch.zeros(4, 6)), sizes={"H": (2, 9), "W": (2, 9)}
    )
    assert square.at(0, H=3) is None
    assert shapes(square.at(0, B=2)) == {"x": (2, 6, 6), "y": (2, 6)}
    both = BatchSource(
        "B H W",
        batch=(torch.zeros(4, 6, 6), torch.zeros(4, 6, 6)),
        sizes={"H": (2, 9), "W": (2, 9)},
    )
    assert shapes(both.at(0, H=3)) == {"x": (4, 3, 6), "y": (4, 3, 6)}


def test_an_input_without_the_batch_axis_stays_where_that_is_sure() -> None:
    x, mask = torch.zeros(4, 6, 8), torch.zeros(6, 6)
    source = BatchSource(batch=((x, mask), torch.zeros(4)))
    assert shapes(source.at(0, B=2)) == {"x0": (2, 6, 8), "x1": (6, 6), "y": (2,)}
    flat = BatchSource(batch=((x, torch.zeros(13)), torch.zeros(4)))
    assert flat.at(0, B=2) is None  # such as offsets into the rows of the batch


def test_structures_without_a_spec_do_not_follow() -> None:
    packed = pack_sequence([torch.randn(3, 2), torch.randn(1, 2)])
    source = BatchSource(batch=((packed, torch.zeros(2, 4)), torch.zeros(2)))
    assert source.at(0, B=1) is None
    assert source.real().sizes == {"B": 2}


def test_products_are_resized_along_their_factors() -> None:
    x = torch.arange(2 * 3 * 4).view(1, 2, 3, 4).float()
    source = BatchSource(
        ("B H W D", "B (H*W) D"),
        batch=((x, x.view(1, 6, 4)), None),
        sizes={"H": (1, 4), "W": (1, 4)},
    )
    made = source.at(0, H=3, W=2)
    assert made is not None
    assert torch.equal(made.args[1], made.args[0].reshape(1, 6, 4))


def test_a_mismatch_is_reported_when_it_is_declared() -> None:
    with pytest.raises(ShapeMismatch, match="x has shape"):
        BatchSource("B 4 H W", batch=(torch.zeros(2, 3, 5, 5), None))
    with pytest.raises(ShapeMismatch, match="y has shape"):
        BatchSource("B D", Labels("B", classes=3), batch=(torch.zeros(2, 3), torch.zeros(4)))
    with pytest.raises(
        SpecError, match="mask has a spec, but the real batch has no such tensor; it has: x"
    ):
        BatchSource({"x": "B D", "mask": "B"}, batch=({"x": torch.zeros(2, 3)}, None))
    with pytest.raises(ShapeMismatch, match="W = H = 5"):
        BatchSource("B H W", sizes={"W": "H"}, batch=(torch.zeros(2, 5, 6), None))


def test_other_batches_of_the_same_sizes() -> None:
    source = real()
    base = source.real()
    other = source.distinct(base, 1)
    assert other.sizes == base.sizes
    order = other.targets.tolist()
    assert all(a != b for a, b in zip(order, base.targets.tolist(), strict=True))
    rows = {int(row): label for row, label in zip(base.x[:, 0, 0, 0], base.targets, strict=True)}
    assert all(
        rows[int(row)] == label
        for row, label in zip(other.x[:, 0, 0, 0], other.targets, strict=True)
    )
    drawn = BatchSource("B D", Labels("B", classes=9), {"B": 4}).base()
    again = BatchSource("B D", Labels("B", classes=9), {"B": 4}).distinct(drawn, 1)
    assert again.sizes == drawn.sizes
    assert not torch.equal(again.x, drawn.x)
    single = BatchSource("B T", batch=(torch.arange(9.0).view(1, 9), None), sizes={"T": (1, 9)})
    assert not torch.equal(single.distinct(single.real(), 0).x, single.real().x)


def test_rows_and_axes() -> None:
    source = real()
    assert source.axes("B") == {"x": 0, "y": 0}
    assert source.axes("W") == {"x": 3}
    taken = source.rows(source.real(), torch.tensor([2, 0]))
    assert taken.targets.tolist() == [2, 3]
    assert taken.sizes["B"] == 2


def test_cropping_keeps_the_values_of_a_batch() -> None:
    source = BatchSource(
        {"x": "B T", "n": Lengths("B", longest="T"), "e": Edges("2 E", nodes="T")},
        sizes={"T": (1, 9)},
    )
    made = source.at(3, B=4, T=9, E=5)
    assert made is not None
    cut = source.crop(made, {"B": 2, "T": 3})
    assert cut is not None
    assert torch.equal(cut.x, made.x[:2, :3])
    assert cut.n.max() == 3  # drawn anew: the old lengths would be too long
    assert cut.e.max() < 3
    larger = source.crop(made, {"T": 9, "B": 6})
    assert larger is not None
    assert torch.equal(larger.x[4:], made.x[:2])


def test_data_that_is_made_by_the_seed() -> None:
    def make(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        random.random()
        x = torch.randn(3 + seed % 2, 5)
        return x, x.sum(1)

    source = BatchSource("B D", batch=make)
    before = torch.get_rng_state()
    python = random.getstate()
    one, two, other = source.real(4), source.real(4), source.real(6)
    assert torch.equal(one.x, two.x)
    assert not torch.equal(one.x, other.x)
    assert source.real(1).sizes == {"B": 4, "D": 5}
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python
    assert not torch.equal(source.distinct(one, 1).x.sort().values, one.x.sort().values)


def test_datasets_and_loaders() -> None:
    rows = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
    first = BatchSource(batch=rows).real()
    assert first.targets.tolist() == [0, 1, 2, 3]
    assert BatchSource(batch=rows).real(2).targets.tolist() == [8, 9, 0, 1]
    loader = DataLoader(rows, batch_size=3, shuffle=True)
    source = BatchSource("B D", Labels("B", classes=10), {"B": (1, 3)}, batch=loader)
    before = torch.get_rng_state()
    assert source.real(0).targets.tolist() == source.real(0).targets.tolist()
    assert torch.equal(torch.get_rng_state(), before)
    assert shapes(source.at(0, B=2)) == {"x": (2, 2), "y": (2,)}


def test_inputs_alone_and_every_way_to_give_them() -> None:
    x = torch.zeros(2, 3)
    assert BatchSource(batch=x).real().inputs.shape == (2, 3)
    assert BatchSource(batch={"x": x}).real().x.shape == (2, 3)
    assert BatchSource(batch=(x, None)).real().targets is None
    assert BatchSource(batch=([x, x], None)).real().args[0][1].shape == (2, 3)
    assert len(BatchSource(batch=((x, x), None)).real().args) == 2


def test_what_was_inferred_can_be_printed() -> None:
    text = real(output="B 4").describe().splitlines()
    assert text[0].startswith("x: 'B 3 H W' (declared), float32[4, 3, 6, 8]")
    assert text[1].startswith("y: 'B' (inferred), int64[4]")
    assert text[2] == "sizes: B = 1..8, H = 2..9, W = 2..9"


# Recipes


def test_a_recipe_says_all() -> None:
    source = BatchSource({"x": "B D", "n": Ints("B", high=9)}, sizes={"B": (1, 4), "D": (2, 6)})
    recipe = Recipe(
        sizes={"B": 3, "D": 4},
        seed=5,
        layout="non_contiguous",
        dtype=torch.float64,
        requires_grad=True,
    )
    made = source.make(recipe)
    assert made.x.dtype == torch.float64
    assert made.x.requires_grad
    assert not made.n.requires_grad
    assert not made.x.is_contiguous()
    assert made.sizes == {"B": 3, "D": 4}


@pytest.mark.parametrize(
    "edge", ["zeros", "constant", "large", "tiny", "subnormal", "negative-zero", "nan", "infinity"]
)
def test_edges_stay_within_their_domain(edge: Any) -> None:
    specs = {
        "free": TensorSpec("B T"),
        "half": TensorSpec("B T", dtype="float16"),
        "range": Floats("B T", low=1.0, high=2.0),
        "ids": Tokens("B T", vocab=9, special=(8,)),
        "labels": Labels("B", classes=3),
        "mask": Mask("B T"),
    }
    made = BatchSource(specs, sizes={"B": 4, "T": 5}).make(Recipe(edge=edge, seed=3))
    assert (made.range >= 1.0).all()
    assert (made.range <= 2.0).all()
    assert ((made.ids >= 0) & (made.ids < 8)).all()
    assert ((made.labels >= 0) & (made.labels < 3)).all()
    assert made.mask.any(dim=1).all()
    if edge in ("nan", "infinity"):
        assert (~made.free.isfinite()).sum() == 1
    else:
        assert made.free.isfinite().all()
        assert made.half.isfinite().all()
    expected = {
        "zeros": lambda: (made.free == 0).all() and (made.ids == 0).all() and made.mask.all(),
        "constant": lambda: made.free.unique().numel() == 1 and made.free[0, 0] != 0,
        "large": lambda: (
            made.free.abs().max() > 1e3 and (made.ids == 7).all() and (made.labels == 2).all()
        ),
        "tiny": lambda: 0 < made.free.abs().max() < 1e-4 and (made.range == 1.0).all(),
        "subnormal": lambda: 0 < made.free.abs().max() < torch.finfo(torch.float32).smallest_normal,
        "negative-zero": lambda: torch.signbit(made.free).all() and (made.free == 0).all(),
    }
    assert expected.get(edge, lambda: True)()


def test_only_the_kept_elements_are_drawn() -> None:
    source = BatchSource("B T", sizes={"B": (1, 4), "T": (1, 8)})
    full = source.make(Recipe(sizes={"B": 4, "T": 8}, seed=9)).x
    none = source.make(Recipe(sizes={"B": 4, "T": 8}, seed=9, keep={"x": None})).x
    assert (none == 0).all()
    bits = tuple(bool(13 >> i & 1) for i in range(5))  # element 13 = [1, 5]
    one = source.make(Recipe(sizes={"B": 4, "T": 8}, seed=9, keep={"x": bits})).x
    assert one.nonzero().tolist() == [[1, 5]]
    assert one[1, 5] == full[1, 5]
    smaller = source.make(Recipe(sizes={"B": 2, "T": 6}, seed=9, keep={"x": bits})).x
    assert smaller.nonzero().tolist() == [[1, 5]]  # it keeps its number when sizes shrink
    assert smaller[1, 5] == full[1, 5]
    half = source.make(Recipe(sizes={"B": 4, "T": 8}, seed=9, keep={"x": (True,)})).x
    assert (half[:, ::2] == 0).all()
    assert torch.equal(half[:, 1::2], full[:, 1::2])


@pytest.mark.parametrize("targets", [None, Labels(classes=9, ignore_index=-1)])
def test_a_piece_keeps_a_label_that_counts(targets: Labels | None) -> None:
    ids = torch.arange(48).reshape(4, 12)
    ignored = -100 if targets is None else -1
    labels = torch.where(torch.arange(12) < 7, ignored, ids % 9)  # a prompt of 7 tokens
    source = BatchSource("B T", targets, {"T": (1, 12)}, batch=((ids,), labels))
    cut = source.at(T=2)
    assert cut is not None
    assert cut.targets.tolist() == labels[:, 7:9].tolist()
    assert cut.args[0].tolist() == ids[:, 7:9].tolist()  # the labels' own positions
    longer = source.at(T=8)
    assert longer is not None
    assert longer.args[0].tolist() == ids[:, :8].tolist()  # the last of them counts


def test_an_input_keeps_its_values_beside_a_target_of_its_name() -> None:
    declared = BatchSource(
        inputs={"x": "B T 4", "mask": Mask("B T")}, targets={"y": "B T 4", "mask": Floats("Q")}
    )
    batch = declared.at(0, B=3, T=5, Q=7)
    assert batch is not None
    assert batch.kwargs["mask"].dtype == torch.bool
    assert batch.kwargs["mask"].shape == (3, 5)
    assert batch.targets["mask"].shape == (7,)


def test_indices_beyond_their_declared_range_are_kept_at_their_own_sizes_alone() -> None:
    inputs = {"points": "N 3", "edges": Ints("2 E", high=6)}
    edges = torch.randint(0, 20, (2, 40), generator=torch.Generator().manual_seed(0))
    real = {"points": torch.randn(20, 3), "edges": edges}
    source = BatchSource(inputs, batch=(real, None), sizes={"N": (6, 24), "E": (4, 40)})
    assert torch.equal(source.base(0).tensors()["edges"], edges)
    for sizes in ({"N": 6}, {"N": 24}, {"N": 6, "E": 4}):
        made = source.at(0, **sizes)
        assert made is not None
        assert int(made.tensors()["edges"].max()) < 6
