"""What a newcomer with a folder of pictures gets wrong: each answer is one sentence that helps."""

import numpy as np
import pytest
from PIL import Image

import antipode
from antipode import early
from antipode.cli import main
from antipode.data.sources.catalog import load
from antipode.finetuning import train as finetuning


def pictures(folder, count):
    """Write small JPEG files."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    for at in range(count):
        pixels = noise.integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{at}.jpg")
    return folder


def answer(words, capsys):
    """Return what a command that ends with status 2 prints on stderr, in one line."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    return said


@pytest.mark.parametrize("place", ["here.txt", "here.txt/run"])
@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_a_file_in_place_of_the_run_folder(tmp_path, capsys, place, plan):
    (tmp_path / "here.txt").touch()
    words = ["pretrain", "digits.dcl", "--out", str(tmp_path / place), *plan]
    assert f"{tmp_path / 'here.txt'} is a file, but a folder is needed" in answer(words, capsys)


@pytest.mark.parametrize("method", ["dcl", "byol"])
def test_a_folder_with_a_single_image(tmp_path, capsys, method):
    folder = pictures(tmp_path / "one", 1)
    words = ["pretrain", "--data", f"folder:{folder}", "--method", method, "--plan"]
    said = answer(words, capsys)
    assert said == f"antipode: folder:{folder} has 1 image, and training needs at least 2\n"


@pytest.mark.parametrize(
    "data", ["folder:photos", "folder:/some/photos", "hf:some/photos", "shapes"]
)
@pytest.mark.parametrize("command", ["pretrain", "show"])
def test_data_in_the_place_of_a_recipe(capsys, command, data):
    said = answer([command, data], capsys)
    assert said == f"antipode: {data!r} is a data set and not a recipe: use --data {data}\n"


def test_a_gpu_is_called_cuda(capsys):
    said = answer(["pretrain", "digits.dcl", "--device", "gpu", "--plan"], capsys)
    assert "not 'gpu', did you mean 'cuda'?" in said


def test_a_run_that_has_not_ended_and_a_folder_that_is_not_there(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "backbone.safetensors").touch()
    with pytest.raises(FileNotFoundError, match=r"no such folder, did you mean .*/photos\?"):
        early.check_run(str(tmp_path / "photo"))
    with pytest.raises(FileNotFoundError, match="no such folder; networks that no run"):
        early.check_run(str(tmp_path / "nothing like it"))
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "recipe.json").touch()
    with pytest.raises(FileNotFoundError, match=r"training has not ended.* resumes it"):
        early.check_run(str(tmp_path / "stopped"))


def test_a_folder_without_pictures_counts_its_files(tmp_path):
    (tmp_path / "a.txt").write_text("no image")
    with (
        pytest.warns(UserWarning, match="a.txt is not an image"),
        pytest.raises(ValueError, match=r"no image that can be read, of 1 file$"),
    ):
        load(f"folder:{tmp_path}")


def test_a_broken_jpeg_is_explained_without_lines_of_source_code(tmp_path):
    folder = pictures(tmp_path / "photos", 4)
    whole = (folder / "1.jpg").read_bytes()
    (folder / "1.jpg").write_bytes(whole[: len(whole) * 3 // 4])
    _, _, ((name, why),) = load(f"folder:{folder}").train.read_or_next(1)
    assert name == "1.jpg" and "truncated" in why
    assert why.startswith("cannot be decoded (") and ".cpp" not in why


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (("oak", "elm"), ""),
        (
            ("2024-01", "2024-02"),
            "note: 2 subfolders have names like dates (2024-01, 2024-02); here they are the "
            "classes that the classifier learns",
        ),
    ],
)
def test_the_opening_lines_of_finetune_count_correctly(tmp_path, capsys, monkeypatch, names, note):
    def stop(*_, **__):
        raise RuntimeError("enough")

    for name in names:
        pictures(tmp_path / "trees" / name, 10)
    monkeypatch.setattr(finetuning, "tune", stop)
    with pytest.raises(RuntimeError, match="enough"):
        antipode.finetune(
            "random:resnet10-slim",
            f"folder:{tmp_path / 'trees'}",
            tmp_path / "model",
            epochs=1,
            batch=18,
        )
    said = capsys.readouterr().err
    assert "9 train images each" in said and "1 epoch of 1 step with 18 images" in said
    assert note in said and ("note:" in said) == bool(note)


def monthly(root, months=2):
    """Write a folder of pictures with a subfolder for each month."""
    for month in range(months):
        pictures(root / f"2024-0{month + 1}", 5)
    return root


def test_pack_remarks_on_months_as_classes_and_may_leave_them_out(tmp_path, capsys):
    photos = monthly(tmp_path / "photos")
    for labels, classes in (("auto", None), ("folders", ["2024-01", "2024-02"]), ("none", None)):
        with pytest.raises(SystemExit) as ended:
            words = ["pack", f"folder:{photos}", "--out", str(tmp_path / labels)]
            main([*words, "--labels", labels])
        assert not ended.value.code
        assert load(f"packed:{tmp_path / labels}").classes == classes
        said = capsys.readouterr().err
        assert ("2 subfolders have names like dates" in said) == (labels != "none")
        assert ("--labels none packs no classes" in said) == (labels == "folders")
    with pytest.raises(ValueError, match='labels="none" applies to the subfolders of folder:PATH'):
        antipode.pack("digits", tmp_path / "digits", labels="none")


def test_loose_images_are_to_be_moved(tmp_path, capsys):
    photos = pictures(tmp_path / "photos", 5)
    for name in ("oak", "elm"):
        pictures(photos / name, 5)
    words = ["pretrain", "--data", f"folder:{photos}", "--method", "dcl", "--plan"]
    with pytest.raises(SystemExit):
        main([*words, "--out", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert "5 images are directly in the folder, next to 2 subfolders; to use the sub" in said
    assert "--labels folders" not in said


def test_evaluate_warns_of_months_as_classes_and_knows_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monthly(tmp_path / "photos", 3)
    run = antipode.pretrain(
        "shapes.dcl",
        data="folder:photos",
        labels="auto",
        backbone="resnet10-slim",
        epochs=1,
        batch=4,
        out="run",
        device="cpu",
        overrides={"views.size": 16},
        quiet=True,
    )
    same = antipode.evaluate(run, ["retrieval"], data=f"folder:{tmp_path / 'photos'}")
    assert [*run.scores] == ["retrieval"] and same["retrieval"].value is not None
    monthly(tmp_path / "others", 3)
    with pytest.warns(UserWarning, match="3 subfolders have names like dates .* taken as classes"):
        antipode.evaluate(run, ["knn10"], data="folder:others")


def test_a_data_set_in_the_place_of_the_recipe_of_a_sweep(capsys):
    words = ["sweep", "folder:photos", "--vary", "method.tau=0.1,0.2", "--out", "s"]
    assert "set data.name=folder:photos" in answer(words, capsys)
