"""Kill a command at every change that it makes to the disk, and see what the next one finds.

    OMP_NUM_THREADS=1 python -m tests.crashes [COMMAND ...] [EVERY]

The process ends, without any clean-up, before or after each single fsync, link, rename, replace,
unlink, mkdir and rmdir. Then the command runs again. The result must have the same bits as without
the kill, and no file may be left that an undisturbed command does not leave. With the number EVERY,
only each so-many-th of these moments is tried.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms import v2  # noqa: F401  (imported here once, not in every child)

import antipode.api  # noqa: F401  (the same)
from antipode import cli

CHANGES = ("fsync", "link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir")
KILLED = 77
TRAIN = "--method dcl --backbone resnet10-slim --epochs 3 --batch 8 --device cpu"
TRAIN += " --set views.size=8 --set train.checkpoint_every=1 --set monitor.log_every=1"
TRAIN += " --set data.workers=0"
ENV = ("images_per_second",)  # values that differ between two equal runs


def images(folder):
    """Write twenty-four images of two classes."""
    numbers = np.random.default_rng(0)
    for at in range(24):
        file = folder / f"class-{at % 2}" / f"{at}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)


def fork(work):
    """Run a function in a child process, and return the child's exit status."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            status = work()
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:  # the child must not go on with the work of its parent
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(words, root, kill=None):
    """Run a command in a child in the folder `root`; end it at its change number `kill`.

    Changes are counted twice: before they are made, and afterwards. Return the exit status.
    """

    def work():
        moments = itertools.count()
        for name in CHANGES:
            setattr(os, name, killing(getattr(os, name), moments, kill))
        return command_status(words, root)

    return fork(work)


def command_status(words, root):
    """Run a command in this process in the folder `root`; return its exit status.

    What it prints is written to a file beside the folder.
    """
    os.chdir(root)
    with Path(root.parent, "output").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            cli.main(words.split())
        except SystemExit as end:
            return end.code
        except BaseException:
            traceback.print_exc()
    return 1


def killing(change, moments, kill):
    """Return a function that changes the disk as `change` does, or ends the process."""
    process = os.getpid()  # worker processes have a copy of this function

    def moment():
        if os.getpid() == process and next(moments) == kill:
            os._exit(KILLED)

    def changed(*arguments, **options):
        moment()
        result = change(*arguments, **options)
        moment()
        return result

    return changed


def names(root):
    """Return the names of all files and folders, but those that lock a folder."""
    found = [str(path.relative_to(root)) for path in root.rglob("*")]
    kept = [name for name in found if Path(name).name not in (".lock", ".adding")]
    # features are stored under a digest, which depends on where the images are
    return sorted(re.sub("[0-9a-f]{32}", "digest", name) for name in kept)


def result(folder):
    """Return what a run folder holds, without what differs between two equal runs."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            files[name] = load_file(path)
        elif path.suffix == ".pt":
            files[name] = torch.load(path, weights_only=True)
        elif path.name == "metrics.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            files[name] = [{k: v for k, v in row.items() if k not in ENV} for row in rows]
        elif path.name == "exact-duplicates.json":  # its stamp depends on where the images are
            files[name] = {k: v for k, v in json.loads(path.read_text()).items() if k != "stamp"}
        elif path.is_file() and path.name not in ("env.json", ".lock", ".adding"):
            files[name] = path.read_bytes() if path.suffix != ".sum" else b""
    features = [name for name in files if name.endswith(".npz")]
    files["features"] = sorted(files.pop(name) for name in features)
    return files


def equal(a, b):
    """Return True if two values are bitwise equal."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def differing(found, expected):
    """Return the names of files that are not in both folders, or not equal."""
    both = found.keys() & expected.keys()
    return sorted(
        (found.keys() ^ expected.keys())
        | {name for name in both if not equal(found[name], expected[name])}
    )


NEW = f"pretrain --data folder:images --out run {TRAIN}"
OTHER = f"pretrain --data folder:images --out run {TRAIN} --seed 3"
FINETUNE = "finetune random:resnet10-slim --data folder:images --out run --epochs 1 --device cpu"
TUNE_OTHER = f"{FINETUNE} --seed 3"
EVALUATE = "evaluate run --protocol linear-fast alignment-uniformity"
# what was there before, the command that is killed, and the command that runs afterwards
COMMANDS = {
    "new": ([], NEW, NEW),
    "resume": ([f"{NEW} STOP"], NEW, NEW),
    "overwrite": ([NEW], f"{OTHER} --overwrite", OTHER),
    "evaluate": ([NEW], EVALUATE, EVALUATE),
    "pack": ([], "pack folder:images --out run", "pack folder:images --out run"),
    "finetune": ([], FINETUNE, FINETUNE),
    "finetune over": ([FINETUNE], f"{TUNE_OTHER} --overwrite", f"{TUNE_OTHER} --overwrite"),
}
# what a command says if it was killed after its result was complete
COMPLETE = {"pack": "already exists", "finetune": "holds a classifier"}


def prepared(root, commands):
    """Write the images, and run the commands that come before."""
    root.mkdir()
    images(root / "images")
    for words in commands:
        assert run(words.removesuffix(" STOP"), root) == 0, Path(root.parent, "output").read_text()
        if words.endswith(" STOP"):  # as if it had been killed after its second epoch
            for file in (*root.glob("run/checkpoints/*6.*"), root / "run/backbone.safetensors"):
                file.unlink()
            last = root / "run/checkpoints/last.pt"
            last.unlink()
            os.link(root / "run/checkpoints/step-000000004.pt", last)


def crash_everywhere(command, place, every=1):
    """Kill a command at every change to the disk; return the number of kills.

    With `every`, only each so-many-th moment is taken.
    """
    before, killed, after = COMMANDS[command]
    template = place / "template"
    prepared(template, before)
    old = result(template / "run") if command == "overwrite" else {}
    whole = place / "whole"
    shutil.copytree(template, whole)
    assert run(killed, whole) == 0, (place / "output").read_text()
    expected = result(whole / "run")
    kills = 0
    for moment in itertools.count(0, every):
        root = place / "root"
        shutil.copytree(template, root)
        status = run(killed, root, kill=moment)
        assert status in (0, KILLED), (moment, (place / "output").read_text())
        if status == 0:
            return kills
        kills += 1
        check(command, root, after, old, expected, moment)
        assert names(root) == names(whole) or command == "overwrite", moment
        assert not list(root.rglob("*.tmp")) and not list(root.rglob(".old*")), moment
        shutil.rmtree(root)


def check(command, root, after, old, expected, moment):
    """Run the command again after a kill, and compare its result with the expected one."""
    status = run(after, root)
    output = (root.parent / "output").read_text()
    found = result(root / "run")
    if command == "overwrite" and status == 2 and "another recipe" in output:
        assert equal(found, old), moment  # the old run was restored
    elif status == 2 and command in COMPLETE and COMPLETE[command] in output:
        assert equal(found, expected), moment
    else:
        assert status == 0, (moment, output)
        assert not differing(found, expected), (moment, differing(found, expected))


def main():
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    words = sys.argv[1:]
    every = int(words.pop()) if words and words[-1].isdecimal() else 1
    for command in words or COMMANDS:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            kills = crash_everywhere(command, Path(folder), every)
        print(f"{command}: {kills} kills, nothing lost, nothing left behind", flush=True)


if __name__ == "__main__":
    main()
