"""What a model says of itself.

The numbers of its arguments, configuration and attributes, by their role; its first layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from torch import nn

from ..lean import dataclass
from ..state import is_lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["vocab", "image", "channels", "frames", "length", "features", "context"]

ROLES: Final[Mapping[Role, tuple[str, ...]]] = {
    "vocab": ("vocab_size", "num_tokens", "num_embeddings", "n_vocab", "ntoken", "n_tokens",
    "vocab", "num_words"),
    "image": ("image_size", "img_size", "sample_size", "input_size", "resolution",
    "image_resolution", "size"),
    "channels": (
        "num_channels", "in_channels", "in_chans", "input_channels", "image_channels",
        "n_channels", "channels",
    ),
    "frames": ("num_frames", "frames", "n_frames"),
    "length": (
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_len", "max_len",
        "max_length", "block_size",
        "context_length", "max_sequence_length", "sequence_length",
    ),
    "features": (
        "dim_in", "input_dim", "in_features", "in_dim", "d_in", "input_size", "feature_size",
        "num_features",
        "in_channels", "num_input_channels", "num_mel_bins", "n_mels", "dim",
    ),
    "context": ("cross_attention_dim", "context_dim", "encoder_hid_dim", "caption_channels"),
}  # fmt: skip
"""What people call a size, the most telling name first."""
_PARTS: Final = ("text_config", "vision_config", "audio_config", "encoder", "decoder")
"""Configurations inside a configuration."""
_OBJECTS: Final = ("config", "cfg", "hparams", "default_cfg", "pretrained_cfg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The numbers that a model says, the surest source first.

    Attributes:
        sources: Mappings from names to values.
    """

    sources: tuple[Mapping[str, Any], ...]

    def all(self, role: Role) -> tuple[Any, ...]:
        """Return the values of a role without repeats.

        Whole numbers, or tuples of them for ``image``.
        """
        found: dict[Any, None] = {}
        for source in self.sources:
            for name in ROLES[role]:
                value = source.get(name)
                if isinstance(value, list):
                    value = tuple(value)
                if _is_size(value) or (role == "image" and _is_sizes(value)):
                    found.setdefault(value)
        return tuple(found)

    def value(self, name: str) -> Any:
        """Return the value of one name from the surest source that has it."""
        return next((source[name] for source in self.sources if name in source), None)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and 2 <= len(value) <= 3 and all(map(_is_size, value))


def facts_of(model: nn.Module, arguments: Mapping[str, Any] | None = None) -> Facts:
    """Collect what a model says of its sizes.

    Args:
        model: The model, built.
        arguments: What it was built with, where that is known.
    """
    sources: list[Mapping[str, Any]] = [arguments or {}]
    for name in _OBJECTS:
        found = getattr(model, name, None)
        mapping = _mapping(found)
        if mapping:
            sources.append(mapping)
            sources += [part for key in _PARTS if (part := _mapping(mapping.get(key)))]
    sources.append({k: v for k, v in vars(model).items() if not k.startswith("_")})
    sources.append(_defaults(type(model)))
    return Facts(sources=tuple(sources))


def _mapping(value: Any) -> Mapping[str, Any]:
    if value is None or isinstance(value, nn.Module):
        return {}
    if isinstance(value, Mapping):
        return value
    try:
        return {k: v for k, v in vars(value).items() if not k.startswith("_")}
    except TypeError:
        return {}


def _defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of a class's constructor.

    They are less sure, since a factory may have given others.
    """
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default for p in parameters if p.default is not p.empty}


Kind = Literal["table", "image", "signal", "volume", "features", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A layer that may read the model's input.

    Attributes:
        kind: ``table`` takes ids, ``image``, ``signal`` and ``volume`` are convolutions of 2, 1
            and 3 dimensions, ``features`` acts on the last axis, ``sequence`` on a sequence of
            them.
        size: Rows of the table, channels, or features.
        batch_first: Of a sequence: whether the batch is its first axis.
        name: Class of the layer and where it is.
    """

    kind: Kind
    size: int
    batch_first: bool = True
    name: str = ""


def entries(model: nn.Module, most: int = 6) -> tuple[Entry, ...]:
    """Return the first layers of different kinds or sizes, in the order of registration."""
    found: dict[tuple[Kind, int], Entry] = {}
    for name, module in model.named_modules():
        for entry in _entries(module, f"{name or 'the model'}: {type(module).__name__}"):
            found.setdefault((entry.kind, entry.size), entry)
        if len(found) >= most:
            break
    return tuple(found.values())


def _entries(module: nn.Module, name: str) -> Iterator[Entry]:
    match module:
        case nn.Embedding() | nn.EmbeddingBag():
            yield Entry(kind="table", size=module.num_embeddings, name=name)
        case nn.Conv2d() | nn.ConvTranspose2d():
            yield Entry(kind="image", size=module.in_channels, name=name)
        case nn.Conv1d() | nn.ConvTranspose1d():
            yield Entry(kind="signal", size=module.in_channels, name=name)
        case nn.Conv3d() | nn.ConvTranspose3d():
            yield Entry(kind="volume", size=module.in_channels, name=name)
        case nn.BatchNorm2d():
            yield Entry(kind="image", size=module.num_features, name=name)
        case nn.RNNBase():
            first = bool(module.batch_first)
            yield Entry(kind="sequence", size=module.input_size, batch_first=first, name=name)
        case nn.MultiheadAttention():
            first = bool(module.batch_first)
            yield Entry(kind="sequence", size=module.embed_dim, batch_first=first, name=name)
        case nn.Transformer():
            first, size = bool(module.batch_first), module.d_model
            yield Entry(kind="sequence", size=size, batch_first=first, name=name)
        case nn.LazyLinear():
            yield Entry(kind="features", size=8, name=name)
        case nn.Linear() | nn.RNNCellBase():
            size = module.in_features if isinstance(module, nn.Linear) else module.input_size
            yield Entry(kind="features", size=size, name=name)
        case nn.Bilinear():
            yield Entry(kind="features", size=module.in1_features, name=name)
            yield Entry(kind="features", size=module.in2_features, name=name)
        case nn.LayerNorm() if len(module.normalized_shape) == 1:
            yield Entry(kind="features", size=module.normalized_shape[0], name=name)
        case _:
            known = _channels(module)
            sizes = [known] if known is not None else _own_sizes(module)
            for each in sizes:
                yield Entry(kind="features", size=each, name=name)


def _own_sizes(module: nn.Module) -> list[int]:
    """Return the sizes of the weights that a module holds itself.

    It may contract any of them with its input.
    """
    shapes = [leaf.shape for leaf in module.parameters(recurse=False) if not is_lazy(leaf)]
    return list(
        dict.fromkeys(size for shape in shapes if len(shape) > 1 for size in shape if size > 1)
    )


def _channels(module: nn.Module) -> int | None:
    """Return ``in_channels`` of a layer that no base class tells, such as a graph convolution.

    It must have weights.
    """
    for name in ("in_channels", "in_features", "input_size"):
        size: Any = vars(module).get(name)
        if isinstance(size, tuple | list) and size:
            size = size[0]
        if _is_size(size) and any(True for _ in module.parameters()):
            return int(size)
    return None


def has_sequences(entered: Sequence[Entry], model: nn.Module) -> bool:
    """Say whether a model reads sequences: it has recurrent layers or attention."""
    if any(entry.kind == "sequence" for entry in entered):
        return True
    names = {type(module).__name__.lower() for module in model.modules()}
    return any("attention" in n or "attn" in n or "lstm" in n or "gru" in n for n in names)
