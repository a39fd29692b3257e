"""Run folders, recipes, overrides and pages in the face of hostile files and a small machine.

Every test goes through the command line or the public functions.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

import antipode
from antipode import cli

FAST = ["--epochs", "1", "--batch", "500", "--device", "cpu"]
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202egnp"  # sets a title, clears a screen, reverses a text
DEEP = "[" * 50_000


def call(*words):
    """Run a command in this process, and return its status, output and errors."""
    out = io.StringIO()
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        cli.main([str(word) for word in words])
    return end.value.code, out.getvalue(), err.getvalue()


def check_sentence(status, out, err, *parts):
    assert (status, out) == (2, ""), (status, out, err)
    assert err.startswith("antipode: ") and err.count("\n") == 1 and len(err) < 1000
    for part in parts:
        assert part in err, (part, err)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTIPODE_DATA", raising=False)


def scored(path, /, content=None, **texts):
    """Write a folder that `report` accepts. It has no recipe, so no picture has to be drawn."""
    path.mkdir(parents=True, exist_ok=True)
    knn = {"value": 50.0, "unit": "%", "data": "digits", "split": "test", "n": 100, "seed": 0}
    texts = {"scores": json.dumps({"knn": knn} if content is None else content)} | texts
    for name, text in texts.items():
        (path / f"{name}.json").write_text(text)
    return path


# Numbers in overrides and recipe files

# settings, and the limit in the sentence
HUGE = {
    "method.crops=1e9": "1,024",
    "views.views=1e9": "1,024",
    "method.dim=1e18": "65,536",
    "method.hidden=1e12": "65,536",
    "train.batch=1e15": "1,048,576",
    "train.epochs=1e30": "1,000,000",
    "views.size=1e10": "8,192",
    "data.workers=100000": "256",
    "optim.network.at=[1,1e300]": "1,000,000",
    "monitor.log_every=1e400": "1,000,000,000",
}
HUGE_ON_MOCO = {
    "method.queue=1e12": "16,777,216",
    "method.groups=1e9": "4,096",
    "method.dim=65536 method.queue=16777216": "17,179,869,184",
}
HUGE_IN_FILES = {
    "crops": {"method": {"crops": 10**9}},
    "batch": {"train": {"batch": 10**400}},
    "size": {"views": {"size": 1e9}},
}
IN_A_SMALL_PROCESS = """
import contextlib, io, json, resource, sys
import antipode, antipode.api
from antipode import cli

antipode.list_recipes()  # imports everything while there is memory
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
answers = {}
for command in json.load(sys.stdin):
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.main(command.split())
        except SystemExit as end:
            answers[command] = [end.code, err.getvalue()]
        except BaseException as error:
            answers[command] = [1, repr(error)[:500]]
print(json.dumps(answers))
"""


def in_a_small_process(commands, script=IN_A_SMALL_PROCESS):
    """Run commands in a process with little memory, and return their statuses and errors."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_number_that_would_take_the_memory_is_refused_with_its_limit(tmp_path):
    commands = {f"show shapes.dcl --set {text}": limit for text, limit in HUGE.items()}
    commands |= {f"show cifar10.mocov2 --set {text}": limit for text, limit in HUGE_ON_MOCO.items()}
    for name, content in HUGE_IN_FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        commands[f"show {tmp_path}/{name}.json"] = ""
    answers = in_a_small_process(list(commands))
    for command, limit in commands.items():
        status, err = answers[command]
        check_sentence(status, "", err, f"at most {limit}")


@pytest.mark.slow
def test_python_has_the_same_limits():
    calls = [
        "antipode.build('simclr', 'resnet10-slim', dim=10**18)",
        "antipode.build('dcl', 'resnet10-slim', crops=10**9)",
        "antipode.views('simclr', size=32, views=10**9)",
        "antipode.views('simclr', size=10**9)",
    ]
    script = IN_A_SMALL_PROCESS.replace("cli.main(command.split())", "eval(command)")
    for call, (_, error) in in_a_small_process(calls, script).items():
        assert error.startswith("ValueError(") and "must be at most" in error, (call, error)


def test_a_learning_rate_has_no_upper_limit():
    status, out, _ = call("show", "shapes.dcl", "--set", "optim.network.lr=1e300")
    assert status == 0 and "1e+300" in out


# Links

NOT_FOLLOWED = "symbolic link, which is not followed"


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", ".adding"])
def test_a_link_in_a_run_folder_is_not_written_through(name, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(victim)
    check_sentence(*call("pretrain", "digits.dcl", *FAST, "--out", run), name, NOT_FOLLOWED)
    assert victim.read_text() == "precious\n"
    assert [file.name for file in run.iterdir() if file.name != ".lock"] == [name] * (
        name != ".lock"
    )


def test_a_link_to_nothing_makes_no_file_elsewhere(tmp_path):
    run = scored(tmp_path / "scores", {})
    (run / ".adding").symlink_to(tmp_path / "new")
    data = Moving(tmp_path)
    with pytest.raises(ValueError, match=NOT_FOLLOWED):
        antipode.evaluate("random:resnet10-slim", ["knn20"], data=(data, data), out=run)
    assert not (tmp_path / "new").exists()


# A data set that moves the process to another folder


class Moving(torch.utils.data.Dataset):
    """Images whose reader changes the current folder."""

    def __init__(self, place, count=32):
        self.place = place
        self.pixels = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, at):
        os.chdir(self.place)
        return Image.fromarray(self.pixels[at]), at % 2


