"""Tests of the parts of the report: reading, curves, groups of seeds, warnings and pictures."""

import base64
import io
import itertools
import json
import math
import statistics
from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image

from antipode.data.loader import Loader
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.data.views.views import views
from antipode.recipe.parsing import nest
from antipode.recipe.recipe import Recipe
from antipode.recipe.resolve import resolve
from antipode.recipe.schema import SECTIONS
from antipode.reporting import provenance, seed_groups
from antipode.reporting.analyses import drawable
from antipode.reporting.curves import curves, explained, once, thin
from antipode.reporting.geometry import histograms, spectrum
from antipode.reporting.head import hero
from antipode.reporting.images import neighbours, same, view_sheet
from antipode.reporting.pictures import Album, sample
from antipode.reporting.summary import gather as gather_runs
from antipode.reporting.summary import names, steps_per_epoch, training_seconds
from antipode.reporting.thumbnails import atlas, tile
from antipode.reporting.warnings import warnings
from antipode.runs.log import read_log
from antipode.runs.run import Run
from tests.reporting.runs import ENV, SMALL, rows, run, score


def pixels(uri):
    kind, _, content = uri.partition(";base64,")
    assert kind in ("data:image/webp", "data:image/png")
    return Image.open(io.BytesIO(base64.b64decode(content)))


def tensor(uri):
    """Return the picture as uint8 (3,H,W)."""
    return torch.from_numpy(np.array(pixels(uri).convert("RGB"))).permute(2, 0, 1)


def gather(paths):
    return gather_runs([Run(path) for path in paths])


def opened(path):
    """Return one run as the page opens it."""
    return gather([path])[0]


def images(n, channels=3, side=32):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, channels, side, side), dtype=torch.uint8, generator=generator)


# ---- curves


@pytest.mark.parametrize(
    ("n", "most"), [(5, 300), (300, 300), (301, 300), (10_000, 300), (77, 10), (50, 4)]
)
def test_thinning_keeps_ends_and_extremes_in_order_and_within_bounds(n, most):
    values = torch.randn(n, generator=torch.Generator().manual_seed(n)).tolist()
    kept = thin(values, most)
    assert kept == sorted(set(kept)) and len(kept) <= most
    assert {0, n - 1} <= set(kept)
    assert {min(values), max(values)} <= {values[at] for at in kept}
    if n <= most:
        assert kept == list(range(n))


def test_a_lone_spike_survives_thinning():
    values = [0.0] * 5000
    values[3217] = 9.0
    assert 3217 in thin(values, 300)


def test_curves_hold_finite_numbers_only_and_share_their_steps():
    log = [
        {"step": 0, "epoch": 0, "loss": 1.0, "a": 2.0},
        {"step": 1, "epoch": 0, "loss": None, "a": float("nan")},
    ]
    log += [{"step": 2, "epoch": 0, "loss": 0.5, "a": 1.0, "knn": 3.0}, {"epoch": 0, "loss": 7.0}]
    found = curves(read_log([log]), 300)
    assert found["x"] == [[0, 2], [2]]
    assert found["y"] == {"loss": [0, [1.0, 0.5]], "knn": [1, [3.0]], "a": [0, [2.0, 1.0]]}


def test_a_contrast_that_is_the_loss_is_not_drawn_twice():
    log = [{"step": at, "loss": 1.0 / (at + 1), "contrast": 1.0 / (at + 1)} for at in range(3)]
    alike = curves(read_log([log]), 300)["y"]
    other = curves(read_log([[row | {"contrast": 7.0} for row in log]]), 300)["y"]
    once([other, alike])  # the loss of only one of the two runs is its contrast
    assert list(other) == list(alike) == ["loss", "contrast"]
    once([alike])
    assert list(alike) == ["loss"]


# ---- reading


