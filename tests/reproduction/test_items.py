"""The items: complete at all scales, with recipes that resolve and the numbers of the papers."""

from pathlib import Path

import pytest
import torch

from antipode.analysis.catalog import analyses
from antipode.evaluation.protocol import protocols
from antipode.optim import make
from antipode.papers.dcl.tables import SAME
from antipode.recipe.resolve import resolve
from antipode.reproduction.catalog import items
from antipode.reproduction.item import REFERENCE, SCALES, table, transpose
from antipode.reproduction.scenes import SLIM

PROMISED = """adco.table5 adco.cost adco.multicrop
eqco.table1 eqco.table2 eqco.table3 eqco.table4 eqco.table5 eqco.table6 eqco.table7 eqco.table8
eqco.fig1 eqco.fig2 eqco.fig3 eqco.fig4
dcl.table1 dcl.table2 dcl.table3 dcl.table4 dcl.fig1 dcl.fig3 dcl.fig4
jcl.figM2a jcl.figM2b jcl.figM2c jcl.figM3 jcl.complexity
msbreg.table2 msbreg.table3 msbreg.table4 msbreg.table5""".split()


def trials(name, scale):
    return items()[name].grids[scale].trials


def trained(name, scale):
    """Return the trials that train a network."""
    return [trial for trial in trials(name, scale) if ":" not in trial.recipe]


def places(name, scale):
    """Return the places of a scale's numbers, without the scores of an untrained network.

    The columns of curves are not known in advance.
    """
    found = {trial.place(measure) for trial in trials(name, scale) for measure in trial.measures}
    return {place for place in found if place[0] != REFERENCE}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("name", "without", "with_it"), [("dcl.fig3", "mocov1", "dcl"), ("dcl.table4", "mocov2", "dcl")]
)
def test_moco_with_and_without_dcl_differ_in_the_loss_alone(name, without, with_it, scale):
    recipes = {}
    for trial in trained(name, scale):
        recipe = resolve(trial.recipe, overrides=trial.overrides).leaves()
        if recipe["method.name"] == without or recipe.get("method.base") == without:
            recipes.setdefault(recipe["method.name"], []).append(recipe)
    assert len(recipes[without]) == len(recipes[with_it]) > 1
    for plain, decoupled in zip(recipes[without], recipes[with_it], strict=True):
        other = {key for key in plain.keys() & decoupled.keys() if plain[key] != decoupled[key]}
        assert other == {"method.name"}, other


def test_the_items_are_those_of_the_papers():
    assert sorted(items()) == sorted(PROMISED)


@pytest.mark.parametrize("name", items())
def test_every_item_has_three_scales_a_question_and_a_source(name):
    item = items()[name]
    assert tuple(sorted(item.grids)) == tuple(sorted(SCALES))
    assert item.question.endswith("?") and item.source and item.trend and item.title
    for scale in SCALES:
        assert item.grids[scale].trials and item.grids[scale].note and item.grids[scale].seeds >= 1
    assert item.grids["smoke"].seeds == 1 and item.grids["small"].seeds == 3


@pytest.mark.parametrize("paper", ["adco", "eqco", "dcl", "jcl", "msbreg"])
def test_every_recipe_of_every_scale_resolves_and_its_optimisers_can_be_made(paper):
    distinct = {
        (trial.recipe, repr(trial.overrides)): trial
        for name in items()
        if name.startswith(paper)
        for scale in SCALES
        for trial in trials(name, scale)
    }
    for trial in distinct.values():
        if ":" in trial.recipe:
            assert (
                trial.recipe.split(":")[0] in ("random", "torchvision")
                and trial.overrides["data.name"]
            )
        else:
            recipe = resolve(trial.recipe, overrides=trial.overrides)
            assert recipe.train.epochs >= 1
            for spec in recipe.optim.values():
                settings = {
                    key: getattr(spec, key)
                    for key in ("name", "lr", "momentum", "weight_decay", "nesterov", "variant")
                }
                make([torch.nn.Parameter(torch.zeros(2, 2))], **settings)


