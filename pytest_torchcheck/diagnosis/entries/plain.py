"""Messages whose cause and cure follow from their words and the values on the line: one row of a table each."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import torch
from torch import nn

from ... import sources
from ...explanation import CXX_DTYPES, PHASE_WORDS, Explanation, on_line
from ...findings import Culprit
from ...lean import dataclass
from ..crashes.table import entry

if TYPE_CHECKING:
    from ...findings import Location
    from ..crashes.scene import Scene


@dataclass(frozen=True, slots=True)
class Row:
    """One message; ``{at}``, ``{line}`` and the named groups of the pattern are filled in.

    Attributes:
        code: Of the explanation.
        pattern: Searched in the message.
        summary: What happens, behind the place.
        cause: Why.
        fix: One edit.
    """

    code: str
    pattern: str
    summary: str
    cause: str
    fix: str


_SINGULAR = (
    "add a small multiple of the identity first (x + eps * torch.eye(n)){line}, or use {instead}"
)
_LENGTHS = "pass one integer length of at least 1 for each sample, in the order of the batch"
_EMPTY = "handle the case of no element before line {number}"

ROWS = (
    # decompositions
    Row("matrix-singular", r"linalg\.cholesky: .*(?:not positive-definite)", "a matrix given to cholesky is not positive definite",
        "an eigenvalue is zero or negative, often because of rounding", _SINGULAR.replace("{instead}", "cholesky_ex and look at info")),
    Row("matrix-singular", r"linalg\.(?P<f>inv|solve)\w*: .*singular", "a matrix given to {f} is singular",
        "its rows are linearly dependent, so it has no inverse", _SINGULAR.replace("{instead}", "torch.linalg.lstsq or pinv")),
    Row("matrix-singular", r"linalg\.(?P<f>svd|eigh|eig|svdvals|eigvalsh): The algorithm failed to converge",
        "{f} does not converge", "the matrix holds values that are not finite, or repeats eigenvalues",
        "keep its input finite and its eigenvalues distinct before line {number}"),
    # more than there is
    Row("size-argument", r"selected index k out of range", "topk needs more entries than there are",
        "k is larger than the dimension that it selects from", "use k = min(k, x.shape[dim]){line}"),
    Row("size-argument", r"maximum size for tensor at dimension (?P<d>-?\d+) is (?P<n>\d+) but size is (?P<k>\d+)",
        "unfold needs windows of {k} along dimension {d}, which has size {n}", "the window is longer than the dimension",
        "pad the input, or take a window of at most {n}{line}"),
    Row("size-argument", r"cannot sample n_sample > prob_dist\.size\(-1\) samples without replacement",
        "multinomial needs more samples than there are categories", "without replacement each category is drawn once at most",
        "pass replacement=True, or draw fewer{line}"),
    Row("size-argument", r"requested an output size of (?P<a>.*?), but valid sizes range from (?P<b>\[.*?\]) to (?P<c>\[.*?\])",
        "a transposed convolution cannot give {a}", "with its stride, kernel and padding it gives {b} to {c} of this input",
        "pass an output_size in that range{line}, or change the stride"),
    Row("size-argument", r"Input and output must have the same number of spatial dimensions, but got input with spatial dimensions of (?P<a>\[.*?\]) and output size of (?P<b>\(.*?\))",
        "interpolate received the spatial dimensions {a} and a size {b}", "size= needs one number for each dimension after batch and channels",
        "give size one number for each of {a}{line}, or unsqueeze the input"),
    Row("size-argument", r"Got (?P<n>\d)D input,? (?:but|bot) (?P<m>\w+) mode needs (?P<k>\d)D input", "mode={m!r} of interpolate needs {k} dimensions, got {n}",
        "linear is for sequences, bilinear for images, trilinear for volumes", "choose the mode for {n}-dimensional input{line}"),
    Row("size-argument", r"Given output_size=(?P<a>\(.*?\)), kernel_size=(?P<b>\(.*?\)).*expected size of input's dimension (?P<d>\d) to match the calculated number of sliding blocks (?P<e>.*?), but got input\.size\(\d\)=(?P<n>\d+)",
        "fold to {a} needs {e} blocks, got {n}", ("output_size, kernel, stride and padding differ from those of unfold"),
        "pass the arguments of unfold to fold{line}"),
    # two things of different sizes
    Row("sizes-differ", r"X1 and X2 must have the same number of columns\. X1: (?P<a>\d+) X2: (?P<b>\d+)", "cdist received points of {a} and of {b} coordinates",
        "distances need points with the same number of coordinates", "project both to one size before line {number}"),
    Row("sizes-differ", r"expected grid and input to have same batch size, but got input with sizes (?P<a>\[.*?\]) and grid with sizes (?P<b>\[.*?\])",
        "grid_sample received an input {a} and a grid {b}", "their first dimensions, the samples, differ", "expand the grid to the input's batch: grid.expand(x.shape[0], -1, -1, -1){line}"),
    Row("sizes-differ", r"(?<!\w)(?P<f>\w+)\(\): Number of indices \((?P<a>\d+)\) should be equal to source\.size\(dim\):? \((?P<b>\d+)\)",
        "{f} received {a} indices for {b} rows", "each row of the source needs one index", "give as many indices as rows{line}"),
    Row("sizes-differ", r"Index tensor must have the same number of dimensions as (?:input|self|src) tensor", "gather or scatter received an index with another number of dimensions",
        "the index needs one entry for every selected element", ("give the index as many dimensions as the tensor: "
            "index.unsqueeze(-1).expand(...){line}")),
    Row("sizes-differ", r"inconsistent target size: (?P<a>\[.*?\]) for input of size: (?P<b>\[.*?\])", "the loss received targets {a} for an output {b}",
        "each output needs a target", "give targets of the output's shape{line}"),
    Row("sizes-differ", r"^Size mismatch between tensors$", "TensorDataset received tensors of different lengths", "each sample consists of one row of each tensor",
        "pass tensors with equal first dimensions{line}"),
    Row("sizes-differ", r"Sum of input lengths does not equal the length of the input dataset", "random_split received lengths that do not add up",
        "the lengths must sum to the number of samples", "compute the last one as the rest, or give fractions that sum to 1{line}"),
    # lengths of sequences
    Row("sequence-lengths", r"`lengths` array must be sorted in decreasing order when `enforce_sorted` is True", "pack_padded_sequence received unsorted lengths",
        "it expects the longest sequence first", "pass enforce_sorted=False{line}"),
    Row("sequence-lengths", r"'lengths' argument should be a 1D CPU int64 tensor, but got 1D (?P<d>\w+)",
        "pack_padded_sequence received lengths on {d}", "it reads the lengths on the host", "pass lengths.cpu(){line}"),
    Row("sequence-lengths", r"Length of all samples has to be greater than 0", "pack_padded_sequence received a sequence of length 0",
        "an empty sequence has no state to give", "leave empty sequences out, or use lengths.clamp(min=1){line}"),
    Row("sequence-lengths", r"Expected `len\(lengths\)` to be equal to batch_size, but got (?P<a>\d+) \(batch_size=(?P<b>\d+)\)", "pack_padded_sequence received {a} lengths for {b} sequences",
        _LENGTHS, "check batch_first, and give one length for each sequence{line}"),
    Row("sequence-lengths", r"Expected (?P<f>input|target)_lengths to have value at most (?P<a>\d+), but got value (?P<b>\d+)",
        "ctc_loss received a length of {b} where there are {a} steps", "a length is larger than the tensor: it was not divided by the model's stride",
        "pass the lengths of the model's output{line}"),
    Row("sequence-lengths", r"Expected tensor to have size at least (?P<b>\d+) at dimension 1, but got size (?P<a>\d+) for argument #2 'targets'",
        "ctc_loss received a target length of {b} for targets of {a}", "a length is larger than the tensor", "pass the lengths of the targets before padding{line}"),
    # nothing there
    Row("empty-input", r"(?:stack|torch\.cat\(\):) expect\w* a non-empty (?:TensorList|list of Tensors)", "stack or cat received an empty list",
        "nothing was appended to it", _EMPTY),
    Row("empty-input", r"(?<!\w)(?P<f>\w+)\(\): Expected reduction dim to be specified for input\.numel\(\) == 0", "{f} received an empty tensor",
        "no element is left: a mask or a slice removed them all", _EMPTY),
    # one number where a dimension is needed
    Row("zero-dimensional", r"zero-dimensional tensor \(at position (?P<n>\d+)\) cannot be concatenated", "cat received tensors without dimensions",
        "0-d tensors have no dimension to concatenate along", "use torch.stack instead of torch.cat{line}"),
    Row("zero-dimensional", r"(?:len\(\) of|iteration over) a 0-d tensor", "a 0-d tensor is used like a list",
        "it was reduced to a single number, or squeezed where the batch size is 1", "use squeeze(dim) or reduce along a dimension before line {number}"),
    # arrays
    Row("array-conversion", r"At least one stride in the given numpy array is negative", "an array is flipped, and torch cannot share memory with it",
        "array[::-1], np.flip and np.rot90 give views with negative strides", "copy it first: array.copy(){line}"),
    Row("array-conversion", r"can't convert np\.ndarray of type numpy\.(?P<t>object_|str_|bytes_)", "an array of {t} cannot become a tensor",
        "its rows have different lengths, or it holds text or None", "convert it to numbers of one shape first: np.stack(rows).astype(np.float32){line}"),
    Row("array-conversion", r"expected sequence of length (?P<a>\d+) at dim (?P<d>\d+) \(got (?P<b>\d+)\)", "rows of length {a} and {b} cannot become a tensor",
        "torch.tensor needs rows of one length", "pad the rows to one length (pad_sequence){line}"),
    Row("array-conversion", r"expected np\.ndarray \(got (?P<t>\w+)\)", "from_numpy received a {t}", "it takes arrays only", "use torch.as_tensor{line}"),
    # optimizers, schedulers, scalers
    Row("scheduler-step", r"Tried to step (?P<a>\d+) times\. The specified number of total steps is (?P<b>\d+)",
        "the scheduler is stepped {a} times, but was created for {b}", "total_steps (or epochs times steps_per_epoch) counts fewer steps than are taken",
        "create it with the number of optimizer steps of the whole training"),
    Row("scheduler-step", r"ReduceLROnPlateau\.step\(\) missing 1 required positional argument: 'metrics'", "ReduceLROnPlateau is stepped without a metric",
        "it monitors a metric such as the validation loss", "pass it: scheduler.step(validation_loss){line}"),
    Row("scaler-order", r"Attempted (?P<f>\w+) but _scale is None|No inf checks were recorded for this optimizer", "the GradScaler is used before it has scaled a loss",
        "scaler.scale(loss).backward() was not called before", "call scaler.scale(loss).backward() before line {number}"),
    Row("scaler-order", r"(?P<f>unscale_\(\)) has already been called on this optimizer since the last update", "unscale_ is called twice before update()",
        "gradients would be divided by the scale twice", "call scaler.update() once per step, and unscale_ once before it"),
    Row("gradients-non-finite", r"The total norm of order .* for gradients from `parameters` is non-finite", "the gradients contain NaN or inf when they are clipped",
        "an earlier operation gives values that are not finite", "run the check gradients-finite, which names the operation"),
    Row("state-groups", r"loaded state dict (?:contains a parameter group that doesn't match the size of optimizer's group|has a different number of parameter groups)",
        "the optimizer's state was saved for different parameters", "layers were added, frozen or regrouped after it was saved",
        "build the optimizer over the parameters that it was saved with, then load"),
    # modules
    Row("parameter-assigned", r"cannot assign '(?P<t>[\w.]+)' (?:object )?(?:as|to) parameter '(?P<p>\w+)'", "{p} is a parameter, but a {t} is assigned to it",
        "only an nn.Parameter can replace a parameter", ("wrap it: nn.Parameter(...){line}, or write into it: with torch.no_grad(): "
            "{p}.copy_(...)")),
    Row("parameter-assigned", r"cannot assign '(?P<t>[\w.]+)' (?:object )?(?:as|to) buffer '(?P<p>\w+)'", "{p} is a buffer, but a {t} is assigned to it",
        "a buffer can only be a tensor", "assign a tensor: torch.tensor(...){line}"),
    Row("parameter-assigned", r"\"attribute '(?P<p>\w+)' already exists\"", "{p} is registered over an attribute of that name",
        "the module already has this attribute", "choose another name, or delete the attribute before line {number}"),
    Row("optimizer-parameters", r"params argument given to the optimizer should be an iterable of Tensors or dicts, but got (?P<t>\S+)",
        "the optimizer received one {t}", "it needs an iterable of parameters", "pass a list of them, or model.parameters(){line}"),
    Row("optimizer-parameters", r"^'(?P<t>Linear|Sequential|method|function|[A-Z]\w*)' object is not iterable$", "a {t} is passed where parameters are expected",
        "a module or a method is not an iterable of parameters", "call it: model.parameters(){line}"),
    Row("optimizer-parameters", r"optimizer can only optimize Tensors, but one of the params is (?:[\w.]+\.)?(?P<t>\w+)",
        "the optimizer received {t} where a parameter is expected", "an optimizer takes tensors, and {t} is not one",
        "pass what .parameters() of the model returns{line}"),
    # distributions that check nothing themselves
    Row("distribution-parameters", r"invalid multinomial distribution \((?:sum of probabilities <= 0|with replacement=False, not enough non-negative category)",
        "multinomial received weights that are all zero", "no category can be drawn", "keep one weight above 0: softmax, or a mask that leaves one entry{line}"),
    Row("distribution-parameters", r"Expected p_in >= 0 && p_in <= 1|normal expects (?:all elements of )?std >= 0\.0", "a parameter of a random distribution is outside its domain",
        "a probability lies between 0 and 1, and a standard deviation is 0 or more", "map it into its domain, as with sigmoid or softplus{line}"),
    Row("distribution-parameters", r"^var has negative entry/entries", "gaussian_nll_loss received a negative variance", "the model's output is unbounded, like a logarithm",
        "map it to 0 or more, as with softplus or exp{line}"),
    Row("index-dtype", r"one_hot is only applicable to index tensor", "one_hot received a dtype other than int64", "class indices are int64", "call .long() on them{line}"),
    Row("kernel-missing", r"(?:std and var|quantile\(\) input tensor) (?:only support|must be)", "std, var or quantile received an unsupported dtype",
        ("quantile needs float32 or float64; std and var need a floating-point dtype"), "call .float() on the input{line}"),
    Row("kernel-missing", r"~ \(operator\.invert\) is only implemented on integer and Boolean-type tensors", "~ received floating-point numbers",
        "~ inverts bits: convert a mask of 0.0 and 1.0 to bool first", "write ~mask.bool(), or 1 - mask{line}"),
    Row("kernel-missing", r"Integers to negative integer powers are not allowed", "integers are raised to a negative power",
        "the result is a fraction, which an integer dtype cannot hold", "call .float() on the base, or write 1.0 / x{line}"),
    Row("kernel-missing", r"(?<!\w)(?P<f>\w+) is not supported for complex types", "{f} received complex numbers", "complex numbers have no order",
        "take .abs(), .real or torch.view_as_real first{line}"),
    Row("target-shape", r"(?P<f>input|target)_lengths must be of size batch_size",
        "ctc_loss received {f}_lengths of another number of samples than log_probs",
        "log_probs is read as (time, batch, classes): its dimension 1 holds the samples",
        "pass one length for each sample, and log_probs with the time first, as .transpose(0, 1) of (batch, time, classes) gives{line}"),
    Row("target-shape", r"size (?P<n>\d+) at dimension 0, but got size (?P<m>\d+) for argument #2 'targets'.*ctc_loss",
        "ctc_loss has targets for {m} samples, and log_probs of {n}",
        "log_probs is read as (time, batch, classes): it has {n} samples in dimension 1",
        "pass log_probs with the time first, as .transpose(0, 1) of (batch, time, classes) gives{line}"),
    Row("sequence-lengths", r"(?P<f>input|target)_lengths must be integral", "ctc_loss received {f}_lengths that are not integers", _LENGTHS,
        "call .long() on {f}_lengths{line}"),
    Row("size-argument", r"index_fill_ only supports a 0-dimensional value tensor, but got tensor with (?P<n>\d+) dimension",
        "index_fill received a value with {n} dimensions", "it fills with one number", "pass one number, or use index_copy{line}"),
    Row("dtype-pair", r"scatter\w{0,30}\(\): Expected self\.dtype to be equal to src\.dtype", "scatter writes values of another dtype", "both tensors must have the same dtype",
        "convert one to the dtype of the other with .to(){line}"),
    Row("size-argument", r"Padding size (?P<k>\d+) is not supported for (?P<n>\d)D input tensor", "pad received {k} numbers for {n} dimensions", ("reflect and replicate pad the last one to three dimensions, two numbers for each, "
        "after batch and channels"),
        "pass two numbers for each padded dimension{line}"),
)  # fmt: skip


def _explainer(row: Row) -> None:
    @entry(row.pattern)
    def explain(scene: Scene, match: re.Match[str]) -> Explanation:
        return told(scene, row, {key: value or "" for key, value in match.groupdict().items()})


def told(scene: Scene, row: Row, groups: dict[str, str]) -> Explanation:
    """Fill a row with what the message and the line say."""
    place = scene.location
    words = {
        **groups,
        "line": on_line(place),
        "number": str(place.line) if place else "of the call",
    }
    op = scene.failing_op
    called = (
        (Culprit("call", op.name, location=place),)
        if op is not None and place is not None and op.name in place.text
        else ()
    )
    return scene.explain(
        code=row.code,
        summary=f"{scene.at}: {row.summary.format(**words)}",
        observed=_observed(scene),
        cause=row.cause.format(**words),
        because=scene.quote(),
        fix=row.fix.format(**words),
        culprits=(*called, *scene.blame()),
    )


def _observed(scene: Scene) -> str:
    """Return the values on the line, where it names some, else where it was raised."""
    found = scene.values()
    if found != scene.first_line:
        return found
    return f"{type(scene.error).__name__} in {PHASE_WORDS[scene.phase]}"


for _row in ROWS:
    _explainer(_row)


@entry(r"value cannot be converted to type (?P<t>[\w:]+) without overflow")
def overflow(scene: Scene, match: re.Match[str]) -> Explanation:
    """A number that its dtype cannot hold, such as -1e9 for a mask in float16."""
    name = CXX_DTYPES.get(match["t"].lower(), match["t"].removeprefix("torch."))
    dtype = getattr(torch, name, None)
    ends = ""
    if isinstance(dtype, torch.dtype):
        limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        ends = f": its range is {limits.min:g} to {limits.max:g}"
    fix = "use a number within its range, or a wider dtype{line}"
    if scene.location is not None and "mask" in scene.location.text:
        fix = _filling(scene, dtype, scene.location.text)
    row = Row("value-overflow", "", "a number does not fit {t}", "{t} cannot hold it{ends}", fix)
    return told(scene, row, {"t": name, "ends": ends})


def _filling(scene: Scene, dtype: torch.dtype | None, text: str) -> str:
    """Say what to fill a mask with: the lowest number of the dtype of a tensor that the line reads."""
    local = scene.frame.f_locals if scene.frame is not None else {}
    names = re.findall(r"(?<![\w.])[a-zA-Z_]\w*", text)
    own = [n for n in names if getattr(local.get(n), "dtype", None) == dtype]
    if dtype is None or not dtype.is_floating_point or not own:
        return "fill with the .min of torch.finfo of its dtype, or float('-inf'){line}"
    most = torch.finfo(dtype).max
    numbers = re.findall(r"(?<![\w.)\]])-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w.])", text)
    beyond = [number for number in numbers if abs(float(number)) > most]
    new = f"torch.finfo({own[0]}.dtype).min"
    if len(beyond) != 1:
        return f"fill with {new} or float('-inf'){{line}}"
    return f"write {new} instead of {beyond[0]}{{line}}"


@entry(
    r"unsupported operand type\(s\) for (?P<o>[^:]+): '(?P<a>[\w.]+)' and '(?P<b>[\w.]+)'",
    r"can only concatenate (?P<a>tuple|list) \(not \"(?P<b>Tensor)\"\) to (?:tuple|list)(?P<o>)",
    r"'(?P<a>NoneType)' object is not (?:callable|subscriptable|iterable)(?P<b>)(?P<o>)",
    types=("TypeError",),
)
def operand(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A value of another kind where a tensor is meant: None that a function returns, or a tuple of several results."""
    kinds = {match["a"], match["b"]} - {""}
    kind = next((k for k in ("NoneType", "tuple", "list", "dict") if k in kinds), None)
    place = scene.location
    if kind is None or place is None:
        return None
    shown = "None" if kind == "NoneType" else f"a {kind}"
    name = next(iter(_of_kind(scene, kind)), "")
    made = (
        sources.line_above(place, rf"^\s*{re.escape(name)}\s*=[^=]")
        if name and "." not in name
        else None
    )
    source = made or place
    silent = _without_return(scene, source) if kind == "NoneType" else None
    shown_of = f"; {scene.values()}" if scene.values() != scene.first_line else ""
    return scene.explain(
        code="wrong-operand",
        summary=f"{scene.at}: {name or 'a value'} is {shown} where a tensor or a layer is expected",
        observed=f"{name or 'the value'} is {shown}{shown_of}",
        cause=(
            f"{silent.function} returns nothing"
            if silent is not None
            else (
                "a function without return gives None; an attribute that was not set may be "
                "None too"
            )
            if kind == "NoneType"
            else "a layer or a function returns several results"
        ),
        because=scene.quote(),
        fix=(
            f"return the result on line {silent.line}: return {silent.text}"
            if silent is not None
            else f"return the result of the call on line {source.line}, or construct the layer"
            if kind == "NoneType"
            else f"select one, as in {name or 'x'}[0], on line {source.line}"
        ),
        culprits=(
            *((Culprit("tensor", name, shown, source),) if name else ()),
            *scene.blame(),
        ),
        location=silent or source,
    )


