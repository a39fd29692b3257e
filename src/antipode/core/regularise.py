"""Regularisers on unit embeddings (V,N,D): MSBReg's singular-value and Brownian terms.

No source that we have prints MSBReg's formulas. Each form below is derived from what the paper
states about it; docs/methods/msbreg.md has the reasons and the alternatives. All terms use the
images of every rank.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from antipode import dist, rng
from antipode.core.negatives import differ
from antipode.core.scores import product, unit
from antipode.measures import log_potential

Regulariser = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # z (V,N,D), image_ids (N,), noise () -> ()


def gram(z: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
    """Return || (d/n) Z'Z - I ||^2 = sum_r (d s_r^2/n - 1)^2 (), mean over views.

    It is smallest if all singular values are equal, and needs no SVD.
    """
    return torch.stack([_gram(view) for view in z]).mean()


def _gram(z: Tensor) -> Tensor:
    return isotropy(dist.total(product(z.T, z.T)), len(z) * dist.world())


def isotropy(outer: Tensor, n: int) -> Tensor:
    """Return || (d/n) Z'Z - I ||^2 () from Z'Z (D,D) of n unit vectors."""
    d = len(outer)
    away: Tensor = outer * (d / n) - torch.eye(d, dtype=outer.dtype, device=outer.device)
    return (away**2).sum()


def nuclear(z: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
    """Return sum_r (s_r - sqrt(n/d))^2 () over all d singular values, mean over views; needs an
    SVD.
    """
    return torch.stack([_nuclear(dist.gather(view)) for view in z]).mean()


def _nuclear(z: Tensor) -> Tensor:
    n, d = z.shape
    # singular values beyond the rank are zero and add n/d each:
    # sum s^2 - 2 sqrt(n/d) sum s + d (n/d)
    # an SVD of numbers that are not finite raises an error; the squares below are not finite then
    nuclear_norm: Tensor = torch.linalg.svdvals(z.nan_to_num(0.0, 0.0, 0.0)).sum()
    distance: Tensor = (z**2).sum() - 2 * (n / d) ** 0.5 * nuclear_norm + n
    return distance


def correlation(z: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
    """Return the sum () of squared off-diagonal correlations of the dimensions, mean over views."""
    return torch.stack([_correlation(view) for view in z]).mean()


def _correlation(z: Tensor) -> Tensor:
    n = len(z) * dist.world()
    z = z - dist.total(z.sum(0)) / n
    covariance = dist.total(product(z.T, z.T)) / n
    # a dimension that hardly varies (1e-8 of an even share) counts as uncorrelated; this avoids 0/0
    deviation = covariance.diagonal().clamp(min=1e-8 / len(covariance)).sqrt()
    squared = (covariance / deviation / deviation[:, None]) ** 2
    return squared.sum() - squared.diagonal().sum()


def brownian(z: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
    """Return the mean () of <z, eta>, where eta is a random unit direction per image.

    All views of an image share its direction. The kick has mean zero.
    """
    return drift(z, unit(rng.normal(rng.fold(noise, image_ids), z.shape[-1]).to(z)))


def brownian_per_view(z: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
    """Return the Brownian term () with a direction of its own for every view."""
    views = torch.arange(len(z), device=z.device)[:, None]
    return drift(
        z, unit(rng.normal(rng.fold(rng.fold(noise, views), image_ids), z.shape[-1]).to(z))
    )


def brownian_gaussian(z: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
    """Return the Brownian term () with eta ~ N(0, I): sqrt(d) times stronger."""
    return drift(z, rng.normal(rng.fold(noise, image_ids), z.shape[-1]).to(z))


def drift(z: Tensor, direction: Tensor) -> Tensor:
    """Return the mean () of the dot products of z (V,N,D) with directions (N,D) or (V,N,D)."""
    return (z * direction).sum(-1).mean()


def uniform(z: Tensor, image_ids: Tensor, noise: Tensor) -> Tensor:
    """Return the uniformity () of different images, mean over views (MSBReg's table 3)."""
    all_ids = dist.gather(image_ids)
    differ(all_ids)
    means = [log_potential(view, dist.gather(view), image_ids, all_ids).exp() for view in z]
    return torch.stack([(dist.total(mean) / dist.world()).log() for mean in means]).mean()


SINGULAR_VALUE: dict[str, Regulariser] = {
    "gram": gram,
    "nuclear": nuclear,
    "correlation": correlation,
}
BROWNIAN: dict[str, Regulariser] = {
    "image": brownian,
    "view": brownian_per_view,
    "gaussian": brownian_gaussian,
}
