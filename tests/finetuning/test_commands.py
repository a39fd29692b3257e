"""Tests of `antipode finetune` and `antipode predict`: what they print, and wrong input."""

import contextlib
import io
import json
import re
import shlex
import warnings
from pathlib import Path

import pytest

import antipode
from antipode import cli
from antipode.exits import INTERRUPTED, warn
from tests.finetuning.pictures import COLOURS, flat, folder, picture

# one worker has all tests with the classifier, so that it is trained once
pytestmark = pytest.mark.xdist_group("classifier")

PAGE = Path(__file__).parents[2] / "docs" / "finetune.md"


def call(line):
    """Run a command in this process. Return its status, and what it wrote to stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with pytest.raises(SystemExit) as end, warnings.catch_warnings():
            warnings.showwarning = warn
            cli.main(shlex.split(line))
    return end.value.code, out.getvalue(), err.getvalue()


def test_finetune_says_what_it_does_and_prints_the_score(start, colours, tmp_path):
    out = tmp_path / "m"
    status, text, err = call(
        f"finetune {start} --data {colours} --out {out} --epochs 2 --device cpu"
    )
    assert status == 0, err
    assert "54 train and 6 test images of 3 classes (blue, green, red)" in err
    assert "resnet10-slim at 16 px, 2 epochs of 3 steps with 16 images, sgd" in err
    assert re.search(r"m: finetune: [\d.]+ % top-1 \[.*\], chance 33.33, balanced", text), text


def test_names_of_classes_and_data_cannot_control_the_terminal(start, tmp_path):
    place = tmp_path / "a\x1b[2Jb"
    data = folder(place, {"red": 1, "blue": 1})
    (place / "blue").rename(place / "blue\x9b31m\x07")
    line = f"finetune {start} --data '{data}' --out {tmp_path / 'm'} --epochs 1 --device cpu"
    status, text, err = call(line)
    assert status == 0 and r"blue\x9b31m\x07" in err
    assert r"a\x1b[2Jb has no labelled test images" in err  # one of each class is too few
    assert not {"\x1b", "\x9b", "\x07"} & {*text, *err}


def test_finetune_prints_one_json_object(start, colours, tmp_path):
    status, text, err = call(
        f"finetune {start} --data {colours} --out {tmp_path / 'm'} --epochs 1 --freeze --balanced "
        "--no-flip --lr 0.01 --batch 8 --seed 3 --device cpu --json"
    )
    content = json.loads(text)
    assert status == 0 and err == "" and content["classes"] == sorted(COLOURS)
    settings = content["scores"]["finetune"]["settings"]
    assert settings["lr"] is None and settings["balanced"] is True and settings["flip"] == 0.0
    assert settings["classifier_lr"] == 0.01 and settings["batch"] == 8
    assert content["scores"]["finetune"]["seed"] == 3


def test_predict_prints_the_number_of_images_by_class(model, tmp_path):
    data = flat(tmp_path / "flat")
    line = f"predict {model.path} --data {data} --out {tmp_path / 'p.csv'} --device cpu"
    status, text, err = call(line)
    assert (status, err) == (0, "") and "6 images (2 blue, 2 green, 2 red)" in text
    content = json.loads(call(f"{line} --json")[1])
    assert content["images"] == 6 and content["classes"] == dict.fromkeys(sorted(COLOURS), 2)


def test_predict_says_how_many_images_it_leaves_out(model, tmp_path):
    """One file is empty, and one breaks off in the middle."""
    root = Path(flat(tmp_path / "flat").removeprefix("folder:"))
    (root / "0.png").write_bytes((root / "0.png").read_bytes()[:-40])
    (root / "empty.jpg").touch()
    line = f"predict {model.path} --data folder:{root} --out {tmp_path / 'p.csv'} --device cpu"
    status, text, err = call(line)
    assert status == 0 and text.endswith("5 images (1 blue, 2 green, 2 red); 2 files left out\n")
    assert "0.png" in err and "is left out (1 so far)" in err and "replaced by" not in err
    assert json.loads(call(f"{line} --json")[1])["left_out"] == 2


def test_predict_says_nothing_about_classes(model, places):
    """The images need no labels, so it does not matter whether subfolders can be classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = antipode.predict(model, f"folder:{places}/one")
    assert found.names == [f"red/{number:03}.png" for number in range(4)]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return folders that cannot be trained on, by name."""
    root = tmp_path_factory.mktemp("places")
    flat(root / "flat")
    folder(root / "one", {"red": 4})
    (root / "empty").mkdir()
    (root / "texts").mkdir()
    (root / "texts" / "a.txt").write_text("text")
    folder(root / "single", {"red": 1, "blue": 1})
    return root


WRONG = {
    "finetune {start} --data folder:{places}/flat --out {out}": ("has no labels", "each class"),
    "finetune {start} --data folder:{places}/one --out {out}": ("has no labels", "at least two"),
    "finetune {start} --data folder:{places}/empty --out {out}": ("{places}/empty", "no image"),
    "finetune {start} --data folder:{places}/texts --out {out}": ("{places}/texts", "no image"),
    "finetune {start} --data folder:{places}/absent --out {out}": ("there is no folder",),
    "finetune {start} --data voc --out {out}": ("there is no data set voc", "voc07"),
    "finetune {start} --data digits --out {out} --epochs 0": ("at least one epoch, got 0",),
    "finetune {start} --data digits --out {out} --epochs 1000000000": ("at most 1,000,000",),
    "finetune {start} --data folder:~nosuch/x --out {out}": ("~nosuch/x", "user"),
    "finetune {start} --data packed:~nosuch/x --out {out}": ("~nosuch/x", "user"),
    "finetune file:~nosuch/x.pth@resnet18 --data digits --out {out}": ("~nosuch/x.pth", "user"),
    "finetune {start} --data digits --out {out} --lr -1": ("learning rate", "above 0, got -1"),
    "finetune {start} --data digits --out {out} --batch 9999": ("batch size", "1437", "9999"),
    "finetune {start} --data digits --out {out} --seed -1": ("seed", "got -1"),
    "finetune {start} --data digits --out {out} --device tpu": ("device", "'tpu'"),
    "finetune {start} --data digits --out {model}": ("holds a classifier", "--overwrite"),
    "finetune {places}/empty --data digits --out {out}": ("{places}/empty", "no finished run"),
    "finetune random:resnet81 --data digits --out {out}": ("resnet81", "resnet18"),
    "finetune {start} --out {out}": ("--data",),
    "finetune {start} --data digits": ("--out",),
    "predict {model} --data digits --out {out}.txt": (".csv or *.parquet", ".txt"),
    "predict {model} --data folder:{places}/empty --out {out}.csv": ("{places}/empty", "no image"),
    "predict {places}/empty --data digits --out {out}.csv": ("{places}/empty", "antipode finetune"),
    "predict {places}/absent --data digits --out {out}.csv": ("there is no folder",),
    "predict {model} --data digits": ("--out",),
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_input_is_one_sentence_and_status_2(line, start, model, places, tmp_path):
    names = {"start": start, "model": model.path, "places": places, "out": tmp_path / "new"}
    status, text, err = call(line.format(**names))
    sentence = err.splitlines()[-1]
    assert (status, text) == (2, "") and sentence.startswith("antipode: ")
    others = [other for other in err.splitlines()[:-1] if not other.startswith("warning: ")]
    assert not others, err
    for part in WRONG[line]:
        assert part.format(**names) in sentence, sentence
    assert not (tmp_path / "new").exists()


def test_a_folder_without_enough_images_to_hold_out_is_trained_and_not_scored(
    start, places, tmp_path
):
    status, text, err = call(
        f"finetune {start} --data folder:{places}/single --out {tmp_path / 'm'} --epochs 1 "
        "--device cpu"
    )
    assert status == 0 and "no test images, so no score" in text
    assert "the classifier has no score" in err
    assert antipode.load_classifier(tmp_path / "m").scores == {}


@pytest.mark.parametrize("command", ["finetune", "predict"])
def test_an_interruption_says_how_to_repeat(monkeypatch, command):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(antipode, command, stop)
    for more in ("", " --overwrite") if command == "finetune" else ("",):
        status, _, err = call(f"{command} random:resnet18 --data digits --out y.csv{more}")
        assert (status, err) == (130, f"antipode: {INTERRUPTED[command]}\n")


# The guide


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_commands_and_the_code_of_the_guide_work(start, monkeypatch, tmp_path):
    """Run them in order, with small pictures and one epoch."""
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "photos", {"blue": 24, "green": 12, "red": 12})
    flat(tmp_path / "new")
    picture("red", 3).save(tmp_path / "new.jpg")
    for block in blocks(""):
        for line in block.splitlines():
            if line.startswith("antipode "):
                command = line.removeprefix("antipode ").partition("#")[0]
                command = command.replace("runs/mine", start)
                command = command.replace("torchvision:resnet50", start)
                if "finetune" in command:
                    command = re.sub(r" --epochs \d+", "", command) + " --epochs 1 --device cpu"
                status, _, err = call(command)
                assert status == 0, (line, err)
    for block in blocks("python"):
        code = block.replace('"runs/mine"', repr(start)).replace("epochs=30", "epochs=1")
        exec(compile(code, str(PAGE), "exec"), {})
