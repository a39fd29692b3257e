"""Before training, `pretrain` says what was found and what it will do; labels and defaults are
decided once and stored."""

import json
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import antipode
from antipode.data.sources.catalog import load
from antipode.data.sources.sizes import median_side, sampled_sizes
from antipode.data.sources.source import Memory
from antipode.recipe import own_data
from antipode.recipe.resolve import resolve
from antipode.training import pace
from antipode.training import plan as training_plan
from antipode.training.build import build
from antipode.training.plan import Plan, describe
from tests.test_cli import call
from tests.training.runs import small_splits

TINY = {"method": "simclr", "backbone": "resnet10-slim", "batch": 8, "device": "cpu"}
DATES = ("2024-01", "2024-02")
KEYS = {
    *("images", "classes", "held_out", "method", "backbone", "size", "batch", "steps"),
    *("seconds", "memory_bytes"),
}


def photos(root, folders=("",), images=10, side=16):
    noise = np.random.default_rng(0)
    for place in folders:
        (root / place).mkdir(parents=True, exist_ok=True)
        for at in range(images):
            pixels = noise.integers(0, 256, (side, side + at % 3, 3), np.uint8)
            Image.fromarray(pixels).save(root / place / f"{at}.png")
    return f"folder:{root}"


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    """Return a run on two folders with names like dates, trained for one epoch."""
    home = tmp_path_factory.mktemp("dated")
    data = photos(home / "photos", DATES)
    antipode.pretrain(data=data, out=home / "run", epochs=1, quiet=True, **TINY)
    return home / "run"


def test_the_plan_of_a_finished_run_has_nothing_left_to_train(dated):
    data = f"folder:{dated.parent / 'photos'}"
    plan = antipode.plan(data=data, out=dated, epochs=1, **TINY)
    assert plan.done == plan.steps > 0 and plan.seconds == 0
    assert any("has ended: nothing is left to train" in line for line in plan.lines())
    again = antipode.plan(data=data, out=dated, epochs=1, overwrite=True, **TINY)
    assert again.done == 0 and again.seconds > 0


def test_the_plan_of_a_run_that_was_stopped_counts_only_what_is_left(dated, tmp_path):
    stopped = tmp_path / "run"
    shutil.copytree(dated, stopped)
    (stopped / "backbone.safetensors").unlink()
    plan = antipode.plan(data=f"folder:{dated.parent / 'photos'}", out=stopped, epochs=1, **TINY)
    assert 0 < plan.done < plan.steps and plan.seconds > 0
    assert any("it resumes" in line for line in plan.lines())


