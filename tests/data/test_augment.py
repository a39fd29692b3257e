"""Tests of the batched image operations.

Every operation equals torchvision's, or a naive implementation, on single images. Random parameters
have the same distribution as torchvision's.
"""

import itertools
import math

import pytest
import torch
import torchvision.transforms as T
import torchvision.transforms.functional as TF
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from antipode.data.views import augment

NEUTRAL = (1.0, 1.0, 1.0, 0.0)
modest = settings(max_examples=25, deadline=None)
sides = st.integers(2, 48)
seeds = st.integers(0, 2**31)


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Return random grey levels, including ties between channels and pure black and white."""
    levels = torch.randint(-30, 286, shape, generator=torch.Generator().manual_seed(seed)).clamp(
        0, 255
    )
    return (levels // 5 * 5) / 255


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def as_bytes(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8)


def boxes_within(height: int, width: int, seed: int, n: int) -> Tensor:
    u = uniform(n, 4, seed=seed)
    h = torch.floor(u[:, 0] * height) + 1
    w = torch.floor(u[:, 1] * width) + 1
    top = torch.floor(u[:, 2] * (height - h + 1))
    left = torch.floor(u[:, 3] * (width - w + 1))
    return torch.stack([top, left, h, w], 1)


@modest
@given(sides, sides, st.integers(1, 40), st.booleans(), seeds)
def test_crop_is_torchvisions(height, width, size, cubic, seed):
    channels = 1 + seed % 5
    images = noise(4, channels, height, width, seed=seed)
    boxes = boxes_within(height, width, seed, 4)
    mirror, upend = torch.tensor([0, 1, 0, 1]).bool(), torch.tensor([0, 0, 1, 1]).bool()
    ours = augment.crop(images, boxes, size, mirror=mirror, upend=upend, cubic=cubic)
    mode = T.InterpolationMode.BICUBIC if cubic else T.InterpolationMode.BILINEAR
    for i, box in enumerate(boxes.int().tolist()):
        theirs = TF.resized_crop(images[i], *box, [size, size], mode, antialias=True).clamp(0, 1)
        theirs = TF.hflip(theirs) if mirror[i] else theirs
        theirs = TF.vflip(theirs) if upend[i] else theirs
        torch.testing.assert_close(ours[i], theirs, atol=2e-5, rtol=0)


def test_crop_of_the_whole_image_at_its_size_flips_exactly():
    images = noise(2, 3, 16, 16)
    whole = torch.tensor([[0.0, 0, 16, 16]]).expand(2, 4)
    yes, no = torch.ones(2).bool(), torch.zeros(2).bool()
    assert torch.equal(augment.crop(images, whole, 16, mirror=no, upend=no), images)
    assert torch.equal(augment.crop(images, whole, 16, mirror=yes, upend=no), images.flip(3))
    assert torch.equal(augment.crop(images, whole, 16, mirror=no, upend=yes), images.flip(2))


@modest
@given(st.integers(8, 60), st.integers(8, 60), st.integers(4, 24), st.integers(0, 6), seeds)
def test_centre_is_resize_and_center_crop(height, width, size, margin, seed):
    images = noise(2, 3, height, width, seed=seed)
    theirs = TF.center_crop(TF.resize(images, size + margin, antialias=True), [size, size])
    torch.testing.assert_close(
        augment.centre(images, size, size + margin), theirs, atol=2e-5, rtol=0
    )


@modest
@given(sides, sides, st.integers(1, 5), seeds)
def test_rotate_is_torchvisions(height, width, channels, seed):
    images = noise(3, channels, height, width, seed=seed)
    degrees = 360 * uniform(3, seed=seed) - 180
    ours = augment.rotate(images, degrees)
    for i in range(3):
        theirs = TF.rotate(images[i], degrees[i].item(), T.InterpolationMode.BILINEAR)
        # both compute coordinates in float32, but round differently
        torch.testing.assert_close(ours[i], theirs, atol=1e-3, rtol=0)


@modest
@given(
    st.integers(12, 40),
    st.integers(12, 40),
    st.integers(1, 5),
    st.sampled_from([1, 3, 13, 23]),
    seeds,
)
def test_blur_is_torchvisions(height, width, channels, taps, seed):
    images = noise(3, channels, height, width, seed=seed)
    sigma = 0.1 + 1.9 * uniform(3, seed=seed)
    ours = augment.blur(images, sigma, taps)
    for i in range(3):
        theirs = TF.gaussian_blur(images[i], [taps, taps], [sigma[i].item()])
        torch.testing.assert_close(ours[i], theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("axis", [2, 3])
def test_both_ways_to_reflect_a_border_agree(axis):
    images = torch.rand(2, 3, 9, 11)
    by_index = augment.pad_by_index(images, 6, axis)
    assert torch.equal(by_index, augment.pad_by_copies(images, 6, axis))
    assert by_index.shape[axis] == images.shape[axis] + 12


def test_a_gpu_blurs_with_the_other_way_to_reflect(monkeypatch):
    images = torch.rand(3, 3, 16, 16)
    sigma = torch.tensor([0.1, 1.0, 2.0])
    expected = augment.blur(images, sigma, 7)
    monkeypatch.setattr(augment, "pad_by_copies", augment.pad_by_index)
    assert torch.equal(augment.blur(images, sigma, 7), expected)


def test_stored_values_are_the_values_and_a_new_tensor():
    values = torch.rand(4, 13)
    copy = augment._stored(values)
    assert torch.equal(copy, values) and copy.data_ptr() != values.data_ptr()
    torch.library.opcheck(augment._stored, (values,))


def test_blur_of_sigma_zero_is_nothing():
    images = noise(2, 3, 16, 16)
    assert torch.equal(augment.blur(images, torch.zeros(2), 13), images)


ADJUST = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)


def in_order(image: Tensor, factors: Tensor, places: Tensor) -> Tensor:
    """Apply torchvision's four adjustments in the order given by `places`."""
    for which in places.argsort().tolist():
        image = ADJUST[which](image, factors[which].item())
    return image


