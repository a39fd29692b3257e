"""The evaluation transform of a run is what evaluation feeds the network."""

import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

import antipode
from antipode.data.loader import in_order
from antipode.data.sources.catalog import load
from antipode.evaluation.evaluate import task_for
from antipode.nets import weights
from antipode.nets.backbone import backbone
from antipode.nets.weight_file import About, Normal
from antipode.recipe.resolve import resolve
from antipode.runs.run import Run, opened

FIXTURES = Path(__file__).parents[1] / "fixtures"
NORMAL = Normal((0.3, 0.4, 0.5), (0.1, 0.2, 0.3))


def run_of(path, recipe, normal=None, channels=3, size=32, stem="small"):
    """Write a finished run that was not trained."""
    path.mkdir()
    overrides = {"backbone.name": "resnet10-slim", "backbone.stem": stem, "views.size": size}
    made = resolve(recipe, overrides=overrides)
    made.write(path / "recipe.json")
    policy = made.views.policy
    about = About("resnet10-slim", stem, channels, size, policy, normal)
    net = backbone("resnet10-slim", stem=stem, channels=channels)
    weights.write(net, path / "backbone.safetensors", about)
    return Run(path)


def photos(root, count=6):
    """Write photographs of different sizes into two class folders."""
    for index in range(count):
        folder = root / ("cat" if index % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        shape = (40 + 7 * index, 61 - 3 * index, 3)
        pixels = np.random.default_rng(index).integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).resize((shape[1], shape[0])).save(folder / f"{index}.png")
    return f"folder:{root}"


def fed(run, data):
    """Return what evaluation feeds the network, for the train images of a data set."""
    task = task_for(run, data, torch.device("cpu"), 0)
    batches = list(in_order(task.splits.train, task.eval_view, workers=0))
    ids = torch.cat([ids for _, ids in batches]).tolist()
    return ids, torch.cat([views for views, _ in batches])


@pytest.mark.parametrize("size", [24, 160])
def test_a_photograph_is_what_evaluation_feeds_the_network(tmp_path, size):
    """At 160 px and more, images are resized to more than the crop."""
    run = run_of(tmp_path / "run", "cifar10.simclr", NORMAL, size=size)
    data = photos(tmp_path / "photos")
    transform = run.transform()
    ids, views = fed(run, data)
    names = load(data).train.names
    for index, view in zip(ids, views, strict=True):
        with Image.open(tmp_path / "photos" / names[index]) as image:
            pixels = np.asarray(image)
            results = [transform(image), transform(pixels)]
        results.append(transform(torch.from_numpy(pixels.copy()).permute(2, 0, 1)))
        for result in results:
            assert result.shape == (3, size, size) and result.dtype == torch.float32
            assert torch.equal(result, view)


@pytest.mark.parametrize(
    ("recipe", "normal", "channels"),
    [("shapes.dcl", None, 3), ("digits.simclr", Normal((0.3,), (0.2,)), 1)],
)
def test_an_image_in_memory_is_what_evaluation_feeds_the_network(
    tmp_path, recipe, normal, channels
):
    data = recipe.partition(".")[0]
    size = {"shapes": 32, "digits": 8}[data]
    run = run_of(tmp_path / "run", recipe, normal, channels, size)
    transform = run.transform()
    images = load(data).train.images[:20]
    task = task_for(run, data, torch.device("cpu"), 0)
    (views,) = task.eval_view(images)
    for image, view in zip(images, views, strict=True):
        assert torch.allclose(transform(image), view, atol=1e-6)
        assert torch.allclose(transform(image.permute(1, 2, 0).numpy()), view, atol=1e-6)


def test_features_of_transformed_images_are_those_of_embed(tmp_path):
    run = run_of(tmp_path / "run", "cifar10.simclr", NORMAL, size=24)
    data = photos(tmp_path / "photos")
    transform = run.transform()
    net = run.backbone()
    splits = load(data)
    files = [tmp_path / "photos" / name for name in (*splits.train.names, *splits.test.names)]
    images = torch.stack([transform(Image.open(file)) for file in files])
    with torch.no_grad():
        features = net(images)
    assert torch.allclose(antipode.embed(run, data).x, features, atol=1e-5)


def test_grey_and_transparent_images_become_what_the_network_takes(tmp_path):
    transform = run_of(tmp_path / "run", "cifar10.simclr", NORMAL, size=8).transform()
    grey = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    colours = transform(np.repeat(grey[:, :, None], 3, 2))
    alpha = np.concatenate([np.repeat(grey[:, :, None], 3, 2), grey[:, :, None]], 2)
    for image in (grey, grey[:, :, None], alpha, Image.fromarray(grey), Image.fromarray(alpha)):
        assert torch.equal(transform(image), colours)
    assert torch.equal(transform(torch.from_numpy(grey)[None]), colours)
    assert torch.equal(transform(grey / 255), colours)
    expected = (torch.from_numpy(grey) / 255 - 0.3) / 0.1
    assert torch.allclose(colours[0], expected, atol=1e-6)


