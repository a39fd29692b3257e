"""JCL's items: shared runs, and laws that fail on null models.

The supplement prints no accuracy, so the accuracies here are made up in line with its statements.
"""

import random
from functools import partial
from pathlib import Path

import pytest
import torch

from antipode.analysis.cost import kept_bytes
from antipode.analysis.geometry import similarity, variance
from antipode.core.scores import unit
from antipode.papers.jcl.analyses import KEYS, closed_form, vanilla
from antipode.papers.jcl.tables import (
    JCL,
    MEANS,
    MEMORY,
    MOCO,
    SETTINGS,
    TIME,
    TOP,
    VANILLA,
)
from antipode.recipe.resolve import resolve
from antipode.reproduction.catalog import items
from antipode.reproduction.item import EMPIRICAL, REFERENCE
from antipode.reproduction.plan import make_plan

NAMES = ("jcl.figM2a", "jcl.figM2b", "jcl.figM2c", "jcl.figM3", "jcl.complexity")
UNTRAINED = 38.0
REFERENCES = {(REFERENCE, "linear-fast", "top-1 (%)"): [UNTRAINED]}


def laws(name):
    return items()[name].laws_at("small")


def law_about(name, words):
    (law,) = [law for law in laws(name) if words in law.text]
    return law


def accuracies(row, **by_column):
    return {
        ("", row, float(x.removeprefix("x").replace("_", "."))): [y] for x, y in by_column.items()
    }


def claimed(name):
    """Return cells on which all claims of an item hold."""
    cells = {
        "jcl.figM2a": accuracies(JCL, x2=81.0, x5=82.0, x9=82.5)
        | accuracies(VANILLA, x2=80.0, x5=80.5, x9=81.0)
        | accuracies(MOCO, x1=80.0),
        "jcl.figM2b": accuracies(JCL, x0=81.0, x2=82.5, x4=82.0, x10=80.0),
        "jcl.figM2c": accuracies(JCL, x0_07=79.0, x0_2=82.0, x0_5=80.0),
        "jcl.figM3": {
            **view_cells(JCL, 0.8),
            **view_cells(MOCO, 0.7),
            **{(MEANS, row, TOP): [80.0] for row in (JCL, MOCO)},
        },
        "jcl.complexity": complexity(),
    }
    return cells[name] | REFERENCES


def view_cells(row, mean):
    """Return mean similarity and variance; of unit vectors they are one number (512 dimensions)."""
    return {(MEANS, row, "similarity"): [mean], (MEANS, row, "variance"): [(1 - mean) / 512]}


def complexity():
    """Return time and memory that are constant for the closed form and proportional to M'."""
    return {
        (panel, row, m): [1.0 + 0.02 * m if row == JCL else 0.5 + m]
        for panel in (TIME, MEMORY)
        for row in (JCL, VANILLA)
        for m in KEYS
    }


JUDGED = [pytest.param(name, law, id=f"{name}-{law.text}") for name in NAMES for law in laws(name)]


@pytest.mark.parametrize(("name", "law"), JUDGED)
def test_every_law_holds_where_the_claims_hold(name, law):
    assert law.scales == EMPIRICAL and law.source
    verdict = law.check(claimed(name))
    assert verdict.holds, verdict


@pytest.mark.parametrize("null", ["untrained", "ten", "chance"])
@pytest.mark.parametrize(
    ("name", "law"), [case for case in JUDGED if case.values[0] != "jcl.complexity"]
)
def test_no_law_holds_if_nothing_was_learned(name, law, null):
    draw = random.Random(0)
    numbers = {
        "untrained": lambda: UNTRAINED + draw.gauss(0, 0.3),
        "ten": lambda: 10.0,
        "chance": lambda: draw.uniform(5, 15),
    }
    for _ in range(5):
        cells = {
            place: [numbers[null]()] if place[0] == "" or place[2] == TOP else values
            for place, values in claimed(name).items()
        }
        verdict = law.check(cells | REFERENCES)
        assert not verdict.holds, verdict


# Figure M.2


def test_every_number_of_keys_counts_in_the_comparison_with_the_vanilla_loss():
    """A large loss at the largest M' outweighs gains at the others."""
    law = law_about("jcl.figM2a", "on average")
    assert law.headline
    cells = claimed("jcl.figM2a") | accuracies(VANILLA, x9=86.0)
    assert not law.check(cells).holds
    always = law_about("jcl.figM2a", "at every M'")
    slightly = claimed("jcl.figM2a") | accuracies(VANILLA, x9=82.6)
    assert law.check(slightly).holds and not always.check(slightly).holds


@pytest.mark.parametrize("name", ["jcl.figM2b", "jcl.figM2c"])
def test_an_argument_without_effect_has_no_best_value(name):
    law = law_about(name, "no other")
    equal = {place: [80.0] * 3 for place in claimed(name) if place[0] == ""} | REFERENCES
    assert not law.check(equal).holds
    lowest = min(place for place in equal if place[0] == "")
    assert law.check(equal | {lowest: [78.0] * 3}).holds


