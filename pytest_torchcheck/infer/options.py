"""Candidates: what each argument of a ``forward`` may take, the likeliest first."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from ..adapters.transformers import SPECIAL, special_ids
from ..lean import dataclass
from ..specs import Edges, Floats, Ints, Labels, Lengths, Mask, Positions, Tokens
from .facts import Entry, Facts, entries, has_sequences

if TYPE_CHECKING:
    from torch import nn

    from ..specs import TensorSpec

SIDES: Final = (64, 32, 224, 28, 128, 96, 256, 16, 48, 299, 384, 512)
"""Sides of images that are tried where the model does not say its own."""
LENGTHS: Final = (16, 64, 128, 8, 100, 12, 256, 512)
SPAN: Final = (2, 16)
"""Sizes of a sequence, where they are free."""
MOST: Final = 160
"""Candidates tried for one model."""

Sizes = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to fill an argument.

    Attributes:
        spec: Its spec.
        sizes: Ranges of the spec's symbols; ``B`` is left to its default.
        batch_dim: Where the batch is; None where there is none.
        why: What it was taken from.
    """

    spec: TensorSpec
    sizes: Sizes = field(default_factory=dict)
    batch_dim: int | None = 0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Specs of all arguments.

    Attributes:
        inputs: One spec, a tuple of them, or a dict.
        sizes: Ranges of symbols.
        batch_dim: Where the batch is.
        why: What it was taken from.
    """

    inputs: Any
    sizes: Sizes
    batch_dim: int | None
    why: str


IDS: Final = frozenset({
    "input_ids", "ids", "tokens", "token_ids", "src", "tgt", "text", "seq", "idx", "indices",
    "decoder_input_ids",
    "input_tokens", "source", "target",
})  # fmt: skip
IMAGES: Final = frozenset({
    "pixel_values", "img", "image", "images", "sample", "video", "imgs", "pixels", "latents",
    "noisy_images",
})  # fmt: skip
TIMES: Final = frozenset({"t", "timestep", "timesteps", "time", "times", "noise_level", "sigma"})


def required(model: nn.Module) -> tuple[str, ...]:
    """Return the arguments that a model must be given; where all are optional, the main one."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return ("x",)
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    must = tuple(p.name for p in named if p.default is p.empty)
    if must:
        return must
    main = getattr(model, "main_input_name", None)
    if isinstance(main, str) and main in {p.name for p in named}:
        return (main,)
    return (named[0].name,) if named else ("x",)


def candidates(model: nn.Module, facts: Facts) -> Iterator[Candidate]:
    """Yield candidates for a model's inputs, the likeliest first; at most :data:`MOST`."""
    entered = entries(model)
    made: set[tuple[str, str]] = set()
    for names, keywords in _argument_sets(model):
        if {"edge_index", "pos"} & set(names):
            yield from _graphs(names, facts, entered)
            continue
        lists = [
            tuple(_options(name, facts, _turned(entered, place), model))
            for place, name in enumerate(names)
        ]
        for chosen in _by_rank(lists):
            candidate = _joined(names, chosen, keywords=keywords)
            key = (repr(candidate.inputs), repr(candidate.sizes))
            if key not in made and len(made) < MOST:
                made.add(key)
                yield candidate


def _turned(entered: tuple[Entry, ...], place: int) -> tuple[Entry, ...]:
    """Return the layers for the argument at a place: of the first kind, another one comes first for each."""
    alike = [entry for entry in entered if entry.kind == entered[0].kind]
    if place == 0 or len(alike) < 2:
        return entered
    turn = place % len(alike)
    turned = iter([*alike[turn:], *alike[:turn]])
    return tuple(next(turned) if entry.kind == alike[0].kind else entry for entry in entered)


