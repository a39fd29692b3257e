"""The images that a run was trained on are found from any folder, and others are recognised."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import antipode
from antipode.cli import main
from antipode.data.sources.pack import pack
from antipode.runs.own_images import NotFound, OtherImages
from antipode.training import checkpoint

FLAGS = {"method": "simclr", "backbone": "resnet10-slim", "batch": 8, "epochs": 1, "quiet": True}
FIT = {"views.size": 16}


def draw(folder, seed, count=24):
    """Write images with random pixels to two class folders."""
    generator = np.random.default_rng(seed)
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for at in range(count):
            pixels = generator.integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{name}{at:02d}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project with images in `lab`, a run on them, and a project with other images in `lab`."""
    root = tmp_path_factory.mktemp("projects")
    draw(root / "mine" / "lab", 0)
    draw(root / "theirs" / "lab", 1)
    (root / "empty").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root / "mine")
        antipode.pretrain(data="folder:lab", out="runs/lab", overrides=FIT, **FLAGS)
    return root


@pytest.fixture
def places(trained, tmp_path, monkeypatch):
    """A copy of the projects that thinks that it is the original, and a function to go there."""
    root = Path(shutil.copytree(trained, tmp_path / "copy"))
    file = root / "mine" / "runs" / "lab" / "env.json"
    env = json.loads(file.read_text())
    assert env["directory"] == str(trained / "mine")
    file.write_text(json.dumps(env | {"directory": str(root / "mine")}))
    monkeypatch.chdir(root / "mine")
    return root