def random_factors(n: int, seed: int) -> Tensor:
    return torch.cat([2 * uniform(n, 3, seed=seed), uniform(n, 1, seed=seed + 1) - 0.5], 1)


@pytest.mark.parametrize("which", range(4), ids=["brightness", "contrast", "saturation", "hue"])
@pytest.mark.parametrize("channels", [1, 3])
@modest
@given(sides, sides, seeds)
def test_each_adjustment_is_torchvisions(which, channels, height, width, seed):
    images = noise(3, channels, height, width, seed=seed)
    places = torch.arange(4).expand(3, 4)
    factors = torch.tensor(NEUTRAL).repeat(3, 1)
    factors[:, which] = random_factors(3, seed)[:, which]
    ours = augment.jitter(images, factors, places)
    for i in range(3):
        theirs = ADJUST[which](images[i], factors[i, which].item())
        torch.testing.assert_close(ours[i], theirs, atol=1e-5, rtol=0)
        on_bytes = ADJUST[which](as_bytes(images[i]), factors[i, which].item())
        assert (ours[i] * 255 - on_bytes).abs().max() <= 2


def test_jitter_is_torchvisions_in_each_of_the_24_orders():
    places = torch.tensor(list(itertools.permutations(range(4))))
    images, factors = noise(24, 3, 9, 7), random_factors(24, 5)
    ours = augment.jitter(images, factors, places)
    for i in range(24):
        torch.testing.assert_close(
            ours[i], in_order(images[i], factors[i], places[i]), atol=5e-5, rtol=0
        )


def test_jitter_of_many_channels_has_brightness_and_contrast():
    images, factors = noise(4, 5, 9, 7), random_factors(4, 5)
    factors[:, 2] = 1.0
    factors[:, 3] = 0.0
    ours = augment.jitter(images, factors, torch.arange(4).expand(4, 4))
    bright = (images * factors[:, 0].view(-1, 1, 1, 1)).clamp(0, 1)
    mean = bright.mean((1, 2, 3), keepdim=True)
    f = factors[:, 1].view(-1, 1, 1, 1)
    torch.testing.assert_close(ours, (f * bright + (1 - f) * mean).clamp(0, 1), atol=1e-6, rtol=0)


def test_neutral_jitter_is_nothing():
    images = noise(24, 3, 16, 16)
    places = torch.tensor(list(itertools.permutations(range(4))))
    torch.testing.assert_close(
        augment.jitter(images, torch.tensor(NEUTRAL).repeat(24, 1), places), images
    )


@modest
@given(sides, sides, seeds)
def test_chosen_images_are_greyed_solarised_inverted_as_torchvision_does(height, width, seed):
    images = noise(3, 3, height, width, seed=seed)
    chosen = torch.tensor([True, False, True])
    pairs = (
        (augment.greyscale, lambda x: TF.rgb_to_grayscale(x, 3)),
        (augment.solarise, lambda x: TF.solarize(x, 0.5)),
        (augment.invert, TF.invert),
    )
    for ours, theirs in pairs:
        result = ours(images, chosen)
        for i in range(3):
            torch.testing.assert_close(
                result[i], theirs(images[i]) if chosen[i] else images[i], atol=1e-6, rtol=0
            )


@modest
@given(sides, sides, st.integers(1, 5), seeds)
def test_erase_is_torchvisions(height, width, channels, seed):
    images = noise(3, channels, height, width, seed=seed) + 1
    boxes = boxes_within(height, width, seed, 3)
    ours = augment.erase(images, boxes)
    for i, box in enumerate(boxes.int().tolist()):
        assert torch.equal(ours[i], TF.erase(images[i], *box, torch.zeros(1)))


def test_mix_is_the_weighted_sum_of_the_channels():
    images = noise(3, 4, 5, 6)
    weights = uniform(3, 4)
    ours = augment.mix(images, weights)
    for i in range(3):
        expected = sum(weights[i, k] * images[i, k] for k in range(4))
        torch.testing.assert_close(ours[i], expected[None])