def test_a_plan_counts_the_steps_of_the_checkpoint_and_not_of_the_log(dated, tmp_path):
    stopped = tmp_path / "run"
    shutil.copytree(dated, stopped)
    (stopped / "backbone.safetensors").unlink()
    (stopped / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n')
    about = {"data": f"folder:{dated.parent / 'photos'}", "out": stopped, "epochs": 1, **TINY}
    plan = antipode.plan(**about)
    assert plan.steps == 2 and plan.done == 1
    for file in (stopped / "checkpoints").glob("step-*"):
        file.unlink()  # without a numbered checkpoint, the log is all that is known
    assert antipode.plan(**about).done == 0


def test_a_plan_has_every_flag_and_refuses_what_training_refuses(dated):
    data = f"folder:{dated.parent / 'photos'}"
    words = f"pretrain --data {data} --epochs 1 --method simclr --backbone resnet10-slim --batch 8"
    command = f"{words} --device cpu --plan --no-resume --report --out"
    status, out, _ = call(f"{command} {dated.parent / 'new'}")
    assert status == 0 and out.rstrip().endswith(" --report --no-resume")
    status, out, err = call(f"{command} {dated}")
    assert (status, out) == (2, "") and "holds a run already: resume it with --resume" in err


@pytest.mark.parametrize(("side", "tried"), [(256, 16), (8, 8)])
def test_a_step_that_would_take_long_is_not_taken(tmp_path, monkeypatch, side, tried):
    """The plan of views of 3000 px once said nothing for minutes, until its first step ended."""
    sizes = []

    def built(recipe, *others):
        sizes.append(recipe.views.size)
        return build(recipe, *others)

    monkeypatch.setattr(training_plan, "build", built)
    monkeypatch.setattr(training_plan, "SIDE", side)
    monkeypatch.setattr(training_plan, "SLOW", 0.0)
    monkeypatch.setattr(training_plan, "ENOUGH", 0.0)
    monkeypatch.setattr(training_plan, "_seconds", None)
    data = photos(tmp_path / "photos")
    plan = antipode.plan(data=data, out=tmp_path / "run", epochs=2, **TINY)
    assert sizes == [tried] and plan.memory_bytes is None and plan.step_seconds > 0
    assert plan.seconds == pytest.approx(plan.step_seconds * plan.steps)
    assert plan.images_per_second == pytest.approx(8 / plan.step_seconds)
    assert "from a few images, because one step takes about " in plan.lines()[-1]


def test_a_step_is_timed_on_as_many_images_as_are_needed(tmp_path, monkeypatch):
    """A trial takes .1 s and .01 s more for each image: a step of 8 images in 6 passes, 1.1 s."""
    counts = []

    def trial(views, net, count, channels):
        counts.append(count)
        return 0.0, 0.1 + 0.01 * count

    monkeypatch.setattr(training_plan, "_trial", trial)
    about = {"data": photos(tmp_path / "photos"), "out": tmp_path / "run", "epochs": 2, **TINY}
    for slow, expected in ((30.0, [1]), (1.5, [1, 2, 4, 8]), (1.0, [1, 2, 4, 8])):
        monkeypatch.setattr(training_plan, "SLOW", slow)
        counts.clear()
        plan = antipode.plan(**about)
        assert counts == expected and (plan.step_seconds is not None) == (slow == 1.0)


def test_a_plan_refuses_a_folder_as_training_does(dated):
    """A network of another kind once got the stem of the run that the folder holds."""
    data = f"folder:{dated.parent / 'photos'}"
    other = TINY | {"backbone": "timm:vit_tiny_patch16_224?img_size=16"}
    for act in (antipode.plan, antipode.pretrain):
        with pytest.raises(ValueError, match=r"was started with another recipe .backbone.name"):
            act(data=data, out=dated, epochs=1, **other)
        with pytest.raises(ValueError, match="has ended after 1 epoch and cannot be extended to 3"):
            act(data=data, out=dated, epochs=3, **TINY)


def test_the_folder_of_the_images_is_no_run_folder(tmp_path):
    data = photos(tmp_path / "photos")
    before = sorted(path.name for path in (tmp_path / "photos").iterdir())
    for act in (antipode.plan, antipode.pretrain):
        with pytest.raises(ValueError, match="is the folder of the images"):
            act(data=data, out=tmp_path / "photos", epochs=1, **TINY)
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == before


def test_classes_that_are_asked_for_must_be_there(tmp_path):
    data = photos(tmp_path / "photos")
    with pytest.raises(ValueError, match='labels="folders" takes subfolders as classes, but'):
        antipode.plan(data=data, labels="folders", out=tmp_path / "run", epochs=1, **TINY)


def test_a_plan_checks_the_place_too(tmp_path):
    data = photos(tmp_path / "photos")
    words = ["pretrain", "--data", data, "--plan", "--on", "sulrm"]
    status, _, err = call(words)
    assert status == 2 and "there is no place 'sulrm', did you mean 'slurm'?" in err


def test_a_plan_says_everything_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = photos(tmp_path / "photos", ("cats", "dogs"))
    (tmp_path / "photos" / "cats" / "broken.jpg").write_bytes(b"no image")
    before = torch.get_rng_state()
    with pytest.warns(UserWarning, match="skipped"):
        plan = antipode.plan(data=data, epochs=2, out="run", **TINY)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(plan, Plan) and KEYS <= plan.json().keys()
    assert (plan.images, plan.train_images, plan.held_out, plan.classes) == (20, 18, 2, 2)
    assert (plan.left_out, plan.sizes) == (1, ((16, 16), (18, 16)))
    assert (plan.size, plan.batch, plan.per_epoch, plan.steps) == (16, 8, 2, 4)
    assert plan.seconds > 0 and plan.memory_bytes > 1e7
    assert f"at {plan.images_per_second:,.0f} images/s" in "\n".join(plan.lines())
    text = "\n".join(plan.lines())
    assert 4 <= len(plan.lines()) <= 6
    assert "20 images" in text and "1 file left out" in text and "16 x 16 to 18 x 16 px" in text
    assert "2 classes: 2 subfolders (cats, dogs)" in text and 'labels="none"' in text
    assert "2 images (10%) are held out" in text
    assert "batch 8, 2 steps per epoch, 2 epochs, 4 steps" in text and "Estimated: " in text
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize(("longest", "taken", "start"), [(0.01, 1, 0.0), (9.0, 15, 0.2)])
def test_slow_steps_are_timed_no_longer_than_needed(monkeypatch, longest, taken, start):
    """The first steps of the pretended training take .06 s instead of .02 s."""
    monkeypatch.setattr(training_plan, "LONGEST", longest)
    done = []

    def run(step):
        for number in range(100):
            time.sleep(0.06 if number < 5 else 0.02)
            done.append(number)
            yield number

    loader = SimpleNamespace(total=100)
    found = training_plan._seconds(
        SimpleNamespace(loader=loader, device=torch.device("cpu"), run=run)
    )
    assert len(done) == taken
    assert found == pytest.approx((start, 0.02 if taken > 1 else 0.06), abs=0.1)


def test_large_images_should_be_packed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").mkdir()
    for at in range(2):
        Image.new("RGB", (1500, 1000), (at, 0, 0)).save(tmp_path / "my photos" / f"{at}.jpg")

    def note(data, size=16, epochs=3):
        recipe = resolve(overrides={"data.name": data, "views.size": size, "train.epochs": epochs})
        plan = describe(recipe, load(data, labels="none"))
        return next((line for line in plan.notes if "decoding" in line), "")

    shown = note("folder:my photos")
    assert "antipode pack 'folder:my photos' --out 'my photos-packed' --size 256" in shown
    assert "packed:my photos-packed" in shown
    assert "--size 365" in note("folder:my photos", size=320)
    assert not note("folder:my photos", epochs=2)
    assert not note(photos(tmp_path / "small"))


def test_planning_does_not_change_the_training(tmp_path):
    data = photos(tmp_path / "photos")
    ask = {"data": data, "epochs": 1, **TINY}
    first = antipode.pretrain(out=tmp_path / "first", quiet=True, **ask)
    antipode.plan(out=tmp_path / "second", **ask)
    second = antipode.pretrain(out=tmp_path / "second", quiet=True, **ask)
    files = [(run.path / "backbone.safetensors").read_bytes() for run in (first, second)]
    assert files[0] == files[1]


def test_a_module_of_the_caller_is_not_trained_by_a_plan():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3 * 16 * 16, 8)

        def forward(self, x):
            return self.layer(x.flatten(1))

    net = Net()
    before = net.layer.weight.clone()
    images = torch.randint(0, 256, (16, 3, 16, 16), dtype=torch.uint8)
    plan = antipode.plan(data=TensorDataset(images), epochs=1, **TINY | {"backbone": net})
    assert torch.equal(net.layer.weight, before)
    assert plan.classes is None and plan.backbone == "python:Net"


