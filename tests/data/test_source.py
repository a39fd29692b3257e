"""Tests of sources of images, of wrapped torch Datasets and of their labels."""

import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset
from torchvision.transforms.v2 import functional as F

from antipode.data.sources import labels
from antipode.data.sources import source as source_module
from antipode.data.sources import wrap as wrap_module
from antipode.data.sources.catalog import load
from antipode.data.sources.source import BrokenImages, Decoded, Memory, centre, subset
from antipode.data.sources.wrap import wrap


class Listed(Dataset):
    """A Dataset of a list of items; an item that is an exception is raised."""

    def __init__(self, items, **attributes):
        self.items = items
        self.__dict__ |= attributes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if isinstance(self.items[index], Exception):
            raise self.items[index]
        return self.items[index]


def picture(size, seed=0):
    """Return a random Pillow image of (height, width)."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def test_memory_takes_by_index():
    images = torch.randint(256, (10, 3, 4, 4), dtype=torch.uint8)
    source = Memory(images, torch.arange(10))
    taken, labels = source.take(torch.tensor([7, 2]))
    assert torch.equal(taken, images[[7, 2]]) and labels.tolist() == [7, 2]
    assert (len(source), source.channels, source.size) == (10, 3, 4)


@pytest.mark.parametrize("kind", ["pillow", "array", "tensor", "float", "grey", "bare"])
def test_a_dataset_of_anything_like_images_is_wrapped(kind):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3), dtype=np.uint8)
    make = {
        "pillow": lambda p: (Image.fromarray(p), 1),
        "array": lambda p: (p, 1),
        "tensor": lambda p: (torch.from_numpy(p).permute(2, 0, 1), 1),
        "float": lambda p: (torch.from_numpy(p).permute(2, 0, 1) / 255, torch.tensor(1)),
        "grey": lambda p: (Image.fromarray(p[:, :, 0]), 1),
        "bare": Image.fromarray,
    }[kind]
    source = wrap(Listed([make(p) for p in pixels]))
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    images, labels = source.take(torch.tensor([3, 5]))
    assert torch.equal(images, expected[[3, 5], :1] if kind == "grey" else expected[[3, 5]])
    assert labels is None if kind == "bare" else labels.tolist() == [1, 1]


def test_a_tensor_dataset_is_wrapped_by_load():
    images = torch.randint(256, (5, 6, 8, 8), dtype=torch.uint8)
    splits = load(TensorDataset(images, torch.arange(5)))
    assert torch.equal(splits.pretrain.images, images)
    assert splits.channels == 6 and len(splits.mean) == 6
    assert splits.train.labels.tolist() == [0, 1, 2, 3, 4] and splits.test is None


def test_images_of_several_sizes_stay_a_dataset():
    data = Listed([(picture((20 + i, 30)), i) for i in range(4)], targets=[0, 1, 2, 3])
    source = wrap(data)
    assert isinstance(source, Decoded) and source.labels.tolist() == [0, 1, 2, 3]
    assert source.take(torch.tensor([0, 3]))[0].shape == (2, 3, 20, 20)


def test_a_broken_item_gives_way_to_the_next_and_is_counted_once():
    data = Listed(
        [(picture((20, 30)), 0), RuntimeError("disk"), KeyError("x"), (picture((20, 31), 3), 3)],
        targets=[0, 1, 2, 3],
    )
    source = wrap(data)
    with pytest.warns(BrokenImages, match="image 1 cannot be read"):
        images, labels = source.take(torch.tensor([1]))
    assert labels.tolist() == [3] and torch.equal(images[0], centre(source.read(3), 20))
    assert set(source.failed) == {"image 1", "image 2"}
    source.take(torch.tensor([1]))
    assert len(source.failed) == 2


def test_many_broken_images_in_a_row_are_an_error(monkeypatch):
    monkeypatch.setattr(source_module, "TRIES", 5)
    data = Listed(
        [(picture((20, 30)), 0), (picture((21, 30)), 0), *[OSError("gone")] * 20], targets=[0] * 22
    )
    with pytest.raises(ValueError, match="5 images in a row cannot be read, the first: image 2"):
        wrap(data).take(torch.tensor([2]))


def test_a_dataset_without_length_or_images_is_refused():
    with pytest.raises(ValueError, match="Listed has no items"):
        wrap(Listed([]))
    with pytest.raises(ValueError, match="IterableDataset"):
        wrap(type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(())})())
    with pytest.raises(ValueError, match="a str, not a Pillow image"):
        wrap(Listed(["hello"]))


def test_grey_among_coloured_pictures_becomes_coloured_and_a_broken_first_item_is_survived():
    grey, coloured = picture((20, 30)).convert("L"), picture((21, 30))
    source = wrap(Listed([OSError("gone"), grey, coloured, grey], targets=[0, 1, 2, 3]))
    assert source.channels == 3 and source.read(1).shape == (3, 20, 30)
    source = wrap(Listed([grey] * 20 + [coloured], targets=[0] * 21))
    assert source.channels == 1 and source.read(20).shape == (1, 21, 30)


def test_labels_that_cannot_be_known_are_said_to_be(monkeypatch):
    monkeypatch.setattr(wrap_module, "RESIDENT", 0)
    monkeypatch.setattr(labels, "MAX_READS", 2)
    sentence = "has no `targets`, and 3 items are too many to read for their labels .at most 2."
    with pytest.warns(UserWarning, match=sentence):
        assert wrap(Listed([(picture((20, 30)), 0)] * 3)).labels is None
    assert wrap(Listed([(picture((20, 30)), 4)] * 2)).labels.tolist() == [4, 4]


def test_labels_of_images_of_unequal_sizes_are_read_from_the_items():
    items = [(picture((20 + index, 30)), index % 3) for index in range(6)]
    assert wrap(Listed(items)).labels.tolist() == [0, 1, 2, 0, 1, 2]
    joined = ConcatDataset([Listed(items, targets=[5] * 6), Listed(items, targets=[7] * 6)])
    # the stored labels are used, and the items are not read
    assert wrap(joined).labels.tolist() == [5] * 6 + [7] * 6
    # the next image replaces the broken one; after the last image this is the first
    broken = wrap(Listed([*items, OSError("gone")]))
    assert broken.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert wrap(Listed(items), ask=False).labels is None
    first, *rest = items
    assert wrap(Listed([(first[0], None), *rest])).labels.tolist() == [-1, 1, 2, 0, 1, 2]


def test_names_have_one_number_in_train_and_test():
    def named(*names, **more):
        return Listed([(torch.zeros(3, 4, 4, dtype=torch.uint8), name) for name in names], **more)

    splits = load((named("cat", "dog", "owl"), named("owl", "dog", "emu")))
    assert splits.train.classes == splits.test.classes == ["cat", "dog", "owl", "emu"]
    assert splits.train.labels.tolist() == [0, 1, 2]
    assert splits.test.labels.tolist() == [2, 1, 3]
    # two ImageFolders with different class folders
    train = named(0, 1, 2, classes=["cat", "dog", "owl"])
    test = named(0, 1, classes=["dog", "owl"])
    assert load((train, test)).test.labels.tolist() == [1, 2]
    test.classes = ["dog"]  # class 1 has no name, so the labels stay as they are
    assert load((train, test)).test.labels.tolist() == [0, 1]
    sentence = "do not match: one has rows of 2 classes, the other has the class index 3"
    with pytest.raises(ValueError, match=sentence):
        load((named([1, 1], [0, 1]), named(0, 3)))
    # an image of the second has two classes, so both get rows
    splits = load((named([1, 0], [0, 1]), named([1, 1], [0, 1])))
    assert splits.train.labels.tolist() == [[1, 0], [0, 1]]
    assert splits.test.labels.tolist() == [[1, 1], [0, 1]]


def test_a_second_view_is_no_label():
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    assert wrap(Listed([(image, image)] * 3)).labels is None
    assert wrap(Listed([(picture((20, 30)), picture((20, 30)))] * 3)).labels is None


def test_many_labels_are_taken_at_once():
    """A tensor for each of a million labels would take seconds."""
    start = time.perf_counter()
    numbers, _ = labels.to_numbers(list(range(1000)) * 500, None)
    assert len(numbers) == 500_000 and time.perf_counter() - start < 2


def test_centre_is_resize_and_centre_crop():
    image = torch.randint(256, (3, 300, 400), dtype=torch.uint8)
    expected = F.center_crop(F.resize(image, [256], antialias=True), [224, 224])
    assert torch.equal(centre(image, 224), expected)
    assert centre(torch.zeros(3, 20, 2000, dtype=torch.uint8), 224).shape == (3, 224, 224)


def test_a_subset_keeps_images_and_labels_together():
    memory = Memory(torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1), torch.arange(12))
    part = subset(memory, torch.tensor([5, 1]))
    assert part.images.flatten().tolist() == [5, 1] and part.labels.tolist() == [5, 1]
    lazy = wrap(Listed([(picture((20 + i, 30), i), i) for i in range(4)], targets=[0, 1, 2, 3]))
    part = subset(lazy, torch.tensor([2, 0]))
    assert torch.equal(part.read(0), lazy.read(2)) and list(part.names) == ["image 2", "image 0"]


def labelled(*labels, **more):
    """Return a wrapped Dataset of black images with these labels."""
    return wrap(
        Listed([(torch.zeros(3, 4, 4, dtype=torch.uint8), label) for label in labels], **more)
    )


def test_labels_may_be_names_or_one_hot_rows():
    named = labelled("cat", "ant", "cat", None)
    assert named.labels.tolist() == [1, 0, 1, -1] and named.classes == ["ant", "cat"]
    assert labelled(*torch.eye(3)[[2, 0, 1]]).labels.tolist() == [2, 0, 1]
    # the first image has two classes
    assert labelled([1, 1, 0], [0, 0, 1]).labels.tolist() == [[1, 1, 0], [0, 0, 1]]
    assert labelled(0, 0, targets=["b", "a"]).labels.tolist() == [1, 0]
    assert labelled(0, 0, targets=np.eye(3)[[2, 0]]).labels.tolist() == [2, 0]
    # `targets` is a single number, not one for each image, and is ignored
    assert labelled(4, 5, targets=np.array(3)).labels.tolist() == [4, 5]
    assert labelled(torch.tensor(3), torch.tensor([4])[0]).labels.tolist() == [3, 4]


@pytest.mark.parametrize("odd", [{"boxes": 1}, 0.5, object()], ids=["dict", "fraction", "object"])
def test_labels_of_another_type_are_reported_and_not_used(odd):
    sentence = rf"but one is the {type(odd).__name__} .*; the labels are not used"
    with pytest.warns(UserWarning, match=sentence):
        source = labelled(odd, odd)
    assert source.labels is None and len(source) == 2


def test_the_first_image_follows_the_last_one():
    """Damaged images at the end of a source are replaced by those at its beginning."""

    def image(index):
        if index >= 4:
            raise ValueError("is broken")
        return torch.full((3, 8, 8), index, dtype=torch.uint8)

    source = Decoded(image, [f"{at}.png" for at in range(6)])
    at, pixels, failures = source.read_or_next(4)
    assert (at, int(pixels[0, 0, 0])) == (0, 0)
    assert [failure.name for failure in failures] == ["4.png", "5.png"]
