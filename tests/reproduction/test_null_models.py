"""No law of any item holds on a null model: random vectors, an untrained or a collapsed network."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch

from antipode import rng
from antipode.analysis import contrast
from antipode.analysis.catalog import analyses
from antipode.analysis.embeddings import RunEmbeddings, ViewEmbeddings
from antipode.analysis.formulas import information, query_terms
from antipode.core.scores import unit
from antipode.papers import sketch
from antipode.recipe.resolve import resolve
from antipode.reproduction.catalog import items
from antipode.reproduction.collect import points
from antipode.reproduction.item import REFERENCE

NULLS = ("random", "untrained", "collapsed")
DRAWS = 3  # of the noise in the numbers
DIM = 64
IMAGES = 1100  # more than the largest batch of DCL's figure 1
UNTRAINED = 45.0  # accuracy of an untrained network in %
SPREAD = {"random": 1.0, "untrained": 0.2, "collapsed": 1e-4}
ACCURACY = {"random": 10.0, "untrained": UNTRAINED, "collapsed": 10.0}


@pytest.fixture(autouse=True)
def fewer_queries(monkeypatch):
    """An eighth of the queries is enough to tell a null model from a trained one."""
    monkeypatch.setattr(contrast, "QUERIES", (128, 128))


def vectors(null, n, views, generator):
    """Return unit embeddings (V,N,D) of a null model."""
    if null == "random":
        return unit(torch.randn(views, n, DIM, generator=generator))
    centre = torch.ones(DIM)
    if null == "collapsed":
        return unit(centre + 1e-4 * torch.randn(views, n, DIM, generator=generator))
    # in an untrained network all images are close, and the views of one image slightly closer
    images = 0.2 * torch.randn(n, DIM, generator=generator)
    return unit(centre + images + 0.2 * torch.randn(views, n, DIM, generator=generator))


class Null(RunEmbeddings):
    """The embeddings of a null model in place of a run's."""

    def embed_views(self, ids, views, *args, **options):
        generator = rng.generator(self.seed, "null", int(ids[0]), len(ids))
        x = vectors(self.name, len(ids), views, generator)
        return ViewEmbeddings(x, x, x, x)

    @property
    def epoch(self):
        return 0.0

    def history(self, most):
        return [self]

    def rows(self):
        """Return the log of a training that changes nothing."""
        count = int(self.run.arguments.get("negatives") or 256)
        queries, keys = self.embed_views(torch.arange(4200), 2).query
        terms = query_terms(queries[:512], keys[None], count, self.tau)
        bound = information(terms, count, self.alpha)
        noise = rng.normal(rng.key(self.seed, "log"), 20).tolist()
        rows = [{"epoch": epoch, "step": epoch} for epoch in range(20)]
        return [
            row | {"mi_bound": bound + 0.01 * shift, "contrast": -bound - 0.01 * shift}
            for row, shift in zip(rows, noise, strict=True)
        ]


def subject(null, trial, seed):
    recipe = resolve(trial.recipe, overrides=trial.overrides)
    learner = sketch(recipe.method.name, recipe.method.arguments)
    run = SimpleNamespace(
        recipe=recipe,
        arguments=recipe.method.arguments,
        environment={},
        module=None,
        metrics=list,
        folder=None,
    )
    splits = SimpleNamespace(pretrain=range(IMAGES), test=None, name="null", channels=3)
    device = torch.device("cpu")
    return Null(run, null, learner, splits, None, None, device, seed=seed)


@cache
def analysed(null, name, recipe, overrides, seed):
    """Return the result of an analysis of a null model."""
    trial = SimpleNamespace(recipe=recipe, overrides=dict(overrides))
    (result,) = analyses()[name].run([subject(null, trial, seed)])
    return result


def picked(result, pick):
    """Return what a measure picks; all checkpoints of a null model are equal."""
    part, _, name = pick.partition(".")
    return result[part].get(name, result[part].get(name.partition(", epoch")[0]))


# A null model has nothing that a bank, a clock or a memory counter could measure: all numbers are
# equal.
CONSTANT = {"bank": 0.0, "cost": 1.0, "jcl-complexity": 1.0}


def numbers(null, trial, measure, seed, shift):
    """Yield x and value of what a measure finds on a null model; `shift` is noise."""
    is_reference = trial.recipe.startswith("random:")
    if measure.kind in ("score", "scenes"):
        accuracy = UNTRAINED if is_reference else ACCURACY[null]
        yield None, accuracy + (0.0 if null == "collapsed" else 0.3 * shift)
    elif measure.kind == "metric":
        for epoch in range(1, 21):
            yield float(epoch), SPREAD[null] if measure.name == "spread" else 0.3 * shift
    elif measure.kind == "parameters":
        yield None, 1.0
    elif measure.name in CONSTANT:
        is_curve = measure.pick.startswith("curves")
        for x in (1.0, 2.0, 5.0, 10.0) if is_curve else (None,):
            yield x, CONSTANT[measure.name]
    else:
        overrides = tuple((key, freeze(value)) for key, value in trial.overrides.items())
        result = analysed(null, measure.name, trial.recipe, overrides, seed)
        yield from points(picked(result, measure.pick))


def freeze(value):
    return tuple(value) if isinstance(value, list) else value


def cells_of(null, name, scale, draw):
    """Return cells for all places of an item, as a null model fills them."""
    trials = items()[name].grids[scale].trials
    noise = iter(rng.normal(rng.key(draw, name, null), 1000).tolist())
    cells = {}
    for index, trial in enumerate(trials):
        for measure in trial.measures:
            panel, row, column = trial.place(measure)
            # a run and its rival have different seeds, so that their analyses differ by chance
            for x, value in numbers(null, trial, measure, index, next(noise)):
                cells.setdefault((panel, row, column if x is None else x), []).append(value)
    return cells


CASES = [
    pytest.param(name, scale, null, id=f"{name}-{scale}-{null}")
    for name, item in items().items()
    for scale in ("smoke", "small")
    for null in NULLS
    if item.laws_at(scale)
]


@pytest.mark.parametrize(("name", "scale", "null"), CASES)
def test_no_law_holds_on_a_null_model(name, scale, null):
    for draw in range(DRAWS):
        cells = cells_of(null, name, scale, draw)
        for law in items()[name].laws_at(scale):
            verdict = law.check(cells)
            assert not verdict.holds, (law.text, verdict)


@pytest.mark.parametrize("name", items())
def test_every_item_has_laws_at_the_small_scale(name):
    assert items()[name].laws_at("small")


@pytest.mark.parametrize("name", items())
def test_laws_on_accuracies_have_an_untrained_network_to_compare_with(name):
    item = items()[name]
    panels = {panel.name for panel in item.panels}
    for scale in ("small", "paper"):
        measured = {
            trial.place(measure)[0]
            for trial in item.grids[scale].trials
            for measure in trial.measures
        }
        assert (REFERENCE in measured) <= (REFERENCE in panels)
