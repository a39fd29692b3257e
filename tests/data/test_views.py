"""Tests of the view policies.

They cover the hyper-parameters, random draws, independence, errors and compilation.
"""

import inspect
import math
import warnings

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from scipy import stats
from torch import Tensor

from antipode import rng
from antipode.data.views import augment
from antipode.data.views.operation import Blur, Centre, Chance, Crop, Erase, Jitter, Mix, Turn
from antipode.data.views.policy import policies
from antipode.data.views.views import IMAGENET_MEAN, IMAGENET_STD, Views, views

NAMES = list(policies())
RANDOM = [name for name in NAMES if "eval" not in name]


def photos(
    n: int = 6, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (n, channels, height, width), generator=generator, dtype=torch.uint8
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(32, 32), (40, 28)])
def test_views_are_finite_floats_of_their_sizes(name, shape):
    make = views(name, size=32)
    made = make(photos(3, 3, *shape), seeded())
    assert [tuple(view.shape) for view in made] == [(3, 3, size, size) for size in make.sizes]
    assert len(made) == make.count
    assert all(view.dtype == torch.float32 and view.isfinite().all() for view in made)


# tracing takes seconds: the others are marked slow
QUICK = ("shapes", "eval")
COMPILED = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", COMPILED)
def test_whole_policies_compile_as_one_graph(name):
    torch._dynamo.reset()
    make, images = views(name, size=32), photos()
    uniforms = make.draw(6, seeded())
    compiled = torch.compile(make.apply, fullgraph=True, backend="eager")
    assert same(compiled(images, uniforms), make.apply(images, uniforms))


def test_a_call_without_generator_compiles_as_one_graph():
    torch._dynamo.reset()
    made = torch.compile(views("simclr", size=32), fullgraph=True, backend="eager")(photos())
    assert made[0].shape == (6, 3, 32, 32)


