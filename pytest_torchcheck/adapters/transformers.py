"""Models of Hugging Face transformers: batches are dicts with their labels, the loss comes with the output, sizes from the config."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..specs import Floats, Labels, Tokens
from .base import Adapted, AdapterError, Declared

if TYPE_CHECKING:
    from ..specs import TensorSpec

CLASS: Final = "transformers.modeling_utils:PreTrainedModel"
WRAPPER: Final = "peft.peft_model:PeftModel"
"""A model with adapters of PEFT around it: what the base model says holds of it too."""
SPECIAL: Final = ("pad_token_id", "bos_token_id", "eos_token_id")
LENGTH: Final = 16
"""Longest drawn sequence: enough for every effect of position, and cheap."""


class _Transformers:
    def recognises(self, declared: Declared) -> bool:
        if declared.is_a(WRAPPER):
            return Declared(base_of(declared.built), {}).is_a(CLASS)
        return declared.is_a(CLASS)

    def adapt(self, declared: Declared) -> Adapted:
        if declared.declares("loss", "train_step"):
            return Adapted()
        fields: dict[str, Any] = {}
        given = declared.batch if declared.batch is not None else declared.inputs
        if given is None:
            fields["inputs"], fields["sizes"] = _specs(declared)
            given = fields["inputs"]
        if isinstance(given, tuple) and len(given) == 2 and given[1] is None:
            (given, _) = given
        if _gives_loss(
            given, type(base_of(declared.built)) if declared.is_a(WRAPPER) else declared.cls
        ):
            fields["loss"] = "output"
        return Adapted(fields=fields)


ADAPTER: Final = _Transformers()


def base_of(model: Any) -> Any:
    """Return the model that PEFT's adapters were put into; any other model is its own."""
    found = getattr(model, "get_base_model", None)
    return found() if callable(found) else model


def label_names(cls: Any) -> tuple[str, ...]:
    """Return the arguments of a model's forward that are labels, without which it gives no loss."""
    taken = inspect.signature(cls.forward).parameters
    return tuple(
        name for name in taken if "label" in name or name in ("start_positions", "end_positions")
    )


def _gives_loss(given: Any, cls: Any) -> bool:
    if isinstance(given, Mapping):
        return any(name in given for name in label_names(cls))
    # a loader or a function: read once the checks run, so its dataset's promise counts
    return given is not None and not isinstance(given, str | tuple) and bool(label_names(cls))


def _specs(declared: Declared) -> tuple[dict[str, TensorSpec], dict[str, Any]]:
    """Return specs of the inputs and labels of a model, with the sizes, from its config.

    Raises:
        AdapterError: The model takes something else than text or images, or does not say its labels.
    """
    model: Any = base_of(declared.built)
    if model is None:
        raise AdapterError(
            "inputs: the factory raised, so that no specs can be taken from its config"
        )
    config, cls = model.config, type(model)
    inputs: dict[str, TensorSpec] = {}
    sizes: dict[str, Any] = {"B": (2, 4)}
    vocab = getattr(config, "vocab_size", None)
    if model.main_input_name == "input_ids" and isinstance(vocab, int):
        longest = getattr(config, "max_position_embeddings", None) or LENGTH
        sizes["T"] = (2, max(2, min(LENGTH, longest)))
        special = special_ids((getattr(config, name, None) for name in SPECIAL), vocab)
        inputs["input_ids"] = Tokens("B T", vocab=vocab, special=special, pad=None)
    elif model.main_input_name == "pixel_values" and isinstance(
        getattr(config, "image_size", None), int
    ):
        side = config.image_size
        inputs["pixel_values"] = Floats(f"B {getattr(config, 'num_channels', 3)} {side} {side}")
    else:
        raise AdapterError(
            f"inputs: {cls.__name__} takes {model.main_input_name}, of which its config does not say the "
            'shape; give batch={...} as a data collator does, or inputs={...: "B ..."}'
        )
    if getattr(config, "is_encoder_decoder", False) and not label_names(cls):
        inputs["decoder_input_ids"] = inputs["input_ids"]
    labels = _labels(cls, config, inputs)
    return {**inputs, **labels}, sizes


def special_ids(named: Iterable[Any], vocab: int) -> tuple[int, ...]:
    """Return the ids that ordinary text does not contain, of what a configuration says: ids, lists of ids, or None."""
    ids = [each for value in named for each in (value if isinstance(value, list) else [value])]
    few = tuple(dict.fromkeys(each for each in ids if type(each) is int and 0 <= each < vocab))
    return few if vocab > len(few) + 1 else ()


def _labels(cls: Any, config: Any, inputs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    names = label_names(cls)
    kind = cls.__name__
    if not names:
        return {}
    if names != ("labels",):
        raise AdapterError(
            f"inputs: {kind} is trained by {', '.join(names)}, of which its config does not say the shape; "
            "give batch={...} as a data collator does"
        )
    if kind.endswith(
        ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")
    ) and ("input_ids" in inputs):
        return {"labels": Tokens("B T", vocab=config.vocab_size)}
    if kind.endswith(("ForSequenceClassification", "ForImageClassification")):
        if config.num_labels == 1:
            return {"labels": Floats("B")}
        return {"labels": Labels("B", classes=config.num_labels)}
    if kind.endswith("ForTokenClassification"):
        return {"labels": Labels("B T", classes=config.num_labels)}
    raise AdapterError(
        f"inputs: what {kind} takes as labels is not known; give batch={{...}} as a data collator does"
    )
