"""A folder holds one kind of results: a run, a classifier or a sweep."""

import pytest

from tests.test_cli import call

RUN = "pretrain shapes.dcl --device cpu"
SWEEP = "sweep shapes.dcl --vary method.tau=.1"
ITEM = "reproduce dcl.fig1"
NETWORK = "evaluate random:resnet10-slim"


@pytest.mark.parametrize(
    ("mark", "kind", "commands"),
    [
        ("model.json", "a classifier", [RUN, f"{RUN} --overwrite", SWEEP, ITEM, NETWORK]),
        ("recipe.json", "a run", [SWEEP, ITEM]),
        ("network.json", "the scores of a network that no run trained", [SWEEP, ITEM]),
        ("sweep.json", "a sweep", [RUN, NETWORK]),
    ],
)
def test_a_folder_holds_one_kind_of_results(tmp_path, mark, kind, commands):
    """Training in the folder of a classifier once kept its score as that of the run."""
    (tmp_path / mark).write_text("{}")
    for command in commands:
        for plan in ([], ["--plan"]) if "evaluate" not in command else ([],):
            status, _, err = call([*command.split(), "--out", str(tmp_path), *plan])
            assert (status, err) == (
                2,
                f"antipode: {tmp_path} holds {kind}: choose another --out\n",
            )
    assert [path.name for path in tmp_path.iterdir()] == [mark]
