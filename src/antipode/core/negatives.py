"""Negatives: which vectors repel a query, and where they are kept.

Each part turns a `Pair` into scores (N,K), where -inf marks an excluded vector. The interface is
scores and not vectors, so that subsets, masks and synthetic negatives need no new type. `forward`
reads state and `push` writes it after the step, so no query ever meets its own key in a queue.

If there are too many scores to store them (core/streamed.py), the objective asks a part for its
`candidates` instead: the vectors, and the rule that decides which of them repel a query.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from antipode import dist, rng
from antipode.core.scores import product, unit
from antipode.core.skip import chosen
from antipode.core.streamed import Candidates, Draw
from antipode.types import Pair

Pool = Literal["pair", "all"]
Noise = Callable[[], Tensor]  # returns the key of random draws (rng.py), which few parts need


class Negatives(Protocol):
    """What a contrast needs of its negatives.

    The scores of a part that also has `candidates` and `candidate_count`, as the parts below have,
    need not be stored.
    """

    pool: Pool | None  # which keys of the batch the part needs in Pair.pool
    masked: bool  # some scores may be -inf

    def __call__(self, pair: Pair, live: bool = False) -> Tensor:
        """Return scores (N,K); with `live`, gradients may reach the negatives themselves."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Take in keys (N,D) of images (N,) after the step; return True if that filled a bank."""


