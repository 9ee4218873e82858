"""The seeded corpus: wrong Functions, at least two for each clause, with the relation that must be found.

A line that ends in ``# BUG`` is the one to mend; the finding must name it (or ``lines`` says otherwise).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Wrong:
    """A wrong Function, arguments for it, and what must be said of it."""

    clause: str
    function: type[Function]
    inputs: Callable[[], Any]
    code: str
    says: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    names_line: bool = True
    status: str = "violated"


CASES: list[Wrong] = []


def seeded(
    clause: str,
    inputs: Callable[[], Any],
    code: str,
    says: str = "",
    *,
    names_line: bool = True,
    status: str = "violated",
    **options: Any,
) -> Callable[[type[Function]], type[Function]]:
    def add(function: type[Function]) -> type[Function]:
        CASES.append(Wrong(clause, function, inputs, code, says, options, names_line, status))
        return function

    return add


def _rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def _complex(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


# --- first derivatives: inputs and parameters ---------------------------------------------------------


@seeded(
    "first derivatives", lambda: (_rand(2, 3),), "gradcheck-scale", "a constant factor 2 is missing"
)
class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x  # BUG


@seeded("first derivatives", lambda: (_rand(2, 3),), "gradcheck-sign", "sign is reversed")
class Cosine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g * x.sin()  # BUG
        return grad  # noqa: RET504 (the line that assigns it must be found)


@seeded(
    "parameters",
    lambda: (_rand(3, 4), _rand(5, 4), _rand(5)),
    "gradcheck-scale",
    "factor 2 is missing",
)
class HalfWeight(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad_x = g @ weight
        grad_weight = 0.5 * g.t() @ x  # BUG
        return grad_x, grad_weight, g.sum(0)


@seeded(
    "parameters",
    lambda: (_rand(3, 4), _rand(4)),
    "gradcheck-none",
    "computes no gradient of weight",
)
class NoWeight(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        _, weight = ctx.saved_tensors
        return g * weight, None  # BUG


@seeded("parameters", lambda: (_rand(3, 4), _rand(4)), "gradcheck-zero", "does not differentiate")
class ZeroBias(Function):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.size = bias.shape
        return x.exp() * 0 + x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.new_zeros(ctx.size)  # BUG


@seeded("full Jacobian", lambda: (_rand(5, 6),), "gradcheck-entries", "entry [2, 3]")
class OneEntry(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g * x.cos()
        grad[2, 3] *= 1.01  # BUG
        return grad


@seeded(
    "full Jacobian", lambda: (_rand(2, 6),), "gradcheck-entries", "index 5 (the last) of axis 1"
)
class Boundary(Function):
    @staticmethod
    def forward(ctx, x):
        return F.pad(x, (1, 1), mode="replicate").unfold(1, 3, 1).sum(-1)

    @staticmethod
    def backward(ctx, g):
        grad = F.pad(g, (1, 1)).unfold(1, 3, 1).sum(-1)
        grad[:, 0] += g[:, 0]  # BUG: and the last column likewise
        return grad


# --- relations ----------------------------------------------------------------------------------------


@seeded("transpose", lambda: (_rand(3, 3), _rand(3, 3)), "gradcheck-transpose")
class MatmulTransposed(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        ga = b @ g.t()  # BUG
        gb = a.t() @ g
        return ga, gb


@seeded("transpose", lambda: (_rand(2, 3),), "gradcheck-transpose")
class ReshapeForTranspose(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.t().contiguous()

    @staticmethod
    def backward(ctx, g):
        return g.reshape(ctx.shape)  # BUG


@seeded("swapped returns", lambda: (_rand(2, 3), _rand(2, 3)), "gradcheck-swapped", "swapped")
class SwappedProduct(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x, g * y  # BUG


@seeded("swapped returns", lambda: (_rand(3), _rand(3)), "gradcheck-swapped", "swapped")
class SwappedQuotient(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x / (1 + y * y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = g / (1 + y * y)
        gy = -2 * g * x * y / (1 + y * y) ** 2
        return gy, gx  # BUG


@seeded("wrong saved tensor", lambda: (_rand(2, 3),), "gradcheck-saved", "the output is needed")
class ExpSavesInput(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x)  # BUG
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


@seeded("wrong saved tensor", lambda: (_rand(2, 3),), "gradcheck-saved", "x is needed")
class TanhishSavesOutput(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sinh(x)
        ctx.save_for_backward(y)  # BUG
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.cosh(x)


@seeded(
    "wrong saved tensor", lambda: (_rand(2, 3), _rand(2, 3)), "gradcheck-factor", "does not belong"
)
class ExtraFactor(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.exp() * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x.exp() * y * y, g * x.exp()  # BUG


@seeded(
    "upstream ignored", lambda: (_rand(2, 3),), "gradcheck-upstream-ignored", "does not multiply"
)
class IgnoresUpstream(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2  # BUG


@seeded("missing term", lambda: (_rand(2, 3),), "gradcheck-term", "grad_output is missing")
class NoResidual(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x + x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()  # BUG


@seeded(
    "wrong formula",
    lambda: (_rand(3, 5),),
    "gradcheck-cross-terms",
    "treats some of them as constant",
)
class SoftmaxDiagonal(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)  # BUG


@seeded(
    "wrong formula",
    lambda: (_rand(2, 5),),
    "gradcheck-cross-terms",
    "subtracts the mean over axis 1",
)
class StandardiseWithoutMean(Function):
    @staticmethod
    def forward(ctx, x):
        rstd = x.var(-1, keepdim=True, unbiased=False).rsqrt()
        ctx.save_for_backward(x, rstd)
        return (x - x.mean(-1, keepdim=True)) * rstd

    @staticmethod
    def backward(ctx, g):
        x, rstd = ctx.saved_tensors
        h = (x - x.mean(-1, keepdim=True)) * rstd
        return rstd * (g - h * (g * h).mean(-1, keepdim=True))  # BUG


@seeded("wrong formula", lambda: (_rand(2, 5),), "gradcheck-mismatch", "formula is wrong")
class ApproximateGelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.702 * x)
        return g * (s + 1.702 * x * s * (1 - s))  # BUG


@seeded(
    "wrong formula",
    lambda: (_rand(4, 3), torch.tensor([0, 1, 2, 1])),
    "gradcheck-scale",
    "a sum stands where a mean is due",
)
class SummedCrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        logp = logits.log_softmax(1)
        ctx.save_for_backward(logp, labels)
        return F.nll_loss(logp, labels)

    @staticmethod
    def backward(ctx, g):
        logp, labels = ctx.saved_tensors
        grad = logp.exp()
        grad[torch.arange(len(labels)), labels] -= 1
        return g * grad, None  # BUG


@seeded(
    "relations",
    lambda: (_rand(6, 3), torch.tensor([0, 2, 2, 5])),
    "gradcheck-accumulate",
    "the same index more than once",
)
class OverwritesRows(Function):
    @staticmethod
    def forward(ctx, table, ids):
        ctx.save_for_backward(ids)
        ctx.rows = table.shape[0]
        return table[ids]

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        grad = g.new_zeros(ctx.rows, g.shape[1])
        grad[ids] = g  # BUG
        return grad, None


@seeded("transpose", lambda: (_rand(5),), "gradcheck-transpose", "transpose is due")
class ForwardScan(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, g):
        return g.cumsum(0)  # BUG


@seeded("wrong formula", lambda: (_rand(2, 3), 2), "gradcheck-raises", "one value per argument")
class TooFew(Function):
    @staticmethod
    def forward(ctx, x, power):
        ctx.power = power
        ctx.save_for_backward(x)
        return x**power

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.power * x ** (ctx.power - 1)  # BUG


# --- needs_input_grad ---------------------------------------------------------------------------------


@seeded("needs_input_grad", lambda: (_rand(3, 4), _rand(4)), "needs-input-grad", "when only weight")
class WrongIndex(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gx = gw = None
        if ctx.needs_input_grad[0]:  # BUG
            gx = g * weight
            gw = (g * x).sum(0)
        return gx, gw


@seeded("needs_input_grad", lambda: (_rand(3, 4), _rand(4)), "needs-input-grad", "raises")
class Unbound(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            gx = g * weight
        if ctx.needs_input_grad[1]:
            gw = (g * x).sum(0)
        return gx, gw  # BUG


@seeded("needs_input_grad", lambda: (_rand(3, 4), _rand(4)), "needs-input-grad", "stale")
class StaleFlags(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        only_x = ctx.needs_input_grad == (True, False)  # BUG
        gx = g if only_x else g * weight  # a fast path meant for frozen unit weights
        return gx, (g * x).sum(0) if ctx.needs_input_grad[1] else None


# --- upstream gradients -------------------------------------------------------------------------------


@seeded("upstream None", lambda: (_rand(2, 3),), "upstream-none", "set_materialize_grads")
class NoneArithmetic(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, gs, gc):
        (x,) = ctx.saved_tensors
        return gs * x.cos() - gc * x.sin()  # BUG


@seeded("upstream None", lambda: (_rand(2, 3),), "upstream-none", "set_materialize_grads")
class NoneAlone(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        return g * 3  # BUG


@seeded("upstream zero", lambda: (_rand(2, 3),), "upstream-zero", "not multiplied by grad_output")
class Affine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2, 2 * x

    @staticmethod
    def backward(ctx, g, gd):
        (x,) = ctx.saved_tensors
        return g * 2 * x + 2 * gd + 2  # BUG


@seeded("upstream zero", lambda: (_rand(4),), "upstream-zero", "NaN")
class Normalised(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        scale = g.abs().max()
        return g / scale * scale  # BUG


@seeded("upstream linear", lambda: (_rand(4),), "upstream-nonlinear", "clips")
class ClipsUpstream(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g.clamp(-8, 8)  # BUG


@seeded("expanded upstream", lambda: (_rand(3, 4),), "upstream-mutated", "in place")
class WritesUpstream(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g[x < 0] = 0  # BUG
        return g


@seeded("expanded upstream", lambda: (_rand(3, 4),), "upstream-mutated", "in place")
class ScalesUpstream(Function):
    @staticmethod
    def forward(ctx, x, factor=3.0):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        g.mul_(ctx.factor)  # BUG
        return g, None


@seeded(
    "non-contiguous upstream", lambda: (_rand(3, 4), _rand(4)), "upstream-layout", "first operation"
)
class RawBuffer(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        raw = torch.as_strided(g, x.shape, (x.shape[1], 1), 0)  # BUG
        return raw * scale, (raw * x).sum(0)


@seeded("non-contiguous upstream", lambda: (_rand(3, 4),), "upstream-layout", "raises")
class ViewsUpstream(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        flat = g.view(-1)  # BUG
        return (flat * (1 - x.tanh().reshape(-1) ** 2)).view(x.shape)


# --- broadcasting -------------------------------------------------------------------------------------


@seeded("broadcast", lambda: (_rand(3, 4), _rand(4)), "gradcheck-broadcast", "sum over axis 0")
class NoSum(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g[0]  # BUG


@seeded(
    "broadcast",
    lambda: (_rand(3, 4), _rand(4)),
    "gradcheck-scale",
    "a mean stands where a sum is due",
)
class MeanForSum(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        gs = (g * x).mean(0)  # BUG
        return g * scale, gs


@seeded("broadcast", lambda: (_rand(4, 4), _rand(4)), "gradcheck-broadcast", "wrong axis")
class WrongAxis(Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.sum(1)  # BUG


@seeded("broadcast", lambda: (_rand(3, 4), _rand(3, 1)), "gradcheck-raises", "broadcast axis")
class UnreducedShape(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, (g * x).sum(0)  # BUG


# --- several outputs ----------------------------------------------------------------------------------


@seeded("several outputs", lambda: (_rand(2, 3),), "gradcheck-output", "output 1 is ignored")
class IgnoresSecond(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, gs, gc):
        (x,) = ctx.saved_tensors
        return gs * x.cos()  # BUG


@seeded("several outputs", lambda: (_rand(2, 3),), "gradcheck-output", "output 1")
class UnmarkedMask(Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, g, gm):
        (mask,) = ctx.saved_tensors
        return g * mask + gm  # BUG


# --- dtypes -------------------------------------------------------------------------------------------


@seeded("mixed dtypes", lambda: (_rand(3, 4), _rand(4)), "mixed-dtype", "float32")
class MixedRaises(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).sum(-1)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g[:, None] * w, x.t() @ g  # BUG


@seeded("mixed dtypes", lambda: (_rand(3, 4), _rand(4)), "mixed-dtype", "rounds or reinterprets")
class MixedReinterprets(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        factor = w if w.dtype == g.dtype else w.to(torch.int32).to(g.dtype)
        return g * factor, (g * x).sum(0)  # BUG


@seeded("complex", lambda: (_complex(2, 3), _complex(3)), "gradcheck-conjugate", "not conjugated")
class NoConjugate(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a.conj()  # BUG


@seeded("complex", lambda: (_complex(2, 3),), "gradcheck-conjugate", "not conjugated")
class ComplexExp(Function):
    @staticmethod
    def forward(ctx, z):
        y = z.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y  # BUG


@seeded("half precision", lambda: (10 * torch.rand(3, 4) + 5,), "low-precision", "overflows")
class Overflows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x / 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x**6 / x**5  # BUG


@seeded(
    "half precision",
    lambda: (_rand(5, 3), torch.tensor([0, 2, 2, 4])),
    "low-precision",
    "another dtype",
)
class Float32Buffer(Function):
    @staticmethod
    def forward(ctx, table, ids):
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return table[ids]

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        grad = torch.zeros(
            ctx.shape, dtype=torch.float64 if g.dtype == torch.float64 else torch.float32
        )
        return grad.index_add_(0, ids, g), None  # BUG


# --- in place and views -------------------------------------------------------------------------------


@seeded("mark_dirty", lambda: (_rand(2, 3),), "input-mutated", "mark_dirty")
class UnmarkedInplace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        x.clamp_(min=0)  # BUG
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


@seeded("mark_dirty", lambda: (_rand(2, 3),), "gradcheck-saved", "x is needed")
class SavesAfterWriting(Function):
    @staticmethod
    def forward(ctx, x):
        x.pow_(3)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)  # BUG
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


@seeded("returned views", lambda: (_rand(2, 3),), "shared-state", "overwrite")
class ReusesBuffer(Function):
    buffer: ClassVar[Tensor] = torch.empty(0)

    @staticmethod
    def forward(ctx, x):
        if ReusesBuffer.buffer.shape != x.shape or ReusesBuffer.buffer.dtype != x.dtype:
            ReusesBuffer.buffer = torch.empty_like(x)  # BUG
        torch.sin(x, out=ReusesBuffer.buffer)
        ctx.save_for_backward(x)
        return ReusesBuffer.buffer.view(x.shape)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


@seeded("returned views", lambda: (_rand(3, 4),), "input-mutated", "mark_dirty")
class WritesThroughView(Function):
    @staticmethod
    def forward(ctx, x):
        flat = x.view(-1)
        flat.mul_(2)  # BUG
        return flat.view(3, 4)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


# --- saved tensors ------------------------------------------------------------------------------------


@seeded("saved tensors", lambda: (_rand(2, 3),), "saved-on-ctx", "version counter")
class InputOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x  # BUG
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.x


@seeded("saved tensors", lambda: (_rand(2, 3),), "saved-on-ctx", "reference cycle")
class OutputOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y  # BUG
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


@seeded("saved tensors", lambda: (_rand(2, 3),), "saved-on-ctx", "version counter")
class DataOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.saved = x.data  # BUG
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved.cos()


# --- re-entrancy --------------------------------------------------------------------------------------


@seeded("re-entrancy", lambda: (_rand(2, 3),), "shared-state", "next call overwrites")
class OnTheClass(Function):
    x: ClassVar[Any] = None

    @staticmethod
    def forward(ctx, x):
        OnTheClass.x = x.clone()  # BUG
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * OnTheClass.x


@seeded("re-entrancy", lambda: (_rand(2, 3),), "backward-not-reentrant", "changes what it saved")
class WritesSaved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (c,) = ctx.saved_tensors
        c.mul_(g)  # BUG
        return c.clone()


@seeded(
    "re-entrancy",
    lambda: (_rand(2, 3),),
    "backward-not-reentrant",
    "throws away",
    status="suspicious",
)
class DropsSaved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        mask = ctx.mask  # BUG
        del ctx.mask
        return g * mask


# --- second derivatives -------------------------------------------------------------------------------


@seeded(
    "second derivatives",
    lambda: (_rand(2, 3),),
    "double-backward-wrong",
    "reads s, an intermediate",
    twice=True,
    names_line=False,
)
class SavesIntermediate(Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * (s + x * s * (1 - s))


@seeded(
    "second derivatives",
    lambda: (_rand(2, 3),),
    "double-backward-wrong",
    "",
    twice=True,
    names_line=False,
)
class Detaches(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x.detach() ** 2


@seeded(
    "second derivatives",
    lambda: (_rand(2, 3),),
    "double-backward-refused",
    "promised",
    twice=True,
    names_line=False,
)
class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


# --- forward mode and vmap ----------------------------------------------------------------------------


@seeded("forward mode", lambda: (_rand(2, 3),), "forward-mode", "sign")
class WrongJvp(Function):
    @staticmethod
    def forward(x):
        return x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return -g * ctx.saved_tensors[0].sin()

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0].sin()  # BUG


@seeded("forward mode", lambda: (_rand(2, 3), _rand(2, 3)), "forward-mode", "")
class HalfJvp(Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx, tx, ty):
        _, y = ctx.saved_tensors
        return tx * y + ty * y  # BUG


@seeded("vmap", lambda: (_rand(2, 3), _rand(2, 3)), "vmap", "in_dims", names_line=False)
class IgnoresInDims(Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def vmap(info, in_dims, x, y):
        return IgnoresInDims.apply(x, y), 0


@seeded("vmap", lambda: (_rand(3, 3),), "vmap", "in_dims", names_line=False)
class SumsTheBatch(Function):
    @staticmethod
    def forward(x):
        return x - x.mean(0, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(0, keepdim=True)

    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return x - x.mean(0, keepdim=True), 0


# --- autocast, compile, checkpoint --------------------------------------------------------------------


@seeded("autocast", lambda: (_rand(3, 4), _rand(4, 2)), "autocast", "custom_fwd", autocast=True)
class NoCustomFwd(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g  # BUG


@seeded("autocast", lambda: (_rand(3, 4), _rand(4, 2)), "autocast", "custom_bwd", names_line=False)
class NoCastInputs(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, w):
        y = x @ w
        ctx.save_for_backward(x, w, y)
        return y.tanh()

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        g = g * (1 - y.tanh() ** 2)
        return g @ w.t(), x.t() @ g


@seeded("compile", lambda: (_rand(2, 3),), "compiled", "", compiled=True, names_line=False)
class WrongWhenCompiled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g if torch.compiler.is_compiling() else g * x.cos()


@seeded("compile", lambda: (_rand(2, 3),), "compiled", "", compiled=True, names_line=False)
class OtherForwardWhenCompiled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() if torch.compiler.is_compiling() else x.sin() * 1.5

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 1.5 * g * x.cos()


@seeded("checkpoint", lambda: (_rand(4, 5),), "checkpointed", "again", names_line=False)
class PythonRandom(Function):
    @staticmethod
    def forward(ctx, x):
        mask = torch.tensor(
            [[float(random.random() > 0.5) for _ in row] for row in x], dtype=x.dtype
        )
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


_OWN = torch.Generator()


@seeded("checkpoint", lambda: (_rand(4, 5),), "checkpointed", "again", names_line=False)
class PrivateGenerator(Function):
    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand(x.shape, generator=_OWN) > 0.5).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


# --- stochastic, kinks, straight-through --------------------------------------------------------------


@seeded("stochastic", lambda: (_rand(4, 5),), "stochastic-backward", "another draw")
class RedrawsMask(Function):
    @staticmethod
    def forward(ctx, x, p=0.5):
        ctx.p = p
        return x * (torch.rand_like(x) > p)

    @staticmethod
    def backward(ctx, g):
        return g * (torch.rand_like(g) > ctx.p), None  # BUG


@seeded("stochastic", lambda: (_rand(4, 5), 0.4), "gradcheck-scale", "")
class ForgetsRescaling(Function):
    @staticmethod
    def forward(ctx, x, p):
        mask = torch.rand_like(x) > p
        ctx.save_for_backward(mask)
        return x * mask / (1 - p)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None  # BUG


@seeded(
    "kinks",
    lambda: (torch.tensor([0.0, 1.0, -1.0, 2.0, -0.5, 0.0]), 0.1),
    "gradcheck-mask",
    "cut where forward still varies",
)
class LeakySlope(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, g * 0), None  # BUG


@seeded("kinks", lambda: (2 * _rand(3, 4),), "gradcheck-mask", "where forward is constant")
class ClampedGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x < 1)  # BUG


@seeded(
    "straight-through",
    lambda: (_rand(2, 3),),
    "gradcheck-surrogate",
    "straight through",
    status="suspicious",
)
class RoundThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g  # BUG


@seeded(
    "straight-through",
    lambda: (_rand(2, 3),),
    "gradcheck-surrogate",
    "estimator",
    status="suspicious",
)
class SpikeSigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(4 * x)
        return g * 4 * s * (1 - s)  # BUG


# by design in models that train against an adversary: reported, and no failure
@seeded(
    "straight-through",
    lambda: (_rand(2, 3), 0.7),
    "gradcheck-scale",
    "sign is reversed",
    status="suspicious",
)
class GradientReversal(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.alpha * g, None  # BUG


def everything() -> Iterator[Wrong]:
    yield from CASES
