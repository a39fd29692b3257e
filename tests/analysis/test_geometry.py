"""Tests of the similarity and variance of views, of histograms and of curves."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from antipode.analysis import geometry
from antipode.analysis.embeddings import ViewEmbeddings
from antipode.analysis.result import curve, histogram
from antipode.files import finite


def views(v=5, n=4, d=7):
    return torch.randn(v, n, d, dtype=torch.float64)


def test_similarity_and_variance_are_the_naive_ones():
    x = views()
    alike, spread = geometry.similarity(x), geometry.variance(x)
    for i in range(4):
        z = x[:, i] / x[:, i].norm(dim=1, keepdim=True)
        cosines = [float(z[a] @ z[b]) for a in range(5) for b in range(5)]  # self-pairs included
        assert float(alike[i]) == pytest.approx(sum(cosines) / 25)
        mean = z.mean(0)
        covariance = sum(torch.outer(row - mean, row - mean) for row in z) / 5
        assert float(spread[i]) == pytest.approx(float(covariance.diagonal().mean()))


def test_the_two_panels_of_the_figure_carry_the_same_information():
    x = views(32, 50, 12)
    assert torch.allclose(geometry.variance(x), (1 - geometry.similarity(x)) / 12, atol=1e-14)


def test_equal_views_are_alike_and_have_no_variance():
    x = views(1).expand(6, -1, -1)
    assert torch.allclose(geometry.similarity(x), torch.ones(4).double())
    assert torch.allclose(geometry.variance(x), torch.zeros(4).double(), atol=1e-15)


def subject(views, predictor=None):
    """Return the parts of a run that the figures read, with these embeddings of its images."""
    ids = torch.arange(views.head.shape[1])
    return SimpleNamespace(
        splits=SimpleNamespace(pretrain=ids),
        recipe=SimpleNamespace(views=SimpleNamespace(policy="none")),
        learner=SimpleNamespace(predictor=predictor),
        count=lambda source, caps: len(source),
        draw=lambda n: ids[:n],
        pairs=lambda: (ids, views),
        embed_views=lambda part, count, salt, keys: ViewEmbeddings(*(x[:, part] for x in views)),
        settings=lambda **settings: settings,
    )


def test_the_histograms_of_similarity_and_variance_are_mirror_images():
    """variance = (1 - similarity) / D, and the ranges are [0, 1] and [0, 1/D]."""
    noise = torch.linspace(0.1, 2, 60, dtype=torch.float64)[:, None]
    parts = {}
    for name, d in (("backbone", 12), ("head", 5)):
        parts[name] = torch.randn(60, d, dtype=torch.float64) + noise * views(8, 60, d)
    embeddings = ViewEmbeddings(**parts, query=parts["head"], keys=parts["head"])
    histograms = geometry.similarity_variance(subject(embeddings))["histograms"]
    for name, d in (("backbone", 12), ("head", 5)):
        alike, spread = (histograms[f"{what}, {name}"] for what in ("similarity", "variance"))
        assert alike["edges"] == pytest.approx([place / 100 for place in range(101)])
        assert spread["edges"] == pytest.approx([place / 100 / d for place in range(101)])
        assert spread["counts"] == alike["counts"][::-1] and sum(spread["counts"]) == 60
        assert sum(count > 0 for count in spread["counts"]) > 20  # they are spread over the range


def test_the_uniformity_of_pairs_is_the_mean_over_the_first_and_the_second_views():
    """Uniformity is -4 for orthogonal vectors and 0 for equal ones.

    Of four vectors, two are opposite to the other two: a third of the pairs has the squared
    distance 0, and two thirds have the squared distance 4.
    """
    orthogonal = 3 * torch.eye(4, dtype=torch.float64)
    equal = torch.full((4, 4), 0.2, dtype=torch.float64)
    opposite = equal * torch.tensor([1.0, 1.0, -1.0, -1.0])[:, None]
    views = ViewEmbeddings(
        backbone=torch.stack([orthogonal, equal]),
        head=torch.stack([equal, orthogonal]),
        query=torch.stack([opposite, orthogonal]),
        keys=torch.stack([equal, equal]),
    )
    two_and_two = math.log(1 / 3 + 2 / 3 * math.exp(-8))
    expected = {
        "alignment, backbone": 1,  # the cosine of the two views is 1/2
        "uniformity, backbone": -2,
        "alignment, head": 1,
        "uniformity, head": -2,
    }
    assert geometry.alignment_uniformity(subject(views))["values"] == pytest.approx(expected)
    expected["alignment, prediction"] = 2  # the cosine is 1/2 for two images and -1/2 for two
    expected["uniformity, prediction"] = (two_and_two - 4) / 2
    with_predictor = subject(views, predictor=torch.nn.Identity())
    assert geometry.alignment_uniformity(with_predictor)["values"] == pytest.approx(expected)


def test_a_histogram_counts_every_value_once():
    values = torch.tensor([0.0, 0.1, 0.25, 0.5, 0.99, 1.0, 1.0000001, -1e-9])
    found = histogram(values, 0, 1, "x", bins=4)
    assert found == {"edges": [0, 0.25, 0.5, 0.75, 1], "counts": [3, 1, 1, 3], "xlabel": "x"}


def test_a_histogram_is_numpy_s():
    values = torch.rand(1000, dtype=torch.float64) * 2 - 1
    counts, edges = np.histogram(values.numpy(), bins=100, range=(-1, 1))
    found = histogram(values, -1, 1, "x")
    assert found["counts"] == counts.tolist() and found["edges"] == pytest.approx(edges.tolist())


def test_json_gets_no_number_that_it_does_not_know():
    assert finite({"a": [1.0, float("nan"), {"b": float("inf")}], 3: (2,)}) == {
        "a": [1.0, None, {"b": None}],
        "3": [2],
    }


WRONG = {
    "empty histogram": (lambda: histogram(torch.empty(0), 0, 1, "x"), "0 values"),
    "range upside down": (lambda: histogram(torch.ones(3), 1, 0, "x"), r"\[1, 0\]"),
    "curve of two lengths": (lambda: curve([1, 2], [1.0], "x", "y"), "1 and 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence(name):
    call, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        call()
