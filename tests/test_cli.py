"""The command line: wrong input prints one sentence and exits with status 2, help is quick, and
--json prints one JSON object and nothing else."""

import contextlib
import io
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import antipode
from antipode import cli
from antipode.analysis.catalog import analyses
from antipode.data.sources.catalog import PREFIXES, SETS
from antipode.evaluation.protocol import protocols
from antipode.exits import FRESH, INTERRUPTED, warn
from antipode.nets.backbone import RESNETS
from antipode.papers import methods
from antipode.recipe.listed import list_recipes
from antipode.recipe.resolve import resolve
from antipode.reproduction.catalog import items

COMMANDS = [command.name or command.callback.__name__ for command in cli.app.registered_commands]
TINY = "--epochs 1 --batch 500 --device cpu"
FIT = "--epochs 1 --set views.size=20 --backbone resnet10-slim"

# A wrong command, and parts of its error message: what is wrong, and what is allowed or nearest.
# {run} is a finished run of digits.dcl, {place} is a folder with the files of `place` below, and
# {out} is a path where nothing exists.
WRONG = {
    # commands and flags
    "": ("Missing command", "pretrain, evaluate, analyse, pack, embed, export, report"),
    "pretraim": ("'pretraim'", "'pretrain'"),
    "frobnicate": ("'frobnicate'", "choose from pretrain, evaluate"),
    "--verbos": ("--verbos", "antipode --help"),
    "pretrain --metod dcl": ("--metod", "--method"),
    "pretrain --epoch 3": ("--epoch ", "--epochs"),
    "pretrain --batchsize 3": ("--batchsize", "--batch"),
    "pretrain --frob": ("--frob", "antipode pretrain --help"),
    "pretrain --epochs": ("--epochs", "requires an argument"),
    "pretrain --set": ("--set", "requires an argument"),
    "pretrain shapes.dcl shapes.byol": ("extra argument", "shapes.byol"),
    "evaluate {run} --protocols knn": ("--protocols", "--protocol"),
    "report {run} --output x.html": ("--output", "--out"),
    "evaluate": ("Missing argument 'run'",),
    "report": ("Missing argument 'runs'",),
    "analyse": ("Missing argument 'runs'",),
    "list": ("Missing argument 'what'", "methods, recipes, datasets, protocols, analyses, items"),
    "show": ("Missing argument 'recipe'",),
    "reproduce": ("Missing argument 'item'",),
    "pack digits": ("Missing option '--out'",),
    # values of flags
    "pretrian": ("No such command 'pretrian', did you mean 'pretrain'? (choose from pretrain, ",),
    "pretrain --epochs abc": ("--epochs", "whole number", "'abc'"),
    "pretrain --epochs 1.5": ("--epochs", "whole number", "'1.5'"),
    "pretrain --epochs 0": ("epochs", "at least 1", "0"),
    "pretrain --epochs -3": ("epochs", "at least 1", "-3"),
    "pretrain --batch many": ("--batch", "whole number", "'many'"),
    "pretrain --batch 0": ("batch", "at least 1", "0"),
    "pretrain --seed one": ("--seed", "whole number", "'one'"),
    "pretrain --seed -1": ("seed", "at least 0", "-1"),
    "pretrain --device gpu": ("auto, cpu, cuda, mps", "'gpu'"),
    "pretrain --precision fp16": ("auto, fp32, bf16", "'fp16'"),
    "pretrain --labels folder": ("auto, folders, none", "'folder'", "'folders'"),
    "pretrain digits.dcl --labels none --out {out}": ("--labels none", "folder:PATH", "digits"),
    "pretrain --out ''": ("--out", "empty"),
    "pretrain --seed 3 --set train.seed=4": ("train.seed", "given twice", "--seed"),
    # names
    "pretrain shapes.dlc": ("'shapes.dlc'", "'shapes.dcl'"),
    "pretrain shaeps.dcl": ("'shaeps.dcl'", "'shapes.dcl'"),
    "pretrain nonsense": ("'nonsense'", "dataset.method, a method or a file"),
    "pretrain ''": ("no recipe ''", "dataset.method"),
    "pretrain --method dlc": ("'dlc'", "'dcl'"),
    "pretrain --method mocov4": ("'mocov4'", "'mocov"),
    "pretrain --data cifar": ("no data set cifar", "did you mean cifar10?"),
    "pretrain --data foldr:photos": ("foldr:photos", "folder:"),
    "pretrain --data folder:": ("folder:",),
    "pretrain --backbone resnet19": ("'resnet19'", "'resnet18'"),
    "pretrain --backbone timm:": ("'timm:'", "timm:NAME"),
    "evaluate {run} --protocol knnn": ("'knnn'", "'knn'"),
    "evaluate {run} --device gpu": ("'gpu'", "auto, cpu, cuda, mps"),
    "evaluate {run} --seed some": ("whole number", "'some'"),
    "evaluate {run} --out {place}/elsewhere": ("belong to that run",),
    "evaluate random:resnet11 --data digits": ("'resnet11'",),
    "evaluate torchvision:resnet10-slim --data digits": ("resnet10-slim",),
    "evaluate file:{place}/text --data digits": ("file:PATH@NAME",),
    "evaluate file:{place}/nowhere.pth@resnet18 --data digits": ("there is no file",),
    "evaluate {run} --protocol svm-voc07": ("voc07", "ANTIPODE_DATA"),
    "evaluate {run} --protocol detect-coco": ("coco", "ANTIPODE_DATA"),
    "evaluate {run} --data digts": ("digts", "did you mean digits?"),
    "analyse {run} --what nps": ("'nps'", "'npc'", "choose from mi-bound"),
    "reproduce dcl.tabel1": ("'dcl.tabel1'", "'dcl.table1'"),
    "reproduce dcl.table1 --scale smalle": ("'smalle'", "'small'"),
    "reproduce dcl.table1 --seeds 0": ("at least one seed", "0"),
    "reproduce dcl.table1 --seeds 1000000000": ("at most 1,000 seeds", "1,000,000,000"),
    "reproduce dcl.table1 --seeds two": ("--seeds", "whole number", "'two'"),
    "reproduce dcl.table1 --device gpu": ("auto, cpu, cuda, mps", "'gpu'"),
    "reproduce dcl.table1 --out ''": ("--out", "expected a path"),
    "list method": ("'method'", "'methods'"),
    "list nonsense": (
        "'nonsense'",
        "methods, recipes, datasets, protocols, analyses, items, backbones",
    ),
    "show cifar10.dclv": ("'cifar10.dclv'", "'cifar10.dcl"),
    "pack digts --out {out}": ("digts", "did you mean digits?"),
    # settings
    "pretrain --set train.epochs": ("section.key=value", "'train.epochs'"),
    "pretrain --set =5": ("section.key=value", "'=5'"),
    "pretrain --set ''": ("section.key=value",),
    "pretrain --set epochs=5": ("'epochs'", "'train.epochs'"),
    "pretrain --set train.epoch=5": ("'epoch'", "'epochs'"),
    "pretrain --set traim.epochs=5": ("'traim'", "'train'"),
    "pretrain --set train.epochs=soon": ("train.epochs", "whole number", "'soon'"),
    "pretrain --set train.seed=1 --set train.seed=2": ("train.seed", "twice"),
    "pretrain --set method.tua=0.1": ("'tua'", "'tau'"),
    "pretrain --set method.tau=-1": ("tau", "positive", "-1"),
    "pretrain --set optim.network.lr=-1": ("optim.network.lr", "at least 0", "-1"),
    "pretrain --set optim.network.momentum=1": ("optim.network.momentum", "below 1"),
    "pretrain --set optim.lr=1": ("'optim.lr'", "'optim.network.lr'"),
    "pretrain --set optim.network.schedule=cosin": ("cosin", "'cosine'"),
    "pretrain --set train.channels_last=maybe": ("train.channels_last", "true or false", "'maybe'"),
    "pretrain --set train.on_collapse=die": ("train.on_collapse", "warn, stop", "'die'"),
    "pretrain --set views.policy=cdl": ("'cdl'", "'cld'"),
    "pretrain --set backbone.stem=smaal": ("'smaal'", "'small'"),
    "show {run} --set train.epoch=1": ("'epoch'", "'epochs'"),
    "show shapes.dcl --set bad": ("section.key=value", "'bad'"),
    # values that do not fit each other, the method or the data
    "pretrain --set train.accumulate=3": ("train.accumulate=3", "128"),
    "pretrain --set optim.predictor.lr=1": ("optim.predictor.lr", "dcl", "group predictor"),
    "pretrain --set method.queue=10": ("queue", "simclr"),
    "pretrain --set views.views=3": ("takes 2 views", "makes 3"),
    "pretrain --set views.policy=eval": ("takes 2 views", "makes 1"),
    "pretrain --set backbone.weights=torchvision": ("torchvision", "resnet10-slim"),
    "pretrain --set optim.network.warmup=99": ("warm-up", "99"),
    "pretrain cifar10.dcl-paper --method byol": ("dcl", "byol"),
    "pretrain digits.dcl --batch 5000 --out {out}": ("batch size", "5000", "1437 images"),
    "pretrain digits.dcl --batch 1 --epochs 1 --device cpu --out {out}": (
        "at least two images",
        "one",
    ),
    f"pretrain digits.dcl --set views.policy=shapes --out {{out}} {TINY}": ("3 channels", "1"),
    f"pretrain digits.simo --set method.negatives=501 --out {{out}} {TINY}": (
        "501 negatives",
        "499",
    ),
    f"pretrain digits.mocov2 --set method.queue=0 --out {{out}} {TINY}": ("queue", "0"),
    # data that is not there
    "pretrain cifar10.dcl --out {out}": ("cifar10", "ANTIPODE_DATA", "data.root"),
    "pretrain imagenet.dcl --out {out}": ("imagenet", "ANTIPODE_DATA"),
    "pretrain cifar10.dcl --set data.root={place}/nothing --out {out}": (
        "cifar-10-batches-py",
        "data.download=true",
    ),
    "pretrain --data folder:{place}/nowhere --out {out}": ("no folder", "nowhere"),
    "pretrain --data folder:{place}/nothing --out {out}": ("nothing", "no image"),
    "pretrain --data packed:{place}/nothing --out {out}": ("nothing", "packed"),
    "pretrain --data webdataset:{place}/0.tar --out {out}": ("no shard", "0.tar"),
    "evaluate {run} --data cifar10": ("cifar10", "ANTIPODE_DATA"),
    "evaluate {run} --data folder:{place}/flat": ("flat", "3 channels"),
    "pack cifar10 --out {out}": ("cifar10", "ANTIPODE_DATA"),
    "pack folder:{place}/nowhere --out {out}": ("no folder", "nowhere"),
    # recipe files
    "pretrain {place}/nowhere.json": ("no recipe file", "nowhere.json"),
    "pretrain {place}/nothing": ("no recipe file", "nothing"),
    "pretrain {place}/broken.json": ("broken.json", "not JSON"),
    "pretrain {place}/list.json": ("list.json", "not a list"),
    "pretrain {place}/bytes.json": ("bytes.json", "not JSON"),
    "pretrain {place}/key.json": ("'epoch'", "'epochs'"),
    "pretrain {place}/section.json": ("'traim'", "'train'"),
    "show {place}/text": ("text", "not JSON"),
    # run folders
    f"pretrain digits.dcl {TINY} --no-resume --out {{run}}": (
        "holds a run already",
        "--resume",
        "--overwrite",
    ),
    f"pretrain digits.dcl {TINY} --seed 1 --out {{run}}": (
        "another recipe",
        "train.seed: 0 -> 1",
        "--out",
    ),
    f"pretrain digits.byol {TINY} --out {{run}}": ("another recipe", '"dcl" -> "byol"', "--out"),
    f"pretrain digits.dcl {TINY} --out {{place}}/text": ("text",),
    f"pretrain digits.dcl {TINY} --out {{place}}/text/run": ("text",),
    "evaluate {place}/nowhere": ("nowhere",),
    "evaluate {place}/nothing": ("nothing",),
    "evaluate {place}/text": ("text",),
    "evaluate {place}/partial": ("partial", "no finished run"),
    "evaluate {place}/begun": ("begun", "no finished run"),
    "report {place}/nowhere": ("no run", "nowhere"),
    "report {run} {place}/nothing": ("no run", "nothing"),
    "report {run} --out {place}/nothing": ("directory", "nothing"),
    "report {run} --out {place}/text/page.html": ("text",),
    "show {place}/nowhere": ("nowhere",),
    "show {place}/nothing": ("nothing",),
    # packs
    "analyse {place}/nowhere": ("no run", "nowhere"),
    "analyse {run} {run}": ("twice",),
    "analyse {run} --what cka": ("cka does not fit", "two or more"),
    "analyse {run} --what bank": ("bank does not fit", "dcl", "mocov2"),
    "analyse {run} --images one": ("--images", "whole number", "'one'"),
    "analyse {run} --images 1": ("at least two images", "1"),
    "analyse {run} --device gpu": ("auto, cpu, cuda, mps", "'gpu'"),
    "analyse {place}/begun": ("begun", "no checkpoint"),
    "pack digits --out {place}/nothing": ("nothing", "already exists"),
    "pack digits --out {place}/text": ("text", "already exists"),
    "pack digits --out {out} --size 1": ("size", "1"),
    "pack digits --out {out} --size big": ("--size", "whole number", "'big'"),
    "pack digits --out {out} --quality 90": ("quality", "size"),
    "pack digits --out {out} --size 4 --quality 101": ("quality", "1 to 100", "101"),
}
# the same, for damaged or foreign files, and for values that an underlying library rejects
FOREIGN = {
    f"pretrain digits.dcl --set backbone.weights={{place}}/nowhere.pth --out {{out}} {TINY}": (
        "nowhere.pth",
    ),
    "pretrain digits.byol --batch 1 --epochs 1 --device cpu --out {out}": (
        "batch norm",
        "at least two images",
    ),
    "evaluate {run} --data shapes": ("shapes", "3 channels", "1"),
    "evaluate {place}/damaged": ("scores.json", "not JSON"),
    "report {place}/damaged": ("scores.json", "not JSON"),
    "evaluate {place}/odd": ("scores.json", "must hold a JSON object", "[1]"),
    f"pretrain digits.mocov2 --set method.queue=100000000000 --out {{out}} {TINY}": (
        "method.queue must be at most 16,777,216",
        "not 100000000000",
    ),
    f"pretrain digits.dcl {TINY} --out {{place}}/lost": ("no recipe.json", "--overwrite"),
    "pretrain --data {place}/flat --out {out}": ("a folder", "write folder:"),
    "evaluate {run} --seed -1": ("seed", "-1"),
    "analyse {run} --seed 99999999999999999999": ("seed", "2^63"),
    "pretrain --seed 99999999999999999999": ("seed", "99999999999999999999"),
    "evaluate random:resnet10-slim --data digits --out {run}": ("holds a run", "another --out"),
    "pack digits --out {place}/flat": ("flat already exists; pack into",),
    f"pretrain digits.dcl {TINY} --out {{place}}/text/run": (
        "/text is a file, but a folder is needed",
    ),
    "pretrain --data '~nosuch' --out {out}": ("no data set ~nosuch",),
    "pretrain --data '' --out {out}": ("no data set",),
    f"pretrain --data {'x' * 300} --out {{out}}": ("no data set xxx", "known data sets: "),
    "pretrain --set method.=3": ("is a section", "method.tau"),
    f"pretrain digits.dcl {TINY} --seed 5 --no-resume --out {{place}}/bare": (
        "holds a run already",
    ),
    "evaluate random:resnet10-slim --out {place}/listed": ("network.json", "hold a JSON object"),
    f"pretrain --method dcl --data folder:{{place}}/cut --batch 2 {FIT} --out {{out}}": (
        "4 images in a row cannot be read, the first: ",
    ),
    "evaluate foo:resnet18 --data digits": (
        "foo:resnet18",
        "random:NAME, torchvision:NAME and file:PATH@NAME",
    ),
    "pretrain --method dlc": ("'dcl'", "choose from adco, barlowtwins, byol"),
    "pretrain shapes.dlc": ("'shapes.dcl'", "dataset.method, a method or a file"),
    "pretrain --set method=3": ("'method' is a section", "method.tau"),
    "pretrain --set method.ta=3": ("'tau'", "choose from name, base, tau"),
    "pretrain --data stl10 --out {out}": ("ANTIPODE_DATA", "stl10_binary", "data.download=true"),
    "pretrain --data inat18 --out {out}": (
        "ANTIPODE_DATA",
        "train2018.json",
        "train_val2018.tar.gz",
    ),
}
PROCESSES = (
    "pretrain --epochs abc",
    "list method",
    "pretrain shapes.dlc",
)  # also run in a process of their own