@pytest.mark.parametrize("name", items())
def test_each_scale_trains_on_the_data_it_promises(name):
    assert {trial.recipe.split(".")[0] for trial in trials(name, "smoke")} <= {
        "digits",
        "shapes",
        "random:resnet10-slim",
    }
    assert {trial.recipe.split(".")[0] for trial in trials(name, "small")} <= {
        "cifar10",
        "random:resnet18",
    }
    large = {
        "imagenet",
        "imagenet100",
        "cifar10",
        "cifar100",
        "stl10",
        "random:resnet18",
        "random:resnet50",
        "torchvision:resnet50",
    }
    assert {trial.recipe.split(".")[0] for trial in trials(name, "paper")} <= large


@pytest.mark.parametrize("name", items())
def test_what_is_measured_is_known_and_goes_into_a_panel(name):
    item = items()[name]
    panels = {panel.name: panel.kind for panel in item.panels}
    assert len(panels) == len(item.panels)
    known = {
        "score": protocols(),
        "analysis": analyses(),
        "scenes": SLIM,
        "metric": {"knn", "bank_drift", "spread"},
        "parameters": {"backbone"},
    }
    for scale in SCALES:
        for trial in trials(name, scale):
            assert trial.measures
            for measure in trial.measures:
                assert measure.name in known[measure.kind], measure
                panel, _, column = trial.place(measure)
                assert panel in panels
                if panels[panel] == "curve" and measure.kind == "score":
                    assert isinstance(column, int | float)
    assert {place[0] for place in item.paper} <= set(panels)
    assert set(item.sources) <= set(item.paper)


# rows and columns that the paper quotes from other papers, or that no run here trains
QUOTED = {
    "eqco.table2": {
        *(
            "LocalAgg, 200 epochs",
            "CPC v2, 200 epochs",
            "CMC, 240 epochs",
            "PIRL, 800 epochs",
            "SimCLR, 1000 epochs",
        ),
    },
    "dcl.table2": {"MoCo + CLD", "NPID + CLD", "Exemplar"},
    "msbreg.table2": {"VICReg", "SwAV", "BarlowTwins", "OBoW"},
}
# panels, rows and columns where the paper's table has no number: cells that it leaves empty, and
# what we add to it
UNPRINTED = {
    ("adco.table5", "SimSiam"),
    ("dcl.table2", "Inv. Spread"),
    ("adco.table5", "drift of the bank"),
    ("adco.table5", "AdCo, 65,536 negatives that stand still"),
    ("msbreg.table4", "spread of the embeddings"),
    ("adco.table5", "repulsion of a query"),
    ("msbreg.table2", "random init"),
    ("msbreg.table5", "our optimiser"),
}


@pytest.mark.parametrize("name", [name for name in items() if "table" in name])
def test_the_grid_of_the_paper_fills_the_places_of_its_table(name):
    ours, paper = places(name, "paper"), set(items()[name].paper)
    quoted = {place for place in paper if QUOTED.get(name, set()) & set(place)}
    assert paper - ours == quoted
    beyond = {
        place for place in ours - paper if not any((name, part) in UNPRINTED for part in place)
    }
    if name == "dcl.table1":  # two of its four parts are not legible in our copy of the paper
        sets = {place[0].partition(" ")[0] for place in beyond}
        assert sets == {"CIFAR100", "STL10"}
    else:
        assert not beyond


@pytest.mark.parametrize("name", [name for name in items() if "table" in name])
@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_smaller_scales_stand_in_places_of_the_paper(name, scale):
    ours, paper = places(name, scale), set(items()[name].paper)
    beyond = {
        place for place in ours - paper if not any((name, part) in UNPRINTED for part in place)
    }
    # the queues of eqco.table6 at scale smoke are smaller than any of the paper's
    assert not beyond or (name, scale) == ("eqco.table6", "smoke")


# x of the curves of all items: batch sizes, numbers of negatives, epochs
POINTS = (*(4.0**power for power in range(11)), *(2.0 * 4.0**power for power in range(6)), 5.0, 9.0)


@pytest.mark.parametrize("name", items())
@pytest.mark.parametrize("scale", SCALES)
def test_every_law_can_be_judged_from_the_places_of_its_scale(name, scale):
    """Every place gets some number; a law that reads a place that no run fills raises KeyError."""
    item = items()[name]
    cells = {}
    for trial in trials(name, scale):
        for measure in trial.measures:
            panel, row, column = trial.place(measure)
            curve = measure.kind == "metric" or measure.pick.startswith(("curves", "histograms"))
            for x in POINTS if curve else (column,):
                cells.setdefault((panel, row, x), []).append(1.0)
    for law in item.laws_at(scale):
        assert law.check(cells).text


