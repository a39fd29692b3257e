import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antipode import dist, rng
from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import Pool
from antipode.core.objective import Contrast, Metrics
from antipode.core.scores import product, unit
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.types import Pair


class Memory(nn.Module):
    """One vector per training image, by image id: NPID's keys and negatives at once.

    As a twin it recalls what it knows of each image; as negatives it scores every other image; after the step an entry
    moves to unit(m old + (1-m) new). Of an image that is in a batch twice, the last embedding counts.
    """

    own = False
    pool: Pool | None = None
    masked = True
    vectors: Tensor

    def __init__(self, images: int, dim: int, momentum: float) -> None:
        super().__init__()
        if images < 2:
            raise ValueError(f"a memory of images needs at least two, got {images}")
        if not 0 <= momentum < 1:
            raise ValueError(f"the memory's momentum must lie in [0,1), got {momentum}")
        self.momentum = momentum
        # the authors' start is uniform in a cube, about as long as a unit vector (NCEAverage.py); here of length one
        self.register_buffer("vectors", unit(torch.rand(images, dim) * 2 - 1))

    def recall(self, image_ids: Tensor) -> Tensor:
        """What is known (...,D) of images (...)."""
        if (
            image_ids.device.type == "cpu"
            and not torch.compiler.is_compiling()
            and image_ids.numel()
        ):
            low, high = int(image_ids.min()), int(image_ids.max())
            if low < 0 or high >= len(self.vectors):
                raise ValueError(
                    f"image ids {low} to {high} do not fit a memory of {len(self.vectors)} images"
                )
        return self.vectors[image_ids]

    def forward(self, pair: Pair, live: bool = False) -> Tensor:
        """Scores (N,images), the own image at -inf."""
        own = pair.image_ids[:, None] == torch.arange(
            len(self.vectors), device=pair.image_ids.device
        )
        return product(pair.query, self.vectors.to(pair.query.dtype)).masked_fill(own, -torch.inf)

    @torch.no_grad()
    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Move the entries of images (N,) towards their new embeddings (N,D), on every rank."""
        keys, image_ids = dist.gather(keys).to(self.vectors.dtype), dist.gather(image_ids)
        places = torch.arange(len(image_ids), device=image_ids.device)
        # writes to one entry are in no order on a GPU, and ranks would drift apart: all of an image write the same
        last = image_ids.new_zeros(len(self.vectors)).scatter_reduce_(0, image_ids, places, "amax")[
            image_ids
        ]
        moved = unit(self.momentum * self.vectors[image_ids] + (1 - self.momentum) * keys[last])
        self.vectors[image_ids] = moved.to(
            self.vectors.dtype
        )  # a length is taken in float32 at least
        return False


class Recall(nn.Module):
    """The twin of NPID: keys are what the memory knows."""

    own = False

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.__dict__["memory"] = (
            memory  # the objective's own: registered twice it would be saved twice
        )

    memory: Memory

    def forward(
        self, images: list[Tensor], z: list[Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """Keys (N,D) for the one view."""
        return [self.memory.recall(image_ids)]

    def at(self, progress: float) -> None:
        """Nothing changes with time."""

    def follow(self, online: nn.Module, restart: bool = False) -> None:
        """The objective moves the memory."""


class NoiseContrast(nn.Module):
    """NPID's estimate for many images: tell the own image from `count` uniform draws of the memory (NCE).

    P(i|v) = exp(v.f_i/tau)/Z with Z estimated from the first batch and then fixed, h = P/(P + m/n), and
    loss = -log h(own) - sum over the draws of log(1 - h).
    """

    pool: Pool | None = None
    log_z: Tensor

    def __init__(self, memory: Memory, count: int, tau: float) -> None:
        super().__init__()
        if count < 1 or not tau > 0:
            raise ValueError(
                f"noise-contrastive estimation needs a draw and a positive tau, got {count} and {tau}"
            )
        self.memory, self.count, self.tau = memory, count, tau
        self.register_buffer("log_z", torch.tensor(torch.nan))
        self.known = False
        self.register_load_state_dict_post_hook(_is_known)  # type: ignore[no-untyped-call]

    def scores(self, query: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
        """Scores / tau (N,1+count): the own image first, then the draws."""
        drawn = rng.integers(rng.fold(noise, image_ids), self.count, len(self.memory.vectors))
        entries = self.memory.recall(torch.cat([image_ids[:, None], drawn], 1)).to(query.dtype)
        return (query[:, None] * entries).sum(-1) / self.tau

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Mean over the queries."""
        scores = self.scores(pair.query, pair.image_ids, pair.noise)
        log_z = self.log_z if self.known else self._estimate(scores)
        ratio = scores - log_z - math.log(self.count / len(self.memory.vectors))  # log P / (m/n)
        loss = (-F.logsigmoid(ratio[:, 0]) - F.logsigmoid(-ratio[:, 1:]).sum(1)).mean()
        seen = scores.detach() * self.tau
        return loss, {
            "contrast": loss.detach(),
            "positive": seen[:, 0].mean(),
            "negative": seen[:, 1:].mean(),
        }

    @torch.no_grad()
    def _estimate(self, scores: Tensor) -> Tensor:
        """log Z = log(n mean exp), over all ranks."""
        mean = torch.logsumexp(dist.gather(scores.flatten()), 0) - math.log(
            scores.numel() * dist.world()
        )
        return mean + math.log(len(self.memory.vectors))

    def at(self, progress: float) -> None:
        """Nothing changes with time."""

    @torch.no_grad()
    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Fix Z by the first batch, then move the memory."""
        if not self.known:
            self.log_z.copy_(self._estimate(self.scores(keys, image_ids, noise)))
            self.known = True
        return self.memory.push(keys, image_ids, noise)


def _is_known(objective: nn.Module, _: object) -> None:
    """Whether Z is fixed follows a loaded checkpoint."""
    assert isinstance(objective, NoiseContrast)
    objective.known = not bool(objective.log_z.isnan())


def npid(
    backbone: nn.Module,
    *,
    images: int = 50000,
    negatives: int = 0,
    tau: float = 0.1,
    memory_momentum: float = 0.5,
    dim: int = 128,
) -> Learner:
    """NPID (Wu et al., CVPR 2018, arXiv 1805.01978): loss = softplus(r - a), the key is the memory of the image itself.

    One view per image; `images` is the size of the data set and image ids must lie below it. negatives=0 is the full
    softmax over the memory (CIFAR-10, tau .1); a number draws that many for noise-contrastive estimation (ImageNet:
    4096, tau .07). Deviation: the paper's proximal term, off in the authors' code, is left out.
    """
    memory = Memory(images, dim, memory_momentum)
    return Learner(
        online=convert(Encoder(backbone, mlp([width(backbone), dim])), groups=1),
        twin=Recall(memory),
        pairing=[((0,), (0,))],
        objective=NoiseContrast(memory, negatives, tau) if negatives else Contrast(memory, tau=tau),
        remember="query",
    )