def test_results_lie_where_they_were_asked_for_when_a_data_set_changes_the_folder(tmp_path):
    home = tmp_path / "home"
    other = tmp_path / "other"
    home.mkdir()
    other.mkdir()
    data = Moving(other)
    os.chdir(home)
    run = antipode.pretrain(
        method="simclr",
        data=data,
        backbone="resnet10-slim",
        epochs=1,
        batch=16,
        device="cpu",
        out="run",
        overrides={"views.size": 8, "data.workers": 0},
        quiet=True,
    )
    os.chdir(home)
    antipode.embed(run, data, out="features.npz")
    os.chdir(home)
    network = "random:resnet10-slim"
    antipode.evaluate(network, ["knn20"], data=(data, data), out="random", device="cpu")
    assert list(other.iterdir()) == []
    for name in ("run/backbone.safetensors", "features.npz", "random/scores.json"):
        assert (home / name).is_file(), name


# Names


def check_harmless(text):
    assert not {"\x1b", "\x07", "\u202e"} & set(text), repr(text)


def test_names_reach_the_terminal_with_their_escapes_visible(tmp_path):
    run = scored(tmp_path / f"run{ESCAPES}")
    for words in (
        ["report", run],
        ["report", tmp_path / f"none{ESCAPES}"],
        ["evaluate", run],
        ["show", tmp_path / f"{ESCAPES}.json"],
        ["pretrain", f"digits.{ESCAPES}"],
        ["pretrain", "--data", f"folder:{tmp_path}/{ESCAPES}"],
        ["pretrain", "digits.dcl", "--set", f"method.tau={ESCAPES}"],
        ["pretrain", "digits.dcl", "--set", f"{ESCAPES}=1", "--set", f"{ESCAPES}=2"],
    ):
        _, out, err = call(*words)
        check_harmless(out + err)
    assert "\\x1b" in call("report", run)[1]


def test_a_name_in_a_recipe_is_shown_with_its_escapes_visible(tmp_path):
    file = tmp_path / "recipe.json"
    sections = {"train": {"seed": 1}, "data": {"root": ESCAPES}}
    file.write_text(json.dumps(sections | {"sources": {"train.seed": ESCAPES}}))
    status, out, err = call("show", file)
    assert status == 0 and "\\x1b" in out
    check_harmless(out + err)


def test_a_page_shows_names_with_their_escapes_visible(tmp_path):
    run = scored(tmp_path / f"run{ESCAPES}")
    page = antipode.report([run], out=tmp_path / "page.html").read_text()
    check_harmless(page)


# JSON that is nested deeply, long, or of odd types


@pytest.mark.parametrize(
    "text",
    [DEEP, DEEP + "]" * 50_000, '{"a":' * 50_000],
    ids=["open lists", "lists", "open objects"],
)
def test_deep_nesting_is_a_sentence(text, tmp_path):
    file = tmp_path / "recipe.json"
    file.write_text(text)
    check_sentence(*call("show", file), "recipe.json", "nested too deeply")
    for name in ("scores", "analysis", "env", "network"):
        run = scored(tmp_path / name, **{name: text})
        words = ["evaluate", "random:resnet10-slim", "--out"] if name == "network" else ["report"]
        check_sentence(*call(*words, run), f"{name}.json", "nested too deeply")
    log = scored(tmp_path / "log")
    (log / "metrics.jsonl").write_text(f'{{"step": 0, "loss": 1.0}}\n{text}\n')
    assert len(antipode.Run(log).metrics()) == 1


def test_deep_nesting_below_pythons_own_limit_is_a_sentence_too(tmp_path):
    run = scored(tmp_path / "run", {"knn": {"value": 1.0, "n": 1, "settings": {}}})
    text = f'{{"a": {{"values": {{"b": {"[" * 400}{"]" * 400}}}}}}}'
    (run / "analysis.json").write_text(text)
    check_sentence(*call("report", run), "analysis.json", "nested too deeply")


@pytest.mark.parametrize(
    "value",
    ["[" * 20_000, '{"a":' * 20_000, "9" * 5_000, "NaN", "-1e400", '"' + "x" * 5_000, "\\ud800"],
    ids=["lists", "objects", "digits", "NaN", "infinite", "open text", "surrogate"],
)
def test_a_setting_of_any_text_is_a_sentence(value):
    for key in ("method.tau", "train.epochs", "views.scale", "train.deterministic"):
        check_sentence(*call("show", "shapes.dcl", "--set", f"{key}={value}"), key)


