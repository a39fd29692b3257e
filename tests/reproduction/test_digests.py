"""The folder name of a planned run does not change, so that later versions find finished runs.

`tests/golden/digests.json` holds the digest of every listed recipe, most of them written at commit
dc86232, and the folder names of the runs of every item and scale with one seed each.
"""

import json
from pathlib import Path

import pytest

from antipode.recipe.resolve import resolve
from antipode.recipe.schema import Train
from antipode.reproduction import plan
from antipode.reproduction.catalog import items
from antipode.reproduction.plan import digest, make_plan

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "digests.json").read_text())

PINNED = {
    "cifar10.dcl-paper": "dfbf6db7a7",
    "imagenet.mocov2": "4e2778e892",
    "cifar10.msbreg": "a5a9ac53f9",
}


@pytest.mark.parametrize("name", PINNED)
def test_the_digest_of_a_recipe_is_pinned(name):
    assert digest(resolve(name)) == PINNED[name]


@pytest.mark.parametrize(
    "item", ["dcl.table1/small", "eqco.fig3/small", "adco.table5/small", "msbreg.table5/paper"]
)
def test_the_runs_of_an_item_keep_their_folders(item):
    name, scale = item.split("/")
    planned = make_plan(name, scale, Path("out"), seeds=1).runs
    assert [run.folder.name for run in planned] == GOLDEN["items"][item]


def test_the_digest_leaves_out_a_new_key_while_it_has_its_default(monkeypatch):
    """As if `train.keep` had been added after commit dc86232."""
    usual = resolve("digits.simclr")
    changed = resolve("digits.simclr", overrides={"train.keep": 9})
    before = {"usual": digest(usual), "changed": digest(changed)}
    monkeypatch.setitem(plan.NEW_KEYS, "train.keep", usual.train.keep)
    assert digest(usual) != before["usual"], "the key is left out"
    assert digest(changed) == before["changed"], "another value than the default is not"


class LaterTrain(Train):
    """The section `train` of a later version, with one more key."""

    added: bool = False


@pytest.mark.parametrize("name", PINNED)
def test_a_recipe_with_an_added_key_keeps_its_digest(name, monkeypatch):
    recipe = resolve(name)

    def later(**added):
        section = LaterTrain(**recipe.train.model_dump(), **added)
        return recipe.model_copy(update={"train": section})

    assert "train.added" in later().leaves()
    assert digest(later()) != PINNED[name], "a key that is not in NEW_KEYS counts"
    monkeypatch.setitem(plan.NEW_KEYS, "train.added", False)
    assert digest(later()) == PINNED[name]
    assert digest(later(added=True)) != PINNED[name]


@pytest.mark.slow
def test_every_listed_recipe_and_item_keeps_its_digest():
    assert {name: digest(resolve(name)) for name in GOLDEN["recipes"]} == GOLDEN["recipes"]
    for item, folders in GOLDEN["items"].items():
        name, scale = item.split("/")
        planned = make_plan(name, scale, Path("out"), seeds=1).runs
        assert [run.folder.name for run in planned] == folders, item


@pytest.mark.slow
def test_every_recorded_run_of_the_claims_is_still_planned():
    """Otherwise results would be lost without a word when an item or a recipe changes."""
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "claims.jsonl"
    recorded = {json.loads(line)["run"] for line in file.read_text().splitlines()}
    planned = {
        run.folder.name
        for name in items()
        for run in make_plan(name, "small", Path("out"), seeds=5).runs
    }
    assert recorded <= planned