def test_the_first_lines_of_training_are_the_plan(tmp_path, capsys):
    ask = {"data": photos(tmp_path / "photos"), "epochs": 1, **TINY}
    antipode.pretrain(out=tmp_path / "run", **ask)
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert lines[0].startswith("Found 10 images in folder:") and printed.out == ""
    assert "no subfolders" in lines[1] and "No image is held out" in lines[2]
    assert lines[3].startswith("Training simclr with resnet10-slim (stem small) on views of 16 px")
    antipode.pretrain(out=tmp_path / "run", **ask)  # it has ended, so nothing is planned
    assert "Found" not in capsys.readouterr().err
    antipode.pretrain(out=tmp_path / "quiet", quiet=True, **ask)
    assert capsys.readouterr() == ("", "")


def test_the_command_prints_a_plan_as_text_or_one_object(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = photos(tmp_path / "photos", DATES)
    command = f"pretrain --data {data} --batch 8 --epochs 1 --device cpu --plan"
    status, out, _ = call(command)
    assert status == 0 and out.startswith("Found 20 images")
    assert "2 subfolders have names like dates" in out and "--labels folders" in out
    status, out, _ = call(f"{command} --json --labels folders")
    plan = json.loads(out)
    assert status == 0 and KEYS <= plan.keys() and plan["classes"] == 2 and plan["held_out"] == 2
    assert not (tmp_path / "runs").exists()


def test_the_decision_is_stored_and_every_command_sees_the_same_images(dated):
    recipe = antipode.Run(dated).recipe
    assert recipe.data.labels == "none"
    assert "dates" in recipe.sources["data.labels"].text
    run = antipode.Run(dated)
    assert run.splits().classes is None and len(run.splits().train) == 20
    assert "data.labels" not in recipe.replaced  # nobody has set it
    assert set(antipode.embed(run, recipe.data.name).y.tolist()) == {-1}
    scores = antipode.evaluate(run, device="cpu")
    assert "retrieval" in scores and scores["retrieval"].n == 20
    # another folder is read as before: its subfolders are classes
    other = shutil.copytree(recipe.data.name.removeprefix("folder:"), dated.parent / "copy")
    assert antipode.Run(dated).splits(f"folder:{other}").classes == list(DATES)


def test_a_run_of_an_earlier_version_has_folders_as_classes(dated, tmp_path):
    old = shutil.copytree(dated, tmp_path / "old")
    content = json.loads((old / "recipe.json").read_text())
    del content["data"]["labels"], content["sources"]["data.labels"]
    (old / "recipe.json").write_text(json.dumps(content))
    assert antipode.Run(old).splits().classes == list(DATES)
    # and so has the same recipe when it is trained again
    again = antipode.pretrain(old / "recipe.json", out=tmp_path / "again", quiet=True)
    assert again.recipe.data.labels == "folders"


def test_a_run_resumes_with_the_labels_and_defaults_that_it_was_started_with(
    tmp_path, monkeypatch, capsys
):
    data = photos(tmp_path / "photos", DATES)
    ask = {"data": data, "out": tmp_path / "run", "quiet": True, **TINY} | {"batch": None}
    monkeypatch.setitem(own_data.EPOCHS, False, ((0, 2),))
    monkeypatch.setattr(own_data, "STEPS", 1)
    run = antipode.pretrain(**ask)
    weights = (run.path / "backbone.safetensors").read_bytes()
    written = (run.path / "recipe.json").read_text()
    assert (run.recipe.train.epochs, run.recipe.train.batch) == (2, 16)
    assert '"data.labels": "decided: ' in written
    # a new version with other defaults, or another device
    monkeypatch.setitem(own_data.EPOCHS, False, ((0, 9),))
    monkeypatch.setitem(own_data.BATCH, False, 4)
    again = antipode.pretrain(**ask)
    assert again.recipe.train.epochs == 2 and again.recipe.data.labels == "none"
    assert (run.path / "backbone.safetensors").read_bytes() == weights
    assert (run.path / "recipe.json").read_text() == written, "with all sources, in their order"
    with pytest.raises(ValueError, match=r'data.labels: "none" -> "folders"'):
        antipode.pretrain(labels="folders", **ask)
    with pytest.raises(ValueError, match=r"train.seed: 0 -> 1"):
        antipode.pretrain(seed=1, **ask)


def test_supervised_weights_are_offered_where_their_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    own = own_data.OwnData(540, 224, True)
    on_cpu = {"train.device": "cpu"}
    recipe = resolve(method="dcl", data="folder:x", own=own, overrides=on_cpu)
    assert not any("ImageNet" in note for note in describe(recipe, small_splits()).notes)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "resnet18-f37072fd.pth").touch()
    note = describe(recipe, small_splits()).notes[-1]
    assert 'overrides={"backbone.weights": "torchvision"} starts from them' in note
    # not where they are used already, or where there are none for the network
    used = on_cpu | {"backbone.weights": "torchvision"}
    again = resolve(method="dcl", data="folder:x", own=own, overrides=used)
    chosen = on_cpu | {"backbone.name": "resnet10-slim"}
    slim = resolve(method="dcl", data="folder:x", own=own, overrides=chosen)
    for other in (again, slim):
        assert not any("ImageNet" in note for note in describe(other, small_splits()).notes)
    # without a GPU the network would be a slim one, which no weights fit
    slow = resolve(method="dcl", data="folder:x", own=own._replace(gpu=False), overrides=on_cpu)
    note = describe(slow, small_splits()).notes[-1]
    assert "Weights of a resnet18" in note and "its steps take longer" in note


