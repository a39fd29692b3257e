"""Tests of the headline score, of the verdict, and of the condition of embeddings in words."""

import itertools
import json
import math

import pytest
import torch

import antipode
from antipode import measures
from antipode.evaluation.condition import BACKBONE, HEAD, condition, even_uniformity, findings
from antipode.evaluation.headline import headline, percent, verdict
from antipode.evaluation.judgement import judgement
from antipode.evaluation.protocol import LABEL_FREE, protocols
from antipode.evaluation.score import Score
from antipode.runs.run import Run
from tests.reporting.runs import rows, run


def score(value, unit="% top-1", **more):
    return {"value": value, "unit": unit, "split": "test", "n": 100, **more}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["linear", "knn"], "knn"),
        (["linear", "knn20"], "knn20"),
        (["knn200", "knn"], "knn"),
        (["knn-head", "linear-fast"], "linear-fast"),
        (["retrieval", "alignment-uniformity"], "retrieval"),
        (["retrieval", "knn@cifar10"], "knn@cifar10"),
        (["knn@cifar10", "linear"], "linear"),
        (["retrieval", "svm-voc07@voc07"], "svm-voc07@voc07"),
        ([], None),
    ],
)
def test_the_headline_is_the_score_with_labels_on_own_data_and_knn_first(names, expected):
    for order in itertools.permutations(names):
        assert headline(order) == expected


def test_every_protocol_has_a_place_and_the_label_free_ones_come_last():
    labelled = [name for name, one in protocols().items() if one.labels]
    for name in labelled:
        for free in LABEL_FREE:
            assert headline([free, name]) == name


def test_the_verdict_of_retrieval_is_a_sentence_with_interval_untrained_and_chance():
    found = verdict(
        "retrieval",
        score(83.1, "% of views", low=81.62, high=84.55, chance=0.025, more={"untrained": 12.4}),
    )
    assert found.sentence == (
        "finds the other view of an image in 83.1 % of cases (95 % interval 81.6 to 84.5); "
        "untrained 12.4 %; chance 0.025 %"
    )
    assert (found.word, found.good) == ("better than untrained", True)


@pytest.mark.parametrize(
    ("low", "high", "untrained", "chance", "word", "good"),
    [
        (50, 60, 20, 10, "better than untrained", True),
        (50, 60, 55, 10, "no better than untrained", False),
        (50, 60, 70, 10, "worse than untrained", False),
        (5, 15, 3, 10, "not better than chance", False),
        (5, 15, 20, 10, "worse than untrained", False),
        (50, 60, None, 10, "better than chance", None),
        (None, None, 20, 10, "", None),
    ],
)
def test_the_interval_decides_the_word(low, high, untrained, chance, word, good):
    more = {} if untrained is None else {"untrained": untrained}
    found = verdict("knn", score(55.0, low=low, high=high, chance=chance, more=more))
    assert (found.word, found.good) == (word, good)


def test_a_verdict_with_labels_names_the_classifier_and_the_images():
    text = verdict("knn20@cifar10", score(78.6)).sentence
    assert text == "kNN20 names the class of 78.6 % of the test images of cifar10"
    assert verdict("svm-voc07", score(50.0, "mAP")).sentence.startswith("svm-voc07 reaches 50 mAP")


@pytest.mark.parametrize(
    ("value", "text"), [(83.14, "83.1 %"), (0.025, "0.025 %"), (0.0, "0.0 %"), (100.0, "100.0 %")]
)
def test_small_percentages_keep_two_digits(value, text):
    assert percent(value) == text


def test_the_best_uniformity_is_that_of_random_unit_vectors():
    for width in (3, 16, 128):
        x = torch.randn(4000, width, generator=torch.Generator().manual_seed(0))
        assert even_uniformity(width) == pytest.approx(float(measures.uniformity(x)), abs=0.02)
    assert even_uniformity(10**6) == pytest.approx(-4, abs=1e-4)