def test_theory_is_asked_of_every_scale_and_experience_is_not_asked_of_smoke():
    theory = {name for name, item in items().items() if item.laws_at("smoke")}
    assert theory == {"eqco.fig1", "eqco.fig4", "dcl.fig1"}
    for item in items().values():
        assert len(item.laws_at("small")) >= len(item.laws_at("smoke"))


def test_without_eqco_means_alpha_equal_to_the_negatives():
    for name in ("eqco.fig1", "eqco.fig2", "eqco.fig3"):
        for scale in SCALES:
            for trial in trials(name, scale):
                if trial.recipe.startswith("random:"):
                    continue
                alpha = trial.overrides["method.alpha"]
                count = trial.overrides["method.negatives"]
                if count is None:  # all of the batch, which is the end point of both curves
                    continue
                if "without EqCo" in (trial.panel, trial.row):
                    assert alpha == count
                else:
                    assert alpha >= count


def test_dcls_baseline_differs_from_dcl_in_nothing_but_the_method():
    a = resolve("imagenet.simclr", overrides=SAME).leaves()
    b = resolve("imagenet.dcl").leaves()
    differ = {key for key in a | b if a.get(key) != b.get(key)}
    # DCL also has the arguments of other bases, which are None here
    assert {key for key in differ if b.get(key) is not None} == {
        "method.name",
        "method.base",
        "method.crops",
    }
    assert b["method.base"] == "simclr" and b["method.crops"] == 0


@pytest.mark.parametrize("scale", SCALES)
def test_both_lines_of_dcls_figure_3_have_the_batch_or_queue_they_stand_at(scale):
    for trial in trained("dcl.fig3", scale):
        recipe = resolve(trial.recipe, overrides=trial.overrides)
        queue = recipe.method.arguments.get("queue")
        assert (recipe.train.batch if trial.panel == "SimCLR" else queue) == trial.column, trial


def test_byol_in_msbregs_tables_is_msbreg_with_two_views_and_no_regulariser():
    (byol, *_) = trials("msbreg.table3", "paper")
    assert byol.row == "BYOL"
    recipe = resolve(byol.recipe, overrides=byol.overrides)
    arguments = recipe.method.arguments
    assert arguments["views"] == 2
    assert arguments["singular_value"] == arguments["brownian"] == arguments["uniform"] == 0


def test_turning_exchanges_rows_and_columns():
    before = trials("dcl.table3", "small")
    assert [(trial.column, trial.row) for trial in before] == [
        (t.row, t.column) for t in transpose(before)
    ]


def test_a_table_leaves_out_what_the_paper_leaves_out():
    assert table({"a": {1: 2.0, 2: None}}, "p") == {("p", "a", 1): 2.0}


# the same numbers, typed a second time from the papers
ADCO = """SimCLR 67.0 1.92 | MoCo v2 67.5 2.12 | BYOL 70.6 4.10 | AdCo, 65,536 negatives 68.6 2.26
AdCo, 16,384 negatives 68.6 2.24 | AdCo, 8,192 negatives 68.4 2.24
AdCo, symmetric, 65,536 negatives 70.6 3.50
AdCo, symmetric, 16,384 negatives 70.2 3.46
AdCo, symmetric, 8,192 negatives 70.2 3.45"""
MSBREG5 = """
2 0 0 71.9 4 0 0 78.2 8 0 0 79.5
2 0 0.25 72.3 4 0 0.25 79.1 8 0 0.25 80.1
2 0 0.5 72.8 4 0 0.5 79.7 8 0 0.5 80.3
2 0 1.0 72.3 4 0 1.0 79.2 8 0 1.0 80.3
2 0 2.0 71.9 4 0 2.0 79.0 8 0 2.0 80.2
2 0.002 0 72.2 4 0.002 0 78.9 8 0.002 0 79.8
2 0.002 0.25 72.4 4 0.002 0.25 78.8 8 0.002 0.25 80.2
2 0.002 0.5 72.4 4 0.002 0.5 79.1 8 0.002 0.5 80.9
2 0.002 1.0 72.1 4 0.002 1.0 79.2 8 0.002 1.0 81.1
2 0.002 2.0 71.9 4 0.002 2.0 79.2 8 0.002 2.0 80.8
2 0.004 0 72.8 4 0.004 0 79.7 8 0.004 0 80.0
2 0.004 0.25 72.8 4 0.004 0.25 80.2 8 0.004 0.25 80.9
2 0.004 0.5 72.4 4 0.004 0.5 80.4 8 0.004 0.5 81.6
2 0.004 1.0 72.1 4 0.004 1.0 80.1 8 0.004 1.0 81.5
2 0.004 2.0 71.2 4 0.004 2.0 79.9 8 0.004 2.0 81.3
2 0.01 0 71.1 4 0.01 0 79.3 8 0.01 0 79.9
2 0.01 0.25 71.0 4 0.01 0.25 79.4 8 0.01 0.25 81.2
2 0.01 0.5 71.0 4 0.01 0.5 79.2 8 0.01 0.5 81.4
2 0.01 1.0 70.7 4 0.01 1.0 79.2 8 0.01 1.0 81.1
2 0.01 2.0 70.3 4 0.01 2.0 79.0 8 0.01 2.0 79.8
"""


