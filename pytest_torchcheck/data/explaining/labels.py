"""From evidence on labels to findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...verdicts import suspicious, violated
from .. import sample_lines
from ..relations.blended_labels import truncation_of
from ..wording import dataset_culprit, line_ref, where
from .returned_object import given_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Finding, Location
    from ..labels import Labels
    from ..plan import Part


def labels_wrong(
    part: Part, labels: Labels, classes: int | None, ignore: int, wants_float: bool | None
) -> Iterator[Finding]:
    """Labels of a wrong dtype or range, constant or shifted; yields nothing where they are right."""
    column = labels.column or labels.shifted or labels.ignored
    place = sample_lines.return_line(part, 0) if part.is_map_style and part.length else None
    name = column.path if column is not None else where(labels.path)
    shown = (
        f"{labels.dtype}, {labels.count} labels from {labels.low:g} to {labels.high:g}"
        if labels.low is not None and labels.high is not None
        else labels.dtype
    )
    culprit = dataset_culprit(part, name, shown, place)
    common: dict[str, Any] = {"culprits": (culprit,), "location": place, "observed": shown}
    if labels.shifted is not None:
        yield violated(
            "label-shifted",
            f"{part.prefix}sample i gets the label of sample i{labels.shift:+d}: "
            f"{labels.shifted.path} is read with an offset",
            cause="the index of the label is not the index of the sample",
            because=f"all {labels.count} labels read equal "
            f"{labels.shifted.path}[i{labels.shift:+d}], not {labels.shifted.path}[i]",
            fix=f"read {labels.shifted.path}[i] at {line_ref(place)}",
            **common,
        )
    if labels.ignored is not None:
        many = len(
            set(
                map(
                    str,
                    labels.ignored.value.tolist()
                    if hasattr(labels.ignored.value, "tolist")
                    else labels.ignored.value,
                )
            )
        )
        yield violated(
            "label-constant",
            f"{part.prefix}every sample has the label {labels.low:g}, while {labels.ignored.path} holds {many} values",
            cause="the index is not used to select the label",
            because=f"every label read is {labels.ignored.path}[0]",
            fix=f"read {labels.ignored.path}[i] at {line_ref(place)}",
            **common,
        )
    elif len(labels.values) == 1 and labels.count >= 8 and labels.shape in ((), (1,)):
        make = violated if classes is not None and classes > 1 else suspicious
        yield make(
            "label-constant",
            f"{part.prefix}every label of {part.name} is {labels.low:g}",
            cause="the labels are constant, so there is nothing to learn",
            because=f"one value in {labels.count} labels",
            fix=f"return the sample's own label at {line_ref(place)}",
            **common,
        )
    elif len(labels.values) == 1 and labels.shape not in ((), (1,)):
        yield from _constant_maps(part, labels, classes, ignore, common, name)
    yield from _label_dtype(part, labels, classes, wants_float, common, name)
    yield from _label_range(part, labels, classes, ignore, place, common, name)


def _constant_maps(
    part: Part, labels: Labels, classes: int | None, ignore: int, common: dict[str, Any], name: str
) -> Iterator[Finding]:
    """Masks and other maps of labels in which one value stands everywhere."""
    (value,) = labels.values
    if value == ignore or labels.is_floating:
        return
    cut = truncation_of(part, labels.shape) if part.is_map_style and part.length else None
    several = classes is not None and classes > 1
    if cut is not None:
        line = cut.location or common["location"]
        yield (violated if several else suspicious)(
            "label-constant",
            f"{part.prefix}every element of {name} is {value}: an integer cast truncates fractions",
            cause="the cast truncates fractions: the labels were likely scaled by 1/255",
            because=f"{cut.call} at {line_ref(line)} got {cut.kinds} values from {cut.low:.3g} to {cut.high:.3g}",
            fix=f"keep the labels as integers: remove the scaling from {line_ref(line)}",
            **{
                **common,
                "location": line,
                "culprits": (dataset_culprit(part, name, common["observed"], line),),
            },
        )
    elif several and labels.count >= 8 and sum(labels.values.values()) > labels.count:
        yield suspicious(
            "label-constant",
            f"{part.prefix}every element of {name} is {value} in {labels.count} samples of {part.name}",
            cause="the labels are constant, so there is nothing to learn",
            because=f"one value where {classes} classes are declared",
            fix=f"check how the labels at {line_ref(common['location'])} are read",
            **common,
        )


def _label_dtype(
    part: Part,
    labels: Labels,
    classes: int | None,
    wants_float: bool | None,
    common: dict[str, Any],
    name: str,
) -> Iterator[Finding]:
    if labels.is_floating and (
        wants_float is False or (classes is not None and wants_float is None and labels.whole)
    ):
        common = _at_giver(part, labels, common, name)
        # fractions may be scaled classes, or a quantity that the step cuts into classes
        yield (violated if labels.whole else suspicious)(
            "label-dtype",
            f"{part.prefix}{name} gives labels of {labels.dtype} where class indices (int64) are declared",
            cause="class labels are floats"
            if labels.whole
            else "the labels are fractions: scaled classes, or another quantity",
            because=f"the contract's targets are integers; the samples hold {labels.dtype}",
            fix="return int(label), or a tensor of torch.long"
            if labels.whole
            else "return the class index (int64), or declare the targets as the dataset gives them",
            **common,
        )
    elif not labels.is_floating and wants_float:
        common = _at_giver(part, labels, common, name)
        yield violated(
            "label-dtype",
            f"{part.prefix}{name} gives targets of {labels.dtype} where floats are declared",
            cause="the loss needs floats, and the dataset returns integers",
            because=f"the contract's targets are floats; the samples hold {labels.dtype}",
            fix="return float(label), or a tensor of torch.float32",
            **common,
        )
    elif (
        labels.is_floating
        and labels.whole
        and wants_float is None
        and classes is None
        and _looks_like_classes(labels)
    ):
        common = _at_giver(part, labels, common, name)
        yield suspicious(
            "label-dtype",
            f"{part.prefix}{name} gives class-like labels as {labels.dtype}",
            cause="all labels are small integers stored as floats",
            because=f"{len(labels.values)} values, {min(labels.values)} to {max(labels.values)}, "
            "all integers",
            fix="return int(label) for cross_entropy; declare targets if floats are intended",
            **common,
        )


def dtype_refused(part: Part, labels: Labels, said: str, given: bool) -> Finding:
    """Report float labels of a dtype that the training step cannot take.

    Suspicious unless such targets are ``given`` to the step: what stands between loader and step
        may cast them.
    """
    place = sample_lines.return_line(part, 0) if part.is_map_style and part.length else None
    name = labels.column.path if labels.column is not None else where(labels.path)
    became = str(labels.collated).removeprefix("torch.")
    common = _at_giver(
        part,
        labels,
        {
            "culprits": (dataset_culprit(part, name, became, place),),
            "location": place,
            "observed": f"labels of {labels.dtype}"
            + (f", {became} in a batch" if became != labels.dtype else ""),
        },
        name,
    )
    return (violated if given else suspicious)(
        "label-dtype",
        f"{part.prefix}{name} gives targets of {became}, which the training step does not accept",
        cause="targets of float64, the default of NumPy and of Python's floats, are combined "
            "with a float32 output",
        because=f"with such targets torch said: {said[:160]}",
        fix=f"return them as float32 at {line_ref(common['location'])}: torch.tensor(label, "
            "dtype=torch.float32), or np.float32(label)",
        **common,
    )  # fmt: skip


def _at_giver(
    part: Part, labels: Labels, common: dict[str, Any], name: str, line: Location | None = None
) -> dict[str, Any]:
    """Return what findings share, with the line where a helper of the dataset returns the label, where one does."""
    line = line or (given_line(part, 0, labels.path, 0) if part.is_map_style else None)
    if line is None:
        return common
    own = dataset_culprit(part, name, common["observed"], line)
    returned = dataset_culprit(part, "__getitem__", "passes it on", common["location"])
    return {**common, "culprits": (own, returned), "location": line}


def _wrong_given(part: Part, labels: Labels, wrong: Callable[[float], bool]) -> Location | None:
    """Return the line where a helper of the dataset returns a wrong label, of the first samples that have one."""
    if not part.is_map_style:
        return None

    def is_wrong(value: Any) -> bool:
        number = sample_lines.number_of(value)
        return number is not None and wrong(number)

    found = (given_line(part, i, labels.path, 0, is_wrong) for i in range(min(part.length, 16)))
    return next((line for line in found if line is not None), None)


def _looks_like_classes(labels: Labels) -> bool:
    values = sorted(labels.values)
    return (
        len(values) > 2 and values[0] in (0, 1) and values == list(range(values[0], values[-1] + 1))
    )


def _made(part: Part, wrong: Callable[[float], bool]) -> Location | None:
    """Return the line that makes a wrong label, of the first samples that have one."""
    if not part.is_map_style:
        return None
    return next(
        (
            line
            for index in range(min(part.length or 0, 16))
            if (line := sample_lines.label_line(part, index, wrong)) is not None
        ),
        None,
    )


def _map_made(part: Part, classes: int, ignore: int) -> Location | None:
    """Return the line that makes a label map with a label outside of the classes, of the first samples."""
    if not part.is_map_style:
        return None

    def wrong(value: Any) -> Any:
        return ((value < 0) | (value >= classes)) & (value != ignore)

    found = (
        sample_lines.label_map_line(part, index, wrong) for index in range(min(part.length, 8))
    )
    return next((line for line in found if line is not None), None)


def _label_range(
    part: Part, labels: Labels, classes: int | None, ignore: int, place: Location | None,
    common: dict[str, Any], name: str,
) -> Iterator[Finding]:  # fmt: skip
    if labels.is_floating or not labels.values:
        return
    values = {value: count for value, count in labels.values.items() if value != ignore}
    if not values:
        return
    low, high = min(values), max(values)
    if classes is not None and (low < 0 or high >= classes):
        one_based = low >= 1 and high == classes

        def outside(value: float) -> bool:
            return value != ignore and not 0 <= value < classes

        line = _map_made(part, classes, ignore) or _made(part, outside)
        if line is not None:
            place = line
            common = {
                **common,
                "culprits": (dataset_culprit(part, name, common["observed"], line),),
                "location": line,
            }
        given = _wrong_given(part, labels, outside)
        if given is not None:
            place, common = given, _at_giver(part, labels, common, name, given)
        yield violated(
            "label-range",
            f"{part.prefix}{name} reaches {high if high >= classes else low} but there are {classes} classes, "
            f"0..{classes - 1}",
            cause="labels start at 1" if one_based else "labels lie outside the classes",
            because=f"0 never occurs in {labels.count} labels; {high} occurs {values[high]} times"
            if one_based
            else (f"{sum(c for v, c in values.items() if v < 0 or v >= classes)} of "
                f"{sum(values.values())} labels are outside"),
            fix=f"return label - 1 at {line_ref(place)}" if one_based
            else f"map labels to 0..{classes - 1} at {line_ref(place)}, or declare the true number of classes",
            **common,
        )  # fmt: skip
    elif classes is None and not labels.boxed and low == 1 and len(values) == high and high >= 2:
        yield suspicious(
            "label-one-based",
            f"{part.prefix}{name} counts classes from 1 to {high}",
            cause="labels start at 1, but the classes of a head start at 0",
            because=f"0 never occurs in {labels.count} labels",
            fix=f"return label - 1 at {line_ref(place)}",
            **common,
        )
    elif classes is None and low < 0:
        yield suspicious(
            "label-negative",
            f"{part.prefix}{name} reaches {low}",
            cause="a negative label that the loss does not ignore",
            because=f"{values[low]} of {labels.count} labels are {low}",
            fix="declare targets=Labels(classes=, ignore_index=), or remove these samples",
            **common,
        )