def test_labels_are_for_folders(tmp_path):
    with pytest.raises(ValueError, match=r'labels="none" applies to the subfolders of folder:PATH'):
        antipode.pretrain("digits.dcl", labels="none", out=tmp_path / "run")
    with pytest.raises(ValueError, match="one of auto, folders, none"):
        antipode.pretrain(data="folder:x", labels="some", out=tmp_path / "run")
    plan = describe(resolve("shapes.dcl", overrides={"train.device": "cpu"}), small_splits())
    assert (plan.images, plan.held_out, plan.classes, plan.notes[0]) == (80, 40, 4, "4 classes.")


def test_finetuning_takes_the_folders_that_training_ignored(dated, tmp_path):
    data = antipode.Run(dated).recipe.data.name
    ask = {"epochs": 1, "batch": 8, "device": "cpu", "quiet": True}
    model = antipode.finetune(dated, data, tmp_path / "model", **ask)
    assert list(model.classes) == list(DATES)


def test_a_finished_run_is_extended_by_a_new_one_from_its_weights(dated, tmp_path):
    run = antipode.Run(dated)
    ask = {"data": run.recipe.data.name, "quiet": True, **TINY}
    with pytest.raises(ValueError, match="cannot be extended to 3") as error:
        antipode.pretrain(out=dated, epochs=3, **ask)
    start = dated / "backbone.safetensors"
    assert f'overrides={{"backbone.weights": "{start}"}} and another out' in str(error.value)
    # without a flag for the network: the weights say which it is
    del ask["backbone"]
    weights = {"backbone.weights": str(start)}
    more = antipode.pretrain(out=tmp_path / "more", epochs=3, overrides=weights, **ask)
    assert more.recipe.backbone.name == "resnet10-slim"
    assert more.finished and more.recipe.backbone.weights == str(start)


