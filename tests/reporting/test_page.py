"""Tests of the page as a file: its content, the escaping of texts, and runs with missing parts."""

import base64
import hashlib
import html.parser
import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import antipode
from antipode.reporting import page
from antipode.reporting.page import document, embedded
from antipode.reporting.summary import gather
from tests.reporting.runs import photographs, rows, run, score

EVIL = "</script><script>alert(1)</script><b>&\u2028<!--"


class Tags(html.parser.HTMLParser):
    """A parser for the elements of a page, its text outside scripts, and its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.words, self.inside = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag if tag in ("script", "style") else None
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, text):
        if self.inside == "script":
            self.scripts[-1] += text
        elif self.inside is None:
            self.words.append(text)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())  # non-breaking spaces become spaces

    @property
    def data(self):
        return json.loads(self.scripts[0])


def written(paths, out):
    return Tags(antipode.report(paths, out=out).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shown(whole):
    return Tags(whole[1].read_text(encoding="utf-8"))


def test_the_page_has_every_picture_of_a_whole_run(shown):
    content = shown.data["runs"][0]
    assert content["absent"] == {}
    parts = {"views", "neighbours", "map", "duplicates", "similarity", "spectrum"}
    assert set(content["pictures"]) == parts
    assert len(content["pictures"]["views"]["rows"]) == 6
    assert [len(row["near"]) for row in content["pictures"]["neighbours"]["rows"]] == [8] * 8
    assert list(content["pictures"]["map"]["layouts"]) == ["t-SNE", "PCA"]


def test_a_page_without_images_has_every_number_of_it(imageless, shown):
    page = Tags(imageless.read_text(encoding="utf-8"))
    assert "data:image" not in imageless.read_text(encoding="utf-8")
    content = page.data["runs"][0]
    assert set(content["pictures"]) == {"map", "duplicates", "similarity", "spectrum"}
    assert set(content["absent"]) == {"views", "neighbours"}
    assert set(content["absent"].values()) == {"the page was written without images (--no-images)"}
    others = shown.data["runs"][0]["pictures"]
    assert content["pictures"]["similarity"] == others["similarity"]
    assert content["pictures"]["map"] | {"sheets": others["map"]["sheets"]} == others["map"]


def test_the_footer_says_whether_there_are_images(imageless, shown):
    assert "contains small copies of images of the data set" in shown.text
    assert "It contains no images of the data set." in Tags(imageless.read_text()).text


@pytest.mark.parametrize("images", [True, False])
def test_a_sentence_says_that_a_page_contains_images(images, tmp_path, capsys):
    path = run(tmp_path / "run", trained=False)  # without a backbone, only views are drawn
    antipode.report([path], images=images)
    words = "contains small copies of images of the data set; a report with images=False has none"
    assert (words in capsys.readouterr().err) == images


def test_the_head_says_what_it_is_without_a_script(shown):
    text = shown.text
    assert (
        "digits run" in text
        and "resnet10-slim pretrained with dcl on" in text
        and "without labels" in text
    )
    assert "kNN names the class of 61.2 % of the test images" in text
    assert "Score knn on 1,000 test images of digits. One seed: train several" in text


def test_nothing_is_fetched_and_no_other_script_would_run(shown):
    for tag, attributes in shown.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "href", "action", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    policy = next(a["content"] for t, a in shown.elements if t == "meta" and a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(shown.scripts[1].encode()).digest()).decode()
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\("
        r"|https?:(?!//www.w3.org)",
        shown.scripts[1],
    )


def test_a_page_is_the_same_again(whole, tmp_path):
    assert (
        antipode.report([whole[0]], out=tmp_path / "again.html").read_bytes()
        == whole[1].read_bytes()
    )


def test_names_that_are_markup_stay_text(tmp_path):
    name = "<img src=x onerror=alert(1)> & <b>bold"
    evil = score(1.0, protocol=EVIL) | {"data": EVIL, "unit": f"% {EVIL}", "settings": {EVIL: EVIL}}
    path = run(
        tmp_path / name,
        trained=False,
        scores={EVIL: evil},
        log=[{"step": 0, "epoch": 0, "loss": 1.0, EVIL: 2.0}],
    )
    content = json.loads((path / "recipe.json").read_text())
    content["sources"]["method.tau"] = EVIL
    (path / "recipe.json").write_text(json.dumps(content))
    (path / "analysis.json").write_text(json.dumps({EVIL: {"values": {EVIL: 1}, "notes": [EVIL]}}))
    (path / "env.json").write_text(json.dumps({EVIL: EVIL, "command": [EVIL]}))
    for paths in ([path], [path, run(tmp_path / "other", trained=False)]):
        page = written(paths, tmp_path / "page.html")
        assert not {tag for tag, _ in page.elements} & {"img", "i"} and len(page.scripts) == 2
        assert not any(
            name.startswith("on") for _, attributes in page.elements for name in attributes
        )
        shown = page.data["runs"][0]
        assert shown["name"] == name and shown["env"] == [[EVIL, EVIL]]
        assert EVIL in shown["curves"]["y"] and EVIL in shown["analysis"]
    assert name in written([path], tmp_path / "page.html").text


@pytest.mark.parametrize("text", [EVIL, "<!--<script>", "]]>", "&lt;", "\u2028\u2029", "\ud800"])
def test_embedded_data_are_the_data_and_never_end_their_element(text):
    found = embedded({text: [text, float("nan"), float("inf"), None]})
    assert not set("<>&") & set(found) and found.isascii()
    assert json.loads(found) == {text: [text, None, None, None]}


def test_a_mark_in_a_name_is_not_filled_in():
    made = document("<!--DATA-->", "hero", "notes", {"x": "<!--SCRIPT-->"})
    assert made.count('{"x":') == 1 and "&lt;!--DATA--&gt;" in made


# ---- missing results are reported


def test_a_run_without_its_data_says_so_and_keeps_the_rest(tmp_path):
    path = run(
        tmp_path / "gone",
        data=f"folder:{photographs(tmp_path / 'photos')}",
        channels=3,
        scores={"knn": score(5.0)},
    )
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    page = written([path], tmp_path / "page.html")
    shown = page.data["runs"][0]
    assert shown["pictures"] == {} and "photos" in shown["absent"]["map"]
    assert "No pictures: " in page.text and "photos" in page.text
    assert shown["curves"]["y"]["loss"] and "5.0 %" in page.text


def test_a_run_without_labels_has_neighbours_without_a_verdict_and_a_map_without_classes(tmp_path):
    data = f"folder:{photographs(tmp_path / 'photos')}"
    path = run(tmp_path / "plain", data=data, channels=3, **{"views.size": 32})
    shown = written([path], tmp_path / "page.html").data["runs"][0]
    assert shown["absent"] == {}
    found = shown["pictures"]["neighbours"]
    assert found["right"] is None and {
        one["right"] for row in found["rows"] for one in row["near"]
    } == {None}
    assert shown["pictures"]["map"]["label"] is None and shown["pictures"]["map"]["classes"] == []


def test_a_run_that_has_not_ended_says_so_and_shows_its_views(tmp_path):
    path = run(tmp_path / "half", trained=False, log=rows(20))
    page = written([path], tmp_path / "page.html")
    shown = page.data["runs"][0]
    assert (
        "The run has not ended: the log has 1 of 4 epochs" in page.text
        and "no backbone yet" in page.text
    )
    assert list(shown["pictures"]) == ["views"] and "no backbone" in shown["absent"]["map"]
    assert shown["status"] == "epoch 1 of 4"


def test_a_run_that_has_not_ended_is_resumed_before_it_is_evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = run(tmp_path / "my runs" / "half", trained=False, log=rows(20))
    text = written([path], tmp_path / "page.html").text
    resume = "antipode pretrain 'my runs/half/recipe.json' --out 'my runs/half'"
    assert text.count(resume) == 2 and "antipode evaluate" not in text
    assert "at the end of training" not in text


def test_a_run_of_a_data_set_of_ones_own_says_why_there_are_no_pictures(tmp_path):
    path = run(tmp_path / "own", data="python:Photographs", trained=False)
    assert (
        "passed in Python"
        in written([path], tmp_path / "page.html").data["runs"][0]["absent"]["views"]
    )


def test_skipped_images_are_a_warning(tmp_path):
    photographs(tmp_path / "photos")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    path = run(tmp_path / "r", data=f"folder:{tmp_path / 'photos'}", channels=3, trained=False)
    with pytest.warns(UserWarning, match="broken"):
        text = written([path], tmp_path / "page.html").text
    assert (
        "1 image could not be used, among those that this page looked at: " in text
        and "/broken.png" in text
    )


def test_features_that_are_not_numbers_are_a_reason_not_a_crash(tmp_path):
    path = run(tmp_path / "nan")
    weights = load_file(path / "backbone.safetensors")
    save_file(
        {
            name: value + torch.nan if value.is_floating_point() else value
            for name, value in weights.items()
        },
        path / "backbone.safetensors",
    )
    shown = written([path], tmp_path / "page.html").data["runs"][0]
    assert list(shown["pictures"]) == ["views"] and "NaN or infinite" in shown["absent"]["map"]


def test_a_network_that_no_run_made_stands_beside_runs_that_were_scored_on_its_data(tmp_path):
    (tmp_path / "random").mkdir()
    own = score(9.0) | {"data": "folder:mine"}
    (tmp_path / "random" / "scores.json").write_text(json.dumps({"knn": own, "linear": own}))
    path = run(tmp_path / "r", trained=False)
    (path / "scores.json").write_text(
        json.dumps({"knn@folder:mine": own | {"value": 20.0}, "linear": score(30.0)})
    )
    names = [
        list(one.shown_scores)
        for one in gather([antipode.Run(tmp_path / "random"), antipode.Run(path)])
    ]
    assert names == [["knn@folder:mine", "linear"], ["knn@folder:mine", "linear"]]


def test_an_empty_folder_of_scores_is_a_network_that_no_run_made(tmp_path):
    (tmp_path / "random").mkdir()
    (tmp_path / "random" / "scores.json").write_text(json.dumps({"knn": score(9.0)}))
    page = written(
        [tmp_path / "random", run(tmp_path / "r", trained=False)], tmp_path / "page.html"
    )
    assert (
        "1 network that no run here has trained" in page.text
        and "There is no recipe.json" in page.text
    )
    assert page.data["runs"][0]["scores"] == {"0": 9.0}


# ---- several runs


def test_a_comparison_has_the_mean_and_spread_of_the_best_setting_on_top(tmp_path):
    best = [
        run(tmp_path / f"a{s}", seed=s, trained=False, scores={"knn": score(60.0 + 2 * s)})
        for s in range(3)
    ]
    other = run(tmp_path / "b", method="simclr", trained=False, scores={"knn": score(40.0)})
    page = written([*best, other], tmp_path / "page.html")
    assert "62.0 %" in page.text and "± 2.0" in page.text
    assert "dcl, the highest of 2 settings. Mean ± standard deviation over 3 seeds." in page.text
    assert page.data["vary"] == ["method.name", "train.seed"]


def test_pictures_are_drawn_for_one_run_of_each_of_the_first_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "PICTURED", 1)
    paths = [run(tmp_path / f"s{s}", seed=s) for s in range(2)]
    shown = written(paths, tmp_path / "page.html")
    assert [bool(one["pictures"]) for one in shown.data["runs"]] == [True, False]
    assert (
        "No pictures: they are drawn for one run of each of the first 1 settings only" in shown.text
    )


def test_refusals_come_before_the_work(tmp_path, monkeypatch):
    path = run(tmp_path / "r", trained=False)
    monkeypatch.setattr(page, "page", None)
    with pytest.raises(FileNotFoundError, match=r"no run in .*nowhere"):
        antipode.report([path, tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="is a directory"):
        antipode.report([path], out=tmp_path)
    with pytest.raises(FileNotFoundError, match="empty list"):
        antipode.report([])
    with pytest.raises(ValueError, match=r"written to a \*.html or \*.htm file, not to 'x.pdf'"):
        antipode.report([path], out=tmp_path / "x.pdf")


def test_many_notes_of_one_kind_are_one_line_that_unfolds(tmp_path):
    paths = []
    for at in range(6):
        log = [*rows(10), {"step": 10 + at, "epoch": 1, "loss": None}]
        paths.append(run(tmp_path / f"run{at}", seed=at, trained=False, log=log))
    shown = written(paths, tmp_path / "page.html")
    assert (
        shown.text.count("The loss is not a finite number") == 6
        and "and 5 more like it" in shown.text
    )
    assert (
        sum(tag == "li" and words == {"class": "grave"} for tag, words in shown.elements) == 2
    )  # the loss, and unfinished training


# ---- the verdict


def label_free(**changes):
    """Return the score of retrieval on images without labels."""
    about = {"protocol": "retrieval", "unit": "% of views", "settings": {}, "split": "train"}
    numbers = {"low": 81.6, "high": 84.5, "chance": 0.025, "more": {"untrained": 12.4}, "n": 2000}
    return {
        "value": 83.1,
        "data": "folder:x",
        "seed": 0,
        "epoch": "last",
        **about,
        **numbers,
    } | changes


def test_without_labels_the_headline_is_the_verdict_with_untrained_and_chance(tmp_path):
    scores = {"alignment-uniformity": label_free(value=0.2, unit="mean squared distance")}
    scores["retrieval"] = label_free()
    path = run(tmp_path / "plain", trained=False, scores=scores)
    text = written([path], tmp_path / "page.html").text
    assert "✓ Better than untrained 83.1 % 81.6 to 84.5" in text
    assert (
        "Finds the other view of an image in 83.1 % of cases (95 % interval 81.6 to 84.5); "
        "untrained 12.4 %; chance 0.025 %." in text
    )
    assert "Compared with this run 83.1 % untrained network 12.4 % chance 0.025 %" in text
    assert "Score retrieval on 2,000 training images of folder:x." in text


def test_a_run_that_is_no_better_than_untrained_says_so(tmp_path):
    scores = {"retrieval": label_free(more={"untrained": 83.0})}
    text = written([run(tmp_path / "r", trained=False, scores=scores)], tmp_path / "p.html").text
    assert "! No better than untrained 83.1 %" in text


def test_a_network_that_no_run_trained_is_never_the_headline_but_the_baseline(tmp_path):
    """The untrained network has more scores here, and a supervised one has a higher score."""
    plain = run(tmp_path / "mine", trained=False, scores={"knn": score(60.0)})
    for name, value in {"random": 13.0, "torchvision": 90.0}.items():
        folder = tmp_path / name
        folder.mkdir()
        scores = {"knn": score(value), "linear": score(value, protocol="linear")}
        (folder / "scores.json").write_text(json.dumps(scores))
        (folder / "network.json").write_text(json.dumps({"network": f"{name}:resnet50"}))
    paths = [tmp_path / "random", tmp_path / "torchvision", plain]
    text = written(paths, tmp_path / "page.html").text
    assert "60.0 % kNN names the class of 60.0 % of the test images; untrained 13.0 %." in text


def test_the_headline_of_a_run_is_that_of_a_comparison_with_it(tmp_path):
    scores = {"linear": score(70.0, protocol="linear"), "knn": score(60.0)}
    paths = [run(tmp_path / f"r{s}", seed=s, trained=False, scores=scores) for s in (0, 1)]
    for chosen in (paths[:1], paths):
        shown = written(chosen, tmp_path / "page.html")
        assert shown.data["columns"][shown.data["main"]]["name"] == "knn"


def test_the_health_of_the_embeddings_is_said_in_words(tmp_path):
    text = written([run(tmp_path / "r", trained=False)], tmp_path / "page.html").text
    assert "Collapse None, the spread is 0.90 (1 is even, below 0.1 is a collapse)." in text
    rank = "about 12 of 16 dimensions (16 images cannot use more, although their width is 128)"
    assert f"Rank The embeddings use {rank}." in text


def test_a_page_opens_without_notes_on_what_is_missing(tmp_path):
    """They are folded at the end, with commands that name the folder."""
    page = written([run(tmp_path / "my run", trained=False)], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.index('id="body"') < text.index("There are no analyses yet")
    assert "What could be added to this page" in page.text
    assert f"antipode analyse '{tmp_path / 'my run'}'" in page.text


def test_settings_are_folded(tmp_path):
    path = run(tmp_path / "r", trained=False)
    text = antipode.report([path], out=tmp_path / "page.html").read_text()
    folded = text[text.index("<details") : text.index("</details>")]
    assert "pretrained with dcl on" in folded and "Training time" in folded


def test_test_images_that_are_training_images_are_a_warning_beside_the_score(tmp_path):
    shared = score(60.0) | {"more": {"test images in train": 7}}
    text = written(
        [run(tmp_path / "r", trained=False, scores={"knn": shared})], tmp_path / "page.html"
    ).text
    assert "7 of the test images are also training images, so this score is too high" in text


@pytest.mark.parametrize(("method", "filled"), [("mocov2", True), ("simclr", False)])
def test_the_steps_in_which_a_queue_fills_are_marked(method, filled, tmp_path):
    log = [{"step": at, "epoch": 0, "loss": min(at, 6.0)} for at in range(20)]
    queue = {"method.queue": 96} if filled else {}
    path = run(tmp_path / "r", method=method, trained=False, log=log, **queue)
    found = written([path], tmp_path / "page.html").data["runs"][0]["filling"]
    expected = {"steps": 6, "kind": "queue", "count": 96, "rises": True}  # 96 keys, 16 per step
    assert found == (expected if filled else None)


def test_duplicates_are_shown_counted_and_listed(tmp_path):
    photos = photographs(tmp_path / "photos")
    (photos / "copy.png").write_bytes((photos / "3.png").read_bytes())
    path = run(tmp_path / "run", data=f"folder:{photos}", channels=3, **{"views.size": 32})
    found = written([path], tmp_path / "page.html").data["runs"][0]["pictures"]["duplicates"]
    assert found["counts"]["exact copies"] == 1 and found["file"] == "duplicates.csv"
    assert [one["name"] for one in found["pairs"][0]["images"]] == ["3.png", "copy.png"]
    assert "exact,1.0,1.0,train,3.png,,train,copy.png," in (path / "duplicates.csv").read_text()
