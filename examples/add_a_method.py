"""A method of one's own in thirty lines: hard negatives mixed from the queue (after MoCHi, arXiv 2010.01028).

    python examples/add_a_method.py

One new part, one preset. Batch norm groups, the key encoder, resume, compilation and several ranks come for free.
"""

import torch
from torch import Tensor, nn

from antipode import rng
from antipode.core.learner import Learner
from antipode.core.negatives import Pool, Queue
from antipode.core.objective import Contrast
from antipode.core.scores import product, unit
from antipode.nets.backbone import backbone
from antipode.papers.frames import moco_frame, moco_head
from antipode.types import Batch, Pair


class Mixed(nn.Module):
    """For each query, mix pairs of its `hard` nearest queue entries into `count` new negatives."""

    pool: Pool | None = None

    def __init__(self, queue: Queue, hard: int, count: int) -> None:
        super().__init__()
        self.queue, self.hard, self.count = queue, hard, count

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Scores (N,count)."""
        near = product(pair.query, self.queue.vectors).topk(self.hard, 1).indices
        lots = rng.uniform(rng.fold(pair.noise, pair.image_ids), 3 * self.count).view(
            -1, 3, self.count
        )
        left, right = (
            self.queue.vectors[near.gather(1, (lots[:, i] * self.hard).long())] for i in (0, 1)
        )
        mixed = unit(lots[:, 2, :, None] * left + (1 - lots[:, 2, :, None]) * right)  # (N,count,D)
        return (pair.query[:, None] * mixed).sum(-1)

    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """The queue itself takes in the keys."""
        return False


def mixed(
    net: nn.Module,
    *,
    queue: int = 65536,
    tau: float = 0.2,
    hard: int = 64,
    count: int = 32,
    dim: int = 128,
) -> Learner:
    """MoCo v2 with `count` mixed negatives more: loss = softplus(r - a)."""
    memory = Queue(queue, dim)
    objective = Contrast(memory, Mixed(memory, hard, count), tau=tau)
    return moco_frame(net, moco_head(net, dim, None), objective, momentum=0.999, groups=8)


if __name__ == "__main__":
    torch.manual_seed(0)
    learner = mixed(backbone("resnet10-slim", stem="half"), queue=512, hard=16, count=8)
    optimiser = torch.optim.SGD(learner.param_groups(), lr=0.03, momentum=0.9)
    images = torch.rand(32, 3, 32, 32)
    for step in range(3):
        learner.before_step(step / 3)
        out = learner(
            Batch([images + 0.1 * torch.randn_like(images) for _ in range(2)], torch.arange(32))
        )
        optimiser.zero_grad()
        out.loss.backward()
        optimiser.step()
        learner.after_step(out)
        print(step, {name: round(value.item(), 3) for name, value in out.metrics.items()})