def scored(run, **options):
    """Return the scores that an evaluation adds, and its warnings about the images."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        antipode.evaluate(run, "knn10", device="cpu", **options)
    texts = [str(one.message) for one in caught]
    return antipode.Run(run).scores, [text for text in texts if "trained on" in text]


def command(words):
    with pytest.raises(SystemExit) as end:
        main(words.split())
    return end.value.code


def test_a_run_finds_its_images_from_any_folder(places, monkeypatch, capsys):
    run = places / "mine" / "runs" / "lab"
    first, said = scored(run)
    assert said == [] and first["knn10"]["data"] == "folder:lab"
    for place in ("theirs", "empty"):
        monkeypatch.chdir(places / place)
        assert scored(run) == (first, [])
        assert antipode.analyse(run, "spectrum", device="cpu")["lab"]["spectrum"]["values"]
        capsys.readouterr()
        page = antipode.report(run).read_text()
        assert "image/" in page and "no pictures" not in capsys.readouterr().err
    assert str(places / "mine") not in page, "pages are shared, and the folder is private"


def test_a_name_that_is_given_means_the_current_folder(places, monkeypatch):
    run = places / "mine" / "runs" / "lab"
    first, _ = scored(run)
    monkeypatch.chdir(places / "theirs")
    scores, _ = scored(run, data="folder:lab")
    assert scores["knn10"] == first["knn10"]
    assert f"knn10@folder:{places}/theirs/lab" in scores
    monkeypatch.chdir(places / "empty")
    with pytest.raises(FileNotFoundError, match="empty/lab"):
        scored(run, data="folder:lab")


def test_other_images_do_not_get_the_score_of_a_run(places, monkeypatch, capsys):
    run = places / "mine" / "runs" / "lab"
    first, _ = scored(run)
    shutil.rmtree(places / "mine" / "lab")
    monkeypatch.chdir(places / "theirs")
    sentence = (
        f"trained on 44 training images of folder:lab in {places}/mine, and {places}/theirs/lab "
        "has 44 training images of another data set .their names and contents differ.; .*data="
    )
    shutil.move("lab/cats/cats00.png", "lab/cats/other.png")
    with pytest.raises(OtherImages, match=sentence):
        scored(run)
    with pytest.raises(OtherImages, match="another data set"):
        antipode.analyse(run, "spectrum", device="cpu")
    assert antipode.Run(run).scores == first
    assert command(f"report {run}") == 0
    assert "the report has no pictures of lab: " in capsys.readouterr().err


def test_images_that_are_missing_are_explained_by_where_they_were(places, monkeypatch, capsys):
    run = places / "mine" / "runs" / "lab"
    shutil.rmtree(places / "mine" / "lab")
    monkeypatch.chdir(places / "empty")
    where = f"there is no folder {places}/mine/lab: .* on folder:lab in {places}/mine; evaluate"
    with pytest.raises(NotFound, match=where):
        scored(run)
    with pytest.raises(NotFound, match=where):
        antipode.analyse(run, "spectrum", device="cpu")
    capsys.readouterr()
    assert command(f"report {run}") == 0
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "the report has no pictures of lab: there is" in shown.err
    assert str(places / "mine" / "lab") not in (run / "report.html").read_text()


def test_a_folder_that_has_grown_is_scored_with_a_warning(places):
    run = places / "mine" / "runs" / "lab"
    for at in range(12):
        shutil.copy("lab/cats/cats05.png", f"lab/cats/new{at}.png")
    scores, said = scored(run)
    assert scores["knn10"]["data"] == "folder:lab"
    assert said == [
        f"folder:lab has changed since {run} was trained on it: 44 training images then, 55 "
        "training images now"
    ]


def test_images_that_were_sorted_into_folders_are_the_same_images(places):
    run = places / "mine" / "runs" / "lab"
    for at in range(24):
        name = f"cats{at:02d}.png"
        Path("lab/old").mkdir(exist_ok=True)
        shutil.move(f"lab/cats/{name}", f"lab/old/{name}")
    _, said = scored(run)
    assert len(said) == 1 and "has changed since" in said[0]


def test_changed_images_of_a_folder_that_is_named_are_other_data(places):
    run = places / "mine" / "runs" / "lab"
    first, _ = scored(run)
    shutil.rmtree("lab")
    shutil.copytree(places / "theirs" / "lab", "lab")
    with pytest.raises(OtherImages):
        scored(run)
    scores, said = scored(run, data="folder:lab")
    assert scores["knn10"] == first["knn10"] and f"knn10@folder:{places}/mine/lab" in scores
    assert len(said) == 1 and "the scores are stored as PROTOCOL@folder:" in said[0]


def test_a_score_reads_no_checkpoint_to_recognise_the_images(places, monkeypatch):
    def unread(*_, **__):
        raise AssertionError("a checkpoint was read")

    monkeypatch.setattr(checkpoint, "_read", unread)
    monkeypatch.chdir(places / "empty")
    scored(places / "mine" / "runs" / "lab")


def test_runs_of_earlier_versions_look_in_the_current_folder(places, monkeypatch):
    run = places / "mine" / "runs" / "lab"
    (run / "images.json").unlink()
    (run / "env.json").write_text("{}")
    assert scored(run)[1] == []
    monkeypatch.chdir(places / "empty")
    with pytest.raises(NotFound, match="on folder:lab in a folder that it did not record"):
        scored(run)


def test_the_recipe_of_a_run_starts_it_again_from_any_folder(places, monkeypatch, tmp_path):
    recipe = places / "mine" / "runs" / "lab" / "recipe.json"
    assert antipode.plan(recipe).data == "folder:lab"
    for place in ("theirs", "empty"):
        monkeypatch.chdir(places / place)
        for given in (recipe, recipe.parent):
            assert antipode.plan(given, out=tmp_path / "o").data == f"folder:{places}/mine/lab"
    shutil.rmtree(places / "mine" / "lab")
    with pytest.raises(FileNotFoundError, match="mine/lab, which the recipe names: give data="):
        antipode.plan(recipe)


def test_a_run_resumes_by_its_recipe_from_any_folder(places, monkeypatch):
    run = places / "mine" / "runs" / "lab"
    weights = (run / "backbone.safetensors").read_bytes()
    monkeypatch.chdir(places / "theirs")
    with pytest.warns(UserWarning, match="are now read from folder:"):
        antipode.pretrain(run / "recipe.json", out=run, quiet=True)
    assert (run / "backbone.safetensors").read_bytes() == weights


def test_a_pack_is_found_and_recognised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "lab", 0)
    draw(tmp_path / "other", 1)
    pack("folder:lab", "small", progress=False)
    run = antipode.pretrain(data="packed:small", out="run", overrides=FIT, **FLAGS).path
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    scores, said = scored(run)
    assert "knn10" in scores and said == []
    pack(f"folder:{tmp_path}/other", tmp_path / "away" / "small", progress=False)
    assert scored(run) == (scores, [])
    shutil.rmtree(tmp_path / "small")
    with pytest.raises(OtherImages, match="another data set"):
        scored(run)


def test_an_untrained_network_finds_the_images_that_it_was_scored_on_first(places, monkeypatch):
    out = places / "untrained"
    name = "random:resnet10-slim"
    first = antipode.evaluate(name, "knn10", data="folder:lab", out=out, device="cpu")
    monkeypatch.chdir(places / "empty")
    assert antipode.evaluate(name, "knn10", out=out, device="cpu") == first


def test_weights_to_start_from_are_the_same_by_any_path(places, monkeypatch):
    first = "runs/lab/backbone.safetensors"
    for path in (first, f"./{first}", f"{places}/mine/{first}"):
        settings = {**FIT, "backbone.weights": path}
        run = antipode.pretrain(data="folder:lab", out="runs/again", overrides=settings, **FLAGS)
    recipe = run.path / "recipe.json"
    recipe.write_text(recipe.read_text().replace(f"{places}/mine/{first}", first))
    monkeypatch.chdir(places / "empty")
    antipode.plan(run.path, out=places / "third")


def test_a_pack_that_is_missing_is_explained_by_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "lab", 0, count=8)
    pack("folder:lab", "small", progress=False)
    run = antipode.pretrain(data="packed:small", out="run", overrides=FIT, **FLAGS).path
    shutil.rmtree(tmp_path / "small")
    with pytest.raises(FileNotFoundError, match=f"on packed:small in {tmp_path}; evaluate"):
        scored(run)
