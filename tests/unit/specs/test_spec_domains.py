"""Value domains: what they hold, what is simplest, and that the seed alone decides."""

from __future__ import annotations

import pytest
import torch

from pytest_torchcheck.specs import (
    Edges,
    Floats,
    Images,
    Ints,
    Labels,
    Lengths,
    Mask,
    Nested,
    OneHot,
    Packed,
    Positions,
    Probabilities,
    Sparse,
    SpecError,
    TensorSpec,
    Tokens,
    UnitVectors,
    noise,
)  # fmt: skip
from pytest_torchcheck.specs.domains import Context, Domain

SHAPE = (6, 40)


def context(seed: int = 1, **siblings: torch.Tensor) -> Context:
    return Context(seed, {"T": 40, "N": 7}, siblings, "x")


SPECS = [
    TensorSpec("B T"),
    TensorSpec("B T", dtype="complex64"),
    TensorSpec("B T", dtype="bool"),
    TensorSpec("B T", dtype="int16"),
    Floats("B T", low=-2.0, high=3.0),
    Floats("B T", mean=5.0, std=0.1, dtype="float64"),
    Floats("B T", dtype="bfloat16", low=0.0, high=1.0),
    Ints("B T", low=-3, high=9),
    Labels("B T", classes=4, ignore_index=-100),
    Tokens("B T", vocab=50, pad=0, special=(1, 2)),
    Mask("B T"),
    Mask("B T", kind="left"),
    Images("B T"),
    Images("B T", dtype="uint8"),
    UnitVectors("B T"),
    Probabilities("B T", dtype="float64"),
    OneHot("B T"),
    Positions("B T"),
    Lengths("B T", longest="T"),
    Edges(None, nodes="N"),
]
"""One of every kind that fills any shape."""


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_the_seed_decides_and_the_global_state_is_left_alone(spec: TensorSpec) -> None:
    state = torch.get_rng_state()
    first, second = (spec.fill(SHAPE, context(3)) for _ in range(2))
    torch.manual_seed(99)
    third = spec.fill(SHAPE, context(3))
    other = spec.fill(SHAPE, context(4))
    torch.set_rng_state(state)
    assert first.dtype == spec.dtype
    assert first.shape == SHAPE
    assert first.is_contiguous()
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_the_simplest_member_is_the_same_for_every_seed(spec: TensorSpec) -> None:
    simple = spec.simplest(SHAPE, context(1))
    assert simple.shape == SHAPE
    assert simple.dtype == spec.dtype
    assert torch.equal(simple, spec.simplest(SHAPE, context(2)))


@pytest.mark.parametrize("spec", [TensorSpec("B T"), Floats("B T", dtype="float64")], ids=repr)
def test_normal_values_have_the_moments_of_a_normal_law(spec: TensorSpec) -> None:
    drawn = torch.stack([spec.fill((500, 200), context(seed)) for seed in range(5)]).double()
    assert abs(drawn.mean().item()) < 0.01
    assert abs(drawn.std().item() - 1.0) < 0.01
    assert abs((drawn**4).mean().item() - 3.0) < 0.1
    flat = drawn.view(5, -1)
    correlation = torch.corrcoef(flat).fill_diagonal_(0).abs().max().item()
    assert correlation < 0.02  # five seeds, no window in common
    assert abs((flat[:, 1:] * flat[:, :-1]).mean().item()) < 0.01


def test_uniform_values_fill_their_range() -> None:
    drawn = Floats("N", low=-1.0, high=3.0).fill((100_000,), context()).double()
    counts = torch.histc(drawn, bins=8, min=-1.0, max=3.0)
    assert drawn.min() >= -1.0
    assert drawn.max() <= 3.0
    assert (counts - 12_500).abs().max() < 700  # six standard deviations


