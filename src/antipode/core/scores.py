"""Unit vectors and their cosines, at full precision whatever the caller's autocast or TF32 settings are."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor


def precise(device: torch.device) -> AbstractContextManager[Any]:
    """A region without autocast: exp(1/0.05) overflows half precision, and a variance cancels in it."""
    return torch.autocast(device.type, enabled=False)


def raised(x: Tensor) -> Tensor:
    """The vectors in float32 at least: half precision is raised, float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def unit(x: Tensor) -> Tensor:
    """Vectors (...,D) at length one. A zero vector has no direction and stays zero, with a finite gradient."""
    x = raised(x)
    # the largest entry first, so that no square over- or underflows: 1e-23 and 1e30 have directions too
    x = x / _or_one(x.detach().abs().amax(-1, keepdim=True))
    return x / _or_one(torch.linalg.vector_norm(x, dim=-1, keepdim=True))


def _or_one(length: Tensor) -> Tensor:
    return torch.where(length == 0, torch.ones_like(length), length)


@contextmanager
def _ieee(device: torch.device) -> Iterator[None]:
    """No TF32 and no bfloat16 inside float32 products; the caller's settings come back afterwards."""
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    backend = cuda if device.type == "cuda" else cpu
    before = backend.fp32_precision
    backend.fp32_precision = "ieee"
    try:
        with precise(device):
            yield
    finally:
        backend.fp32_precision = before


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right.T at full precision, (N,K) from (N,D) and (K,D).

    An operator of its own because the precision switch is global state: inside the operator it reaches forward and
    backward, eager and compiled, and nothing else.
    """
    if not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0:
        raise ValueError(
            "losses have no forward-mode derivative (torch.func.jvp): use backward or torch.autograd.grad"
        )
    scores: Tensor = _product(left, right)
    return scores


@torch.library.custom_op("antipode::product", mutates_args=())
def _product(left: Tensor, right: Tensor) -> Tensor:
    with _ieee(left.device):
        return left @ right.T


@_product.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[0])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    left, right = ctx.saved_tensors
    wants_left, wants_right = ctx.needs_input_grad
    return (
        product(grad, right.T) if wants_left else None,
        product(grad.T, left.T) if wants_right else None,
    )


_product.register_autograd(_backward, setup_context=_save)
