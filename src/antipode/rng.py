"""Randomness as a pure function: every draw is a hash of a key and a counter.

A `torch.Generator` cannot live inside a compiled full graph, its state must be saved, and ranks drift apart. A hash of
(seed, step, image id) has none of these troubles: the same numbers come out on every device (normal ones to the last
bits of log and cos), on one rank or eight, compiled or not, and a resumed run needs no state but its step. The mixer is
splitmix64's finaliser (Steele, Lea & Flood, OOPSLA 2014); int64 products wrap in torch on all devices, which it needs.
"""

import hashlib
import math

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_A = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_B = 0x94D049BB133111EB - (1 << 64)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own is arithmetic on int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """A bijection of int64 whose output bits each depend on all input bits."""
    x = (x ^ _shift(x, 30)) * MIX_A
    x = (x ^ _shift(x, 27)) * MIX_B
    return x ^ _shift(x, 31)


def number(*names: int | str) -> int:
    """One signed 64-bit number for a path of names, the same in every process: number(seed, "order", epoch)."""
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def generator(*names: int | str) -> torch.Generator:
    """A CPU generator of its own for a path of names, so that streams (init, order, augment, noise) never mix."""
    return torch.Generator().manual_seed(number(*names) & ((1 << 63) - 1))


def key(*names: int | str, device: torch.device | str | None = None) -> Tensor:
    """A key () for a path of names: what every draw below starts from."""
    return torch.tensor(number(*names), dtype=torch.int64, device=device)


def fold(key: Tensor, counter: Tensor | int) -> Tensor:
    """A new key for each counter; shapes broadcast."""
    if not isinstance(counter, Tensor):
        counter = torch.full((), counter, dtype=torch.int64, device=key.device)
    # a shift, since torch 2.11's compiler makes an int32 index of 2 * arange + GOLDEN, and Triton refuses the constant
    return _mix(key ^ _mix((counter << 1) + GOLDEN))


def uniform(key: Tensor, count: int) -> Tensor:
    """`count` numbers in [0,1), float32 (...,count), for every key (...)."""
    return (_shift(_counted(key, count), 40)).to(torch.float32) * 2.0**-24


def integers(key: Tensor, count: int, below: int) -> Tensor:
    """`count` whole numbers in [0,below), int64 (...,count), for every key (...)."""
    return _shift(_counted(key, count), 1) % below


def normal(key: Tensor, count: int) -> Tensor:
    """`count` standard normal numbers, float32 (...,count), for every key (...); Box and Muller's transform."""
    radius = torch.sqrt(-2 * torch.log1p(-uniform(fold(key, 1), count)))
    return radius * torch.cos(2 * math.pi * uniform(fold(key, 2), count))


def permutation(key: Tensor, count: int) -> Tensor:
    """A random order (count,) of range(count), the same wherever the key is the same."""
    return torch.argsort(_counted(key, count), stable=True)


def _counted(key: Tensor, count: int) -> Tensor:
    return fold(key.unsqueeze(-1), torch.arange(count, device=key.device))
