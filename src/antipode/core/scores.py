"""Unit vectors and their cosines, at full precision whatever the caller's autocast and TF32
settings.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor


def precise(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast.

    exp(1/0.05) overflows half precision, and a variance loses its digits in it.
    """
    return torch.autocast(device.type, enabled=False)


def raised(x: Tensor) -> Tensor:
    """Return the vectors in at least float32: half precision is raised, float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def unit(x: Tensor) -> Tensor:
    """Return vectors (...,D) at unit length; a zero vector stays zero, with a finite gradient."""
    x = raised(x)
    # divide by the largest entry first, so that no square over- or underflows (1e-23, 1e30)
    x = x / _or_one(x.detach().abs().amax(-1, keepdim=True))
    return x / _or_one(torch.linalg.vector_norm(x, dim=-1, keepdim=True))


def _or_one(length: Tensor) -> Tensor:
    return torch.where(length == 0, torch.ones_like(length), length)


@contextmanager
def ieee(device: torch.device) -> Iterator[None]:
    """Disable TF32 and bfloat16 in float32 products, and restore the settings afterwards."""
    cuda = torch.backends.cuda.matmul
    cpu = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    backend = cuda if device.type == "cuda" else cpu
    before = backend.fp32_precision
    backend.fp32_precision = "ieee"
    try:
        with precise(device):
            yield
    finally:
        backend.fp32_precision = before


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right.T (N,K) of (N,D) and (K,D) at full precision.

    This is an operator of its own because torch's precision switch is global state. Inside the
    operator the switch affects the forward and backward pass, eager and compiled, and nothing else.
    """
    operator = _product if needs_operator(left, right) else _precise_product
    scores: Tensor = operator(left, right)
    return scores


def needs_operator(left: Tensor, right: Tensor) -> bool:
    """Return True if a function of two tensors must run as an operator of its own.

    The first call of an operator imports torch's compiler, which takes 1.4 s of CPU time. Without
    gradients a plain function gives the same. Raises ValueError in forward mode.
    """
    if torch.compiler.is_compiling():
        return True
    if torch.autograd.forward_ad._current_level >= 0:
        raise ValueError(
            "losses have no forward-mode derivative (torch.func.jvp): use backward or "
            "torch.autograd.grad"
        )
    return left.requires_grad or right.requires_grad or left.is_meta


def _precise_product(left: Tensor, right: Tensor) -> Tensor:
    with ieee(left.device):
        return left @ right.T


@torch.library.custom_op("antipode::product", mutates_args=())
def _product(left: Tensor, right: Tensor) -> Tensor:
    return _precise_product(left, right)


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
