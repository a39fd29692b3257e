"""Which vectors repel, and where they are kept. Each part turns a Pair into scores (N,K); -inf means excluded.

Scores, not vectors, are the interface: subsets, masks and synthetic negatives need no new type. `forward` reads state,
`push` writes it after the step, so no query ever meets its own key in a queue.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from antipode import dist, rng
from antipode.core.scores import product, unit
from antipode.types import Pair

Pool = Literal["pair", "all"]


class Negatives(Protocol):
    """What a contrast needs of its negatives."""

    pool: Pool | None  # which keys of the batch the part wants in Pair.pool
    masked: bool  # some scores may be -inf

    def __call__(self, pair: Pair, live: bool = False) -> Tensor:
        """Scores (N,K); `live` ones may send gradient into the negatives themselves."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Take in keys (N,D) of images (N,) after the step; True when that filled a bank."""


class InBatch(nn.Module):
    """The other images of the batch, over all ranks.

    pool="pair": the keys this pair attracts (SiMo, AdCo); "all": every key view (SimCLR and DCL, whose queries are keys
    too, and multi-crop, where only the large crops repel). `subset` draws that many of them without replacement, once
    for all queries (SiMo's release) or for each query on its own (EqCo on SimCLR).
    """

    masked = True

    def __init__(self, pool: Pool, subset: int | None = None, shared: bool = True) -> None:
        super().__init__()
        if subset is not None and subset < 1:
            raise ValueError(f"a subset of negatives needs at least one, got {subset}")
        self.pool: Pool | None = pool
        self.subset, self.shared = subset, shared

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Scores (N,P) with the own image at -inf, or (N,subset)."""
        own = pair.image_ids[:, None] == pair.pool_ids
        count, scores = (
            self._count(pair),
            product(pair.query, pair.pool).masked_fill(own, -torch.inf),
        )
        if self.subset is None:
            return scores
        lots = self._lots(pair).expand_as(own).masked_fill(own, 2.0)
        return scores.gather(1, lots.topk(count, 1, largest=False).indices)

    def _lots(self, pair: Pair) -> Tensor:
        """A number in [0,1) for each vector of the pool, (1,P) or (N,P): by image and view, not by place."""
        view = torch.arange(len(pair.pool), device=pair.pool.device) // (
            len(pair.query) * dist.world()
        )
        rows = pair.noise[None] if self.shared else rng.fold(pair.noise, pair.image_ids)
        return rng.uniform(rng.fold(rows[:, None], rng.fold(view, pair.pool_ids)), 1).squeeze(-1)

    def _count(self, pair: Pair) -> int:
        """How many repel a query; K = N of SiMo's pool is what its paper calls the N-1 others."""
        images = len(pair.query) * dist.world()
        others = len(pair.pool) - len(pair.pool) // images
        if images < 2:
            raise ValueError("negatives from the batch need at least two images, got one")
        differ(pair.pool_ids)
        count = others if self.subset is None else self.subset
        if count > others + (self.pool == "pair"):
            raise ValueError(
                f"{count} negatives asked for, but {images} images give a query only {others}"
            )
        return min(count, others)

    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Nothing to keep."""
        return False


def differ(image_ids: Tensor) -> None:
    """Refuse image ids (P,) that are all one; only on the CPU, since a GPU would have to wait for the answer."""
    if (
        image_ids.is_cpu
        and not torch.compiler.is_compiling()
        and bool((image_ids == image_ids[0]).all())
    ):
        raise ValueError(
            f"a batch that holds image {int(image_ids[0])} alone, {len(image_ids)} times, has nothing to repel"
        )


class Queue(nn.Module):
    """The last `size` keys of earlier steps: MoCo's dictionary, for any size and any batch.

    A batch larger than the queue leaves its last `size` keys or, with draw=True, `size` random ones: EqCo section 2.3
    fills a memory of K < N with K random keys of the previous batch, the same for all queries and ranks.
    Starts with random unit vectors, as MoCo's. Keys come in as they are: JCL's are unnormalised means.
    """

    pool: Pool | None = None
    masked = False
    vectors: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int, draw: bool = False) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a queue needs at least one place, got {size}")
        self.draw = draw
        self.register_buffer("vectors", unit(torch.randn(size, dim)))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Scores (N,size) with the stored keys."""
        return product(pair.query, self.vectors.to(pair.query.dtype))

    @torch.no_grad()
    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Take in the keys (N,D) of every rank, the oldest leave."""
        keys, size = dist.gather(keys), len(self.vectors)
        if len(keys) > size:
            keys = keys[rng.permutation(noise, len(keys))[:size]] if self.draw else keys[-size:]
        places = (self.cursor + torch.arange(len(keys), device=keys.device)) % size
        self.vectors.index_copy_(0, places, keys.to(self.vectors.dtype))
        self.cursor.copy_((self.cursor + len(keys)) % size)
        return False


class Bank(nn.Module):
    """AdCo's adversaries: `size` trained vectors, kept at any length and used at length one.

    The weights are never renormalised in place: the angular step of a gradient is lr/|w|^2, so their length is a
    step-size schedule of its own (spec of the authors' update, train.py, fd65f12). Until `size` keys have been pushed
    the bank is `filling`: keys overwrite the random start and no gradient reaches it.
    """

    pool: Pool | None = None
    masked = False
    filled: Tensor

    def __init__(self, size: int, dim: int, fill: bool = True) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a bank needs at least one negative, got {size}")
        self.weight = nn.Parameter(torch.randn(size, dim))
        self.register_buffer("filled", torch.tensor(0 if fill else size))
        self.count, self.filling = 0, fill
        self.register_load_state_dict_post_hook(_recount)  # type: ignore[no-untyped-call]

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Scores (N,size); only `live` ones send gradient into the bank."""
        return product(pair.query, unit(self.weight if live else self.weight.detach()))

    @torch.no_grad()
    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """While filling, write the keys (N,D) of every rank into the next places; True when that filled the bank."""
        if not self.filling:
            return False
        keys = dist.gather(keys)[: len(self.weight) - self.count]
        self.weight[self.count : self.count + len(keys)] = keys.to(self.weight.dtype)
        self.count += len(keys)
        self.filled.fill_(self.count)
        self.filling = self.count < len(self.weight)
        return not self.filling


def _recount(bank: nn.Module, _: object) -> None:
    """The count and phase on the host follow a loaded checkpoint."""
    assert isinstance(bank, Bank)
    bank.count = int(bank.filled)
    bank.filling = bank.count < len(bank.weight)