def _argument_sets(model: nn.Module) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the sets of arguments to try, and whether they are given by name."""
    names = required(model)
    taken = set(inspect.signature(model.forward).parameters)
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken:
        yield (*names, *(n for n in ("decoder_input_ids",) if n not in names)), True
    by_name = hasattr(model, "main_input_name") or len(names) > 1
    yield names, by_name
    if {"input_ids", "pixel_values"} <= taken and len(names) == 1:
        yield ("input_ids", "pixel_values"), True
    named = tuple(name for name in taken if name in TIMES or name == "class_labels")
    if named and not set(named) & set(names):
        yield (*names, *named), True


def _by_rank(lists: list[tuple[Option, ...]]) -> Iterator[tuple[Option, ...]]:
    """Yield the combinations, those of the likeliest options first."""
    ranked = (range(len(options)) for options in lists)
    few = itertools.islice(itertools.product(*ranked), 20 * MOST)
    for ranks in sorted(few, key=sum):
        yield tuple(options[rank] for options, rank in zip(lists, ranks, strict=True))


def _joined(names: tuple[str, ...], chosen: Iterable[Option], *, keywords: bool) -> Candidate:
    chosen = tuple(chosen)
    sizes: dict[str, tuple[int, int]] = {}
    for option in chosen:
        for symbol, (low, high) in option.sizes.items():
            known = sizes.get(symbol, (low, high))
            sizes[symbol] = (max(low, known[0]), max(max(low, known[0]), min(high, known[1])))
    specs = tuple(option.spec for option in chosen)
    inputs: Any = dict(zip(names, specs, strict=True)) if keywords else specs
    if not keywords and len(specs) == 1:
        inputs = specs[0]
    why = "; ".join(dict.fromkeys(option.why for option in chosen if option.why))
    return Candidate(inputs=inputs, sizes=sizes, batch_dim=chosen[0].batch_dim, why=why)


def _options(
    name: str, facts: Facts, entered: tuple[Entry, ...], model: nn.Module
) -> Iterator[Option]:
    """Yield what one argument may be, by its name first, then by the model's first layers."""
    low = name.lower().strip("_")
    yield from _named(low, facts)
    if low in TIMES or "mask" in low or low in ("lengths", "input_lengths"):
        return
    if low in IDS:
        yield from _tokens(facts, entered)
    if low in IMAGES:
        yield from _images(facts, entered)
    for role, entry in _in_order(facts, entered):
        yield from _of_entry(role, entry, facts, sequences=has_sequences(entered, model))
    yield from _images(facts, entered)
    yield from _tokens(facts, entered)
    for entry in entered:
        if entry.kind == "features":
            yield _floats(f"B {entry.size}", entry.name)
            yield _floats(f"B T {entry.size}", entry.name, T=SPAN)
    yield from _unusual(facts)


def _unusual(facts: Facts) -> Iterator[Option]:
    """Yield what few models take: features that only an argument says, channels last, choices of texts."""
    for size in map(int, facts.all("features")[:3]):
        yield _floats(f"B T {size}", f"{size} features", T=SPAN)
        yield _floats(f"B {size}", f"{size} features")
    for channels in map(int, facts.all("channels")[:1]):
        yield _floats(f"B 32 32 {channels}", f"{channels} channels, last")
    for vocab in map(int, facts.all("vocab")[:1]):
        spec = Tokens("B C T", vocab=vocab, special=_special(facts, vocab))
        yield Option(spec=spec, sizes={"C": (2, 4), "T": SPAN}, why="choices of texts")


def _in_order(facts: Facts, entered: tuple[Entry, ...]) -> Iterator[tuple[str, Entry]]:
    says_image = bool(facts.all("image")) and any(e.kind == "image" for e in entered)
    for entry in entered:
        if entry.kind == "features" and facts.all("image"):
            channels = int((*facts.all("channels"), 3)[0])
            yield "image", Entry(kind="image", size=channels, name=entry.name)
            says_image = False
        if says_image and entry.kind != "image":
            continue
        yield entry.kind, entry


