"""Promises about what a model returns: what it depends on, and what it is equal to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from ..lean import dataclass
from .base import Promise, PromiseError, dim_of, function_of, input_of, path_of, reason_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Causal(Promise):
    """The output at position t does not depend on the input after t.

    Attributes:
        dim: Dimension of the input that is time.
        input: Position or name of the input.
        output: Path of the output tensor (position, name or tuple of them); the only or first one
            by default.
        output_dim: Dimension of the output that is time.
    """

    dim: int = 1
    input: int | str = 0
    output: int | str | tuple[int | str, ...] | None = None
    output_dim: int = 1

    def __post_init__(self) -> None:
        dim_of("Causal", "dim", self.dim)
        dim_of("Causal", "output_dim", self.output_dim)
        input_of("Causal", "input", self.input)
        for part in self.output if isinstance(self.output, tuple) else (self.output,):
            if part is not None:
                path_of("Causal", "output", part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingInvariant(Promise):
    """What stands at padded positions, and how many there are, does not change the rest.

    Attributes:
        ids: Position or name of the padded input.
        mask: Position or name of its mask (true or 1 where real), if the model takes one.
        pad: Value that pads.
        side: Where the padding goes.
        dim: Dimension that is padded.
    """

    ids: int | str
    mask: int | str | None = None
    pad: float = 0
    side: Literal["right", "left"] = "right"
    dim: int = 1

    def __post_init__(self) -> None:
        input_of("PaddingInvariant", "ids", self.ids)
        if self.mask is not None:
            input_of("PaddingInvariant", "mask", self.mask)
        if self.side not in ("right", "left"):
            raise PromiseError(
                f'PaddingInvariant(side=) must be "right" or "left"; got {self.side!r}'
            )
        if isinstance(self.pad, bool) or not isinstance(self.pad, int | float):
            raise PromiseError(f"PaddingInvariant(pad=) must be a number; got {self.pad!r}")
        dim_of("PaddingInvariant", "dim", self.dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Permutation(Promise):
    dim: int | None = None
    input: int | str = 0
    inputs: Mapping[int | str, int] | None = None

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if (self.dim is None) == (self.inputs is None):
            raise PromiseError(
                f"{owner} takes either dim= (with input=) or inputs={{name: dim}} of tensors "
                f"permuted together; got dim={self.dim!r}, inputs={self.inputs!r}"
            )
        if self.dim is not None:
            dim_of(owner, "dim", self.dim)
            input_of(owner, "input", self.input)
        else:
            if not isinstance(self.inputs, Mapping) or not self.inputs:
                raise PromiseError(f"{owner}(inputs=) must map names to dims; got {self.inputs!r}")
            for name, dim in self.inputs.items():
                input_of(owner, "inputs", name)
                dim_of(owner, f"inputs[{name!r}]", dim)

    @property
    def dims(self) -> Mapping[int | str, int]:
        """The permuted inputs and their dimension."""
        return self.inputs if self.inputs is not None else {self.input: self.dim or 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationInvariant(_Permutation):
    """Permuting the inputs along a dimension leaves the output as it is.

    Inputs that are declared to index that dimension, such as ``Edges("2 E", nodes="N")``, follow it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationEquivariant(_Permutation):
    """Permuting the inputs along a dimension permutes the output along ``output_dim``.

    Inputs that are declared to index that dimension, such as ``Edges("2 E", nodes="N")``, follow it.
    """

    output_dim: int | None = None

    def __post_init__(self) -> None:
        _Permutation.__post_init__(self)
        if self.output_dim is not None:
            dim_of("PermutationEquivariant", "output_dim", self.output_dim)


@dataclass(frozen=True, slots=True)
class RandomAugmentation(Promise):
    """Items of the dataset, or the batches made of them, are random: they differ between workers and epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stochastic(Promise):
    """The output is random in eval mode by design (Monte-Carlo dropout, sampling decoders)."""

    reason: str

    def __post_init__(self) -> None:
        reason_of("Stochastic", self.reason)


@dataclass(frozen=True, slots=True)
class Matches(Promise):
    """With the same weights, the model gives what another version of it gives: one that is known to work.

    Attributes:
        reference: A factory ``() -> nn.Module``, or a module, which is left as it is.
        rename: Makes the reference's ``state_dict`` of the model's, where names or layouts differ.
    """

    reference: Callable[[], Any]
    rename: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        function_of("Matches", "reference", self.reference, "() -> nn.Module")
        if self.rename is not None:
            function_of("Matches", "rename", self.rename, "(state_dict) -> state_dict")


@dataclass(frozen=True, slots=True)
class Deterministic(Promise):
    """Under ``torch.use_deterministic_algorithms`` a step runs, and gives the same each time, bit by bit."""


@dataclass(frozen=True, slots=True)
class Loads(Promise):
    """A checkpoint of a released version loads strictly, and with it the model gives what it gave then.

    Attributes:
        checkpoint: Path of a file of ``torch.save`` or safetensors, relative to the file that declares the
            contract; or a function ``() -> state_dict``.
        output: What the model gave then in evaluation mode: a tensor or a tree of them, or the path of a file
            of ``torch.save``; None to load alone.
        inputs: What it was called with: a tensor, a tuple of positional or a dict of keyword arguments, or the
            path of a file of these; by default the contract's base batch.
        key: The entry of the file that holds the state dict, such as ``"state_dict"``.
    """

    checkpoint: str | Path | Callable[[], Mapping[str, Any]]
    output: Any = None
    inputs: Any = None
    key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint, str | Path) and not callable(self.checkpoint):
            raise PromiseError(
                "Loads(checkpoint) must be a path or a function () -> state_dict; "
                f"got {self.checkpoint!r:.60}"
            )
        if self.key is not None and not isinstance(self.key, str):
            raise PromiseError(f"Loads(key=) must be a name (str) or None; got {self.key!r}")
        if self.inputs is not None and self.output is None:
            raise PromiseError("Loads(inputs=) is what gave the output; give output= as well")

    @property
    def shown(self) -> str:
        """The checkpoint's name in reports."""
        if isinstance(self.checkpoint, str | Path):
            return str(self.checkpoint)
        return str(getattr(self.checkpoint, "__name__", "given")).replace("<lambda>", "given")
