"""Tests of the built-in data set of shapes."""

import torch
import torch.nn.functional as F

from antipode.data.sources import shapes
from antipode.data.sources.catalog import load


def test_shapes_are_a_function_of_seed_and_split():
    images, labels = shapes.draw(100, seed=3, split="train")
    again, _ = shapes.draw(100, seed=3, split="train")
    assert torch.equal(images, again)
    assert images.shape == (100, 3, 32, 32) and images.dtype == torch.uint8
    assert not torch.equal(images, shapes.draw(100, seed=4, split="train")[0])
    assert not torch.equal(images, shapes.draw(100, seed=3, split="test")[0])
    assert labels.bincount().tolist() == [10] * 10


def test_every_kind_has_an_inside_and_an_outside():
    grid = torch.linspace(-1.5, 1.5, 61)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    for name, distance in shapes.KINDS.items():
        share = (distance(x[None], y[None]) < 0).float().mean().item()
        assert 0.05 < share < 0.5, (name, share)


def test_distances_never_grow_faster_than_the_way_itself():
    """A signed distance has a gradient of at most 1; otherwise edges are jagged or blurred."""
    grid = torch.linspace(-1.5, 1.5, 301)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    for name, distance in shapes.KINDS.items():
        field = distance(x[None], y[None])[0]
        steepest = max(field.diff(dim=0).abs().max().item(), field.diff(dim=1).abs().max().item())
        assert steepest <= 0.0101, (name, steepest)


def test_raw_pixels_tell_little_of_the_kind():
    splits = load("shapes")
    bank, test = (
        F.normalize(part.images.flatten(1).float() - 127.5) for part in (splits.train, splits.test)
    )
    similarity, index = (test @ bank.T).topk(200)
    votes = torch.zeros(len(test), 10).scatter_add_(
        1, splits.train.labels[index], (similarity / 0.07).exp()
    )
    accuracy = (votes.argmax(1) == splits.test.labels).float().mean().item()
    assert len(splits.train) == 5000 and len(splits.test) == 1000
    assert 0.12 < accuracy < 0.22
