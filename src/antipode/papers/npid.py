"""NPID (Wu et al., CVPR 2018): one memory entry per training image."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antipode import dist, rng
from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import Noise, Pool
from antipode.core.objective import Contrast, Metrics
from antipode.core.scores import product, unit
from antipode.core.skip import chosen
from antipode.core.streamed import Candidates
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.recipe.layer import (
    IMAGES,
    Layer,
    RecipeContext,
    method,
    optimiser,
    policy,
    run_length,
    stack,
    steps,
)
from antipode.recipe.scales import few_keys, smaller_images
from antipode.types import Pair

# log Z before the first batch. A number and not NaN, since no checkpoint holds NaN.
UNKNOWN = torch.finfo(torch.float32).max


class Memory(nn.Module):
    """One vector per training image, by image id: NPID's keys and negatives at once.

    The twin takes the entries of the batch's images as keys; as negatives, the entries of all other
    images are scored. After the step an entry becomes unit(m old + (1-m) new). If an image is in a
    batch twice, its last embedding counts.
    """

    kind = "memory"
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
        self.finite_step: Tensor | None = None  # () bool; if False, a push changes nothing
        # the authors start uniformly in a cube, at about unit length (NCEAverage.py); here at unit
        # length
        self.register_buffer("vectors", unit(torch.rand(images, dim) * 2 - 1))

    def stored(self) -> Tensor:
        """Return the entries (images,D)."""
        return self.vectors

    def recall(self, image_ids: Tensor) -> Tensor:
        """Return the entries (...,D) of images (...)."""
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
        """Return scores (N,images) with the query's own image at -inf."""
        own = pair.image_ids[:, None] == torch.arange(
            len(self.vectors), device=pair.image_ids.device
        )
        return product(pair.query, self.vectors.to(pair.query.dtype)).masked_fill(own, -torch.inf)

    def candidate_count(self, pair: Pair) -> int:
        """Return the number of entries."""
        return len(self.vectors)

    def candidates(self, pair: Pair, live: bool = False) -> Candidates:
        """Return all entries; that of a query's own image does not repel it."""
        image_ids = torch.arange(len(self.vectors), device=pair.image_ids.device)
        return Candidates(self.vectors.to(pair.query.dtype), (pair.image_ids, image_ids))

    @torch.no_grad()
    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Move the entries of images (N,) towards their new embeddings (N,D), on every rank."""
        keys, image_ids = dist.gather(keys).to(self.vectors.dtype), dist.gather(image_ids)
        places = torch.arange(len(image_ids), device=image_ids.device)
        # a GPU writes to one entry in any order, and ranks would drift apart, so all write the same
        last = image_ids.new_zeros(len(self.vectors)).scatter_reduce_(0, image_ids, places, "amax")[
            image_ids
        ]
        before = self.vectors[image_ids]
        moved = unit(self.momentum * before + (1 - self.momentum) * keys[last])
        # `unit` returns at least float32
        self.vectors[image_ids] = chosen(self.finite_step, moved.to(self.vectors.dtype), before)
        return False


class Recall(nn.Module):
    """The twin of NPID: keys are the memory's entries."""

    own = False

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.__dict__["memory"] = (
            memory  # a submodule of the objective: registered twice, it would be saved twice
        )

    memory: Memory

    def forward(
        self, images: list[Tensor], z: list[Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """Return keys (N,D) for the one view."""
        return [self.memory.recall(image_ids)]

    def at(self, progress: float) -> None:
        """Do nothing: nothing changes over training."""

    def follow(self, online: nn.Module, restart: bool = False) -> None:
        """Do nothing: the objective updates the memory."""


class NoiseContrast(nn.Module):
    """NPID's noise-contrastive estimate for many images.

    Each query distinguishes its own image from `count` uniform draws of the memory. P(i|v) =
    exp(v.f_i/tau)/Z, where Z is estimated from the first batch and then fixed, h = P/(P + m/n), and
    loss = -log h(own) - sum over the draws of log(1 - h).
    """

    pool: Pool | None = None
    unit_vectors = True
    log_z: Tensor

    def __init__(self, memory: Memory, count: int, tau: float) -> None:
        super().__init__()
        if count < 1 or not tau > 0:
            raise ValueError(
                f"noise-contrastive estimation needs a draw and a positive tau, got {count} and "
                f"{tau}"
            )
        self.memory, self.count, self.tau = memory, count, tau
        self.finite_step: Tensor | None = None  # () bool; if False, a push changes nothing
        self.register_buffer("log_z", torch.tensor(UNKNOWN))
        self.known = False
        self.register_load_state_dict_post_hook(_is_known)  # type: ignore[no-untyped-call]

    def scores(self, query: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
        """Return scores / tau (N,1+count): the query's own image first, then the draws."""
        drawn = rng.integers(rng.fold(noise, image_ids), self.count, len(self.memory.vectors))
        entries = self.memory.recall(torch.cat([image_ids[:, None], drawn], 1)).to(query.dtype)
        return (query[:, None] * entries).sum(-1) / self.tau

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Return the mean loss over the queries."""
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
        """Return log Z = log(n mean exp), over all ranks."""
        mean = torch.logsumexp(dist.gather(scores.flatten()), 0) - math.log(
            scores.numel() * dist.world()
        )
        return mean + math.log(len(self.memory.vectors))

    def at(self, progress: float) -> None:
        """Do nothing: nothing changes over training."""

    @torch.no_grad()
    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Fix Z by the first batch, then update the memory."""
        if not self.known:
            # whether Z is known is kept on the host, which therefore waits for the flag once
            if self.finite_step is not None and not self.finite_step:
                return False
            self.log_z.copy_(self._estimate(self.scores(keys, image_ids, noise())))
            self.known = True
        return self.memory.push(keys, image_ids, noise)


def _is_known(objective: nn.Module, _: object) -> None:
    """Set from a loaded checkpoint whether Z is fixed."""
    assert isinstance(objective, NoiseContrast)
    # checkpoints of earlier versions hold NaN until Z is known
    objective.known = bool(objective.log_z < UNKNOWN)


def npid(
    backbone: nn.Module,
    *,
    images: int = 50000,
    negatives: int = 0,
    tau: float = 0.1,
    memory_momentum: float = 0.5,
    dim: int = 128,
) -> Learner:
    """NPID (Wu et al., CVPR 2018, arXiv 1805.01978): tell every image from all others by a memory.

    loss = softplus(r - a), where the key is the memory's entry of the image itself. There is one
    view per image. `images` is the size of the data set, and image ids must lie below it.
    negatives=0 is the full softmax over the memory (CIFAR-10, tau .1); a number draws that many for
    noise-contrastive estimation (ImageNet: 4096, tau .07).

    Deviation: the paper's proximal term, off in the authors' code, is left out.
    """
    memory = Memory(images, dim, memory_momentum)
    return Learner(
        online=convert(Encoder(backbone, mlp([width(backbone), dim])), groups=1),
        twin=Recall(memory),
        pairing=[((0,), (0,))],
        objective=NoiseContrast(memory, negatives, tau) if negatives else Contrast(memory, tau=tau),
        remember="query",
    )


# Recipes

RELEASE = "NPID (npid: main.py)"


def recipe(context: RecipeContext) -> Layer:
    """SGD at .03 per 256 images on ImageNet, with 4,096 noise-contrastive negatives and tau .07."""
    images = {} if context.images is None else method(IMAGES, images=context.images)
    rate = optimiser(RELEASE, "sgd", 0.03, weight_decay=1e-4, schedule="steps", per="epoch")
    imagenet = stack(
        rate,
        steps(context, RELEASE, 120, 160),
        policy(RELEASE, "mocov1"),
        images,
        method(RELEASE, negatives=4096, tau=0.07),
    )
    # a full softmax over one memory entry per image
    softmax = images | method("NPID (npid: README, CIFAR-10)", negatives=0, tau=0.1)
    if context.dataset.scale == "small":
        return stack(imagenet, _cifar(context), softmax)
    few = few_keys(context) is not None or context.dataset.scale == "tiny"
    return stack(imagenet, smaller_images(context), softmax if few else {})


def _cifar(context: RecipeContext) -> Layer:
    """The release's settings for CIFAR; images are flipped, which its code comments out."""
    source = f"{RELEASE}: .03 at batch size 128"
    rate = optimiser(source, "sgd", 0.06, weight_decay=5e-4, schedule="steps", per="epoch")
    views = policy("NPID (npid: cifar.py)", "mocov1")  # greyscale comes before the jitter
    batch = run_length(RELEASE, batch=128)
    return stack(rate, steps(context, RELEASE, 120, 160), views, batch)


METHODS = {"npid": Method(build=npid, recipe=recipe)}
