"""Tests of analyses of runs.

Every analysis works on every method, or names the methods that it works on. The same seed gives the
same numbers.
"""

import json
import math
import shutil

import pytest
import torch

import antipode
from antipode import rng
from antipode.analysis import bank, contrast, cost, formulas, geometry
from antipode.analysis.catalog import analyses
from antipode.analysis.run import _embeddings, _labels
from antipode.data.sources.source import BrokenImages, Decoded, Memory
from antipode.data.sources.splits import Splits
from antipode.papers import methods
from antipode.papers.jcl import analyses as jcl_analyses
from tests.analysis.conftest import begun

CPU = torch.device("cpu")
TIMED = ("cost", "jcl-complexity")  # their numbers vary from call to call
CONTRAST = ("mi-bound", "gradient-norm", "npc")
WITH_TAU = "simclr mocov1 mocov2 npid invspread adco eqco simo dcl dclw jcl mocov3 custom".split()
WITH_STORED = "mocov1 mocov2 npid adco jcl eqco".split()
KEYS = {"settings", "values", "curves", "histograms", "notes"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Use few views, keys and repeats, to save time."""
    monkeypatch.setattr(geometry, "VIEWS", 4)
    monkeypatch.setattr(jcl_analyses, "KEYS", [1, 5])
    monkeypatch.setattr(jcl_analyses, "REPEATS", 1)


def analyse(*runs, what=None, **options):
    return antipode.analyse(runs, what, **{"images": 40, "device": "cpu", **options})


def subject(path, images=40):
    return _embeddings(antipode.Run(path), path.name, {}, None, CPU, 0, images)


def numbers(value):
    if isinstance(value, dict):
        return [one for key, part in value.items() if key != "settings" for one in numbers(part)]
    if isinstance(value, list):
        return [one for part in value for one in numbers(part)]
    return [value] if isinstance(value, int | float) else []


def check(result):
    """Assert that a result has the form that the report needs."""
    assert set(result) <= KEYS and {"settings", "values"} <= set(result)
    assert {"data", "epoch", "seed"} <= set(result["settings"])
    for name, line in result.get("curves", {}).items():
        assert (
            set(line) == {"x", "y", "xlabel", "ylabel"} and len(line["x"]) == len(line["y"]) > 0
        ), name
    for name, bars in result.get("histograms", {}).items():
        assert (
            set(bars) == {"edges", "counts", "xlabel"}
            and len(bars["edges"]) == len(bars["counts"]) + 1
        ), name
        assert sum(bars["counts"]) > 0
    assert all(isinstance(note, str) for note in result.get("notes", []))
    assert all(
        value is None or isinstance(value, int | float) for value in result["values"].values()
    )
    assert all(math.isfinite(number) for number in numbers(result))


# one method of each kind: stored negatives or none, with and without a temperature
FIRST = ("adco", "byol", "dcl")
METHODS = [
    name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in methods()
]


@pytest.mark.parametrize("method", METHODS)
def test_every_analysis_fits_a_method_or_says_which_have_it(method, tmp_path):
    home = begun(method, tmp_path / method)
    results = analyse(home, images=24)[method]
    assert list(results) == list(analyses())
    skipped = {name: result["skipped"] for name, result in results.items() if "skipped" in result}
    has_tau, keeps = method in WITH_TAU, method in WITH_STORED
    expected = (
        {"cka", "neighbours"}
        | (set() if has_tau else set(CONTRAST))
        | (set() if keeps else {"bank"})
    )
    assert set(skipped) == expected
    assert all(method in sentence and "\n" not in sentence for sentence in skipped.values())
    assert all("mocov2" in skipped[name] for name in skipped if name in (*CONTRAST, "bank"))
    written = json.loads((home / "analysis.json").read_text())
    assert written == {name: result for name, result in results.items() if name not in skipped}
    for result in written.values():
        check(result)
    for name in skipped:
        with pytest.raises(ValueError, match=f"{name} does not fit: .*{method}"):
            analyse(home, what=[name])


def test_eqco_on_a_batch_and_dcl_on_a_queue_are_told_apart(tmp_path):
    batch = begun("eqco", tmp_path / "batch", **{"method.base": "simclr", "method.groups": None})
    queue = begun(
        "dcl",
        tmp_path / "queue",
        **{"method.base": "mocov2", "method.queue": 20, "method.groups": 2},
    )
    assert "skipped" in analyse(batch)["batch"]["bank"]
    assert analyse(queue, what=["bank"])["queue"]["bank"]["settings"]["kind"] == "queue"


def test_all_of_it_end_to_end(trained, tmp_path):
    for method in ("mocov2", "adco"):
        shutil.copytree(trained / method, tmp_path / method)
    found = analyse(tmp_path / "mocov2", tmp_path / "adco", images=200)
    assert list(found) == ["mocov2", "adco"]
    for method, results in found.items():
        assert list(results) == list(analyses())
        for result in results.values():
            check(result)
        assert json.loads((tmp_path / method / "analysis.json").read_text()) == results
    for what in ("cka", "neighbours"):
        ours, theirs = found["mocov2"][what]["values"], found["adco"][what]["values"]
        assert (
            list(ours) == ["adco"]
            and list(theirs) == ["mocov2"]
            and ours["adco"] == theirs["mocov2"]
        )
        assert 0 < ours["adco"] < 1


def test_what_was_there_stays_and_what_is_made_again_is_replaced(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained / "mocov2", run)
    (run / "analysis.json").write_text('{"spectrum": 1, "mine": 2}')
    results = analyse(run, what=["spectrum"])["run"]["spectrum"]
    assert json.loads((run / "analysis.json").read_text()) == {"spectrum": results, "mine": 2}


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others(trained):
    names = [name for name, one in analyses().items() if name not in TIMED and not one.several]
    first, again, other = (
        analyse(trained / "adco", what=names, seed=seed)["adco"] for seed in (0, 0, 1)
    )
    for name in names:
        assert first[name] == again[name], name
        assert numbers(first[name]) != numbers(other[name]), name


def test_labels_play_no_part(trained):
    one = subject(trained / "mocov2")
    bare = subject(trained / "mocov2")
    bare.splits = Splits(
        "digits", *(_blind(part) for part in (one.splits.pretrain, one.splits.train)), None, 8
    )
    named_, blind = (
        [*found.pairs()[1], *found.eval_features(one.splits.pretrain)] for found in (one, bare)
    )
    blind[4:] = bare.eval_features(bare.splits.pretrain)
    assert all(torch.equal(a, b) for a, b in zip(named_, blind, strict=True))


def _blind(source):
    return Memory(source.images)


def test_views_of_an_image_stand_in_its_place_and_differ(trained):
    embeddings = subject(trained / "mocov2")
    ids = torch.tensor([5, 9, 700, 1, 3])
    seen = embeddings.embed_views(ids, 3)
    assert seen.head.shape == (3, 5, 16) and seen.keys.shape == seen.query.shape == (3, 5, 16)
    assert not any(
        torch.equal(seen.backbone[a], seen.backbone[b]) for a, b in ((0, 1), (0, 2), (1, 2))
    )
    alone = embeddings.embed_views(ids, 3, keys=False)
    assert torch.equal(alone.head, seen.head) and alone.keys.shape == (3, 5, 0)
    assert not torch.equal(embeddings.embed_views(ids, 3, salt=1).head, seen.head)


def test_without_chance_every_view_is_the_image_itself_in_its_place(trained, monkeypatch):
    """The images fill several batches and a part of one, in three epochs with three orders."""
    monkeypatch.setattr("antipode.analysis.embeddings.BATCH", 8)
    found = subject(trained / "mocov2")
    found.views = found.eval_view
    ids = torch.arange(100, 119).flip(0)
    seen = found.embed_views(ids, 3)
    with torch.no_grad():
        expected = found.learner.backbone(found.eval_view(found.splits.pretrain.images[ids])[0])
    assert all(torch.allclose(view, expected, atol=1e-5) for view in seen.backbone)


def test_images_that_are_decoded_on_demand_are_seen_too_and_a_broken_one_leaves_no_hole(trained):
    embeddings = subject(trained / "mocov2")
    embeddings.run.recipe = embeddings.recipe.model_copy(
        update={"data": embeddings.recipe.data.model_copy(update={"workers": 0})}
    )
    embeddings.views, images = embeddings.eval_view, embeddings.splits.pretrain.images

    def read(index):
        if index == 3:
            raise ValueError("is broken")
        return images[index]

    source = Decoded(read, [str(index) for index in range(30)], channels=1, size=8)
    embeddings.splits = Splits("files", source, source, None, 8)
    with pytest.warns(BrokenImages, match="3 is broken"):
        seen = embeddings.embed_views(torch.arange(8), 2, keys=False)
    with torch.no_grad():
        expected = embeddings.learner.backbone(embeddings.eval_view(images[:8])[0])
    expected[3] = expected[4]  # the next image takes its place
    assert all(torch.allclose(view, expected, atol=1e-4) for view in seen.backbone)


def test_queries_come_from_the_network_and_keys_from_the_twin(trained):
    embeddings = subject(trained / "mocov2")
    _, seen = embeddings.pairs()
    unit = seen.head / seen.head.norm(dim=-1, keepdim=True)
    assert torch.allclose(seen.query, unit, atol=1e-6) and not torch.allclose(
        seen.keys, unit, atol=1e-3
    )
    with torch.no_grad():
        embeddings.learner.twin.net.load_state_dict(embeddings.learner.online.state_dict())
    embeddings.cache.clear()
    _, seen = embeddings.pairs()
    assert torch.allclose(seen.keys, seen.query, atol=1e-6)


def test_every_kept_checkpoint_is_seen_and_the_last_is_the_run_itself(trained):
    embeddings = subject(trained / "adco")
    moments = embeddings.history(8)
    assert [moment.epoch for moment in moments] == [1, 2] and moments[-1] is embeddings
    assert not torch.equal(*(next(moment.learner.parameters()) for moment in moments))
    assert [moment.epoch for moment in embeddings.history(1)] == [2]


def test_a_damaged_checkpoint_is_left_out_with_a_warning(trained, tmp_path):
    shutil.copytree(trained / "adco", tmp_path / "run")
    first = min((tmp_path / "run" / "checkpoints").glob("step-*.pt"))
    first.write_bytes(b"nothing")
    with pytest.warns(UserWarning, match=f"{first.name} cannot be read"):
        assert len(subject(tmp_path / "run").history(8)) == 1


def test_the_figures_of_eqco_have_a_curve_for_each_checkpoint_and_the_log_s_bound(trained):
    results = analyse(trained / "mocov2", what=["mi-bound", "gradient-norm"], images=70)["mocov2"]
    curves = results["gradient-norm"]["curves"]
    assert len(curves) == 12 and curves["mean with EqCo"]["x"] == [4, 16, 64]
    assert curves["mean with EqCo"]["y"] != curves["mean with EqCo, epoch 1"]["y"]
    settings = results["gradient-norm"]["settings"]
    assert (settings["alpha"], settings["alpha_from"]) == (300, "the run's queue")
    assert (
        curves["mean with EqCo"]["y"][-1] > curves["mean without EqCo"]["y"][-1]
    )  # 64 are fewer than 300
    logged = results["mi-bound"]["curves"]["over training"]
    assert logged["x"] == [1, 2]
    rows = [row for row in antipode.Run(trained / "mocov2").metrics() if row["epoch"] == 1]
    assert logged["y"][1] == pytest.approx(sum(row["mi_bound"] for row in rows) / len(rows))


def with_images(path, count, monkeypatch, *, pairs, keys):
    """Return the embeddings of a run on `count` images, with other limits of pairs and keys."""
    monkeypatch.setattr("antipode.analysis.embeddings.PAIRS", (pairs, pairs))
    monkeypatch.setattr("antipode.analysis.embeddings.KEYS", (keys, keys))
    found = subject(path, images=None)
    images = Memory(found.splits.pretrain.images[:count])
    found.splits = Splits("digits", images, images, None, 8)
    return found


def test_keys_continue_the_pairs_and_come_in_several_views_if_images_are_few(trained, monkeypatch):
    found = with_images(trained / "mocov2", 30, monkeypatch, pairs=20, keys=65)
    keys, (_, seen) = found.keys(), found.pairs()
    assert keys.shape == (3, 30, 16)  # 64 negatives need three views of 29 other images
    assert torch.equal(keys[0, :20], seen.keys[-1])
    drawn = torch.cat([seen.keys[0], keys.flatten(0, 1)])
    assert len(drawn.unique(dim=0)) == len(drawn), "every key is a view of its own"
    found.cache.clear()
    found.views = found.eval_view  # without chance, all views of an image are equal
    keys = found.keys()
    assert torch.allclose(keys, keys[:1].expand_as(keys), atol=1e-5), "an image keeps its place"
    assert not torch.allclose(keys, keys.roll(1, 1), atol=1e-3)


def test_one_view_serves_if_there_are_enough_images(trained, monkeypatch):
    found = with_images(trained / "mocov2", 100, monkeypatch, pairs=20, keys=65)
    assert found.keys().shape == (1, 65, 16)
    assert subject(trained / "mocov2", images=40).keys().shape == (1, 40, 16)


def test_an_image_has_a_limited_number_of_views(trained, monkeypatch):
    found = with_images(trained / "mocov2", 3, monkeypatch, pairs=20, keys=4097)
    assert found.keys().shape == (8, 3, 16)


def test_the_figures_of_eqco_draw_more_negatives_than_there_are_images(trained, monkeypatch):
    found = with_images(trained / "mocov2", 100, monkeypatch, pairs=100, keys=257)
    figure = contrast.gradient_norm(found)
    curves, settings = figure["curves"], figure["settings"]
    assert curves["mean with EqCo"]["x"] == [4, 16, 64, 256]
    assert (settings["images"], settings["views"], settings["queries"]) == (100, 3, 100)


def test_with_and_without_the_margin_the_gradients_meet_where_k_is_alpha(tmp_path):
    home = begun("eqco", tmp_path / "run", **{"method.alpha": 16.0})
    curves = analyse(home, what=["gradient-norm"], images=70)["run"]["gradient-norm"]["curves"]
    ys = [curves[f"mean {name}"]["y"] for name in ("with EqCo", "without EqCo")]
    assert curves["mean with EqCo"]["x"] == [4, 16, 64]
    assert [a == b for a, b in zip(*ys, strict=True)] == [False, True, False]


def test_without_a_queue_eqco_aims_at_the_largest_number_drawn(tmp_path):
    home = begun("simclr", tmp_path / "run")
    results = analyse(home, what=["gradient-norm"], images=70)["run"]["gradient-norm"]
    curves = results["curves"]
    assert curves["mean with EqCo"]["y"][-1] == curves["mean without EqCo"]["y"][-1]
    assert (results["settings"]["alpha"], results["settings"]["alpha_from"]) == (
        64,
        "the largest K",
    )


def test_eqco_s_own_alpha_is_used(tmp_path):
    home = begun("eqco", tmp_path / "run", **{"method.alpha": 77.0})
    settings = analyse(home, what=["mi-bound"])["run"]["mi-bound"]["settings"]
    assert settings["alpha"] == 77 and settings["alpha_from"] == "the run's own"


def test_predictions_are_measured_where_there_is_a_predictor(trained, tmp_path):
    results = analyse(begun("msbreg", tmp_path / "run"), what=["alignment-uniformity"])["run"][
        "alignment-uniformity"
    ]
    _, seen = subject(tmp_path / "run").pairs()
    naive = [float(((x - y) ** 2).sum(-1).mean()) for x, y in [seen.query]]
    assert results["values"]["alignment, prediction"] == pytest.approx(naive[0], rel=1e-4)
    plain = analyse(trained / "mocov2", what=["alignment-uniformity"])["mocov2"][
        "alignment-uniformity"
    ]
    assert not any("prediction" in name for name in plain["values"])


def test_a_bank_s_drift_is_measured_between_checkpoints(trained):
    results = analyse(trained / "adco", what=["bank"])["adco"]["bank"]
    before, after = (moment.stored.vectors for moment in subject(trained / "adco").history(8))
    turned = 1 - float((before * after).sum(1).mean())
    assert results["values"]["drift since the checkpoint before"] == pytest.approx(turned, abs=1e-6)
    assert results["curves"]["drift"]["x"] == [2]
    assert min(results["curves"]["length over training"]["y"]) > 0
    assert {*results["curves"]["length over training"]["x"]} == {1, 2}
    queue = analyse(trained / "mocov2", what=["bank"])["mocov2"]["bank"]
    assert "drift" not in queue["curves"] and "refilled" in queue["notes"][0]


def test_steps_are_measured_on_the_device_at_hand(trained):
    embeddings = subject(trained / "mocov2")
    values, notes = {}, []
    cost._measure_here(embeddings, values, notes)
    assert list(values) == ["images per second here", "device-hours per epoch here"]
    images = len(embeddings.splits.pretrain)
    hours = images / values["images per second here"] / 3600
    assert values["device-hours per epoch here"] == pytest.approx(hours)
    assert notes == [
        f"speed here: 3 training steps of batch {embeddings.recipe.train.batch} on cpu"
    ]


@pytest.mark.parametrize("method", [pytest.param("mocov2", marks=pytest.mark.slow), "adco"])
def test_a_short_run_is_lengthened_to_time_its_steps(trained, monkeypatch, method):
    """The runs have six steps, and more are timed."""
    monkeypatch.setattr(cost, "STEPS", (8, 8))
    values, notes = {}, []
    cost._measure_here(subject(trained / method), values, notes)
    assert values["images per second here"] > 0


def test_no_speed_is_given_if_the_gpu_is_shared(trained, monkeypatch):
    measured = cost.StepCost(100.0, 7, 3 << 30)
    monkeypatch.setattr(cost, "measure_steps", lambda *_: measured)
    values, notes = {}, []
    cost._measure_here(subject(trained / "mocov2"), values, notes)
    assert values == {"peak memory of a step (bytes)": 7}
    assert "other processes hold 3.0 GiB of cpu" in notes[0]


def test_steps_that_cannot_be_taken_here_are_a_note(trained, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("no memory\nmore lines")

    monkeypatch.setattr(cost, "measure_steps", fail)
    values, notes = {}, []
    cost._measure_here(subject(trained / "mocov2"), values, notes)
    assert not values and notes == ["no training step could be measured here: no memory"]


def test_fresh_keys_are_of_other_images_than_the_queries(trained):
    embeddings = subject(trained / "mocov2", images=30)
    fresh, (_, seen) = bank._fresh(embeddings, 30, 1000), embeddings.pairs()
    assert len(fresh) == 30
    assert (fresh @ seen.keys[0].T).max() < 1  # the cosine of a key with itself would be 1


def test_npid_s_own_entry_is_no_negative(tmp_path):
    embeddings = subject(begun("npid", tmp_path / "run"))
    memory, (ids, seen) = embeddings.stored.vectors, embeddings.pairs()
    memory[ids] = seen.query[0]  # as in training, an image's entry is near its embedding
    masked = bank.bank(embeddings)["values"]["hardest cosine, memory"]
    assert (
        masked
        < float(bank.hardness(seen.query[0], seen.keys[0], memory, 0.1).hardest.mean()) - 1e-3
    )


def test_npid_s_fresh_keys_are_new_and_not_its_memory(tmp_path):
    embeddings = subject(begun("npid", tmp_path / "run"), images=30)
    others = embeddings.draw(60)[30:]
    new = embeddings.embed_views(others, 1, salt=-1).query[0]
    assert torch.equal(bank._fresh(embeddings, 30, 30), new)
    assert not torch.allclose(new, embeddings.stored.vectors[others], atol=1e-3)


def test_a_line_of_the_log_stands_for_the_steps_since_the_one_before():
    """Epochs have 22 steps. Steps 0, 10, 20, 30, 40 and the last step of each epoch are logged."""
    logged = [
        (0, 0, 5.0),
        (10, 0, 1.0),
        (20, 0, 2.0),
        (21, 0, 3.0),
        (30, 1, 1.0),
        (40, 1, 2.0),
        (43, 1, 4.0),
    ]
    rows = [{"step": step, "epoch": epoch, "contrast": value} for step, epoch, value in logged]
    rows.insert(2, {"step": 12, "epoch": 0, "knn": 50.0})  # has no such metric
    first, second = (5 + 10 * 1 + 10 * 2 + 3) / 22, (9 * 1 + 10 * 2 + 3 * 4) / 22
    assert contrast.per_epoch(rows, "contrast") == pytest.approx({1: first, 2: second})
    assert contrast.per_epoch([rows[1], rows[0]], "contrast") == pytest.approx(
        {1: 16 / 12}
    )  # the steps of a damaged log can decrease


def test_a_multi_crop_run_is_seen_in_large_views(tmp_path):
    more = {"method.crops": 2, "views.policy": "dclw-multicrop", "views.crops": 2, "views.size": 8}
    embeddings = subject(begun("dclw", tmp_path / "run", **more))
    assert len(set(embeddings.views.sizes)) == 2
    assert embeddings.embed_views(torch.arange(6), 5).head.shape == (5, 6, 6)
    check(analyse(tmp_path / "run", what=["npc"])["run"]["npc"])


def test_a_data_set_without_test_images_is_judged_on_its_training_images(trained):
    embeddings = subject(trained / "mocov2")
    embeddings.splits = Splits(
        "digits", embeddings.splits.pretrain, embeddings.splits.train, None, 8
    )
    result = analyses()["spectrum"].run([embeddings])[0]
    assert result["settings"]["split"] == "pretrain" and result["settings"]["images"] == 40


def test_folders_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]
    assert _labels([antipode.Run(path) for path in paths]) == [str(paths[0]), str(paths[1]), "c"]


def test_one_run_need_not_be_a_list(trained):
    one = antipode.analyse(trained / "mocov2", ["spectrum"], device="cpu")
    assert one == antipode.analyse([antipode.Run(trained / "mocov2")], ["spectrum"], device="cpu")


WRONG = {
    "no run": (lambda home: analyse(), FileNotFoundError, "no run in an empty list"),
    "not there": (lambda home: analyse(home / "nowhere"), FileNotFoundError, "no run in .*nowhere"),
    "twice": (
        lambda home: analyse(home / "adco", home / "." / "adco"),
        ValueError,
        "adco is given twice",
    ),
    "no such analysis": (
        lambda home: analyse(home / "adco", what=["nps"]),
        ValueError,
        r"no analysis 'nps', did you mean 'npc'",
    ),
    "nothing to do": (
        lambda home: analyse(home / "adco", what=[]),
        ValueError,
        "no analysis is given: choose from mi-",
    ),
    "one image": (
        lambda home: analyse(home / "adco", images=1),
        ValueError,
        "at least two images, got 1",
    ),
    "one run": (
        lambda home: analyse(home / "adco", what=["cka"]),
        ValueError,
        "cka does not fit: .* two or more",
    ),
    "a device": (
        lambda home: analyse(home / "adco", device="tpu"),
        ValueError,
        "auto, cpu, cuda, mps, not 'tpu'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence_and_nothing_is_written(name, trained):
    call, error, text = WRONG[name]
    before = (trained / "adco" / "analysis.json").exists()
    with pytest.raises(error, match=text):
        call(trained)
    assert (trained / "adco" / "analysis.json").exists() == before


def test_a_run_without_a_checkpoint_is_refused(trained, tmp_path):
    shutil.copytree(trained / "adco", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        analyse(tmp_path / "run")


def test_runs_on_images_of_other_channels_are_not_compared(trained, tmp_path):
    class Coloured:
        channels = 3

    ours, theirs = subject(trained / "mocov2"), subject(trained / "adco")
    theirs.splits = Splits("other", Coloured(), Coloured(), None, 8)
    assert "1 channels" in analyses()["cka"].unfit([ours, theirs])


def test_on_a_gpu_more_images_are_used_unless_told(trained):
    embeddings = subject(trained / "mocov2", images=None)
    many = list(range(100_000))
    assert embeddings.count(many, (10, 20)) == 10
    embeddings.device = torch.device("cuda")
    assert embeddings.count(many, (10, 20)) == 20
    embeddings.images = 15
    assert embeddings.count(many, (10, 20)) == 15


def test_a_run_s_figures_are_those_of_its_embeddings(trained):
    one = subject(trained / "mocov2", images=70)
    _, seen = one.pairs()
    found = {name: analyses()[name].run([one])[0]["curves"] for name in CONTRAST}
    draw = formulas.query_terms(seen.query[0], seen.keys[1:], 16, one.tau)
    assert found["mi-bound"]["with EqCo"]["y"][1] == formulas.information(draw, 16, 300.0)
    assert found["mi-bound"]["without EqCo"]["y"][1] == formulas.information(draw, 16)
    assert found["gradient-norm"]["mean with EqCo"]["y"][1] == float(
        formulas.gradient(draw, 16, one.tau, 300.0).mean()
    )
    batch = formulas.multipliers(*seen.head, 16, one.tau, rng.key(0, "npc", 16)).double()
    assert found["npc"]["mean"]["y"][2] == float(batch.mean())


@pytest.mark.slow
def test_the_curves_of_a_trained_run_show_what_the_papers_show(tmp_path):
    """On real embeddings, bounds rise with K without the margin, and q_B rises with the batch."""
    home = antipode.pretrain(
        "digits.simclr", epochs=30, device="cpu", out=tmp_path / "run", quiet=True
    )
    found = antipode.analyse(home, CONTRAST, device="cpu")["run"]
    without = found["mi-bound"]["curves"]["without EqCo"]["y"]
    assert without == sorted(without)
    values = found["mi-bound"]["values"]
    assert (
        values["range from K = 16 on with EqCo"] < 0.5 * values["range from K = 16 on without EqCo"]
    )
    curves = found["gradient-norm"]["curves"]
    for name in ("with EqCo", "without EqCo"):
        means, bounds = curves[f"mean {name}"]["y"], curves[f"bound {name}"]["y"]
        assert all(mean <= bound for mean, bound in zip(means, bounds, strict=True))
    mean, variation = (
        found["npc"]["curves"][name]["y"] for name in ("mean", "coefficient of variation")
    )
    assert mean == sorted(mean) and variation == sorted(variation, reverse=True)