def _of_entry(kind: str, entry: Entry, facts: Facts, *, sequences: bool) -> Iterator[Option]:
    size, why = entry.size, entry.name
    if kind == "table":
        yield from _tokens(facts, (entry,))
    elif kind == "image":
        yield from _images(facts, (entry,))
    elif kind == "volume":
        for side in _sides(facts)[:4]:
            for frames in (*facts.all("frames"), 8, 16, side[0]):
                yield _floats(f"B {size} {frames} {side[0]} {side[1]}", why)
    elif kind == "signal":
        yield _floats(f"B {size} T", why, T=(8, 32))
        for length in (*facts.all("length"), *LENGTHS, 1000, 4000):
            yield _floats(f"B {size} {length}", why)
            yield _floats(f"B {length}", why)
        yield _floats(f"B T {size}", why, T=SPAN)
    else:
        flat = (_floats(f"B {size}", why),)
        rows = (_floats(f"B T {size}", why, T=SPAN),)
        steps = (Option(spec=Floats(f"T B {size}"), sizes={"T": SPAN}, batch_dim=1, why=why),)
        if kind == "sequence":
            yield from (*rows, *steps, *flat) if entry.batch_first else (*steps, *rows, *flat)
        else:
            yield from (*rows, *flat) if sequences else (*flat, *rows)
        for length in facts.all("length"):
            for width in dict.fromkeys((size, *map(int, facts.all("features")[:2]))):
                yield _floats(f"B {length} {width}", why)
            for channels in facts.all("channels"):
                yield _floats(f"B {channels} {length}", why)


def _floats(shape: str, why: str, **sizes: tuple[int, int]) -> Option:
    return Option(spec=Floats(shape), sizes=sizes, why=why)


def _sides(facts: Facts) -> list[tuple[int, int]]:
    found: dict[tuple[int, int], None] = {}
    for said in facts.all("image"):
        sides = said if isinstance(said, tuple) else (said, said)
        found.setdefault((sides[-2], sides[-1]))
    found.update(dict.fromkeys((side, side) for side in SIDES))
    return list(found)


def _images(facts: Facts, entered: tuple[Entry, ...]) -> Iterator[Option]:
    said = [int(channels) for channels in facts.all("channels")[:2]]
    read = [entry.size for entry in entered if entry.kind == "image"][:2]
    first = bool(entered) and entered[0].kind == "image"  # else it reads what others have made
    order = (*read, *said, 3, 1) if first else (*said, 3, 1, *read)
    frames = facts.all("frames")[:1]
    for side in _sides(facts):
        for channels in dict.fromkeys(order):
            what = f"{channels} channels"
            for count in frames:
                yield _floats(f"B {channels} {count} {side[0]} {side[1]}", what)
                yield _floats(f"B {count} {channels} {side[0]} {side[1]}", what)
            yield _floats(f"B {channels} {side[0]} {side[1]}", what)


def _tokens(facts: Facts, entered: tuple[Entry, ...]) -> Iterator[Option]:
    said = [(int(size), "the configuration's vocabulary") for size in facts.all("vocab")]
    read = [(entry.size, entry.name) for entry in entered if entry.kind == "table"]
    longest = min([SPAN[1], *(int(length) for length in facts.all("length"))])
    for vocab, why in dict.fromkeys((*said, *read)):
        spec = Tokens("B T", vocab=vocab, special=_special(facts, vocab))
        yield Option(spec=spec, sizes={"T": (min(2, longest), longest)}, why=why)
    for vocab, why in dict.fromkeys((*said, *read)):
        for length in facts.all("length")[:2] or LENGTHS[:3]:
            yield Option(spec=Tokens(f"B {length}", vocab=vocab), why=why)
        yield Option(spec=Ints("B", high=vocab), why=why)


def _special(facts: Facts, vocab: int) -> tuple[int, ...]:
    return special_ids(map(facts.value, SPECIAL), vocab)