class Files(Dataset):
    """Your own data set, whose images are transformed by the workers of a DataLoader."""

    def __init__(self, images, transform):
        self.images = images
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index])


@pytest.mark.parametrize("recipe", ["shapes.dcl", "cifar10.simclr"])
def test_it_can_be_pickled(tmp_path, recipe):
    run = run_of(tmp_path / "run", recipe, None if "shapes" in recipe else NORMAL)
    transform = run.transform()
    again = pickle.loads(pickle.dumps(transform))
    image = torch.randint(0, 256, (3, 50, 41), dtype=torch.uint8)
    assert torch.equal(transform(image), again(image)) and repr(again) == repr(transform)
    assert repr(transform) == "Transform(size=32, channels=3)"


def test_workers_of_a_data_loader_can_use_it(tmp_path):
    transform = run_of(tmp_path / "run", "shapes.dcl").transform()
    images = torch.randint(0, 256, (6, 3, 40, 40), dtype=torch.uint8)
    loader = DataLoader(Files(images, transform), batch_size=3, num_workers=1)
    batches = torch.cat(list(loader))
    assert torch.equal(batches, torch.stack([transform(image) for image in images]))


WRONG = {
    "a number": (3, "is of the type int"),
    "a path": ("x.png", "is of the type str"),
    "a float tensor": (torch.zeros(3, 8, 8), r"is a tensor of torch.float32 and shape \(3, 8, 8\)"),
    "a batch": (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "is a tensor of torch.uint8"),
    "a batch in an array": (np.zeros((2, 8, 8, 3), np.uint8), r"has the shape \(2, 8, 8, 3\)"),
    "nothing": (np.zeros((0, 8, 3), np.uint8), r"has the shape \(0, 8, 3\)"),
    "no axes": (np.array(3), r"has the shape \(\)"),
    "channels first": (np.zeros((3, 8, 8), np.uint8), "has 8 channels, but 3 are expected"),
    "five channels": (torch.zeros(5, 8, 8, dtype=torch.uint8), "has 5 channels, but 3"),
    "floats beyond one": (np.full((8, 8, 3), 7.0), "has float64 values from 7.0 to 7.0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_an_image_is_a_sentence(tmp_path, case):
    value, sentence = WRONG[case]
    transform = run_of(tmp_path / "run", "cifar10.simclr", NORMAL).transform()
    with pytest.raises(ValueError, match=f"the image {sentence}") as error:
        transform(value)
    assert "\n" not in str(error.value)


def test_an_untrained_network_sees_images_as_those_of_its_data_set(tmp_path):
    run = opened("random:resnet10-slim", data="digits", out=tmp_path / "net")
    digits = load("digits")
    image = digits.train.images[5]
    expected = (image / 255 - digits.mean[0]) / digits.std[0]
    assert torch.allclose(run.transform()(image), expected, atol=1e-6)


def test_a_network_of_a_file_sees_images_as_its_run_did(tmp_path):
    run = run_of(tmp_path / "run", "cifar10.simclr", NORMAL, size=20)
    file = antipode.export(run, "safetensors", tmp_path / "r.safetensors")
    image = torch.randint(0, 256, (3, 50, 41), dtype=torch.uint8)
    foreign = opened(f"file:{file}@resnet10-slim", data="shapes", out=tmp_path / "net")
    assert torch.equal(foreign.transform()(image), run.transform()(image))
    assert (foreign.size, foreign.policy, foreign.normal) == (20, run.policy, run.normal)


def test_a_run_of_an_earlier_version_sees_images_as_those_of_its_data_set(tmp_path):
    """Such a run does not state how its pixels were normalised."""
    with tarfile.open(FIXTURES / "jcl.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    run = Run(tmp_path / "jcl")
    _, views = fed(run, None)
    images = load("digits").train.images
    for index in (0, 7, 100):
        assert torch.allclose(run.transform()(images[index]), views[index], atol=1e-6)


def test_your_own_data_set_needs_not_be_at_hand(tmp_path):
    pixels = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    overrides = {"views.size": 16, "views.scale": [0.5, 1.0], "backbone.stem": "small"}
    run = antipode.pretrain(
        method="simclr",
        data=TensorDataset(pixels),
        backbone="resnet10-slim",
        epochs=1,
        batch=20,
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
        overrides=overrides,
    )
    again = antipode.Run(run.path).transform()  # as another process opens it
    assert torch.equal(again(pixels[0]), run.transform()(pixels[0]))
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in antipode.Run(run.path).normal)
    assert torch.allclose(again(pixels[0]), (pixels[0] / 255 - mean) / std, atol=1e-6)