@pytest.mark.slow
def test_a_report_follows_the_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = photos(tmp_path / "photos")
    command = f"pretrain --data {data} --epochs 1 --batch 8 --device cpu --out run --report"
    status, out, _ = call(f"{command} --json")
    content = json.loads(out)
    assert status == 0 and content["report"] == str(tmp_path / "run" / "report.html")
    assert "retrieval" in content["scores"] and content["last"]["step"] == 0
    status, out, _ = call(command)
    lines = out.splitlines()
    assert status == 0 and lines[0].startswith("run: done") and lines[-1] == "run/report.html"
    assert any("retrieval" in line for line in lines)


def test_sizes_are_read_from_headers_and_never_from_items(tmp_path):
    sizes = sampled_sizes(load(photos(tmp_path / "x", images=3, side=10)).pretrain)
    assert sizes == [(10, 10), (11, 10), (12, 10)] and median_side(sizes) == 10
    memory = Memory(torch.zeros(4, 3, 8, 6, dtype=torch.uint8))
    assert sampled_sizes(memory) == [(6, 8)]


def test_no_item_of_a_dataset_is_read_for_its_size():
    class Drawn(torch.utils.data.Dataset):
        reads = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.reads += 1
            return torch.zeros(3, 8 + index, 8, dtype=torch.uint8)

    own = Drawn()
    source = load(own).pretrain
    before = own.reads
    assert sampled_sizes(source) == [] and own.reads == before and median_side([]) is None


def test_the_time_left_is_unknown_until_enough_steps_are_measured(monkeypatch):
    now = 0.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    clock = pace.Pace(total=100, start=0, warm=5)
    for done in range(1, 101):
        now += 60.0 if done <= 5 else 1.0  # the first steps are compiled
        clock.tick(done)
        if done < 15:
            assert clock.left is None
        else:
            assert clock.left == pytest.approx(100 - done)
    assert [pace.duration(seconds) for seconds in (9, 90, 5400)] == ["9 s", "1.5 min", "1.5 h"]
    assert [pace.amount(count) for count in (85e7, 32e8)] == ["850 MB", "3.2 GB"]