def _named(name: str, facts: Facts) -> Iterator[Option]:
    """Yield what an argument of this name usually is."""
    why = f"the name {name!r}"
    if name in TIMES:
        yield Option(spec=Ints("B", high=1000), why=why)
        yield _floats("B", why)
        yield _floats("B 1", why)
    elif name in ("lengths", "input_lengths", "src_len", "text_lengths"):
        yield Option(spec=Lengths("B", longest="T"), why=why)
    elif "mask" in name:
        yield Option(spec=Mask("B T"), sizes={"T": SPAN}, why=why)
        yield Option(spec=Mask("B T", dtype="int64"), sizes={"T": SPAN}, why=why)
    elif name in ("encoder_hidden_states", "context", "cond", "condition"):
        for size in facts.all("context"):
            yield _floats(f"B S {size}", why, S=SPAN)
    elif name in ("labels", "class_labels", "classes", "y", "label"):
        for count in (facts.value("num_classes"), facts.value("num_embeds_ada_norm")):
            if isinstance(count, int) and count > 1:
                yield Option(spec=Labels("B", classes=count), why=why)
    elif "categ" in name:
        counts = facts.value("categories")
        if isinstance(counts, tuple | list) and counts:
            yield Option(spec=Ints(f"B {len(counts)}", high=min(map(int, counts))), why=why)
    elif any(word in name for word in ("cont", "numer", "dense")):
        if isinstance(count := facts.value("num_continuous"), int):
            yield _floats(f"B {count}", why)
    elif name == "input_values":
        for length in (400, 1000, 4000):
            yield _floats(f"B {length}", why)
    elif name == "input_features":
        bins = facts.value("num_mel_bins") or facts.value("input_feat_per_channel")
        positions = facts.value("max_source_positions")
        if isinstance(bins, int):
            if isinstance(positions, int):
                yield _floats(f"B {bins} {2 * positions}", why)
            yield _floats(f"B T {bins}", why, T=(8, 32))
            yield _floats(f"B {bins} 64", why)


def _graphs(
    names: tuple[str, ...], facts: Facts, entered: tuple[Entry, ...]
) -> Iterator[Candidate]:
    """Yield graphs: node features, edges or positions, and what else is asked for by name."""
    read = [e.size for e in entered if e.kind in ("features", "signal")]
    said = [int(size) for size in (*facts.all("features"), *facts.all("channels"))]
    tables = [e.size for e in entered if e.kind == "table"]
    nodes: list[TensorSpec] = [Floats(f"N {size}") for size in dict.fromkeys((*said, *read))]
    ids: list[TensorSpec] = [Ints("N", high=size) for size in tables]
    edges = [size for size in (facts.value("edge_dim"), *read) if isinstance(size, int)]
    counts: list[str | int] = list(tables) if names == ("edge_index",) else ["N"]
    first_ids = names[0] in ("z", "atomic_numbers", "atoms", "species")
    for node in [*ids, *nodes] if first_ids else [*nodes, *ids]:
        for width, count in itertools.product(dict.fromkeys(edges or [1]), counts):
            rest: dict[str, TensorSpec] = {
                "edge_index": Edges("2 E", nodes=count),
                "edge_attr": Floats(f"E {width}"),
                "edge_weight": Floats("E", low=0.0, high=1.0),
                "batch": Positions("N", strict=False),
                "pos": Floats("N 3"),
                "edge_type": Ints("E", high=int(facts.value("num_relations") or 1)),
            }
            inputs = {name: rest.get(name, node) for name in names}
            if sum(name not in rest for name in names) > 1:
                continue
            used = {symbol for spec in inputs.values() for symbol in spec.symbols()}
            sizes = {symbol: (4, 16 if symbol == "N" else 32) for symbol in "NE" if symbol in used}
            yield Candidate(inputs=inputs, sizes=sizes, batch_dim=None, why="a graph")
