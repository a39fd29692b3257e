"""Add a method in one file: MoCo v2 with mixed hard negatives (after MoCHi, arXiv 2010.01028).

    python examples/add_a_method.py

A method is a function from a backbone to a `Learner`. This file defines one new part (negatives),
two functions that build the same learner in two ways, and the table `METHODS`. Copy everything but
the last section to `src/antipode/papers/mochi.py`, and `antipode pretrain cifar10.mochi` trains the
method. Batch norm in groups, the key encoder, resuming, compilation and several ranks need no
further code.

The last section checks the method and trains it for a few steps, which takes seconds on a CPU.
"""

import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import antipode
from antipode import papers, rng
from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import Noise, Pool, Queue
from antipode.core.objective import Contrast
from antipode.core.pairing import one_way
from antipode.core.scores import product, unit
from antipode.core.twin import Ema, constant
from antipode.nets.backbone import backbone as make_backbone
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.papers.moco import head, mocov2, recipe_v2
from antipode.types import Batch, Pair

# The new part


class MixingQueue(nn.Module):
    """MoCo's queue, and for each query `count` mixtures of its `hard` most similar queue entries.

    A mixture is unit(u left + (1-u) right), where left, right and u are drawn at random. This is
    the first of MoCHi's two kinds of synthetic negatives. The other kind mixes in the query.
    """

    pool: Pool | None = None  # needs no keys of the current batch
    masked = False  # no score is -inf

    def __init__(self, size: int, dim: int, hard: int, count: int) -> None:
        super().__init__()
        self.queue = Queue(size, dim)
        self.hard = min(hard, size)
        self.count = count

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Return the scores (N,size+count) with the stored keys and with their mixtures."""
        vectors = self.queue.vectors.to(pair.query.dtype)
        scores = product(pair.query, vectors)
        nearest = scores.topk(self.hard, 1).indices
        # draws depend on the step and the image id, so they are the same on one rank and on eight
        draws = rng.uniform(rng.fold(pair.noise, pair.image_ids), 3 * self.count)
        first, second, u = draws.to(vectors.dtype).chunk(3, 1)
        left = vectors[nearest.gather(1, (first * self.hard).long())]
        right = vectors[nearest.gather(1, (second * self.hard).long())]
        mixtures = unit(u[:, :, None] * left + (1 - u[:, :, None]) * right)  # (N,count,D)
        return torch.cat([scores, (pair.query[:, None] * mixtures).sum(-1)], 1)

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Store keys (N,D) after the step."""
        return self.queue.push(keys, image_ids, noise)


# The method, spelt out


def mochi(
    backbone: nn.Module,
    *,
    tau: float = 0.2,
    queue: int = 65536,
    hard: int = 1024,
    count: int = 1024,
    momentum: float = 0.999,
    dim: int = 128,
    groups: int = 8,
) -> Learner:
    """MoCo v2 with `count` mixtures of the `hard` nearest keys as further negatives of each query.

    loss = softplus(r - a), where r runs over the queue and the mixtures. In recipes the
    keyword-only arguments are called `method.tau`, `method.queue` and so on. Their annotations
    and defaults hold there too.
    """
    online = convert(Encoder(backbone, head(backbone, dim, None)), groups)
    return Learner(
        online=online,
        twin=Ema(online, constant(momentum), shuffle=groups > 1),
        pairing=one_way(),
        objective=Contrast(MixingQueue(queue, dim, hard, count), tau=tau),
    )


# The same method as a change of another one


def mochi_from_mocov2(
    backbone: nn.Module,
    *,
    tau: float = 0.2,
    queue: int = 65536,
    hard: int = 1024,
    count: int = 1024,
) -> Learner:
    """MoCo v2 with another objective; everything else stays as in MoCo v2."""
    objective = Contrast(MixingQueue(queue, 128, hard, count), tau=tau)
    return mocov2(backbone, queue=1).replace(objective=objective)  # MoCo v2's own queue is dropped


# The registration: antipode reads the table METHODS of every file under papers/. The name gives
# `antipode.build("mochi")` and the recipes `dataset.mochi`; `recipe_v2` trains it like MoCo v2.

METHODS = {"mochi": Method(build=mochi, recipe=recipe_v2)}

# The check, which a file under papers/ does not need


def main() -> None:
    """Compare the method with MoCo v2 and with its second form, then train it by a recipe."""
    papers.collect("METHODS").update(METHODS)  # by hand, since this file is not under papers/
    torch.manual_seed(0)
    sizes = {"queue": 512, "hard": 16, "count": 64}
    learner = antipode.build("mochi", "resnet10-slim", stem="half", **sizes)
    images = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batch = Batch([images, images.flip(-1)], torch.arange(32))
    loss = learner(batch).loss.item()

    plain = antipode.build("mocov2", "resnet10-slim", stem="half", queue=512)
    plain.load_state_dict(renamed(learner.state_dict()))
    plain_loss = plain(batch).loss.item()
    print(f"loss of MoCo v2 {plain_loss:.4f}, with 64 mixed negatives {loss:.4f}")
    assert loss > plain_loss, "every further negative makes the loss larger"

    second = mochi_from_mocov2(make_backbone("resnet10-slim", stem="half"), **sizes)
    second.load_state_dict(learner.state_dict())
    second_loss = second(batch).loss.item()
    print(f"loss of the second form {second_loss:.4f}")
    assert second_loss == loss, "both functions build the same method"

    with tempfile.TemporaryDirectory() as folder:
        values = {"method.hard": 16, "method.count": 64, "monitor.log_every": 1}
        out = Path(folder) / "run"
        run = antipode.pretrain("digits.mochi", epochs=1, out=out, overrides=values, quiet=True)
        losses = [row["loss"] for row in run.metrics()]
        queue = run.recipe.method.arguments["queue"]
    print(f"digits.mochi: {len(losses)} steps with a queue of {queue}, last loss {losses[-1]:.3f}")
    assert all(math.isfinite(value) for value in losses), "training is stable"


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a `mochi` learner under the names that MoCo v2 gives to its queue."""
    return {name.replace("negatives.0.queue.", "negatives.0."): x for name, x in state.items()}


if __name__ == "__main__":
    main()