def test_large_tensors_do_not_repeat_themselves() -> None:
    drawn = noise.normal((2, noise.WINDOW), torch.float32, noise.Stream(1))
    assert abs((drawn[0] * drawn[1]).mean().item()) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_smaller_tensor_is_a_corner_of_a_larger_one_where_a_grid_is_given(
    dtype: torch.dtype,
) -> None:
    grid = (8, 5, 9)
    large = noise.normal(grid, dtype, noise.Stream(7))
    small = noise.normal((3, 5, 4), dtype, noise.Stream(7), grid)
    assert torch.equal(small, large[:3, :, :4])
    assert small.is_contiguous()
    one = Context(5, path="x", grid=(9, 9))
    two = Context(5, path="x", grid=(9, 9))
    ids = Ints("B T", high=1000)
    assert torch.equal(ids.fill((9, 9), one)[:2, :3], ids.fill((2, 3), two))


def test_pools_are_real_tensors_under_every_mode() -> None:
    noise._normal_pools.cache_clear()
    with torch.inference_mode():
        noise.normal((2,), torch.float32, noise.Stream(0))
    assert not noise._normal_pools()[0].is_inference()


def test_labels_hold_every_class_and_some_ignored_ones() -> None:
    labels = Labels("N", classes=4, ignore_index=-100).fill((4000,), context())
    assert labels.unique().tolist() == [-100, 0, 1, 2, 3]
    assert 300 < (labels == -100).sum() < 700
    for seed in range(50):
        assert (Labels("N", classes=2, ignore_index=9).fill((2,), context(seed)) != 9).any()


def test_tokens_are_ordinary_and_padded_on_their_side() -> None:
    for side in ("right", "left"):
        ids = Tokens("B T", vocab=12, pad=3, special=(0, 11), side=side).fill((50, 20), context())
        assert set(ids.unique().tolist()) == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
        padding = ids == 3
        assert not padding.all(dim=1).any()
        assert not padding[0].any()  # one row is full, so that nothing can be trimmed
        ordered = padding if side == "right" else padding.flip(1)
        assert torch.equal(ordered.int().cummax(dim=1).values, ordered.int())


def test_masks_follow_lengths_and_tokens() -> None:
    lengths = Lengths("B", longest="T").fill((9,), context())
    assert lengths.max() == 40
    assert lengths.min() >= 1
    mask = Mask("B T", lengths="n").fill((9, 40), context(n=lengths))
    assert torch.equal(mask.sum(1), lengths)
    ids = Tokens("B T", vocab=9, pad=0, lengths="n").fill((9, 40), context(n=lengths))
    assert torch.equal(ids != 0, mask)
    assert torch.equal(Mask("B T", of="ids", pad=0).fill((9, 40), context(ids=ids)), mask)


def test_every_row_of_a_mask_has_one_true() -> None:
    for seed in range(50):
        assert Mask("B T").fill((20, 2), context(seed)).any(dim=1).all()
        assert Mask("B T", kind="right").fill((20, 2), context(seed))[:, 0].all()
        assert Mask("B T", kind="left").fill((20, 2), context(seed))[:, -1].all()


def test_rows_are_what_they_say() -> None:
    units = UnitVectors("B D", dtype="float64").fill((30, 8), context())
    torch.testing.assert_close(units.norm(dim=-1), torch.ones(30, dtype=torch.float64))
    parts = Probabilities("B D").fill((30, 8), context())
    assert (parts > 0).all()
    torch.testing.assert_close(parts.sum(-1), torch.ones(30))
    hot = OneHot("B D").fill((300, 8), context())
    assert torch.equal(hot.sum(-1), torch.ones(300))
    assert torch.equal(hot.amax(-1), torch.ones(300))
    assert hot.sum(0).min() > 0


def test_positions_grow() -> None:
    for dtype in ("int64", "float32"):
        positions = Positions("B T", dtype=dtype).fill((4, 30), context())
        assert (positions.diff(dim=1) > 0).all()
        assert (positions[:, 0] == 0).all()
    loose = Positions("B T", strict=False).fill((4, 200), context())
    assert (loose.diff(dim=1) >= 0).all()
    assert (loose.diff(dim=1) == 0).any()


def test_edges_stay_below_the_nodes() -> None:
    edges = Edges("2 E", nodes="N").fill((2, 500), context())
    assert edges.unique().tolist() == list(range(7))
    loopless = Edges("2 E", nodes="N", self_loops=False).fill((2, 500), context())
    assert (loopless[0] != loopless[1]).all()
    assert loopless.unique().tolist() == list(range(7))
    with pytest.raises(SpecError, match="'M'"):
        Edges("2 E", nodes="M").fill((2, 5), context())