@pytest.mark.slow
def test_compiled_code_gives_the_same_pixels():
    make, images = views("simclr", size=32), photos(64)
    uniforms = make.draw(64, seeded())
    for ours, theirs in zip(
        torch.compile(make.apply)(images, uniforms), make.apply(images, uniforms), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_policies_are_captured_in_a_cuda_graph_and_equal_the_cpu(name):
    make, images = views(name, size=32), photos(64)
    uniforms = make.draw(64, seeded())
    gpu_make = views(name, size=32).cuda()
    gpu_images = images.cuda()
    gpu_uniforms = uniforms.cuda()
    gpu_make.apply(gpu_images, gpu_uniforms)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = gpu_make.apply(gpu_images, gpu_uniforms)
    graph.replay()
    for ours, theirs in zip(made, make.apply(images, uniforms), strict=True):
        # a quantile, because values at the threshold of solarise may differ by rounding
        assert (ours.cpu() - theirs).abs().quantile(0.999) < 1e-3


# Draws


@pytest.mark.parametrize("name", RANDOM)
def test_the_same_generator_state_gives_the_same_views_and_another_gives_others(name):
    make, images = views(name, size=32), photos()
    assert same(make(images, seeded(1)), make(images, seeded(1)))
    assert not same(make(images, seeded(1)), make(images, seeded(2)))
    torch.manual_seed(3)
    first = make(images)
    assert not same(first, make(images))
    torch.manual_seed(3)
    assert same(first, make(images))


@pytest.mark.parametrize("name", ["simclr", "byol", "shapes", "adco-multicrop"])
def test_an_image_has_the_same_views_in_any_batch(name):
    make, images = views(name, size=32), photos(6)
    uniforms = make.draw(6, seeded())
    alone = make.apply(images[4:5], uniforms[4:5])
    for whole, one in zip(make.apply(images, uniforms), alone, strict=True):
        torch.testing.assert_close(whole[4:5], one, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["simclr", "byol", "shapes", "dclw-multicrop"])
def test_each_view_reads_its_own_numbers_only(name):
    make, images = views(name, size=32), photos()
    uniforms = make.draw(6, seeded())
    other = uniforms.clone()
    other[:, 1] = make.draw(6, seeded(9))[:, 1]
    changed = [
        not torch.equal(a, b)
        for a, b in zip(make.apply(images, uniforms), make.apply(images, other), strict=True)
    ]
    assert changed == [place == 1 for place in range(make.count)]


def test_equal_images_get_independent_views():
    make = views("simclr", size=16)
    first, second = make(photos(1).expand(400, -1, -1, -1), seeded())
    levels = torch.stack([first.mean((1, 2, 3)), second.mean((1, 2, 3))])
    across_views = levels.corrcoef()[0, 1]
    across_images = torch.stack([levels[0, :-1], levels[0, 1:]]).corrcoef()[0, 1]
    # 0.05 is the standard deviation of the estimate for independent samples
    assert abs(across_views) < 0.17 and abs(across_images) < 0.17
    assert levels[0].std() > 0.1


def test_hashed_numbers_do_as_well_as_a_generators():
    make, images = views("simclr", size=32), photos()
    keys = rng.fold(
        rng.fold(rng.key(0, "augment"), torch.arange(6))[:, None], torch.arange(make.count)
    )
    made = make.apply(images, rng.uniform(keys, make.slots))
    assert not torch.equal(made[0], made[1]) and made[0].isfinite().all()


def test_drawn_factors_are_distributed_as_torchvisions():
    torch.manual_seed(0)
    n, strengths = 3000, (0.4, 0.4, 0.2, 0.1)
    theirs = T.ColorJitter(*strengths)
    ranges = (theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue)
    drawn = torch.tensor([T.ColorJitter.get_params(*ranges)[1:] for _ in range(n)])
    ours = Jitter(*strengths).factors(torch.rand(n, 6))
    for which in range(4):
        assert stats.ks_2samp(ours[:, which].numpy(), drawn[:, which].numpy()).pvalue > 1e-3


def test_jitter_stronger_than_one_is_cut_at_zero():
    assert Jitter(2.0, 0.0, 0.0, 0.0).factors(torch.rand(1000, 6))[:, 0].min() >= 0


@pytest.mark.parametrize("channels", [3, 5])
def test_the_weights_of_mix_are_even_on_the_simplex(channels):
    """Even weights are Dirichlet(1, ..., 1).

    Each weight takes a share of what the weights before it have left. The shares are independent,
    and the share of a weight before k others is Beta(1, k).
    """
    n = 3000
    # pixel c is 1 in channel c alone, so that it becomes weight c
    images = torch.eye(channels)[:, None, :].expand(n, -1, -1, -1)
    mixed = Mix(1.0, channels)(images, torch.rand(n, 1 + channels, generator=seeded()))
    weights = mixed[:, 0, 0].double()
    assert torch.equal(mixed, mixed[:, :1].expand_as(mixed))
    torch.testing.assert_close(weights.sum(1), torch.ones(n, dtype=torch.float64))
    left = 1 - weights.cumsum(1) + weights
    shares = (weights / left)[:, :-1].T
    for before, share in enumerate(shares):
        assert stats.kstest(share.numpy(), stats.beta(1, channels - 1 - before).cdf).pvalue > 1e-3
    # 0.018 is the standard deviation of the correlation of independent samples
    assert (shares.corrcoef() - torch.eye(channels - 1)).abs().max() < 0.07


def test_erased_boxes_have_the_areas_and_ratios_of_torchvisions_defaults():
    theirs = T.RandomErasing()
    images = torch.ones(500, 1, 40, 28)
    unit = torch.rand(500, Erase.slots, generator=seeded())
    boxes = augment.erase_boxes(unit[:, 1:], 40, 28, theirs.scale, theirs.ratio)
    erased = (Erase(1.0)(images, unit) == 0).sum((1, 2, 3))
    assert torch.equal(erased, (boxes[:, 2] * boxes[:, 3]).long())
    assert torch.equal(Erase(1.0)(images, unit), augment.erase(images, boxes))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_operations_happen_with_their_probability(p):
    n = 4000
    images = photos(1).float().expand(n, -1, -1, -1)[..., :9, :9] / 255
    unit = torch.rand(n, 24, generator=seeded())
    operations = [Jitter(0.9, 0, 0, 0, p=p), Blur(p, 5, (1.0, 2.0)), Mix(p), Erase(p)]
    operations += [
        Chance(augment.invert, p),
        Chance(augment.greyscale, p),
        Chance(augment.solarise, p),
    ]
    for operation in operations:
        made = operation(images, unit[:, : operation.slots])
        share = (made - images).abs().amax((1, 2, 3)).gt(1e-3).float().mean()
        assert abs(share - p) < 4 * (p * (1 - p) / n) ** 0.5 + 0.01, operation


def test_half_of_the_crops_are_flipped():
    crop = Crop(8, (1.0, 1.0), flip=0.5, upend=0.25)
    _, mirror, upend = crop.draw(torch.rand(4000, crop.slots, generator=seeded()), 32, 32)
    assert abs(mirror.float().mean() - 0.5) < 0.03 and abs(upend.float().mean() - 0.25) < 0.03
    assert abs(torch.stack([mirror, upend]).float().corrcoef()[0, 1]) < 0.06


# The hyper-parameters of the papers, as listed in docs/views.md

# crop scale, cubic, jitter strengths and probability, grey, blur probability and taps at 224
# pixels, solarise
TABLE = {
    "mocov1": ((0.2, 1), False, (0.4, 0.4, 0.4, 0.4), 1.0, 0.2, None, None),
    "mocov2": ((0.2, 1), False, (0.4, 0.4, 0.4, 0.1), 0.8, 0.2, (0.5, 13), None),
    "simclr": ((0.08, 1), False, (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, (0.5, 23), None),
    "simclr-cifar": ((0.08, 1), False, (0.4, 0.4, 0.4, 0.1), 0.8, 0.2, None, None),
    "byol": ((0.08, 1), True, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, (1.0, 23), 0.0),
    "msbreg": ((0.08, 1), True, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, (1.0, 23), 0.2),
    "cld": ((0.2, 1), False, (0.4, 0.4, 0.4, 0.4), 1.0, 0.2, None, None),
    "cld-plus": ((0.2, 1), False, (0.4, 0.4, 0.4, 0.1), 0.8, 0.2, (0.5, 13), None),
}


def numbers(view) -> tuple:
    parts = {getattr(op, "operation", type(op)).__name__: op for op in view.operations}
    crop, jitter, blur = parts["Crop"], parts["Jitter"], parts.get("Blur")
    strengths = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    assert crop.flip == 0.5 and crop.ratio == (3 / 4, 4 / 3)
    assert blur is None or blur.sigma == (0.1, 2.0)
    solarise = parts["solarise"].p if "solarise" in parts else None
    blurred = (blur.p, blur.taps) if blur else None
    return crop.scale, crop.cubic, strengths, jitter.p, parts["greyscale"].p, blurred, solarise


@pytest.mark.parametrize("name", TABLE)
def test_numbers_are_the_papers(name):
    assert numbers(views(name, size=224).policy[0]) == TABLE[name]


def test_mocov1_greys_before_it_jitters_and_mocov2_after():
    first, second = (views(name, size=32).policy[0].operations for name in ("mocov1", "mocov2"))
    assert isinstance(first[1], Chance) and isinstance(first[2], Jitter)
    assert isinstance(second[1], Jitter) and isinstance(second[2], Chance)


def test_byols_views_differ_in_blur_and_solarising():
    first, second = views("byol", size=224).policy
    assert numbers(first)[5:] == ((1.0, 23), 0.0) and numbers(second)[5:] == ((0.1, 23), 0.2)
    assert numbers(first)[:5] == numbers(second)[:5]
    five = views("byol", size=224, views=5).policy
    assert [numbers(view)[6] for view in five] == [0.0] * 3 + [0.2] * 2


def test_simclrs_blur_kernel_is_a_tenth_of_the_view():
    first_views = [views("simclr", size=size).policy[0] for size in (224, 96, 32)]
    assert [numbers(view)[5][1] for view in first_views] == [23, 9, 3]


def test_adcos_crops_are_the_released_ones():
    make = views("adco-multicrop", size=224)
    crops = [view.operations[0] for view in make.policy]
    assert make.sizes == [224, 224, 192, 160, 128, 96]
    assert [crop.scale[0] for crop in crops] == [0.2, 0.2, 0.172, 0.143, 0.114, 0.086]
    assert [crop.scale[1] for crop in crops] == [1.0, 1.0, 0.86, 0.715, 0.571, 0.429]
    assert all(numbers(view)[2:] == TABLE["mocov2"][2:] for view in make.policy)


def test_adcos_crops_on_cifar_have_the_colours_of_single_crops_there():
    make = views("adco-multicrop-cifar", size=32)
    crops = [view.operations[0] for view in make.policy]
    released = [view.operations[0] for view in views("adco-multicrop", size=32).policy]
    assert crops == released and make.sizes == [32, 32, 27, 23, 18, 14]
    assert all(numbers(view)[2:] == TABLE["simclr-cifar"][2:] for view in make.policy)


@pytest.mark.parametrize(("size", "small"), [(32, 16), (96, 48), (224, 96)])
def test_dclws_small_crops_follow_the_size(size, small):
    assert views("dclw-multicrop", size=size).sizes == [size] * 2 + [small] * 6


def test_shapes_turns_crops_mixes_inverts_and_standardises():
    turn, crop, mix, invert, _ = views("shapes", size=32).policy[0].operations
    assert (turn, crop) == (Turn(180.0), Crop(32, (0.5, 1.0), flip=0.5, upend=0.5))
    assert (mix, invert.p) == (Mix(1.0), 0.5)
    made = views("shapes", size=32)(photos(), seeded())[0]
    torch.testing.assert_close(made.mean((1, 2, 3)), torch.zeros(6), atol=1e-4, rtol=0)
    torch.testing.assert_close(made.std((1, 2, 3), correction=0), torch.ones(6))
    assert torch.equal(made[:, 0], made[:, 1]) and torch.equal(made[:, 0], made[:, 2])


@pytest.mark.parametrize("mix", [1.0, 0.5])
def test_a_mix_before_rotation_and_crop_gives_the_same_views(mix):
    """Rotation and crop are linear and treat every channel alike."""
    make = views("shapes", size=24, mix=mix)
    unit = make.draw(6, seeded())
    images = photos(6, 3, 30, 40)
    expected = images / 255
    slot = 0
    for operation in make.policy[0].operations:
        expected = operation(expected, unit[:, 0, slot : slot + operation.slots])
        slot += operation.slots
    made = make.apply(images, unit)[0]
    torch.testing.assert_close(made, expected, atol=1e-4, rtol=0)
    assert made.is_contiguous()


def test_a_mix_changes_the_chosen_images_alone():
    mix = Mix(0.5)
    unit = torch.rand(8, mix.slots, generator=seeded())
    images = photos(8) / 255
    mixed = mix(images, unit)
    chosen = unit[:, 0] < 0.5
    assert 0 < chosen.sum() < 8
    assert torch.equal(mixed[~chosen], images[~chosen])
    assert torch.equal(mixed[chosen], mix.grey(images, unit)[chosen].expand(-1, 3, -1, -1))


def test_eval_only_normalises_images_of_the_size():
    images = photos(2, 3, 32, 32)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(views("eval", size=32)(images)[0], (images / 255 - mean) / std)


def test_eval_is_resize_256_and_centre_224_for_photographs_and_a_resize_for_small_ones():
    assert views("eval", size=224).policy[0].operations[0] == Centre(224, 256)
    assert views("eval", size=32).policy[0].operations[0] == Centre(32, 32)
    assert views("eval", size=32, ratio=1.25).policy[0].operations[0] == Centre(32, 40)
    transform = T.Compose(
        [T.Resize(256), T.CenterCrop(224), T.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )
    images = photos(1, 3, 300, 411)
    torch.testing.assert_close(
        views("eval", size=224)(images)[0], transform(images / 255), atol=1e-4, rtol=0
    )


def test_mean_and_std_are_buffers_and_normalise():
    make = views("cld", size=8, mean=(0.5,), std=(0.25,))
    plain = views("cld", size=8, mean=(0.0,), std=(1.0,))
    ours, theirs = make(photos(), seeded())[0], plain(photos(), seeded())[0]
    torch.testing.assert_close(ours, (theirs - 0.5) / 0.25)
    assert sorted(name for name, _ in make.named_buffers()) == ["normal.mean", "normal.std"]


OTHER = {
    "views": 3,
    "scale": (0.3, 0.6),
    "strength": 0.25,
    "blur": 0.9,
    "solarise": 0.9,
    "erase": 1.0,
    "crops": 2,
    "crop_size": 10,
    "crop_scale": (0.5, 0.6),
    "degrees": 10.0,
    "mix": 0.1,
    "invert": 1.0,
    "channels": 3,  # tested below, because it changes which images are valid
    "ratio": 2.0,
}


def arguments_of(name: str) -> list[str]:
    return [
        key
        for key, value in inspect.signature(policies()[name]).parameters.items()
        if value.kind is value.KEYWORD_ONLY
    ]


@pytest.mark.parametrize(
    ("name", "argument"), [(n, a) for n in NAMES for a in arguments_of(n) if a != "channels"]
)
def test_every_argument_has_an_effect(name, argument):
    images = photos(20, 3, 40, 40)
    before, after = views(name, size=24), views(name, size=24, **{argument: OTHER[argument]})
    if before.sizes == after.sizes and before.slots == after.slots:
        assert not same(before(images, seeded()), after(images, seeded()))


# Channels and errors


@pytest.mark.parametrize("name", NAMES)
def test_one_channel_goes_through_every_policy(name):
    arguments = {"channels": 1} if name == "shapes" else {}
    made = views(name, size=16, mean=(0.5,), std=(0.5,), **arguments)(photos(3, 1), seeded())
    assert all(view.shape[1] == 1 and view.isfinite().all() for view in made)


def test_five_channels_go_where_no_colour_is_meant():
    assert views("eval", size=16, mean=(0.5,), std=(0.5,))(photos(2, 5))[0].shape == (2, 5, 16, 16)
    assert views("shapes", size=16, channels=5)(photos(2, 5))[0].shape == (2, 5, 16, 16)
    jitter = Jitter(0.4, 0.4, 0.0, 0.0)
    assert jitter(photos(2, 5) / 255, torch.rand(2, 6)).shape == (2, 5, 32, 32)


REFUSED = [
    ("mocov3", {}, "there is no view policy 'mocov3', did you mean 'mocov[12]'"),
    ("simclr", {"size": 0}, "size of views must be a whole number of at least 1, not 0"),
    ("simclr", {"size": 2.5}, "size of views must be a whole number, not 2.5"),
    (
        "simclr",
        {"view": 3},
        "no argument 'view', did you mean 'views'.*choose from views, scale, strength, blur",
    ),
    ("adco-multicrop", {"views": 3}, "no argument 'views': there are none"),
    ("simclr", {"views": 0}, "makes no view"),
    (
        "simclr",
        {"scale": (0.5, 0.2)},
        r"crop's scale must be two numbers in ascending order in \[1e-06, 1\] but is \(0.5, 0.2\)",
    ),
    ("simclr", {"scale": (0.0, 2.0)}, "crop's scale"),
    ("simclr", {"blur": 1.5}, r"blur's probability must be a number in \[0, 1\] but is 1.5"),
    ("simclr", {"strength": 3.0}, "jitter's hue"),
    ("simclr", {"strength": -1.0}, "jitter's"),
    ("cld", {"erase": -0.1}, "probability of erase"),
    ("shapes", {"mix": 2.0}, "probability of mix"),
    ("shapes", {"invert": 2.0}, "probability of invert"),
    ("eval", {"ratio": 0.5}, "at least 1 but is 0.5"),
    ("simclr", {"mean": (0.5, 0.5), "std": (1.0,)}, "needs finite means and as many positive"),
    ("simclr", {"mean": (0.5,), "std": (0.0,)}, "needs finite means and as many positive"),
    ("simclr", {"std": (math.nan, 1.0, 1.0)}, "needs finite means and as many positive"),
    ("simclr", {"mean": (math.inf, 1.0, 1.0)}, "needs finite means and as many positive"),
    ("simclr", {"mean": "grey"}, "mean must be one number or one number per channel, not 'grey'"),
    ("simclr", {"std": None}, "std must be one number or one number per channel, not None"),
    ("simclr", {"scale": 0.5}, "scale must be 2 numbers, not 0.5"),
    ("simclr", {"scale": [0.2, 0.5, 1.0]}, r"scale must be 2 numbers, not \[0.2, 0.5, 1.0\]"),
    ("simclr", {"scale": (math.nan, 1.0)}, "scale must be 2 numbers"),
    ("simclr", {"views": 2.0}, "views must be a whole number, not 2.0"),
    ("simclr", {"strength": "1"}, "strength must be a number, not '1'"),
    (
        "dclw-multicrop",
        {"crop_size": -4},
        "crop's size in pixels must be a whole number of at least 1 but is -4",
    ),
    ("dclw-multicrop", {"crop_size": 0}, "crop's size in pixels .* but is 0"),
    ("dclw-multicrop", {"crop_size": 7.5}, "crop_size must be a whole number or None, not 7.5"),
    ("dclw-multicrop", {"crops": -1}, "small crops must not be negative but is -1"),
    ("dclw-multicrop", {"size": 1}, "crop's size in pixels .* but is 0"),
    ("adco-multicrop", {"size": 12}, "a blur of 13 taps needs views of more than 6 pixels, not 5"),
    ("mocov2", {"size": 6}, "a blur of 13 taps needs views of more than 6 pixels, not 6"),
    ("eval", {"ratio": math.nan}, "ratio must be a number or None, not nan"),
    ("eval", {"ratio": math.inf}, "a number of at least 1 but is inf"),
    ("shapes", {"degrees": -1.0}, "the rotation angle in degrees"),
    ("shapes", {"channels": 0}, "channels to mix must be a whole number of at least 1 but is 0"),
]


@pytest.mark.parametrize(("name", "arguments", "sentence"), REFUSED)
def test_what_makes_no_sense_is_refused_when_built(name, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        views(name, **{"size": 32, **arguments})


def test_lists_are_taken_as_tuples_and_one_number_of_any_kind_as_a_mean():
    images = photos()
    plain = views("cld", size=8, scale=(0.3, 0.6), mean=(0.5,) * 3, std=(0.25,) * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mean in (
            [0.5] * 3,
            torch.tensor([0.5] * 3),
            np.full(3, 0.5),
            0.5,
            np.float32(0.5),
            torch.tensor(0.5),
        ):
            std = 0.25 if np.ndim(mean) == 0 else [0.25] * 3
            make = views("cld", size=8, scale=[0.3, 0.6], mean=mean, std=std)
            assert same(make(images, seeded()), plain(images, seeded()))


def test_no_small_crops_need_no_size():
    assert views("dclw-multicrop", size=1, crops=0).sizes == [1, 1]


@pytest.mark.parametrize("more", [(-1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1)])
def test_uniform_numbers_of_another_shape_are_refused(more):
    make = views("mocov2", size=24)
    wrong = [right + extra for right, extra in zip((6, 2, make.slots), more, strict=True)]
    shapes = rf"\(6, 2, {make.slots}\), not \({wrong[0]}, {wrong[1]}, {wrong[2]}\)"
    with pytest.raises(ValueError, match=f"uniform numbers .N,V,U. of shape {shapes}"):
        make.apply(photos(6), torch.rand(wrong))


WRONG = [
    ("simclr", torch.zeros(2, 3, 8, 8), "uint8 images of shape .N,C,H,W., not torch.float32"),
    ("simclr", photos(2)[0], "shape .N,C,H,W., not torch.uint8 of shape .3, 32, 32."),
    ("simclr", photos(2)[:, :, :0], "at least one channel and one pixel, but have the shape"),
    ("shapes", photos(2, 5), "mix draws weights for 3 channels but the images have 5"),
    ("eval", photos(2, 5), "normalisation has 3 means but the images have 5 channels"),
]


@pytest.mark.parametrize(("name", "images", "sentence"), WRONG)
def test_wrong_images_are_refused_when_called(name, images, sentence):
    with pytest.raises(ValueError, match=sentence):
        views(name, size=32)(images)


def test_images_of_other_channels_go_without_saturation_hue_and_greyscale():
    images = photos(4, 5).float() / 255
    drawn = torch.rand(4, 6)
    assert torch.equal(Jitter(0, 0, 0.8, 0.2)(images, drawn), images)
    assert torch.allclose(
        Jitter(0.8, 0.8, 0.8, 0.2)(images, drawn), Jitter(0.8, 0.8, 0, 0)(images, drawn)
    )
    assert not torch.equal(Jitter(0.8, 0.8, 0.8, 0.2)(images, drawn), images)
    made = views("mocov2", size=24, mean=(0.5,), std=(0.5,))(photos(4, 5))
    assert [tuple(view.shape) for view in made] == [(4, 5, 24, 24)] * 2


def test_a_blur_wider_than_the_view_is_refused():
    with pytest.raises(ValueError, match="13 taps needs views of more than 6 pixels"):
        views("mocov2", size=6)(photos())


# The views as a module, and computed in two parts (`cut`, then `finish`)


def test_large_batches_in_parts_give_the_same_views(monkeypatch):
    make, images = views("byol", size=24), photos(7)
    uniforms = make.draw(7, seeded())
    whole = make.apply(images, uniforms)
    monkeypatch.setattr("antipode.data.views.compute.CACHED", 2 * 3 * 24 * 24)
    for ours, theirs in zip(make.apply(images, uniforms), whole, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_no_images_make_empty_views():
    assert [tuple(view.shape) for view in views("simclr", size=16)(photos(0))] == [
        (0, 3, 16, 16)
    ] * 2


def test_autocast_changes_nothing():
    make, images = views("mocov2", size=24), photos()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = make(images, seeded())
    assert same(inside, make(images, seeded()))


def test_a_parents_apply_reaches_the_views():
    visited: list[str] = []
    parent = torch.nn.ModuleList([views("cld", size=8)])
    parent.apply(lambda module: visited.append(type(module).__name__))
    assert visited == ["Normalise", "Views", "ModuleList"]


@pytest.mark.parametrize("name", NAMES)
def test_cutting_and_finishing_is_applying(name):
    make, images = views(name, size=24, mean=(0.0,), std=(1.0,)), photos(5, 3, 40, 31)
    uniforms = make.draw(5, seeded())
    cuts = [make.cut(image, numbers) for image, numbers in zip(images, uniforms, strict=True)]
    made = make.finish([torch.stack(crops) for crops in zip(*cuts, strict=True)], uniforms)
    for ours, theirs in zip(made, make.apply(images, uniforms), strict=True):
        # `cut` rounds to uint8, and jitter and standardise amplify the difference
        assert (ours - theirs).abs().quantile(0.99) < 0.05
        assert (ours - theirs).abs().mean() < 0.01


def test_crops_on_the_host_are_the_devices_to_a_grey_level():
    for crop in (
        Crop(24, (0.08, 1.0), upend=0.5),
        Crop(24, (0.08, 1.0), upend=0.5, cubic=True),
        Centre(24, 28),
        Turn(180.0),
    ):
        images = photos(8, 3, 60, 45)
        unit = torch.rand(8, 24, generator=seeded())[:, : crop.slots]
        theirs = crop(images / 255, unit) * 255
        for i in range(8):
            ours = crop.cut(images[i : i + 1], unit[i : i + 1])
            assert ours.dtype == torch.uint8
            assert (ours[0] - theirs[i]).abs().max() <= 1.01


def test_views_is_exported_as_the_factory():
    assert isinstance(views("simclr", size=8), Views)


@pytest.mark.parametrize("name", ["simclr", "mocov2", "byol", "eval"])
def test_grey_images_need_no_mean_of_their_own(name):
    images = photos(4, 1)
    default = views(name, size=32)
    explicit = views(name, size=32, mean=(0.449,), std=(0.226,))
    pairs = zip(default(images, seeded()), explicit(images, seeded()), strict=True)
    for ours, theirs in pairs:
        assert ours.shape == (4, 1, 32, 32) and torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_crops_of_many_images_are_those_of_each(name):
    """All boxes are drawn at once, and no bit differs, also for very long images."""
    make = views(name, size=24)
    sizes = [(24, 30), (31, 17), (12, 12), (200, 5), (4, 90), (333, 500)] * 4
    images = [
        torch.randint(
            256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(n)
        )
        for n, size in enumerate(sizes)
    ]
    unit = make.draw(len(images), torch.Generator().manual_seed(0))
    out = [torch.zeros(len(images), 3, side, side, dtype=torch.uint8) for side in make.sizes]
    make.cut_all(images, unit, out)
    for row, image in enumerate(images):
        for view, crop in enumerate(make.cut(image, unit[row])):
            assert torch.equal(out[view][row], crop)


@pytest.mark.parametrize("name", ["mocov2", pytest.param("byol", marks=pytest.mark.slow), "eval"])
def test_the_operations_after_a_cut_compile_as_one_graph(name):
    make = views(name, size=24)
    crops = [torch.randint(256, (3, 3, side, side), dtype=torch.uint8) for side in make.sizes]
    unit = make.draw(3, seeded())
    traced = torch.compile(make.finish, fullgraph=True, dynamic=False, backend="eager")
    for ours, theirs in zip(traced(crops, unit), make.finish(crops, unit), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