def test_adcos_table_5_as_printed():
    paper = items()["adco.table5"].paper
    lines = [part.strip() for line in ADCO.splitlines() for part in line.split("|")]
    for line in lines:
        row, accuracy, hours = line.rsplit(" ", 2)
        assert paper["", row, "Top-1 Acc."] == float(accuracy)
        assert paper["", row, "(GPU x Time)/epoch"] == float(hours)
    # SimSiam has no time
    assert sum(column != "Batch Size" for _, _, column in paper) == 2 * len(lines) + 1


def test_msbregs_table_5_as_printed():
    paper = items()["msbreg.table5"].paper
    numbers = [float(x) for x in MSBREG5.split()]
    assert len(numbers) == 60 * 4 and len(paper) == 60
    for at in range(0, len(numbers), 4):
        views, singular, brownian, accuracy = numbers[at : at + 4]
        row = f"K = {views:g}, lambda_s = {singular:g}"
        assert paper["", row, f"lambda_b = {brownian:g}"] == accuracy


@pytest.mark.parametrize(
    ("name", "row", "numbers"),
    [
        ("eqco.table1", "Top-1 accuracy (%)", "67.5 67.5 67.4"),
        ("eqco.table3", "Accuracy (%)", "62.1 64.4"),
        ("eqco.table4", "Accuracy (%)", "58.8 64.4"),
        ("eqco.table5", "Accuracy (%)", "68.0 68.1 68.1 68.4 68.5 68.3"),
        ("eqco.table6", "Accuracy (%)", "67.0 67.1 67.6 67.3 67.5 67.4"),
        ("eqco.table7", "ResNet-50 (2x)", "70.2 70.5 94"),
        ("eqco.table7", "ResNet-50 (4x)", "71.9 72.3 375"),
        ("eqco.table8", "random init", "31.4 49.4 34.0 17.9 32.3 41.6"),
        ("eqco.table8", "supervised", "39.0 59.1 42.6 22.4 42.2 50.6"),
        ("eqco.table8", "MoCo v2", "39.1 59.2 42.5 23.3 42.1 50.8"),
        ("eqco.table8", "SiMo", "39.0 59.2 42.3 22.9 41.8 50.5"),
        ("eqco.table2", "SiMo (K = 16, alpha = 256), 200 epochs", "68.1"),
        ("eqco.table2", "SiMo (K = 256, alpha = 256), 200 epochs", "68.0"),
        ("eqco.table2", "SiMo (K = 256, alpha = 65536), 200 epochs", "68.5"),
        ("eqco.table2", "SiMo (K = 256, alpha = 256), 800 epochs", "71.8"),
        ("eqco.table2", "SiMo (K = 256, alpha = 65536), 800 epochs", "72.1"),
        ("eqco.table2", "MoCo v2, 800 epochs", "71.1"),
        ("eqco.table2", "PIRL, 800 epochs", "63.6"),
        ("dcl.table2", "CIFAR10", "81.4 82.1 87.5 80.8 86.7 83.6 76.5 84.1 87.8"),
        ("dcl.table2", "CIFAR100", "52.0 53.1 58.1 51.6 57.5 54.9 58.8"),
        ("dcl.table2", "STL10", "77.3 80.8 84.3 79.1 83.6 81.6 79.3 81.2 84.1"),
        ("dcl.table3", "CIFAR10", "81.8 84.2 84.8"),
        ("dcl.table3", "CIFAR100", "51.8 54.6 54.9"),
        ("dcl.table3", "ImageNet-100", "79.3 81.9 82.8"),
        ("dcl.table3", "ImageNet-1K", "61.8 65.9 66.9"),
        ("dcl.table4", "100 epoch", "57.5 64.6 63.6 64.4"),
        ("dcl.table4", "200 epoch", "61.8 65.9 67.5 67.7"),
        ("msbreg.table2", "SwAV", "41.6 37.8"),
        ("msbreg.table2", "BYOL", "41.6 37.2"),
        ("msbreg.table2", "Ours (K = 4)", "41.8 37.8"),
        ("msbreg.table3", "BYOL", "71.9 0.25 -1.52"),
        ("msbreg.table3", "BYOL+L_uniform", "72.1 0.27 -2.95"),
        ("msbreg.table3", "BYOL+L_b+L_s", "72.8 0.26 -2.92"),
        ("msbreg.table3", "Ours (K = 4)", "80.4 0.36 -3.8"),
        ("msbreg.table4", "BYOL, LN, 1024, lambda_b 0", "10.6"),
        ("msbreg.table4", "Ours, LN, 256, lambda_b 5e-3", "82.3"),
        ("msbreg.table4", "Ours, BN, 256, lambda_b 5e-2", "91.4"),
        ("msbreg.table4", "BYOL + L_b, LN, 256, lambda_b 5e-3", "75.3"),
    ],
)
def test_a_row_of_a_table_as_printed(name, row, numbers):
    printed = [value for place, value in items()[name].paper.items() if place[1] == row]
    assert printed == [float(x) for x in numbers.split()]


