"""The name of a planned run does not change, so that finished runs are found by later versions.

`tests/golden/digests.json` was written at commit dc86232: the folder names of the runs of every item
and scale, one seed each, and the digest of every listed recipe.
"""

import json
from pathlib import Path

import pytest

from antipode.recipe.resolve import resolve
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
    plan = make_plan(name, scale, Path("out"), seeds=1)
    assert [run.folder.name for run in plan.jobs] == GOLDEN["items"][item]


@pytest.mark.slow
def test_every_listed_recipe_and_item_keeps_its_digest():
    assert {name: digest(resolve(name)) for name in GOLDEN["recipes"]} == GOLDEN["recipes"]
    for item, folders in GOLDEN["items"].items():
        name, scale = item.split("/")
        assert [
            run.folder.name for run in make_plan(name, scale, Path("out"), seeds=1).jobs
        ] == folders, item