def test_standardised_images_have_mean_0_and_deviation_1_and_flat_ones_are_0():
    images = torch.cat([noise(3, 3, 8, 8) * 0.1 + 0.5, torch.full((1, 3, 8, 8), 0.3)])
    ours = augment.standardise(images)
    torch.testing.assert_close(ours[:3].mean((1, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(ours[:3].std((1, 2, 3), correction=0), torch.ones(3))
    assert ours[3].abs().max() < 1e-3


# The distribution of random parameters

N = 3000


def alike(ours: Tensor, theirs: Tensor) -> None:
    """Assert that two samples come from the same distribution.

    Uses the two-sample Kolmogorov-Smirnov test with a false alarm rate of 1 in 1,000.
    """
    assert stats.ks_2samp(ours.double().numpy(), theirs.double().numpy()).pvalue > 1e-3


SHAPES = [
    (32, 32, (0.08, 1.0)),
    (24, 96, (0.2, 1.0)),
    (96, 24, (0.2, 1.0)),
    (10, 100, (0.9, 1.0)),
    (100, 10, (0.9, 1.0)),
]


@pytest.mark.parametrize(("height", "width", "scale"), SHAPES)
def test_crop_boxes_are_distributed_as_torchvisions(height, width, scale):
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    ratio = (3 / 4, 4 / 3)
    theirs = torch.tensor(
        [T.RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(N)]
    )
    ours = augment.crop_boxes(uniform(N, 22, seed=1), height, width, scale, ratio)
    for statistic in (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
        lambda b: b[:, 0],
        lambda b: b[:, 1],
        lambda b: b[:, 0] + b[:, 2],
        lambda b: b[:, 1] + b[:, 3],
    ):
        alike(statistic(ours), statistic(theirs))


@pytest.mark.parametrize(("height", "width"), [(10, 100), (100, 10), (1, 1), (1, 9), (33, 32)])
def test_hopeless_crops_fall_back_to_torchvisions_centre(height, width):
    image = torch.empty(3, height, width)
    # no box has 4 times the area of the image, so every attempt fails
    theirs = T.RandomResizedCrop.get_params(image, [4.0, 4.0], [3 / 4, 4 / 3])
    ours = augment.crop_boxes(uniform(5, 22), height, width, (4.0, 4.0), (3 / 4, 4 / 3))
    assert ours.int().tolist() == [list(theirs)] * 5


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.floats(0.01, 1), seeds)
def test_crop_boxes_lie_inside_and_hold_a_pixel(height, width, least, seed):
    top, left, h, w = augment.crop_boxes(
        uniform(64, 22, seed=seed), height, width, (least, 1.0), (3 / 4, 4 / 3)
    ).unbind(1)
    assert (top >= 0).all() and (left >= 0).all() and (h > 0).all() and (w > 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()


def test_ratios_are_of_width_to_height_in_crops_and_of_height_to_width_in_erased_boxes():
    """As in torchvision; the papers' ranges are symmetric and do not tell."""
    numbers = uniform(256, 22, seed=3)
    for boxes, tall in ((augment.crop_boxes, False), (augment.erase_boxes, True)):
        *_, height, width = boxes(numbers, 900, 900, (0.05, 0.1), (2.0, 3.0)).unbind(1)
        ratio = height / width if tall else width / height
        assert ratio.min() > 1.95 and ratio.max() < 3.05 and ratio.std() > 0.2


@pytest.mark.parametrize(("height", "width"), [(32, 32), (12, 40)])
def test_erased_boxes_are_distributed_as_torchvisions(height, width):
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    scale, ratio = (0.02, 0.33), (0.3, 3.3)
    theirs = torch.tensor(
        [T.RandomErasing.get_params(image, scale, ratio, [0.0])[:4] for _ in range(N)]
    )
    ours = augment.erase_boxes(uniform(N, 22, seed=1), height, width, scale, ratio)
    for statistic in (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 2] / b[:, 3],
        lambda b: b[:, 0],
        lambda b: b[:, 1],
    ):
        alike(statistic(ours), statistic(theirs))


def test_hopeless_erasing_leaves_the_image():
    boxes = augment.erase_boxes(uniform(5, 22), 8, 8, (1.0, 1.0), (1.0, 1.0))
    assert (boxes[:, 2:] == 0).all()


def test_all_24_orders_are_permutations_and_as_likely():
    places = augment.orders(uniform(24000))
    assert (places.sort(1).values == torch.arange(4)).all()
    counts = (places * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_the_last_number_below_one_stays_in_range():
    last = torch.full((1, 22), 1 - 2**-24)
    assert augment.orders(last[:, 0]).sort(1).values.tolist() == [[0, 1, 2, 3]]
    top, left, h, w = augment.crop_boxes(last, 300, 500, (0.08, 1.0), (3 / 4, 4 / 3))[0].tolist()
    assert top + h <= 300 and left + w <= 500
    assert math.isfinite(top)


@pytest.mark.parametrize("operation", [augment.greyscale, augment.hue])
def test_colour_operations_leave_other_channels_alone(operation):
    images = noise(2, 5, 4, 4)
    assert torch.equal(operation(images, torch.ones(2)), images)