def test_each_finding_has_its_number_and_tells_good_from_bad():
    values = {"spread": 0.9, "rank": 40.0, "alignment": 0.4, "uniformity": -3.1, "similarity": 0.0}
    good = findings(values, 128, 128)
    assert [one.name for one in good] == ["collapse", "rank", "alignment", "uniformity"]
    assert all(one.good for one in good)
    text = " ".join(one.sentence for one in good)
    assert "none, the spread is 0.90" in text and "40 of 128 dimensions" in text
    assert "5.0 times closer than different images" in text and "-3.10 (-3.94 is" in text
    bad = findings(values | {"spread": 0.01, "rank": 1.0, "alignment": 2.5}, 128, None)
    assert [one.good for one in bad] == [False, False, False, True]
    assert "collapsed" in bad[0].sentence and "only about 1 of 128" in bad[1].sentence
    assert "no closer than different images" in bad[2].sentence
    [close] = findings({"alignment": 1.96, "similarity": 0.0}, 128, None)
    assert not close.good and "hardly closer than different images" in close.sentence


def test_the_condition_of_a_run_is_that_of_its_last_health_check(tmp_path):
    log = [*rows(20), {"step": 20, "epoch": 2, "loss": 1.0, "spread": 0.03, "rank": 1.2}]
    found = condition(Run(run(tmp_path / "r", log=log)), {})
    assert found.of == HEAD and [one.value for one in found.findings][:2] == [0.03, 1.2]
    assert [one.good for one in found.findings][:2] == [False, False]


def test_without_a_log_the_score_of_alignment_tells_of_the_backbone(tmp_path):
    path = run(tmp_path / "r", log=[], trained=False)
    more = {"uniformity": -1.5, "spread": 0.5, "rank": 30.0, "similarity": 0.4}
    own = score(0.3, "mean squared distance", more=more, settings={"dimensions": 64})
    found = condition(Run(path), {"alignment-uniformity": own})
    assert found.of == BACKBONE and len(found.findings) == 4
    assert "30 of 64 dimensions" in found.lines()[1]
    assert condition(Run(path), {}) is None


def test_evaluate_prints_the_verdict_and_the_condition(tmp_path):
    path = run(tmp_path / "r")
    scores = {"knn": Score(60.0, "% top-1", "knn", low=55.0, high=65.0, chance=10.0, n=100)}
    lines = judgement(path, scores)
    assert lines[0].startswith("verdict (better than chance): kNN names the class of 60.0 %")
    assert lines[1] == f"{HEAD}:" and lines[2].startswith("  collapse: none")
    assert judgement(path, {}) == []


def test_the_command_prints_the_verdict_but_not_as_json(tmp_path, capsys):
    from antipode.cli import main

    words = ["evaluate", "random:resnet10-slim", "--data", "digits", "--out", str(tmp_path / "u")]
    for flags in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--protocol", "retrieval", *flags])
        assert ended.value.code == 0
        out = capsys.readouterr().out
        if flags:
            assert list(json.loads(out)) == ["retrieval"]
        else:
            assert "verdict (the network is untrained): finds the other view" in out
            assert "; untrained" not in out
    assert math.isfinite(antipode.Run(tmp_path / "u").scores["retrieval"]["value"])


@pytest.mark.parametrize(
    ("images", "weights", "advice"),
    [
        (1999, None, ["more epochs", '"backbone.weights": "torchvision"']),
        (2000, None, ["more epochs"]),
        (1999, "torchvision", ["more epochs"]),
        (None, None, ["more epochs"]),
    ],
)
def test_a_bad_verdict_says_what_may_help(tmp_path, images, weights, advice):
    content = {"data": {"name": "folder:photos"}, "backbone": {"weights": weights}}
    if images:
        (tmp_path / "images.json").write_text(json.dumps({"images": images}))
    (tmp_path / "recipe.json").write_text(json.dumps(content))
    bad = Score(protocol="knn", **score(30.0, low=28.0, high=32.0, more={"untrained": 50.0}))
    lines = judgement(tmp_path, {"knn": bad})
    assert lines[0].startswith("verdict (worse than untrained): ") and lines[1].startswith("next: ")
    assert all(word in lines[1] for word in advice)
    assert ("torchvision" in lines[1]) == (len(advice) == 2)
    good = Score(protocol="knn", **score(60.0, low=58.0, high=62.0, more={"untrained": 50.0}))
    assert not any(line.startswith("next") for line in judgement(tmp_path, {"knn": good}))


def test_the_health_of_a_run_that_has_not_ended_is_that_of_a_step(tmp_path):
    stopped = Run(run(tmp_path / "stopped", trained=False, log=rows(18)))
    ended = Run(run(tmp_path / "ended", log=rows(18)))
    assert condition(ended, {}).of == HEAD
    assert condition(stopped, {}).of == (
        "projection head at step 15 of a training that has not ended"
    )