def call(command):
    """Run a command in this process, and return its status, output and errors."""
    words = shlex.split(command) if isinstance(command, str) else command
    out = io.StringIO()
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        cli.main(words)
    return end.value.code, out.getvalue(), err.getvalue()


def answer(command):
    """Return the one JSON object that a command prints."""
    status, out, _ = call(command)
    assert status == 0 and out.endswith("\n") and out.count("\n") == 1
    content = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert isinstance(content, dict)
    return content


def process(words, **environment):
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "antipode", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | environment,
    )


def check_refusal(status, out, err, parts):
    """Check that a command printed one sentence with these parts, and exited with status 2."""
    assert status == 2 and out == "", (status, out, err)
    assert err.startswith("antipode: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert "Traceback" not in err and "Error:" not in err
    for part in parts:
        assert part in err, (part, err)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with files and folders that commands cannot use."""
    home = tmp_path_factory.mktemp("place")
    (home / "nothing").mkdir()
    (home / "text").write_text("just a text")
    (home / "broken.json").write_text("{")
    (home / "list.json").write_text("[1]")
    (home / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (home / "key.json").write_text('{"train": {"epoch": 1}}')
    (home / "section.json").write_text('{"traim": {"epochs": 1}}')
    (home / "partial").mkdir()
    (home / "partial" / "recipe.json").write_text(
        '{"method": {"name": "dcl"}, "data": {"name": "digits"}}'
    )
    (home / "begun").mkdir()
    resolve("digits.dcl").write(home / "begun" / "recipe.json")
    (home / "flat").mkdir()
    for number in range(4):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(home / "flat" / f"{number}.png")
    (home / "cut").mkdir()
    for number in range(4):
        (home / "cut" / f"{number}.png").write_bytes(
            (home / "flat" / f"{number}.png").read_bytes()[:44]
        )
    return home


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a run folder, and what the command that made it printed."""
    home = tmp_path_factory.mktemp("runs") / "digits"
    return home, call(f"pretrain digits.dcl {TINY} --out {home} --json")


@pytest.fixture
def run(trained):
    return trained[0]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run each test in an empty folder, without data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTIPODE_DATA", raising=False)


def test_there_are_enough_wrong_commands():
    assert len(WRONG) >= 60


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_is_refused_in_one_sentence(command, run, place, tmp_path):
    words = [
        word.format(run=run, place=place, out=tmp_path / "out") for word in shlex.split(command)
    ]
    before = sorted(run.rglob("*"))
    check_refusal(*call(words), WRONG[command])
    assert sorted(run.rglob("*")) == before


def test_a_device_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    check_refusal(
        *call(f"pretrain digits.dcl --device cuda --out {tmp_path}/out"),
        ("no CUDA device", "--device cpu"),
    )


@pytest.mark.parametrize("command", FOREIGN)
def test_a_wrong_command_on_damaged_or_foreign_files_is_refused_in_one_sentence(
    command, run, place, tmp_path
):
    if not (place / "damaged").exists():
        shutil.copytree(run, place / "damaged")
        (place / "damaged" / "scores.json").write_text("{")
        shutil.copytree(run, place / "odd")
        (place / "odd" / "scores.json").write_text("[1]")
        shutil.copytree(run, place / "lost")
        (place / "lost" / "recipe.json").unlink()
        (place / "bare").mkdir()
        for name in ("recipe.json", "backbone.safetensors"):
            shutil.copy(run / name, place / "bare")
        (place / "listed").mkdir()
        (place / "listed" / "network.json").write_text("[1]")
    words = [
        word.format(run=run, place=place, out=tmp_path / "out") for word in shlex.split(command)
    ]
    check_refusal(*call(words), FOREIGN[command])


def test_a_run_that_was_refused_in_its_first_step_does_not_stand_in_the_way(tmp_path):
    wrong = call(f"pretrain digits.simo --set method.negatives=501 {TINY} --out {tmp_path}/run")
    check_refusal(*wrong, ("501 negatives",))
    assert answer(f"pretrain digits.simo {TINY} --out {tmp_path}/run --json")["last"]["loss"] > 0


def test_a_run_that_ends_without_a_number_says_so(tmp_path):
    command = f"pretrain digits.dcl {TINY} --set optim.network.lr=1e30 --out {tmp_path}/run"
    for _ in range(2):  # there is nothing to resume from
        status, out, err = call(command)
        last = err.splitlines()[-1]
        assert status == 3 and out == "" and "not finite" in last and "optim.network.lr" in last


@pytest.mark.parametrize("json_", ["", "--json"])
def test_a_batch_of_ones_own_says_what_it_does_to_the_rates(json_, tmp_path):
    status, _, err = call(
        f"pretrain digits.simclr --epochs 1 --batch 700 --out {tmp_path}/run {json_}"
    )
    sentence = "Batch size 700: learning rate scaled to 0.5469 (linear rule)."
    assert status == 0 and err.count(sentence) == 1, err


def test_a_run_is_not_lost_to_a_wrong_command_with_overwrite(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    wrong = call(f"pretrain digits.dcl --batch 5000 --device cpu --overwrite --out {tmp_path}/run")
    check_refusal(*wrong, ("batch size", "5000"))
    assert (tmp_path / "run" / "backbone.safetensors").exists()


@pytest.mark.parametrize(
    "command", [PROCESSES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in PROCESSES[1:])]
)
def test_a_wrong_command_is_refused_from_the_outside_too(command):
    done = process(shlex.split(command))
    check_refusal(done.returncode, done.stdout, done.stderr, WRONG[command])


def spent():
    """Return the CPU seconds of all child processes so far, which do not depend on other load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_no_help_loads_torch():
    code = f"""import sys
from antipode.cli import main
for words in [[], *([name] for name in {COMMANDS})]:
    sys.argv = ["antipode", *words, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code and "torch" not in sys.modules, words
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert all(f"Usage: antipode {name}" in done.stdout for name in COMMANDS)


QUICK = ("pretrain", "evaluate", "report")


@pytest.mark.parametrize(
    "words",
    [
        [],
        *(
            [name] if name in QUICK else pytest.param([name], marks=pytest.mark.slow)
            for name in COMMANDS
        ),
    ],
    ids=lambda words: " ".join(words) or "antipode",
)
def test_help_answers_within_a_second_and_without_torch(words):
    code = (
        "import sys\nfrom antipode.cli import main\n"
        "try: main()\nfinally: assert 'torch' not in sys.modules"
    )
    best = float("inf")
    for _ in range(3):
        begun = spent()
        done = subprocess.run(
            [sys.executable, "-c", code, *words, "--help"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        best = min(best, spent() - begun)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        assert (
            done.stdout.startswith(" ".join(["Usage: antipode", *words]))
            and "--help" in done.stdout
        )
        if best < 1.0:
            break
    assert best < 1.0


def test_help_names_every_command_and_every_method():
    assert all(name in call("--help")[1] for name in COMMANDS)
    text = " ".join(call("pretrain --help")[1].split())
    # the names come from the papers, which import torch, so help names the command that lists them
    assert "--method" in text and "`antipode list methods`" in text
    assert [line.split()[0] for line in call("list methods")[1].splitlines()] == list(methods())
    for flag in (
        "--resume / --no-resume",
        "--overwrite",
        "--set KEY=VALUE",
        "--json",
        "--precision",
        "--device",
    ):
        assert flag in text


def test_pretrain_prints_one_object_with_the_run_and_its_last_numbers(trained):
    home, (status, out, err) = trained
    content = json.loads(out)
    assert status == 0 and out.count("\n") == 1
    assert err == "Batch size 500: learning rate scaled to 0.3906 (linear rule).\n"
    assert content["run"] == str(home) and content["last"]["loss"] > 0
    for name in (
        "recipe.json",
        "env.json",
        "metrics.jsonl",
        "checkpoints/last.pt",
        "backbone.safetensors",
    ):
        assert (home / name).exists()


def test_the_same_command_goes_on_with_the_run_that_is_there(trained):
    home, (_, out, _) = trained
    assert answer(f"pretrain digits.dcl {TINY} --out {home} --json") == json.loads(out)
    assert answer(f"pretrain {home}/recipe.json --out {home} --json") == json.loads(out)


def test_for_people_the_end_is_one_line(run):
    status, out, _ = call(f"pretrain digits.dcl {TINY} --out {run}")
    assert status == 0 and out.startswith(f"{run}: done, loss ") and out.count("\n") == 1


def test_evaluate_prints_the_scores_that_it_adds_to_the_run(run):
    content = answer(f"evaluate {run} --protocol knn --protocol knn20 --json")
    assert list(content) == ["knn", "knn20"] and content["knn"]["data"] == "digits"
    assert json.loads((run / "scores.json").read_text()) == content
    status, out, _ = call(f"evaluate {run}")
    value, low, high = (content["knn"][key] for key in ("value", "low", "high"))
    head = f"knn: {value:.2f} % top-1 [{low:.2f}, {high:.2f}], chance 10.28, balanced "
    first, verdict, *_ = out.splitlines()
    assert status == 0 and first.startswith(head) and first.endswith(" (digits test, n = 360)")
    assert verdict.startswith("verdict ")


def test_analyse_prints_what_it_adds_to_the_run(run):
    content = answer(f"analyse {run} --what spectrum --what npc --images 40 --device cpu --json")
    assert list(content["digits"]) == ["spectrum", "npc"]
    assert json.loads((run / "analysis.json").read_text()) == content["digits"]
    status, out, _ = call(f"analyse {run} --what npc --images 40 --device cpu")
    numbers = content["digits"]["npc"]["values"]
    assert status == 0
    assert out.splitlines() == [
        f"digits  npc  {name}: {number:.5g}" for name, number in numbers.items()
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "evaluate run --protocol knn linear-fast --json",
            "evaluate run --protocol knn --protocol linear-fast --json",
        ),
        ("analyse --what npc spectrum run", "analyse --what npc --what spectrum run"),
        ("analyse run run --what npc", "analyse run run --what npc"),
        (
            "pretrain --set a=1 b=2 digits.dcl --data d",
            "pretrain --set a=1 --set b=2 digits.dcl --data d",
        ),
        ("pretrain digits.dcl --set=a=1 b=2", "pretrain digits.dcl --set=a=1 --set b=2"),
        (
            "evaluate --protocol knn random:resnet18 --json",
            "evaluate --protocol knn random:resnet18 --json",
        ),
        ("evaluate run --protocol --json", "evaluate run --protocol --json"),
    ],
)
def test_several_values_may_follow_one_flag(words, expected, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.repeated(words.split()) == expected.split()


def test_one_protocol_analysis_or_run_needs_no_list(run, tmp_path):
    assert list(antipode.evaluate(run, "knn")) == ["knn"]
    assert list(next(iter(antipode.analyse(run, "spectrum").values()))) == ["spectrum"]
    assert antipode.report(run, out=tmp_path / "one.html").exists()


def test_what_went_well_is_said_beside_what_did_not(run):
    status, out, err = call(f"evaluate {run} --protocol knn20 semi-1 svm-voc07 --json")
    assert status == 2 and list(json.loads(out)) == ["knn20", "semi-1"] and "svm-voc07: " in err


def test_report_prints_where_the_page_is(run, tmp_path):
    assert answer(f"report {run} --json") == {"report": str(run / "report.html")}
    assert answer(f"report {run} {run} --out {tmp_path}/page.html --json") == {
        "report": f"{tmp_path}/page.html"
    }
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_pack_prints_where_the_data_set_is_and_pretrain_reads_it(tmp_path):
    assert answer(f"pack digits --out {tmp_path}/packed --json") == {"packed": f"{tmp_path}/packed"}
    slim = (
        "--backbone resnet10-slim --set backbone.stem=small views.policy=simclr-cifar views.size=8"
    )
    content = answer(
        f"pretrain --data packed:{tmp_path}/packed {slim} {TINY} --out {tmp_path}/run --json"
    )
    assert content["last"]["loss"] > 0


def test_show_prints_a_source_for_every_value(run):
    for what in ("shapes.dcl", "imagenet.adco", str(run)):
        content = answer(["show", what, "--set", "train.keep=3", "--json"])
        assert list(content) == list(resolve("digits.dcl" if what == str(run) else what).leaves())
        assert all(set(row) == {"value", "source"} and row["source"] for row in content.values())
        assert content["train.keep"] == {"value": 3, "source": "--set"}
        _, out, _ = call(["show", what, "--set", "train.keep=3"])
        lines = out.splitlines()
        assert [line.split()[0] for line in lines] == list(content)
        assert all(
            line.endswith(row["source"]) for line, row in zip(lines, content.values(), strict=True)
        )


def test_show_takes_the_flags_of_pretrain():
    flags = "--backbone resnet34 --epochs 7 --batch 32 --seed 3 --device cpu --precision fp32"
    content = answer(f"show cifar10.dcl {flags} --json")
    expected = {
        "backbone.name": ("resnet34", "--backbone"),
        "train.epochs": (7, "--epochs"),
        "train.batch": (32, "--batch"),
        "train.seed": (3, "--seed"),
        "train.device": ("cpu", "--device"),
        "train.precision": ("fp32", "--precision"),
    }
    for key, (value, source) in expected.items():
        assert content[key] == {"value": value, "source": source}


def test_export_says_that_a_file_is_replaced(run, tmp_path):
    command = f"export {run} --format safetensors --out {tmp_path}/net.safetensors"
    assert "replaced" not in call(command)[2]
    status, _, err = call(command)
    assert status == 0 and "net.safetensors existed and was replaced" in err
    assert "--overwrite" in err and "replaced" not in call(f"{command} --overwrite")[2]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("methods", list(methods())),
        ("recipes", list_recipes()),
        ("datasets", [*SETS, *(f"{prefix}:" for prefix in PREFIXES)]),
        ("protocols", list(protocols())),
        ("analyses", list(analyses())),
        ("items", list(items())),
        ("backbones", [*RESNETS, "timm:NAME"]),
    ],
)
def test_list_names_everything_with_a_line_each(kind, names):
    content = answer(f"list {kind} --json")
    assert list(content) == names and all(content.values())
    _, out, _ = call(f"list {kind}")
    assert [tuple(line.split(None, 1)) for line in out.splitlines()] == list(content.items())


def test_json_has_null_where_a_number_is_none(capsys):
    cli.say({"loss": float("nan"), "rows": [float("inf"), 1.5]}, "", True)
    assert json.loads(capsys.readouterr().out) == {"loss": None, "rows": [None, 1.5]}


def test_of_several_ranks_the_first_speaks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert call("list methods --json") == (0, "", "")


def raising(error):
    """Return a function that raises this error."""

    def fail(*_, **__):
        raise error

    return fail


def test_an_interruption_says_how_to_go_on(monkeypatch):
    from antipode.training.loop import Interrupted

    monkeypatch.setattr(antipode, "pretrain", raising(KeyboardInterrupt()))
    status, out, err = call("pretrain")
    assert (status, out) == (130, "") and err.count("\n") == 1
    assert "the same command resumes from what is on the disk" in err
    sentence = "stopped after step 3 of 9; the same command resumes"
    monkeypatch.setattr(antipode, "pretrain", raising(Interrupted(sentence)))
    assert call("pretrain") == (130, "", f"antipode: {sentence}\n")
    monkeypatch.setattr(antipode, "pretrain", raising(KeyboardInterrupt()))
    assert call("pretrain --overwrite") == (130, "", f"antipode: {FRESH}\n")
    monkeypatch.setattr(antipode, "evaluate", raising(KeyboardInterrupt()))
    assert call("evaluate random:x") == (130, "", f"antipode: {INTERRUPTED['evaluate']}\n")
    monkeypatch.setattr(antipode, "export", raising(KeyboardInterrupt()))
    stopped = call("export random:x --format onnx --out y.onnx")
    assert stopped == (130, "", "antipode: interrupted\n")


def test_sigterm_is_an_interruption_too(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    terminate = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr(antipode, "evaluate", terminate)
    assert call("evaluate random:x") == (130, "", f"antipode: {INTERRUPTED['evaluate']}\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_while_the_command_is_imported_is_no_traceback():
    code = """import builtins, antipode.__main__
plain = builtins.__import__
def find(name, *more):
    if name == "antipode.cli":
        raise KeyboardInterrupt
    return plain(name, *more)
builtins.__import__ = find
antipode.__main__.main()"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "antipode: interrupted\n")


def test_the_machine_s_own_errors_are_sentences_and_ours_are_not_hidden(monkeypatch):
    denied = PermissionError(13, "Permission denied", "runs/x")
    monkeypatch.setattr(antipode, "pretrain", raising(denied))
    check_refusal(*call("pretrain"), ("Permission denied: runs/x",))
    full = MemoryError("the memory of the GPU\nis too small")
    monkeypatch.setattr(antipode, "pretrain", raising(full))
    check_refusal(*call("pretrain"), ("the memory of the GPU is too small",))
    monkeypatch.setattr(antipode, "pretrain", raising(RuntimeError("a bug of ours")))
    with pytest.raises(RuntimeError, match="ours"):
        cli.main(["pretrain"])


def test_a_warning_is_a_sentence_on_stderr(monkeypatch, capsys):
    warn("two images were left out", UserWarning, "file.py", 3)
    assert capsys.readouterr() == ("", "warning: two images were left out\n")


def test_show_counts_images_of_ones_own_as_training_does(tmp_path):
    for at in range(200):
        Image.fromarray(np.full((8, 8, 3), at, np.uint8)).save(tmp_path / f"{at}.png")
    shown = answer(f"show --method mocov2 --data folder:{tmp_path} --json")
    assert shown["method.queue"]["value"] == 16
    assert shown["data.labels"] == {"value": "none", "source": "decided: there are no subfolders"}
    assert shown["views.size"]["value"] == 8 and "ours: " in shown["train.epochs"]["source"]
    assert shown["data.name"]["value"] == f"folder:{tmp_path}"
    (tmp_path / "mine.json").write_text(
        json.dumps({"method": {"name": "mocov2"}, "data": {"name": f"folder:{tmp_path}"}})
    )
    assert answer(f"show {tmp_path / 'mine.json'} --json")["method.queue"]["value"] == 16
    status, out, err = call("show --method mocov2 --data folder:nowhere --json")
    assert status == 0 and "there is no folder " in err and "nowhere" in err
    assert json.loads(out)["method.queue"]["value"] == 65536


def test_a_warning_is_printed_once_in_a_command(tmp_path):
    """Training, evaluation and report open the same folder, and each of them warns."""
    noise = np.random.default_rng(0)
    for at in range(24):
        pixels = noise.integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{at}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    words = f"pretrain --data folder:{tmp_path} --method simclr --backbone resnet10-slim --batch 8"
    command = f"{words} --epochs 1 --device cpu --report --out {tmp_path.parent / 'odd'}"
    status, _, err = call(command)
    assert status == 0 and err.count("1 of 25 files of") == 1
    _, _, err = call(
        f"embed {tmp_path.parent / 'odd'} --data folder:{tmp_path} --out {tmp_path}.npz"
    )
    assert err.count("1 of 25 files of") == 1, "the next command warns again"


def test_scores_without_a_named_folder_say_where_they_go(elsewhere, tmp_path):
    command = "evaluate random:resnet10-slim --data digits --device cpu --json"
    _, _, err = call(command)
    file = "runs/random-resnet10-slim/scores.json"
    assert err.count(f"{file}; --out names another folder") == 1
    _, _, err = call(f"{command} --out {tmp_path}/named")
    assert "scores are in" not in err