@pytest.mark.slow
def test_a_file_that_would_take_the_memory_is_refused_by_its_size(tmp_path):
    run = scored(tmp_path / "run")
    with (run / "analysis.json").open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no place on the disk
    answer = in_a_small_process([f"report {run}", f"show {run / 'analysis.json'}"])
    for status, err in answer.values():
        check_sentence(status, "", err, "analysis.json", "1,099,511,627,776 bytes")


ODD = {
    "text": "many",
    "null": None,
    "list": [1],
    "object": {"a": 1},
    "truth": True,
    "huge": 10**400,
    "negative": -1,
    "infinite": float("inf"),
    "not a number": float("nan"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_page_is_written_whatever_the_scores_hold(odd, tmp_path):
    plain = {"value": 50.0, "unit": "%", "data": "digits", "split": "test", "n": 100, "seed": 0}
    scores = {"plain": plain, "odd": odd}
    scores |= {key: plain | {key: odd} for key in (*plain, "more", "settings", "epoch", "protocol")}
    run = scored(tmp_path / "run", scores)
    page = antipode.report([run, scored(tmp_path / "other")], out=tmp_path / "p.html").read_text()
    if odd != -1:
        assert "scores.json is left out" in page


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_page_is_written_whatever_analyses_and_log_hold(odd, tmp_path):
    run = scored(tmp_path / "run")
    kinds = {kind: odd for kind in ("values", "curves", "histograms", "settings", "notes")}
    inner = {kind: {"a": odd, "seed": odd} for kind in kinds}
    shapes = {
        "curves": {"a": {"x": [1, odd], "y": [odd, 2], "xlabel": odd}},
        "histograms": {"a": {"edges": [0, odd, 2], "counts": [odd, 1]}},
    }
    results = {"a": odd, "b": kinds, "c": inner, "d": shapes, "e": {"skipped": odd}}
    (run / "analysis.json").write_text(json.dumps(results))
    (run / "env.json").write_text(json.dumps({"command": odd, "commit": odd, "device": odd}))
    good = {"step": 0, "epoch": 0, "loss": 1.0, "images_per_second": 5.0, "knn": 3.0}
    rows = [good, *(good | {key: odd} for key in good), {"loss": 2.0}, {"step": odd}, odd]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = antipode.report([run], out=tmp_path / "page.html").read_text()
    if isinstance(odd, str | list | dict | bool):
        assert "in metrics.jsonl are left out" in page


# A full disk and a full memory

WITH_SMALL_FILES = IN_A_SMALL_PROCESS.replace(
    "resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))",
    "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))",
)


@pytest.mark.slow
def test_an_error_of_a_full_disk_names_the_path(tmp_path):
    run = scored(tmp_path / "run")
    net = "random:resnet18"
    commands = {
        f"report {run}": run / "report.html",
        f"report {run} --out {tmp_path}/page.html": tmp_path / "page.html",
        f"embed {net} --data digits --out {tmp_path}/f.npz": tmp_path / "f.npz",
        f"export {net} --format torchvision --out {tmp_path}/net.pth": tmp_path / "net.pth",
        f"pack digits --out {tmp_path}/pack": tmp_path / "pack",
    }
    answers = in_a_small_process(list(commands), WITH_SMALL_FILES)
    for command, path in commands.items():
        status, err = answers[command]
        last = err.splitlines(keepends=True)[-1]  # a warning may come before
        check_sentence(status, "", last, "File too large", str(path))


def test_an_error_of_memory_is_a_sentence(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise MemoryError

    for name in ("antipode.report", "antipode.api.report"):
        monkeypatch.setattr(name, fail)
    check_sentence(*call("report", tmp_path), "not enough memory: choose a smaller")


# Long logs


def write_log(run, lines):
    names = ("contrast", "positive", "negative", "attract", "repel", "gradient", "lr_network")
    row = {name: 0.1234567890123456 for name in names}
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(lines):
            file.write(json.dumps({"step": step, "epoch": 0, "loss": 1 / (step + 1), **row}) + "\n")


def peak(function):
    """Return the largest number of bytes that Python held while a function ran, and its value."""
    tracemalloc.start()
    value = function()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most, value


def test_the_lines_of_a_log_share_the_names_of_their_metrics(tmp_path):
    run = scored(tmp_path / "run")
    lines = 10_000
    write_log(run, lines)
    most, rows = peak(antipode.Run(run).metrics)
    assert len(rows) == lines and rows[-1]["step"] == lines - 1
    assert most < 1000 * lines  # about 700 bytes, and 1,500 if each line has its own names


def test_a_page_does_not_hold_the_lines_of_a_log(tmp_path):
    run = scored(tmp_path / "run")
    lines = 20_000
    write_log(run, 100)
    small, _ = peak(lambda: antipode.report([run], out=tmp_path / "page.html"))
    write_log(run, lines)
    large, page = peak(lambda: antipode.report([run], out=tmp_path / "page.html"))
    assert large - small < 250 * lines and "attract" in page.read_text()
