"""MSBReg's tables: their runs, and laws that hold in the paper and on no useless network."""

import random
from pathlib import Path

import pytest

from antipode.data.views.operation import Blur
from antipode.data.views.views import views
from antipode.papers.msbreg.ablation_table import OWN
from antipode.papers.msbreg.geometry_table import ACC, ALIGN, UNIFORM
from antipode.papers.msbreg.norm_table import (
    BYOL_KICKED,
    BYOL_LARGE,
    BYOL_LN,
    OURS_LN,
    SPREAD,
    TOP1,
)
from antipode.papers.msbreg.transfer_table import BB, MK, RANDOM
from antipode.recipe.resolve import resolve
from antipode.reproduction.catalog import items
from antipode.reproduction.item import EMPIRICAL, REFERENCE
from antipode.reproduction.plan import make_plan
from antipode.schedule import scaled

NAMES = [name for name in items() if name.startswith("msbreg.")]
UNTRAINED = 20.0  # accuracy of an untrained network, in these tests
SCRATCH = 31.0  # AP of a randomly initialised network, in these tests


def places(name, scale):
    """Return all places of an item. The curve of a spread has one point, at its last epoch."""
    trials = items()[name].grids[scale].trials
    found = [trial.place(measure) for trial in trials for measure in trial.measures]
    return [place if place[0] != SPREAD else (*place[:2], 50.0) for place in found]


def paper_cells(name, scale):
    """Return the paper's numbers in the places of a scale; the panel of our optimiser has them too.

    The accuracy of an untrained network, the AP of a randomly initialised one and the spread of
    embeddings are assumed.
    """
    paper = items()[name].paper
    cells = {}
    for panel, row, column in places(name, scale):
        if panel == REFERENCE:
            value = UNTRAINED
        elif row == RANDOM:
            value = SCRATCH
        elif panel == SPREAD:
            value = 0.01 if row in (BYOL_LN, BYOL_LARGE) else 0.8
        else:
            value = paper["" if panel == OWN else panel, row, column]
        cells[panel, row, column] = [value]
    return cells


def laws_of(name):
    return [(scale, law) for scale in EMPIRICAL for law in items()[name].laws_at(scale)]


LAWS = [
    pytest.param(name, scale, law, id=f"{name}-{scale}-{law.text[:60]}")
    for name in NAMES
    for scale, law in laws_of(name)
]


@pytest.mark.parametrize(("name", "scale", "law"), LAWS)
def test_every_law_holds_on_the_numbers_of_the_paper(name, scale, law):
    verdict = law.check(paper_cells(name, scale))
    assert verdict.holds, verdict
    assert law.source and law.paper


# alignment and uniformity of embeddings that say nothing
GEOMETRY = {
    "untrained": {ALIGN: 1e-3, UNIFORM: -2e-3},  # all embeddings are nearly equal
    "collapsed": {ALIGN: 0.0, UNIFORM: 0.0},
    "random vectors": {ALIGN: 2.0, UNIFORM: -3.93},
}


def null_cells(name, scale, kind, rng):
    """Return the cells of networks that have learned nothing, with noise over runs."""
    cells = {}
    for place in places(name, scale):
        if place[0] == REFERENCE:
            value = UNTRAINED
        elif place[2] in (ALIGN, UNIFORM):
            value = GEOMETRY[kind][place[2]] * (1 + rng.gauss(0, 0.01))
        elif place[0] == SPREAD:
            value = {"untrained": 0.2, "collapsed": 1e-4, "random vectors": 1.0}[kind]
        elif place[2] in (BB, MK):
            value = 10.0 if kind == "collapsed" else SCRATCH + rng.gauss(0, 0.3)
        else:
            base = UNTRAINED if kind == "untrained" else 10.0
            value = base + (0.0 if kind == "collapsed" else rng.gauss(0, 0.3))
        cells[place] = [value]
    return cells


@pytest.mark.parametrize("kind", GEOMETRY)
@pytest.mark.parametrize(("name", "scale", "law"), LAWS)
def test_no_law_holds_on_networks_that_have_learned_nothing(name, scale, law, kind):
    rng = random.Random(0)
    for _ in range(20):
        verdict = law.check(null_cells(name, scale, kind, rng))
        assert not verdict.holds, verdict


@pytest.mark.parametrize(("name", "scale", "law"), LAWS)
def test_no_law_holds_on_equally_good_networks_unless_it_bounds_a_cost(name, scale, law):
    cells = {
        place: [UNTRAINED if place[0] == REFERENCE else SCRATCH if place[1] == RANDOM else 80.0]
        for place in places(name, scale)
    } | {place: [0.8] for place in places(name, scale) if place[0] == SPREAD}
    assert law.check(cells).holds == ("costs" in law.text)


def test_every_table_has_laws_at_small_and_three_have_headlines():
    assert all(items()[name].laws_at("small") for name in NAMES)
    headlines = {name: [law.text for law in items()[name].laws if law.headline] for name in NAMES}
    assert [len(headlines[name]) for name in NAMES] == [0, 0, 2, 3]
    assert all("layer norm" in text for text in headlines["msbreg.table4"])


# Single laws


def law(name, words):
    (found,) = [law for law in items()[name].laws if words in law.text]
    return found