def test_structures_are_what_torch_makes_of_rows() -> None:
    packed = Packed("B T D").fill((4, 9, 3), context())
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    assert padded.shape == (4, 9, 3)
    assert lengths[0] == 9
    assert len(set(lengths.tolist())) > 1
    nested = Nested("B T D").fill((4, 9, 3), context())
    assert nested.is_nested
    assert len(nested.unbind()[0]) == 9
    coo = Sparse("N M", density=0.2).fill((10, 10), context())
    assert coo.layout == torch.sparse_coo
    assert coo._nnz() == 20
    assert Sparse("N M", layout="csr").fill((10, 10), context()).layout == torch.sparse_csr


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Floats("B", low=1.0), "give both or neither"),
        (lambda: Floats("B", low=2.0, high=1.0), "low <= high"),
        (lambda: Floats("B", dtype="int64"), "neither floating nor complex"),
        (lambda: Ints("B", low=3, high=3), "high is exclusive"),
        (lambda: Ints("B", high=300, dtype="uint8"), "does not fit into torch.uint8"),
        (lambda: Ints("B", high=3, dtype="float32"), "whole numbers"),
        (lambda: Labels("B", classes=0), "at least one class"),
        (lambda: Tokens("B", vocab=2, pad=0, special=(1,)), "no ordinary token"),
        (lambda: Tokens("B", vocab=2, pad=2), "not an id below"),
        (lambda: Mask("B", kind="top"), "'random', 'left' or 'right'"),
        (lambda: Mask("B", of="ids", lengths="n"), "not from both"),
        (lambda: TensorSpec("B", dtype="float31"), "allowed: a torch.dtype"),
        (lambda: TensorSpec(3), "a shape is a string"),
        (lambda: TensorSpec("B", values="normal"), "not a domain"),
        (lambda: Sparse("B", density=2.0), "a share from 0 to 1"),
        (lambda: Images("B", dtype="int64"), "uint8 or floating"),
    ],
)
def test_wrong_declarations_say_what_is_allowed(make: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()  # type: ignore[operator]


def test_specs_are_values() -> None:
    import copy
    import pickle

    spec = Labels("B", classes=10, ignore_index=-1)
    assert spec == Labels("B", classes=10, ignore_index=-1)
    assert spec != Labels("B", classes=11, ignore_index=-1)
    assert hash(spec) == hash(Labels("B", classes=10, ignore_index=-1))
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
    with pytest.raises(AttributeError, match="frozen"):
        spec.classes = 3


def test_a_project_can_bring_its_own_domain() -> None:
    class Sevens(Domain):
        def fill(
            self, shape: tuple[int, ...], dtype: torch.dtype, context: Context
        ) -> torch.Tensor:
            return torch.full(shape, 7, dtype=dtype)

    assert TensorSpec("B", values=Sevens()).fill((3,), context()).tolist() == [7.0, 7.0, 7.0]


def test_a_spec_holds_a_tensor_to_shape_and_dtype() -> None:
    spec = TensorSpec("B 10", dtype="floating")
    assert spec.check(torch.zeros(3, 10), {"B": 3}) == {"B": 3}
    with pytest.raises(ValueError, match="axis 0 is 2"):
        spec.check(torch.zeros(2, 10), {"B": 3}, "output")
    with pytest.raises(ValueError, match="output is int64"):
        spec.check(torch.zeros(3, 10, dtype=torch.int64), {"B": 3}, "output")


@pytest.mark.parametrize(
    "spec", [Ints("B", high=2), Labels("B", classes=2), TensorSpec("B", dtype="bool")]
)
def test_a_few_numbers_are_never_all_the_same(spec: TensorSpec) -> None:
    for seed in range(30):
        drawn = spec.fill((3,), context(seed))
        assert len(drawn.unique()) == 2
        assert set(drawn.int().tolist()) == {0, 1}
    assert spec.fill((1,), context()).shape == (1,)
    assert Ints("B", low=4, high=5).fill((3,), context()).tolist() == [4, 4, 4]