def test_jcl_is_compared_with_moco_v2_in_the_same_settings():
    law = law_about("jcl.figM2a", "MoCo v2")
    assert law.headline
    assert not law.check(claimed("jcl.figM2a") | accuracies(MOCO, x1=82.1)).holds
    recipes = {
        (trial.row, trial.column): resolve(trial.recipe, overrides=trial.overrides).leaves()
        for trial in items()["jcl.figM2a"].grids["small"].trials
        if ":" not in trial.recipe
    }
    moco, jcl = recipes[MOCO, 1], recipes[JCL, 5]
    differ = {key for key in moco.keys() & jcl.keys() if moco[key] != jcl[key]}
    assert differ == {"method.name", "views.views"}


@pytest.mark.parametrize(
    ("name", "at", "rival"), [("jcl.figM2b", "x4", "x10"), ("jcl.figM2c", "x0_2", "x0_07")]
)
def test_a_chosen_value_may_be_below_another_one_by_the_noise_only(name, at, rival):
    law = law_about(name, "no other")
    cells = claimed(name) | accuracies(JCL, **{at: 82.0, rival: 82.9})
    assert law.check(cells).holds
    assert not law.check(cells | accuracies(JCL, **{rival: 83.1})).holds


def test_a_variance_term_without_effect_does_not_help():
    law = law_about("jcl.figM2b", "helps")
    assert not law.check(claimed("jcl.figM2b") | accuracies(JCL, x0=82.0)).holds


@pytest.mark.parametrize("name", ["jcl.figM2a", "jcl.figM2b", "jcl.figM2c", "jcl.complexity"])
def test_one_argument_is_varied_and_the_others_are_those_of_table_1(name):
    for scale in ("smoke", *EMPIRICAL):
        for trial in items()[name].grids[scale].trials:
            if trial.recipe.endswith(".jcl") and trial.overrides.get("method.form") != "each":
                changed = {k for k, v in SETTINGS.items() if trial.overrides[k] != v}
                assert len(changed) <= 1


# Figure M.3


def views_of(kind, seed):
    """Return 32 views (V,N,D) of 64 images by a null model."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(32, 64, 512, generator=generator)
    return {
        "random": noise,
        "untrained": 1 + 0.1 * noise,  # all embeddings are nearly equal
        "collapsed": torch.ones(32, 64, 512),
    }[kind]


@pytest.mark.parametrize("kind", ["random", "untrained", "collapsed"])
@pytest.mark.parametrize("law", laws("jcl.figM3"), ids=lambda law: law.text)
def test_no_law_on_views_holds_between_two_null_models(kind, law):
    cells = claimed("jcl.figM3")
    for row, seed in ((JCL, 0), (MOCO, 1)):
        views = views_of(kind, seed)
        cells[MEANS, row, "similarity"] = [float(similarity(views).mean())]
        cells[MEANS, row, "variance"] = [float(variance(views).mean())]
    assert not law.check(cells).holds


@pytest.mark.parametrize("law", laws("jcl.figM3"), ids=lambda law: law.text)
def test_views_of_an_untrained_network_are_similar_and_do_not_count(law):
    """An untrained network in place of JCL's has a similarity near 1."""
    cells = claimed("jcl.figM3") | view_cells(JCL, 0.999)
    assert law.check(cells).holds
    assert not law.check(cells | {(MEANS, JCL, TOP): [UNTRAINED]}).holds


# Section 2


@pytest.mark.parametrize("law", laws("jcl.complexity"), ids=lambda law: law.text)
def test_no_law_on_complexity_holds_if_both_forms_cost_the_same(law):
    for cost in (lambda m: 1.0, float):
        cells = {place: [cost(place[2])] for place in complexity()}
        assert not law.check(cells).holds


def test_the_memory_of_both_forms_is_as_the_supplement_says():
    """At the sizes of scale small: 256 queries, 4,096 negatives, 128 dimensions."""
    cells = {}
    for m in (KEYS[0], KEYS[-1]):
        query = unit(torch.randn(256, 128)).requires_grad_()
        keys, negatives = unit(torch.randn(m, 256, 128)), unit(torch.randn(4096, 128))
        losses = {
            JCL: partial(closed_form, query, keys, negatives, 0.2, 4.0),
            VANILLA: partial(vanilla, query, keys, negatives, 0.2),
        }
        for row, loss in losses.items():
            cells[MEMORY, row, m] = [kept_bytes(loss, query, keys, negatives) / 2**20]
    for words in ("times the memory", "the memory of the vanilla loss grows"):
        verdict = law_about("jcl.complexity", words).check(cells)
        assert verdict.holds, verdict


# Runs


def folders(name):
    plan = make_plan(name, "small", Path("unused"), seeds=1, device="cpu")
    return {run.folder.name for run in plan.runs if run.recipe is not None}


def test_the_items_share_their_runs():
    runs = {name: folders(name) for name in NAMES}
    assert len(set().union(*runs.values())) == 12
    assert runs["jcl.complexity"] <= runs["jcl.figM2a"] & runs["jcl.figM2b"] & runs["jcl.figM2c"]
    assert runs["jcl.figM3"] <= runs["jcl.figM2a"]  # nine keys, and MoCo v2