def test_names_are_the_shortest_tails_that_differ(tmp_path):
    assert names([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert names([tmp_path / "a" / "x", tmp_path / "b" / "y"]) == ["x", "y"]


def test_a_run_that_is_given_twice_is_one(tmp_path):
    path = run(tmp_path / "r", trained=False)
    assert len(gather([path, tmp_path / "." / "r"])) == 1
    other = run(tmp_path / "other", trained=False)
    assert [one.label for one in gather([path, other, path])] == ["r", "other"]


def test_a_run_that_has_been_opened_is_read_again(tmp_path):
    mine = Run(run(tmp_path / "r", trained=False, scores={"knn": score(1.0)}))
    first = gather_runs([mine])[0]
    (mine.path / "scores.json").write_text(json.dumps({"knn": score(2.0)}))
    with (mine.path / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": 40, "epoch": 4, "loss": 1.0}) + "\n")
    again = gather_runs([mine])[0]
    assert again.shown_scores["knn"]["value"] == 2.0 and again.log.lines == first.log.lines + 1
    assert mine.label == "r" and again is not mine


@pytest.mark.parametrize("file", ["recipe.json", "scores.json", "analysis.json", "env.json"])
def test_a_damaged_file_is_refused_by_name(tmp_path, file):
    path = run(tmp_path / "r", trained=False)
    (path / file).write_text("{")
    with pytest.raises(ValueError, match=f"{file} is not JSON"):
        opened(path)
    (path / file).write_text("[1]")
    with pytest.raises(ValueError, match=f"{file} must hold a JSON object"):
        opened(path)


def test_time_is_that_of_the_steps(tmp_path):
    one = opened(run(tmp_path / "r", trained=False))
    assert training_seconds(one) == pytest.approx(
        40 * 16 / 160
    )  # 40 steps of 16 images at 160 images per second
    assert steps_per_epoch(one) == pytest.approx(10, abs=1)


def test_a_finished_run_has_the_exact_number_of_steps_per_epoch(tmp_path):
    path = run(tmp_path / "r", log=rows(40, every=3), trained=False)  # the last step is 39
    (path / "backbone.safetensors").touch()
    assert steps_per_epoch(opened(path)) == 10


def test_an_unfinished_run_estimates_the_steps_per_epoch_by_its_first_line_of_an_epoch(tmp_path):
    # step 12 is the first line of epoch 1, and step 21 that of epoch 2: min(12 / 1, 21 / 2)
    log = rows(24, every=3)
    assert steps_per_epoch(opened(run(tmp_path / "r", log=log, trained=False))) == 10.5
    # step 6 is the last line of a run that is still in its first epoch
    first = opened(run(tmp_path / "first", log=rows(9, every=3), trained=False))
    assert steps_per_epoch(first) == 7


def test_training_time_counts_the_steps_between_two_lines_at_the_speed_of_the_later_one(tmp_path):
    speeds = {0: 160.0, 10: 80.0, 30: 320.0}
    log = [
        {"step": step, "epoch": step // 10, "loss": 1.0, "images_per_second": speed}
        for step, speed in speeds.items()
    ]
    log += [{"step": 35, "epoch": 3, "knn": 50.0}]  # a line without a speed takes no time
    one = opened(run(tmp_path / "r", log=log, trained=False))
    # 1, 10 and 20 steps of 16 images
    assert training_seconds(one) == pytest.approx(16 / 160 + 160 / 80 + 320 / 320)


def test_the_speed_at_the_top_of_the_page_is_the_median_of_the_log(tmp_path):
    log = [
        {"step": step, "epoch": 0, "loss": 1.0, "images_per_second": speed}
        for step, speed in enumerate([700.0, 90.0, 110.0, 120.0, 20.0])  # the mean is 208
    ]
    runs = gather([run(tmp_path / "r", log=log, trained=False)])
    page = hero(runs, [Album()], seed_groups.groups(runs), seed_groups.columns(runs))
    assert "<dt>Images per second</dt><dd>110</dd>" in page


# ---- scores over seeds


def test_runs_that_differ_only_by_seed_are_one_setting_with_mean_and_sample_spread(tmp_path):
    values = [50.0, 52.0, 57.0]
    paths = [
        run(tmp_path / f"s{s}", seed=s, scores={"knn": score(v)}, trained=False)
        for s, v in enumerate(values)
    ]
    other = run(
        tmp_path / "other", scores={"knn": score(40.0)}, trained=False, **{"method.tau": 0.5}
    )
    records = gather([*paths, other])
    groups, columns = seed_groups.groups(records), seed_groups.columns(records)
    assert [group.runs for group in groups] == [[0, 1, 2], [3]]
    assert groups[1].label == "dcl, tau 0.5"
    cell = seed_groups.cells(groups[0], records, columns)[0]
    assert (cell["mean"], cell["n"]) == (statistics.mean(values), 3)
    assert cell["std"] == pytest.approx(math.sqrt(sum((v - 53) ** 2 for v in values) / 2))
    assert seed_groups.cells(groups[1], records, columns)[0]["std"] is None


def test_a_run_that_was_repeated_is_no_second_seed(tmp_path):
    values = {"a": (0, 60.0), "again": (0, 62.0), "b": (1, 65.0)}
    for name, (seed, value) in values.items():
        run(tmp_path / name, seed=seed, scores={"knn": score(value)}, trained=False)
    records = gather([tmp_path / name for name in values])
    columns = seed_groups.columns(records)
    (group,) = seed_groups.groups(records)
    assert seed_groups.cells(group, records, columns)[0] == {
        "mean": 63.0,
        "std": statistics.stdev([61.0, 65.0]),
        "n": 2,
    }


def test_what_decides_no_weight_does_not_make_a_setting(tmp_path):
    paths = [
        run(tmp_path / str(every), trained=False, **{"monitor.log_every": every})
        for every in (1, 5)
    ]
    assert len(seed_groups.groups(gather(paths))) == 1


def test_scores_on_other_images_do_not_share_a_column(tmp_path):
    scores = [
        score(50.0),
        score(60.0) | {"split": "val"},
        score(70.0, n=10),
        score(80.0) | {"data": "shapes"},
    ]
    paths = [
        run(tmp_path / f"s{s}", seed=s, scores={"knn": one}, trained=False)
        for s, one in enumerate(scores)
    ]
    assert len(seed_groups.columns(gather(paths))) == 4


def test_what_a_protocol_finds_for_each_run_does_not_part_its_seeds(tmp_path):
    scores = [score(50.0, penalty=0.1), score(60.0, penalty=0.2)]
    paths = [
        run(tmp_path / f"s{s}", seed=s, scores={"knn": one}, trained=False)
        for s, one in enumerate(scores)
    ]
    records = gather(paths)
    (column,) = seed_groups.columns(records)
    assert seed_groups.settings(column, records) == {"k": 200, "penalty": "varies"}


def test_the_headline_is_an_accuracy_that_most_runs_have(tmp_path):
    odd = {
        "value": 0.1,
        "unit": "nats",
        "protocol": "alignment-uniformity",
        "data": "digits",
        "n": 9,
    }
    scores = [
        {"alignment-uniformity": odd, "knn": score(1.0)},
        {"alignment-uniformity": odd, "knn": score(2.0)},
    ]
    scores[0]["linear"] = score(3.0, protocol="linear")
    paths = [
        run(tmp_path / f"s{s}", seed=s, scores=one, trained=False) for s, one in enumerate(scores)
    ]
    records = gather(paths)
    columns = seed_groups.columns(records)
    assert columns[seed_groups.headline(columns, records)].name == "knn"
    assert seed_groups.headline([], records) is None


def test_of_two_scores_the_headline_is_the_one_on_the_runs_own_data(tmp_path):
    found = {
        "linear@shapes": score(3.0, protocol="linear") | {"data": "shapes"},
        "knn20": score(1.0, protocol="knn20"),
    }
    records = gather([run(tmp_path / "r", scores=found, trained=False)])
    columns = seed_groups.columns(records)
    assert columns[seed_groups.headline(columns, records)].name == "knn20"


def test_other_budgets_are_named_between_methods_too(tmp_path):
    paths = [
        run(tmp_path / name, method=name, trained=False, **{"train.epochs": n})
        for name, n in BUDGETS.items()
    ]
    records = gather(paths)
    assert "train.epochs" in seed_groups.distinguishing_keys(
        records
    ) and "train.batch" not in seed_groups.distinguishing_keys(records)
    assert [group.label for group in seed_groups.groups(records)] == [
        "dcl, epochs 4",
        "simclr, epochs 8",
    ]


BUDGETS = {"dcl": 4, "simclr": 8}


# ---- provenance


def test_the_recipe_shows_what_differs_from_the_default_and_nothing_else(tmp_path):
    usual = json.loads(json.dumps(resolve(method="dcl", data="digits").leaves()))
    same = {"method.dim": usual["method.dim"]}  # given by the user, and equal to the default
    one = opened(run(tmp_path / "r", trained=False, **{"method.tau": 0.7}, **same))
    table = provenance.recipe_rows(one)
    replaced = {row[0]: row[3][0] for row in table if len(row) > 3}
    assert {"method.tau", "train.epochs", "train.batch"} <= set(replaced)
    assert {key: usual[key] for key in replaced} == replaced == one.replaced
    assert all(value != replaced[key] for key, value, *_ in table if key in replaced)
    given = {*SMALL, "train.seed", "method.tau", "method.dim"}
    assert set(replaced) == {key for key in given if usual[key] != one.values[key]}
    assert all(row[2] for row in table)  # every value has a source


def test_the_page_contains_the_whole_recipe_file(tmp_path):
    path = run(tmp_path / "r", trained=False, **{"method.tau": 0.7})
    one = opened(path)
    table = provenance.recipe_rows(one)
    sources = {key: source for key, _, source, *_ in table if source}
    values = nest({key: value for key, value, *_ in table})
    content = {**provenance.recipe_about(one), **values, "sources": sources}
    assert content == json.loads((path / "recipe.json").read_text())


def test_a_recipe_of_format_1_marks_no_value_and_says_so(tmp_path):
    path = run(tmp_path / "r", trained=False, **{"method.tau": 0.7})
    content = json.loads((path / "recipe.json").read_text())
    old = {key: value for key, value in content.items() if key in ("sources", *SECTIONS)}
    (path / "recipe.json").write_text(json.dumps(old))
    one = opened(path)
    assert all(len(row) == 3 for row in provenance.recipe_rows(one))
    assert provenance.recipe_about(one) == {}  # so the script reports that they are unknown


def test_a_method_that_cannot_be_built_has_no_description(tmp_path):
    path = run(tmp_path / "r", trained=False)
    content = json.loads((path / "recipe.json").read_text())
    content["method"]["name"] = "mine"
    (path / "recipe.json").write_text(json.dumps(content))
    assert provenance.choices(opened(path)) is None


def test_the_method_is_described_by_its_own_arguments(tmp_path):
    one = opened(run(tmp_path / "r", method="mocov2", trained=False, **{"method.queue": 96}))
    found = provenance.choices(one)
    assert found["negatives"] == "queue 96" and found["BN groups"].startswith("8")


def test_a_command_is_shown_without_the_place_of_the_program(tmp_path):
    one = opened(run(tmp_path / "r", scores={"knn": score(1.0)}, trained=False))
    assert provenance.start_command(one) == "antipode pretrain 'a b'"
    assert "antipode evaluate runs/again --protocol knn" in provenance.commands(one)


@pytest.mark.parametrize("commit", ["c0ffee", "c0ffee+"])
def test_the_checkout_names_the_commit_without_the_mark_of_uncommitted_changes(tmp_path, commit):
    path = run(tmp_path / "r", trained=False)
    (path / "env.json").write_text(json.dumps(ENV | {"commit": commit}))
    one = opened(path)
    assert provenance.commands(one)[0] == "git checkout c0ffee"
    assert ("code" in warnings(one)) == commit.endswith("+")


def test_a_run_of_an_unknown_commit_has_no_checkout(tmp_path):
    path = run(tmp_path / "r", trained=False)
    (path / "env.json").write_text(json.dumps(ENV | {"commit": None}))
    assert provenance.commands(opened(path))[0] == "antipode pretrain recipe.json --out runs/again"


def test_commands_that_repeat_a_score_have_its_seed_and_its_data(tmp_path):
    scores = {
        "knn": score(1.0),
        "semi-1": score(2.0) | {"seed": 5},
        "knn@cifar10": score(3.0),
        "knn@Mine": score(4.0),
    }
    scores |= {"linear-fast": score(5.0), "knn@folder:a b": score(6.0)}
    found = provenance.commands(opened(run(tmp_path / "r", scores=scores, trained=False)))
    assert "antipode evaluate runs/again --protocol knn --protocol linear-fast" in found
    assert "antipode evaluate runs/again --protocol semi-1 --seed 5" in found
    foreign = opened(run(tmp_path / "f", scores={"svm-voc07": score(1.0)}, trained=False))
    assert "antipode evaluate runs/again --protocol svm-voc07 --data digits" in provenance.commands(
        foreign
    )
    assert "antipode evaluate runs/again --protocol knn --data cifar10" in found
    assert "antipode evaluate runs/again --protocol knn --data 'folder:a b'" in found
    assert "# in Python, with a Mine as data=: knn" in found
    own = opened(
        run(tmp_path / "own", data="python:Mine", scores={"knn": score(1.0)}, trained=False)
    )
    assert not [line for line in provenance.commands(own) if line.startswith("antipode evaluate")]
    assert (
        '# in Python: antipode.pretrain("recipe.json", data=..., out="runs/again")'
        in provenance.commands(own)
    )


# ---- warnings


def changed(log, **values):
    return [row | {key: value for key, value in values.items() if "loss" in row} for row in log]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (changed(rows(300), spread=0.01), ["collapsed", "still so"]),
        (changed(rows(300), spread=0.01)[:200] + rows(400)[220:], ["collapsed", "no longer so"]),
        (changed(rows(300), rank=1.0), ["dimensions"]),
        ([*rows(20), {"step": 20, "epoch": 2, "loss": None}], ["not a finite number at step 20"]),
        (
            [*rows(40), {"step": 40, "epoch": 4, "knn": 10.0}],
            ["kNN accuracy fell from 69.0 % in epoch 4 to 10.0 %"],
        ),
    ],
)
def test_what_went_wrong_is_said(tmp_path, log, words):
    found = warnings(opened(run(tmp_path / "r", log=log)))
    assert len(found) == 1 and all(word in next(iter(found.values())) for word in words), found


@pytest.mark.parametrize(("final", "fell"), [(72.0, False), (71.99, True)])
def test_knn_accuracy_has_fallen_if_it_is_below_nine_tenths_of_the_best(tmp_path, final, fell):
    values = [60.0, 80.0, final]  # 0.9 of 80 is 72
    log = [{"step": at, "epoch": at, "knn": value} for at, value in enumerate(values)]
    found = warnings(opened(run(tmp_path / "r", log=log, trained=False)))
    assert ("fell" in found) == fell


def test_a_run_in_order_has_no_warning(tmp_path):
    assert warnings(opened(run(tmp_path / "r", log=rows(300)))) == {}


# ---- analyses


def test_an_analysis_is_drawn_as_far_as_it_can_be():
    found = drawable(
        {
            "a": {
                "curves": {
                    "good": {"x": [0, 1], "y": [1, None]},
                    "bad": {"x": [], "y": []},
                    "worse": 3,
                }
            },
            "b": {
                "histograms": {"bad": {"edges": [0, 1], "counts": [1, 2]}},
                "values": {"x": None, "y": 2},
            },
            "c": {"skipped": "no bank"},
            "d": "text",
        }
    )
    assert set(found) == {"a", "b", "c"}
    assert found["a"]["curves"] == {"good": {"x": [0], "y": [1], "xlabel": "", "ylabel": ""}}
    assert found["a"]["notes"] == ["bad cannot be drawn", "worse cannot be drawn"]
    assert found["b"]["histograms"] == {} and found["b"]["values"] == {"x": "None", "y": 2}
    assert found["c"]["notes"] == ["Skipped: no bank"]


# ---- pictures


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_a_small_tile_is_the_image_to_the_bit(channels):
    image = images(1, channels)[0]
    assert torch.equal(
        tensor(tile(image, 32)), image[:3] if channels >= 3 else image[:1].expand(3, -1, -1)
    )


def test_a_tile_keeps_the_shape_of_its_image_and_the_bound():
    assert pixels(tile(images(1, 3, 100)[0][:, :50], 20)).size == (20, 10)


def test_an_atlas_has_a_place_for_every_image():
    assert pixels(atlas(list(images(7, 3, 8)), 8, 3)).size == (24, 24)


def test_the_sheet_shows_the_views_that_training_sees():
    source, make, seed = Memory(images(20)), views("simclr", size=32), 5
    found = view_sheet(source, make, seed)
    ids = torch.randperm(20, generator=torch.Generator().manual_seed(seed))[:6]
    loader = Loader(source, make, batch=20, epochs=2, seed=seed)
    for _, epoch, batch in loader.steps():
        for place, at in enumerate(ids.tolist()):
            there = (batch.image_ids == at).nonzero().item()
            for view in range(2):
                wanted = batch.views[view][there] * make.normal.std + make.normal.mean
                got = tensor(found["rows"][place]["views"][2 * epoch + view]) / 255
                assert (got - wanted.clamp(0, 1)).abs().max() < 0.51 / 255
    assert found["epochs"] == 4 and found["count"] == 2
    assert view_sheet(source, make, seed, most=3)["epochs"] == 3  # the run had three epochs


def test_neighbours_are_the_nearest_by_cosine_and_framed_by_label():
    generator = torch.Generator().manual_seed(0)
    queries, held = torch.randn(12, 5, generator=generator), torch.randn(30, 5, generator=generator)
    own, theirs = torch.arange(12) % 3, torch.arange(30) % 3
    pictures = images(30)
    shown, bank = Memory(pictures[:12], own), Memory(pictures, theirs)
    found = neighbours(queries, shown, held, bank, ["a", "b", "c"])
    right = 0
    for query in range(12):
        cosines = [
            (float(torch.cosine_similarity(queries[query], one, 0)), at)
            for at, one in enumerate(held)
        ]
        best = [at for _, at in sorted(cosines, reverse=True)[:8]]
        right += sum(int(theirs[at] == own[query]) for at in best)
        row = next((row for row in found["rows"] if row["src"] == tile(pictures[query], 32)), None)
        if row:
            assert [one["src"] for one in row["near"]] == [tile(pictures[at], 32) for at in best]
            assert [one["right"] for one in row["near"]] == [
                bool(theirs[at] == own[query]) for at in best
            ]
    assert found["right"] == pytest.approx(100 * right / (12 * 8))
    assert found["chance"] == pytest.approx(100 / 3)
    assert {row["label"] for row in found["rows"]} == {"a", "b", "c"}


def test_without_labels_no_neighbour_is_right_or_wrong():
    found = neighbours(
        torch.randn(9, 4), Memory(images(9)), torch.randn(20, 4), Memory(images(20)), None
    )
    assert found["right"] is None and found["chance"] is None
    assert {one["right"] for row in found["rows"] for one in row["near"]} == {None}


def test_images_of_several_classes_are_alike_if_they_share_one():
    labels = torch.tensor([[1, 0, -1], [1, 1, 0], [0, 0, 1], [0, -1, 0]])
    shared = {(a, b): same(labels, a, labels, b) for a, b in itertools.product(range(4), repeat=2)}
    assert {pair for pair, alike in shared.items() if alike} == {
        (0, 0),
        (1, 1),
        (2, 2),
        (0, 1),
        (1, 0),
    }
    assert same(torch.tensor([-1, 2]), 0, torch.tensor([2]), 0) is None
    assert same(torch.tensor([-1, 2]), 1, torch.tensor([2]), 0) is True


def test_queries_are_never_in_the_bank():
    pictures = images(50, side=4)
    source = Memory(pictures)
    shown, bank, part = sample(Splits("x", source, source, None, 4), 5000, seed=0)
    assert part == "train" and len(shown) + len(bank) == 50
    assert not (shown.images.flatten(1)[:, None] == bank.images.flatten(1)[None]).all(2).any()


def test_histograms_count_every_pair_once_and_rank_them():
    one = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    two = one + 0.5 * torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    found = histograms(one, two)
    cosines = [[float(torch.cosine_similarity(a, b, 0)) for b in two] for a in one]
    own = [cosines[at][at] for at in range(40)]
    strangers = [cosines[a][b] for a in range(40) for b in range(40) if a != b]
    assert found["means"] == pytest.approx(
        [statistics.mean(own), statistics.mean(strangers)], rel=1e-3
    )
    beats = statistics.mean(a > b for a in own for b in strangers)
    assert found["beats"] == pytest.approx(100 * beats, abs=0.01)
    assert sum(found["positive"]) == pytest.approx(1, abs=1e-3) and sum(
        found["negative"]
    ) == pytest.approx(1, abs=1e-3)


def test_the_spectrum_of_features_of_rank_two_has_rank_two():
    x = (
        torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
        @ torch.linalg.qr(torch.randn(8, 2))[0].T
    )
    found = spectrum(x)
    assert 1.8 < found["rank"] < 2.05 and found["ninety"] == 2 and found["width"] == 8
    assert found["y"][0] == 1 and max(found["y"][2:]) < 1e-5
    with pytest.raises(ValueError, match="the same feature"):
        spectrum(torch.ones(10, 4))


@pytest.mark.parametrize(
    ("shares", "count"),
    [
        ([0.91, 0.05, 0.04], 1),
        ([0.89, 0.04, 0.04, 0.03], 2),
        ([0.5, 0.3, 0.12, 0.08], 3),
    ],
)
def test_ninety_counts_the_dimensions_that_hold_ninety_percent_of_the_variance(shares, count):
    # Walsh functions are centred and orthogonal, so their squared lengths are the variances
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    walsh = torch.kron(torch.kron(two, two), two)[:, 1:]
    x = 5 + walsh[:, : len(shares)] * torch.tensor(shares).sqrt()
    found = spectrum(x)
    assert found["ninety"] == count
    relative = [math.sqrt(share / shares[0]) for share in shares]
    assert found["y"][: len(shares)] == pytest.approx(relative, rel=1e-3)


def test_every_place_says_whether_its_effective_rank_is_of_centred_vectors():
    script = (files("antipode.reporting") / "pictures.js").read_text(encoding="utf-8")
    assert "not centred" in explained("rank")[1] and "unit length" in explained("rank")[1]
    assert "effective rank (centred features)" in script and "centred but not normalised" in script


def test_the_recipe_of_a_toy_run_can_be_read(tmp_path):
    """The other tests rely on this: the rest of the package accepts these folders as runs."""
    path = run(tmp_path / "r", seed=3)
    assert Recipe.read(path / "recipe.json").train.seed == 3
    assert json.loads((path / "recipe.json").read_text())["method"]["name"] == "dcl"