def test_the_rescue_from_collapse_needs_a_collapse():
    cells = paper_cells("msbreg.table4", "small")
    check = law("msbreg.table4", "prevents the collapse").check
    assert check(cells).holds
    healthy = check({**cells, (SPREAD, BYOL_LN, 50.0): [0.5]})
    assert not healthy.holds and "has not collapsed" in healthy.text
    assert not check({**cells, ("", BYOL_KICKED, TOP1): [25.0]}).holds


def test_msbreg_is_judged_with_layer_norm_whether_or_not_byol_collapses():
    cells = paper_cells("msbreg.table4", "small")
    check = law("msbreg.table4", "does not collapse").check
    assert check({**cells, ("", BYOL_LN, TOP1): [75.0]}).holds
    assert not check({**cells, ("", OURS_LN, TOP1): [25.0]}).holds
    assert not check({**cells, ("", OURS_LN, TOP1): [80.0]}).holds, (
        "eleven points are more than nine"
    )
    fallen = check({**cells, (SPREAD, OURS_LN, 50.0): [0.02]})
    assert not fallen.holds and "its spread is 0.020" in fallen.text


def test_a_collapsed_network_may_keep_what_an_untrained_one_has():
    """Logistic regression scores well where the paper's classifier is at chance."""
    check = law("msbreg.table4", "prevents the collapse").check
    cells = {**paper_cells("msbreg.table4", "small"), ("", BYOL_LN, TOP1): [45.0]}
    assert check(cells).holds


def test_a_law_on_uniformity_needs_networks_that_have_learned():
    check = law("msbreg.table3", "the uniformity term makes the predictions").check
    cells = paper_cells("msbreg.table3", "small")
    assert check(cells).holds and check(cells).word == "holds"
    fallen = {**cells, ("", "BYOL", ACC): [UNTRAINED], ("", "BYOL", UNIFORM): [0.0]}
    assert not check(fallen).holds and "above an untrained network" in check(fallen).text


def test_a_law_on_transfer_needs_more_than_a_random_start():
    check = law("msbreg.table2", "boxes better than BYOL").check
    cells = paper_cells("msbreg.table2", "small")
    assert check(cells).holds
    assert not check({**cells, ("", RANDOM, BB): [41.5]}).holds
    assert not check({**cells, ("", "BYOL", BB): [41.75]}).holds, "less than half of the gain"


def test_the_best_weights_are_judged_with_weights_beyond_them():
    for words, beyond in (
        ("up to lambda_s", ("", "K = 4, lambda_s = 0.01", "lambda_b = 0.5")),
        ("up to lambda_b", ("", "K = 4, lambda_s = 0.004", "lambda_b = 2")),
    ):
        check = law("msbreg.table5", words).check
        cells = paper_cells("msbreg.table5", "small")
        assert check(cells).holds
        assert not check({**cells, beyond: [80.5]}).holds


# Runs


def folders(name, scale):
    return {run.folder.name for run in make_plan(name, scale, Path("out"), seeds=1).runs}


@pytest.mark.parametrize("scale", EMPIRICAL)
def test_tables_3_and_5_share_all_runs_but_the_one_with_the_uniformity_term(scale):
    assert len(folders("msbreg.table3", scale) - folders("msbreg.table5", scale)) == 1


def test_scale_small_needs_26_trained_runs():
    runs = set().union(*(folders(name, "small") for name in NAMES))
    assert len([name for name in runs if not name.startswith("random-")]) == 26


def test_the_papers_settings_on_cifar10():
    recipes = {
        count: resolve("cifar10.msbreg-paper", overrides={"method.views": count})
        for count in (2, 4)
    }
    for count, recipe in recipes.items():
        group = recipe.optim["network"]
        assert (group.name, group.lr, group.rule, group.weight_decay) == (
            "lars",
            0.5,
            "views",
            1e-5,
        )
        assert group.exclude and group.clip is None and group.warmup == 10
        assert scaled(group.lr, group.rule, recipe.train.batch, count) == 0.5 * count
        assert recipe.views.policy == "msbreg" and recipe.method.arguments["brownian"] == 0.05
        assert (recipe.train.batch, recipe.backbone.name, recipe.views.size) == (
            256,
            "resnet18",
            32,
        )
    first, second = (recipe.leaves() for recipe in recipes.values())
    differ = {key for key in first if first[key] != second[key]}
    assert differ == {"method.views", "views.views"}


def test_the_blur_of_a_small_view_has_three_taps():
    for size, taps in ((32, 3), (96, 9), (224, 23)):
        (blur, *_) = [
            operation
            for operation in views("msbreg", size=size).policy[0].operations
            if isinstance(operation, Blur)
        ]
        assert (blur.p, blur.taps) == (1.0, taps)


def test_two_and_four_views_of_table_5_differ_in_nothing_else():
    trials = [t for t in items()["msbreg.table5"].grids["small"].trials if ":" not in t.recipe]
    for panel in ("", OWN):
        pairs = {}
        for trial in trials:
            recipe = resolve(trial.recipe, overrides=trial.overrides).leaves()
            weights = recipe["method.singular_value"], recipe["method.brownian"]
            if trial.panel == panel:
                pairs.setdefault(weights, []).append(recipe)
        compared = [pair for pair in pairs.values() if len(pair) == 2]
        assert len(compared) == (4 if panel == "" else 2)
        for a, b in compared:
            assert {key for key in a if a[key] != b[key]} == {"method.views", "views.views"}