def _without_return(scene: Scene, place: Location) -> Location | None:
    """Return the last line of the forward of a module that a line calls, where it returns nothing."""
    frame = scene.frame
    owner = frame.f_locals.get("self") if frame is not None else None
    for name in re.findall(r"\bself\.(\w+)\(", place.text):
        called = getattr(owner, name, None)
        function = (
            type(called).forward
            if isinstance(called, nn.Module)
            else getattr(called, "__func__", None)
        )
        where = sources.of_user_object(function)
        if where is None:
            continue
        for node in ast.walk(sources.tree_of(where.file) or ast.Module([], [])):
            if (
                not isinstance(node, ast.FunctionDef)
                or not node.lineno <= where.line <= node.body[0].lineno
            ):
                continue
            if any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(node)):
                break
            last = node.body[-1].lineno
            return sources.of_line(where.file, last, getattr(function, "__qualname__", ""))
    return None


def _of_kind(scene: Scene, kind: str) -> list[str]:
    """Return the variables and attributes that the failing line reads and that are of a kind."""
    place = scene.location
    frame = scene.frame
    if frame is None or place is None:
        return []
    found = [
        name
        for name in sources.names_read(place.file, place.line)
        if name in frame.f_locals and type(frame.f_locals[name]).__name__ == kind
    ]
    owner = frame.f_locals.get("self")
    held = getattr(owner, "__dict__", {}) if owner is not None else {}
    for table in (held, held.get("_modules") or {}):
        for key, value in table.items():
            if type(value).__name__ == kind and f"self.{key}" in place.text:
                found.append(f"self.{key}")
    return found