class InBatch(nn.Module):
    """The other images of the batch, over all ranks.

    pool="pair" uses the keys of this pair (SiMo, AdCo). pool="all" uses every key view (SimCLR and
    DCL, whose queries are keys too, and multi-crop, where only the large crops repel). `subset`
    draws that many of them without replacement: once for all queries if `shared` (SiMo's release),
    else for each query on its own (EqCo on SimCLR).
    """

    masked = True

    def __init__(self, pool: Pool, subset: int | None = None, shared: bool = True) -> None:
        super().__init__()
        if subset is not None and subset < 1:
            raise ValueError(f"a subset of negatives needs at least one, got {subset}")
        self.pool: Pool | None = pool
        self.subset = subset
        self.shared = shared

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Return scores (N,P) with the query's own image at -inf, or (N,subset)."""
        own = pair.image_ids[:, None] == pair.pool_ids
        count = self._count(pair)
        scores = product(pair.query, pair.pool).masked_fill(own, -torch.inf)
        if self.subset is None:
            return scores
        lots = self._lots(pair).expand_as(own).masked_fill(own, 2.0)
        return scores.gather(1, lots.topk(count, 1, largest=False).indices)

    def candidate_count(self, pair: Pair) -> int:
        """Return the number of vectors that may repel a query."""
        return len(pair.pool)

    def candidates(self, pair: Pair, live: bool = False) -> Candidates:
        """Return the pool and, for a subset, the draw that selects it."""
        count = self._count(pair)
        draw = None if self.subset is None else Draw(*self._draw_keys(pair), count)
        return Candidates(pair.pool, (pair.image_ids, pair.pool_ids), draw)

    def _lots(self, pair: Pair) -> Tensor:
        """Return a number in [0,1) for each vector of the pool, (1,P) or (N,P)."""
        keys, counters = self._draw_keys(pair)
        return rng.uniform(rng.fold(keys[:, None], counters), 1).squeeze(-1)

    def _draw_keys(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """Return the random keys of the queries, (1,) or (N,), and the counters (P,) of the pool.

        A draw depends on image and view and not on the position, so it is the same on any number
        of ranks.
        """
        positions = torch.arange(len(pair.pool), device=pair.pool.device)
        view = positions // (len(pair.query) * dist.world())
        keys = pair.noise[None] if self.shared else rng.fold(pair.noise, pair.image_ids)
        return keys, rng.fold(view, pair.pool_ids)

    def _count(self, pair: Pair) -> int:
        """Return how many vectors repel a query.

        SiMo's paper calls the N-1 other keys of a batch K = N, so K = N is accepted for
        pool="pair".
        """
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

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Keep nothing."""
        return False


def differ(image_ids: Tensor) -> None:
    """Raise ValueError if all image ids (P,) are equal.

    This is checked on the CPU only, since reading the answer would synchronise with a GPU.
    """
    if not image_ids.is_cpu or torch.compiler.is_compiling():
        return
    if bool((image_ids == image_ids[0]).all()):
        raise ValueError(
            f"a batch that holds image {int(image_ids[0])} alone, {len(image_ids)} times, "
            "has nothing to repel"
        )


class Queue(nn.Module):
    """The last `size` keys of earlier steps: MoCo's dictionary, for any size and any batch.

    A batch larger than the queue leaves its last `size` keys or, with draw=True, `size` random
    ones: EqCo (section 2.3) fills a memory of K < N with K random keys of the previous batch, the
    same for all queries and ranks. The queue starts with random unit vectors, as MoCo's does. Keys
    are stored as they come: JCL's are means that are not renormalised.
    """

    kind = "queue"
    pool: Pool | None = None
    masked = False
    vectors: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int, draw: bool = False) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a queue needs at least one place, got {size}")
        self.draw = draw
        self.finite_step: Tensor | None = None  # () bool; if False, a push changes nothing
        self.register_buffer("vectors", unit(torch.randn(size, dim)))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    def stored(self) -> Tensor:
        """Return the stored keys (size,D)."""
        return self.vectors

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Return scores (N,size) with the stored keys."""
        return product(pair.query, self.vectors.to(pair.query.dtype))

    def candidate_count(self, pair: Pair) -> int:
        """Return the number of stored keys."""
        return len(self.vectors)

    def candidates(self, pair: Pair, live: bool = False) -> Candidates:
        """Return the stored keys; all of them repel every query."""
        return Candidates(self.vectors.to(pair.query.dtype))

    @torch.no_grad()
    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Replace the oldest keys by the keys (N,D) of every rank."""
        keys = dist.gather(keys)
        size = len(self.vectors)
        if len(keys) > size:
            keys = keys[rng.permutation(noise(), len(keys))[:size]] if self.draw else keys[-size:]
        places = (self.cursor + torch.arange(len(keys), device=keys.device)) % size
        new = chosen(self.finite_step, keys.to(self.vectors.dtype), self.vectors[places])
        self.vectors.index_copy_(0, places, new)
        self.cursor.copy_(chosen(self.finite_step, (self.cursor + len(keys)) % size, self.cursor))
        return False


class Bank(nn.Module):
    """AdCo's adversarial negatives: `size` trained vectors, stored at any length and used at unit
    length.

    The weights are never renormalised in place: the angular step of a gradient is lr/|w|^2, so
    their length acts as a step-size schedule (the authors' update, train.py, fd65f12). Until `size`
    keys have been pushed the bank is `filling`: keys overwrite the random start and no gradient
    reaches it.
    """

    kind = "bank"
    pool: Pool | None = None
    masked = False
    filled: Tensor

    def __init__(self, size: int, dim: int, fill: bool = True) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a bank needs at least one negative, got {size}")
        self.weight = nn.Parameter(torch.randn(size, dim))
        self.register_buffer("filled", torch.tensor(0 if fill else size))
        self.count = 0
        self.filling = fill
        self.finite_step: Tensor | None = None  # () bool; if False, a push changes nothing
        self.register_load_state_dict_post_hook(_recount)  # type: ignore[no-untyped-call]

    def stored(self) -> Tensor:
        """Return the negatives (size,D) at unit length, as the loss uses them."""
        return unit(self.weight.detach())

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Return scores (N,size); gradients reach the bank only with `live`."""
        return product(pair.query, unit(self.weight if live else self.weight.detach()))

    def candidate_count(self, pair: Pair) -> int:
        """Return the size of the bank."""
        return len(self.weight)

    def candidates(self, pair: Pair, live: bool = False) -> Candidates:
        """Return the negatives at unit length; gradients reach the bank only with `live`."""
        weight = self.weight if live else self.weight.detach()
        return Candidates(unit(weight).to(pair.query.dtype))

    @torch.no_grad()
    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """While filling, store the keys (N,D) of every rank; return True once it is full."""
        if not self.filling:
            return False
        # the keys are counted on the host, which therefore waits for the flag while the bank fills
        if self.finite_step is not None and not self.finite_step:
            return False
        keys = dist.gather(keys)[: len(self.weight) - self.count]
        self.weight[self.count : self.count + len(keys)] = keys.to(self.weight.dtype)
        self.count += len(keys)
        self.filled.fill_(self.count)
        self.filling = self.count < len(self.weight)
        return not self.filling


def _recount(bank: nn.Module, _: object) -> None:
    """Set the host's count and phase from a loaded checkpoint."""
    assert isinstance(bank, Bank)
    bank.count = int(bank.filled)
    bank.filling = bank.count < len(bank.weight)
