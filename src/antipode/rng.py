"""Counter-based random numbers: every draw is a hash of a key and a counter.

A `torch.Generator` cannot be used inside a compiled full graph, its state must be saved, and the
generators of different ranks diverge. A hash of (seed, step, image id) avoids these problems. It
gives the same numbers on every device, for any number of ranks, and with or without compilation.
Only normal numbers may differ in their last bits, because log and cos do. A resumed run needs no
state but its step.

The hash uses the finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014). It requires that int64
products wrap around on overflow, which they do in torch on all devices.
"""

import hashlib
import math

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_A = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_B = 0x94D049BB133111EB - (1 << 64)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Return x shifted right logically; torch's `>>` on int64 is an arithmetic shift."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """Apply a bijection of int64 in which every output bit depends on all input bits."""
    x = (x ^ _shift(x, 30)) * MIX_A
    x = (x ^ _shift(x, 27)) * MIX_B
    return x ^ _shift(x, 31)


def number(*names: int | str) -> int:
    """Return a signed 64-bit number for a path of names, such as number(seed, "order", epoch).

    The number is the same in every process.
    """
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def generator(*names: int | str) -> torch.Generator:
    """Return a CPU generator for a path of names.

    Different paths give independent streams (init, order, augment, noise).
    """
    return torch.Generator().manual_seed(number(*names) & ((1 << 63) - 1))


def key(*names: int | str, device: torch.device | str | None = None) -> Tensor:
    """Return a key () for a path of names; the functions below draw numbers from a key."""
    return torch.tensor(number(*names), dtype=torch.int64, device=device)


def fold(key: Tensor, counter: Tensor | int) -> Tensor:
    """Return a new key for each counter; the shapes of `key` and `counter` broadcast."""
    if not isinstance(counter, Tensor):
        counter = torch.full((), counter, dtype=torch.int64, device=key.device)
    # A shift instead of a product: the compiler of torch 2.11 turns 2 * arange + GOLDEN into an
    # int32 index, and Triton rejects the constant.
    return _mix(key ^ _mix((counter << 1) + GOLDEN))


def uniform(key: Tensor, count: int) -> Tensor:
    """Return `count` uniform numbers in [0,1), float32 (...,count), for every key (...)."""
    return (_shift(_counted(key, count), 40)).to(torch.float32) * 2.0**-24


def integers(key: Tensor, count: int, below: int) -> Tensor:
    """Return `count` integers in [0,below), int64 (...,count), for every key (...)."""
    return _shift(_counted(key, count), 1) % below


def normal(key: Tensor, count: int) -> Tensor:
    """Return `count` standard normal numbers, float32 (...,count), for every key (...).

    Uses the Box-Muller transform.
    """
    radius = torch.sqrt(-2 * torch.log1p(-uniform(fold(key, 1), count)))
    return radius * torch.cos(2 * math.pi * uniform(fold(key, 2), count))


def permutation(key: Tensor, count: int) -> Tensor:
    """Return a random permutation (count,) of range(count); equal keys give equal permutations."""
    return torch.argsort(_counted(key, count), stable=True)


def _counted(key: Tensor, count: int) -> Tensor:
    """Return `count` hashes, int64 (...,count), for every key (...)."""
    return fold(key.unsqueeze(-1), torch.arange(count, device=key.device))
