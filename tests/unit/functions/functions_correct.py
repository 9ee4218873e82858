"""The false-alarm corpus: Functions whose gradients are right, written in many styles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Inputs = Callable[[], Any]


@dataclass(frozen=True)
class Correct:
    """A right Function, arguments for it, and what is declared of it."""

    name: str
    fn: Callable[..., Any]
    inputs: Inputs
    options: dict[str, Any] = field(default_factory=dict)


class Linear(Function):  # PyTorch docs, "Extending PyTorch"
    @staticmethod
    def forward(ctx, input, weight, bias):
        ctx.save_for_backward(input, weight, bias)
        output = input.mm(weight.t())
        if bias is not None:
            output += bias.unsqueeze(0).expand_as(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        input, weight, bias = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output.mm(weight)
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t().mm(input)
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias


class MulConstant(Function):  # PyTorch docs
    @staticmethod
    def forward(tensor, constant):
        return tensor * constant

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.constant = inputs[1]

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.constant, None


class Exp(Function):  # PyTorch docs: saves its output
    @staticmethod
    def forward(ctx, i):
        result = i.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        (result,) = ctx.saved_tensors
        return grad_output * result


class NoMaterialize(Function):  # PyTorch docs: skips undefined gradients
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.clone(), x.square()

    @staticmethod
    def backward(ctx, g1, g2):
        (x,) = ctx.saved_tensors
        grad = None
        if g1 is not None:
            grad = g1
        if g2 is not None:
            grad = 2 * x * g2 if grad is None else grad + 2 * x * g2
        return grad


class MyReLU(Function):  # PyTorch tutorial
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = grad_output.clone()
        grad[x < 0] = 0
        return grad


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return g * (s * (1 + x * (1 - s)))


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdim=True)
        rstd = (x.var(-1, keepdim=True, unbiased=False) + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, rstd)
        return (x - mean) * rstd * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, mean, rstd = ctx.saved_tensors
        h = (x - mean) * rstd
        gw = g * weight
        gx = rstd * (gw - gw.mean(-1, keepdim=True) - h * (gw * h).mean(-1, keepdim=True))
        axes = tuple(range(x.dim() - 1))
        return gx, (g * h).sum(axes), g.sum(axes), None


class Dropout(Function):
    @staticmethod
    def forward(ctx, x, p):
        mask = (torch.rand_like(x) > p) / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None


class GeneratorDropout(Function):
    @staticmethod
    def forward(ctx, x, generator):
        ctx.mask = torch.rand(x.shape, generator=generator, dtype=x.dtype) > 0.4
        return x * ctx.mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask, None


class ComplexMul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b.conj(), g * a.conj()


class ComplexAbs(Function):
    @staticmethod
    def forward(ctx, z):
        r = z.abs()
        ctx.save_for_backward(z, r)
        return r

    @staticmethod
    def backward(ctx, g):
        z, r = ctx.saved_tensors
        return g * z / r


class InplaceExp(Function):
    @staticmethod
    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class InplaceAdd(Function):
    @staticmethod
    def forward(ctx, x, y, scale):
        x.add_(y * scale)
        ctx.mark_dirty(x)
        ctx.scale = scale
        return x

    @staticmethod
    def backward(ctx, g):
        return g, g * ctx.scale, None


class Reshape(Function):  # returns a view
    @staticmethod
    def forward(ctx, x, shape):
        ctx.shape = x.shape
        return x.view(shape)

    @staticmethod
    def backward(ctx, g):
        return g.reshape(ctx.shape), None


class TopK(Function):
    @staticmethod
    def forward(ctx, x, k):
        values, indices = x.topk(k, -1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        ctx.shape = x.shape
        return values, indices

    @staticmethod
    def backward(ctx, g, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=g.dtype).scatter_add(-1, indices, g), None


class MeanStd(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1)
        std = x.std(-1)
        ctx.save_for_backward(x, mean, std)
        return mean, std

    @staticmethod
    def backward(ctx, gm, gs):
        x, mean, std = ctx.saved_tensors
        n = x.shape[-1]
        d = x - mean.unsqueeze(-1)
        return gm.unsqueeze(-1) / n + gs.unsqueeze(-1) * d / ((n - 1) * std.unsqueeze(-1))


class Gather(Function):  # integer argument
    @staticmethod
    def forward(ctx, table, ids):
        ctx.save_for_backward(ids)
        ctx.size = table.shape[0]
        return table[ids]

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        grad = g.new_zeros(ctx.size, g.shape[-1])
        return grad.index_add(0, ids.reshape(-1), g.reshape(-1, g.shape[-1])), None


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        logp = logits.log_softmax(-1)
        ctx.save_for_backward(logp, labels)
        return -logp.gather(1, labels[:, None]).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        logp, labels = ctx.saved_tensors
        grad = logp.exp()
        grad[torch.arange(len(labels)), labels] -= 1
        return g * grad / len(labels), None


class Conv(Function):
    @staticmethod
    def forward(ctx, x, w, stride, padding):
        ctx.save_for_backward(x, w)
        ctx.conf = (stride, padding)
        return F.conv2d(x, w, None, stride, padding)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        stride, padding = ctx.conf
        gx = torch.nn.grad.conv2d_input(x.shape, w, g, stride, padding)
        gw = torch.nn.grad.conv2d_weight(x, w.shape, g, stride, padding)
        return gx, gw, None, None


class NumpySin(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.from_numpy(np.cos(x.detach().numpy()))


class Autocast(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


class Cube(Function):  # forward mode, vmap, twice differentiable
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g

    @staticmethod
    def jvp(ctx, t):
        return 3 * ctx.saved_tensors[0] ** 2 * t


class Recompute(Function):  # gradients by autograd inside backward
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.tanh(x @ w)

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            saved = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            out = torch.tanh(saved[0] @ saved[1])
            return torch.autograd.grad(out, saved, g)


class Float32Only(Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float32:
            raise TypeError("the kernel knows float32 only")
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        return g * torch.cos(ctx.saved_tensors[0])


class Sign(Function):  # a straight-through estimator: declared with the function it stands for
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


class Reverse(Function):  # gradient reversal
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.alpha * g, None


class Cumsum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(-1).cumsum(-1).flip(-1)


class Huber(Function):  # kinks in the second derivative, where() in the first
    @staticmethod
    def forward(ctx, x, delta):
        ctx.save_for_backward(x)
        ctx.delta = delta
        a = x.abs()
        return torch.where(a < delta, 0.5 * x * x, delta * (a - 0.5 * delta))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(-ctx.delta, ctx.delta), None


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x, w):
        inv = (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, w, inv)
        return x * inv * w

    @staticmethod
    def backward(ctx, g):
        x, w, inv = ctx.saved_tensors
        n = x.shape[-1]
        return g * w * inv - x * inv**3 * (g * w * x).sum(-1, keepdim=True) / n, (g * x * inv).sum(
            0
        )


class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        d = math.sqrt(q.shape[-1])
        s = q @ k.transpose(1, 2) / d
        p = s.softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        d = math.sqrt(q.shape[-1])
        gp = g @ v.transpose(1, 2)
        gs = p * (gp - (gp * p).sum(-1, keepdim=True)) / d
        return gs @ k, gs.transpose(1, 2) @ q, p.transpose(1, 2) @ g


class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.logsumexp(1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g[:, None] * (x - y[:, None]).exp()


class FFT(Function):
    @staticmethod
    def forward(ctx, z):
        return torch.fft.fft(z)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.ifft(g) * g.shape[-1]


class Cosine(Function):
    @staticmethod
    def forward(ctx, a, b):
        na = a.norm(dim=1, keepdim=True)
        nb = b.norm(dim=1, keepdim=True)
        ctx.save_for_backward(a, b, na, nb)
        return (a * b).sum(1) / (na * nb)[:, 0]

    @staticmethod
    def backward(ctx, g):
        a, b, na, nb = ctx.saved_tensors
        g = g[:, None]
        c = (a * b).sum(1, keepdim=True) / (na * nb)
        return g * (b / (na * nb) - c * a / na**2), g * (a / (na * nb) - c * b / nb**2)


class BatchNorm(Function):
    @staticmethod
    def forward(ctx, x, w, b, rm, rv):
        m = x.mean((0, 1))
        v = x.var((0, 1), unbiased=False)
        rm.mul_(0.9).add_(m * 0.1)
        rv.mul_(0.9).add_(v * 0.1)
        inv = (v + 1e-5).rsqrt()
        xh = (x - m) * inv
        ctx.save_for_backward(xh, w, inv)
        return xh * w + b

    @staticmethod
    def backward(ctx, g):
        xh, w, inv = ctx.saved_tensors
        n = xh.numel() // xh.shape[-1]
        gb = g.sum((0, 1))
        gw = (g * xh).sum((0, 1))
        return w * inv * (g - gb / n - xh * gw / n), gw, gb, None, None


class Inverse(Function):
    @staticmethod
    def forward(ctx, a):
        y = torch.linalg.inv(a)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return -y.t() @ g @ y.t()


class Cholesky(Function):
    @staticmethod
    def forward(ctx, a):
        with torch.enable_grad():
            x = a.detach().requires_grad_()
            s = x @ x.t() + 4 * torch.eye(4, dtype=a.dtype)
            y = torch.linalg.cholesky(s)
        ctx.save_for_backward(a)
        return y.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        with torch.enable_grad():
            x = a.detach().requires_grad_()
            y = torch.linalg.cholesky(x @ x.t() + 4 * torch.eye(4, dtype=a.dtype))
            return torch.autograd.grad(y, x, g)[0]


class MaxPool(Function):
    @staticmethod
    def forward(ctx, x):
        y, i = F.max_pool2d(x, 2, return_indices=True)
        ctx.save_for_backward(i)
        ctx.s = x.shape
        return y

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        return F.max_unpool2d(g, i, 2, output_size=ctx.s[-2:])


class Prelu(Function):
    @staticmethod
    def forward(ctx, x, a, p, eps):
        ctx.save_for_backward(x, a)
        return torch.where(x > 0, x, a * x)

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        return torch.where(x > 0, g, a * g), (g * x * (x <= 0)).sum(0), None, None


class MaskedSoftmax(Function):
    @staticmethod
    def forward(ctx, x, m):
        m = m.clone()
        m[:, 0] = True
        y = x.masked_fill(~m, float("-inf")).softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)), None


class ListArg(Function):
    @staticmethod
    def forward(ctx, ts, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return None, 2 * g * ctx.saved_tensors[0]


class MSE(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return ((a - b) ** 2).mean()

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        d = 2 * (a - b) * g / a.numel()
        return d, -d


class CumMax(Function):
    @staticmethod
    def forward(ctx, x):
        y, i = x.cummax(-1)
        ctx.save_for_backward(i)
        return y

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter_add_(-1, i, g)


class Lgamma(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.lgamma(x)

    @staticmethod
    def backward(ctx, g):
        return g * torch.digamma(ctx.saved_tensors[0])


class Tiny(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0] ** 2


class Huge(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * 1e-3).sin()

    @staticmethod
    def backward(ctx, g):
        return g * 1e-3 * (ctx.saved_tensors[0] * 1e-3).cos()


def _rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def _normed() -> tuple[Tensor, ...]:
    """Running statistics require no gradient, and are updated in place."""
    trained = _rand(4, 8, 5), torch.ones(5), torch.zeros(5)
    return (*(t.requires_grad_() for t in trained), torch.zeros(5), torch.ones(5))


def own() -> Iterator[Correct]:
    yield Correct("Linear", Linear.apply, lambda: (_rand(3, 4), _rand(5, 4), _rand(5)))
    yield Correct("Linear without bias", Linear.apply, lambda: (_rand(3, 4), _rand(5, 4), None))
    yield Correct("MulConstant", MulConstant.apply, lambda: (_rand(2, 3), 2.5))
    yield Correct("Exp", Exp.apply, lambda: (_rand(2, 3),), {"twice": True})
    yield Correct("NoMaterialize", NoMaterialize.apply, lambda: (_rand(2, 3),))
    yield Correct("MyReLU", MyReLU.apply, lambda: (_rand(3, 5),))
    yield Correct(
        "MyReLU at its kink", MyReLU.apply, lambda: (torch.tensor([[0.0, 1.0, -1.0, 0.0]]),)
    )
    yield Correct("Swish", Swish.apply, lambda: (_rand(3, 5),), {"twice": True})
    yield Correct(
        "LayerNorm", LayerNorm.apply, lambda: (_rand(3, 5), torch.ones(5), torch.zeros(5), 1e-5)
    )
    yield Correct("Dropout", Dropout.apply, lambda: (_rand(4, 5), 0.3))
    yield Correct(
        "GeneratorDropout", GeneratorDropout.apply, lambda: (_rand(4, 5), torch.Generator())
    )
    yield Correct(
        "ComplexMul",
        ComplexMul.apply,
        lambda: (_rand(2, 3, dtype=torch.complex64), _rand(3, dtype=torch.complex64)),
    )
    yield Correct("ComplexAbs", ComplexAbs.apply, lambda: (_rand(2, 3, dtype=torch.complex64),))
    yield Correct("InplaceExp", InplaceExp.apply, lambda: (_rand(2, 3),))
    yield Correct("InplaceAdd", InplaceAdd.apply, lambda: (_rand(2, 3), _rand(2, 3), 0.5))
    yield Correct("Reshape", Reshape.apply, lambda: (_rand(2, 6), (3, 4)))
    yield Correct("TopK", TopK.apply, lambda: (_rand(3, 5), 2))
    yield Correct("MeanStd", MeanStd.apply, lambda: (_rand(3, 5),))
    yield Correct("Gather", Gather.apply, lambda: (_rand(5, 3), torch.tensor([[0, 2], [2, 4]])))
    yield Correct(
        "CrossEntropy", CrossEntropy.apply, lambda: (_rand(4, 3), torch.tensor([0, 2, 1, 2]))
    )
    yield Correct("Conv", Conv.apply, lambda: (_rand(2, 3, 8, 8), _rand(4, 3, 3, 3), 1, 1))
    yield Correct("NumpySin", NumpySin.apply, lambda: (_rand(2, 3),))
    yield Correct("Autocast", Autocast.apply, lambda: (_rand(3, 4), _rand(4, 2)))
    yield Correct("Cube", Cube.apply, lambda: (_rand(2, 3),), {"twice": True})
    yield Correct("Recompute", Recompute.apply, lambda: (_rand(3, 4), _rand(4, 2)))
    yield Correct("Float32Only", Float32Only.apply, lambda: (_rand(2, 3),))
    yield Correct("Cumsum", Cumsum.apply, lambda: (_rand(2, 5),), {"twice": True})
    yield Correct("Huber", Huber.apply, lambda: (2 * _rand(3, 4), 1.0))
    yield Correct("RMSNorm", RMSNorm.apply, lambda: (_rand(7, 33), _rand(33)))
    yield Correct(
        "Attention", Attention.apply, lambda: (_rand(2, 9, 16), _rand(2, 9, 16), _rand(2, 9, 16))
    )
    yield Correct("LogSumExp", LogSumExp.apply, lambda: (5 * _rand(4, 60),))
    yield Correct("FFT", FFT.apply, lambda: (_rand(3, 64, dtype=torch.complex64),))
    yield Correct("Cosine", Cosine.apply, lambda: (_rand(6, 50), _rand(6, 50)))
    yield Correct("BatchNorm", BatchNorm.apply, _normed)
    yield Correct("Inverse", Inverse.apply, lambda: (_rand(5, 5) + 5 * torch.eye(5),))
    yield Correct("Cholesky", Cholesky.apply, lambda: (_rand(4, 4),))
    yield Correct("MaxPool", MaxPool.apply, lambda: (_rand(3, 8, 8),))
    yield Correct("Prelu", Prelu.apply, lambda: (_rand(4, 6), _rand(6), 0.1, torch.tensor(1e-6)))
    yield Correct(
        "MaskedSoftmax", MaskedSoftmax.apply, lambda: (_rand(3, 5), torch.rand(3, 5) > 0.3)
    )
    yield Correct("ListArg", ListArg.apply, lambda: ([_rand(3), _rand(4)], _rand(3)))
    yield Correct("MSE", MSE.apply, lambda: (_rand(6, 10), _rand(6, 10)))
    yield Correct("CumMax", CumMax.apply, lambda: (_rand(2, 4, 10),))
    yield Correct("Lgamma", Lgamma.apply, lambda: (torch.rand(3, 4) * 30 + 1,))
    yield Correct("Tiny", Tiny.apply, lambda: (1e-4 * _rand(3, 4),))
    yield Correct("Huge", Huge.apply, lambda: (1e4 * _rand(3, 4),))
    yield Correct(
        "a callable around a Function", lambda x: Exp.apply(x.clone()).sum(), lambda: (_rand(2, 3),)
    )


def torch_own() -> Iterator[Correct]:
    """torch's autograd Function database, but for the five whose gradients differ from forward's derivative.

    test_functions_known_defects.py holds those: two mean it, three are mistakes.
    """
    from torch.testing._internal.autograd_function_db import autograd_function_db

    wrong = (
        "CubeGenVmap",
        "NumpyCubeNotComposable",
        "NumpySort",
        "ScaleGradGenVmap",
        "ZeroGradientsGenVmap",
    )
    for entry in autograd_function_db:
        if entry.name.startswith(wrong):
            continue
        for variant in filter(None, (entry.op, entry.inplace_variant)):
            name = f"torch {entry.name}{' in place' if variant is not entry.op else ''}"
            yield Correct(name, variant, lambda entry=entry: _sample(entry))


def _sample(entry: Any) -> tuple[Any, ...]:
    sample = next(iter(entry.sample_inputs("cpu", torch.float64, requires_grad=True)))
    return (sample.input, *sample.args)


def entmax_own() -> Iterator[Correct]:
    import entmax
    from entmax import activations, losses, root_finding

    ids = torch.tensor([0, 3, 1])
    yield Correct(
        "entmax Sparsemax", activations.SparsemaxFunction.apply, lambda: (_rand(3, 5), -1)
    )
    yield Correct("entmax Entmax15", activations.Entmax15Function.apply, lambda: (_rand(3, 5), -1))
    yield Correct(
        "entmax EntmaxBisect",
        root_finding.EntmaxBisectFunction.apply,
        lambda: (_rand(3, 5), 1.3, -1, 60),
    )
    yield Correct(
        "entmax SparsemaxBisect",
        root_finding.SparsemaxBisectFunction.apply,
        lambda: (_rand(3, 5), -1, 60),
    )
    yield Correct("entmax sparsemax", lambda x: entmax.sparsemax(x, dim=0), lambda: (_rand(3, 5),))
    yield Correct(
        "entmax Entmax15Loss", losses.Entmax15LossFunction.apply, lambda: (_rand(3, 5), ids)
    )
    yield Correct(
        "entmax SparsemaxLoss", losses.SparsemaxLossFunction.apply, lambda: (_rand(3, 5), ids)
    )
    yield Correct(
        "entmax entmax_bisect, learned alpha",
        entmax.entmax_bisect,
        lambda: (_rand(3, 5), torch.tensor(1.4)),
    )


def torchdiffeq_own() -> Iterator[Correct]:
    from torchdiffeq import odeint_adjoint

    def solve(y0: Tensor, weight: Tensor) -> Tensor:
        weight = torch.nn.Parameter(weight) if not weight.requires_grad else weight

        class Field(torch.nn.Module):
            def forward(self, t: Tensor, y: Tensor) -> Tensor:
                return torch.tanh(y @ weight)

        t = torch.tensor([0.0, 0.5], dtype=y0.dtype)
        return odeint_adjoint(Field(), y0, t, rtol=1e-6, atol=1e-8, adjoint_params=(weight,))

    yield Correct("torchdiffeq adjoint", solve, lambda: (_rand(2, 2), _rand(2, 2)))


def everything() -> Iterator[Correct]:
    yield from own()
    yield from torch_own()
    yield from entmax_own()
    yield from torchdiffeq_own()