@pytest.mark.parametrize(
    ("panel", "row", "numbers"),
    [
        ("ImageNet-100 (linear)", "SimCLR", "74.2 77.6 79.3 80.7 81.3"),
        ("ImageNet-100 (linear)", "SimCLR w/ DCL", "80.8 82.0 81.9 83.1 82.8"),
        ("CIFAR10 (kNN)", "SimCLR", "78.9 80.4 81.1 81.4 81.3"),
        ("CIFAR10 (kNN)", "SimCLR w/ DCL", "83.7 84.4 84.4 84.2 83.5"),
    ],
)
def test_dcls_table_1_as_printed(panel, row, numbers):
    paper = items()["dcl.table1"].paper
    assert [paper[panel, row, size] for size in (32, 64, 128, 256, 512)] == [
        float(x) for x in numbers.split()
    ]


def test_the_numbers_of_figures_are_those_the_texts_state():
    """DCL, section 4.2, has the numbers below.

    SimCLR: 61.8 and 65.9 at batch size 256, 65.1 and 66.1 at 1024. MoCo: 54.7 and 60.8 with 256
    keys, and losses of 5.9 and .4 points.
    """
    paper = items()["dcl.fig3"].paper
    assert (paper["SimCLR", "without DCL", 256], paper["SimCLR", "with DCL", 256]) == (61.8, 65.9)
    assert (paper["SimCLR", "without DCL", 1024], paper["SimCLR", "with DCL", 1024]) == (65.1, 66.1)
    for row, loss in (("without DCL", 5.9), ("with DCL", 0.4)):
        assert paper["MoCo", row, 65536] - paper["MoCo", row, 256] == pytest.approx(loss)
    assert paper["MoCo", "without DCL", 256] == 54.7 and paper["MoCo", "with DCL", 256] == 60.8
    moco = items()["eqco.fig2"].paper
    assert (moco["MoCo", "without EqCo", 256], moco["MoCo", "without EqCo", 65536]) == (54.7, 60.6)
    for name in (
        "eqco.fig1",
        "eqco.fig3",
        "eqco.fig4",
        "dcl.fig1",
        "dcl.fig4",
        "jcl.figM2a",
        "jcl.figM3",
    ):
        assert not items()[name].paper, "the paper only draws them, so no number may be invented"


def test_the_page_has_a_line_for_every_item():
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    rows = [f"| `{name}` | {item.question} |" for name, item in sorted(items().items())]
    assert "\n".join(rows) in page, "\n".join(rows)
