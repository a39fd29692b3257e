"""A run that is replaced is kept until the new one has taken a step; a folder belongs to one process at a time."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from antipode.core.learner import Learner
from antipode.runs import folder as rundir
from antipode.runs.folder import RunFolder
from antipode.training.loop import train
from tests.training.runs import pretrain, small_recipe, small_splits
from tests.toys import Tiny

posix = pytest.mark.skipif(os.name != "posix", reason="forks")


def go(path, epochs=1, overwrite=False, **more):
    torch.manual_seed(5)
    recipe = small_recipe("simclr", epochs, **more)
    train(recipe, RunFolder(path), splits=small_splits(), backbone=Tiny(), overwrite=overwrite, quiet=True)


def content(path):
    """All files of a folder but its lock."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*"))
            if file.is_file() and file.name != ".lock"}  # fmt: skip


@pytest.fixture
def old(tmp_path):
    """A finished run, and something that is not its own."""
    go(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "features").mkdir()
    (tmp_path / "run" / "features" / "x.npz").write_bytes(b"x")
    return tmp_path / "run"


def test_a_run_that_fails_in_its_first_step_leaves_the_old_one_as_it_was(old, monkeypatch):
    before = content(old)

    def broken(self, batch):
        assert not (old / "backbone.safetensors").exists() and (old / "recipe.json").exists()
        raise ValueError("out of luck")

    monkeypatch.setattr(Learner, "forward", broken)
    with pytest.raises(ValueError, match="out of luck"):
        go(old, overwrite=True, **{"train.seed": 3})
    assert content(old) == before


def test_so_does_one_that_is_interrupted_before_it(old, monkeypatch):
    before = content(old)
    monkeypatch.setattr(Learner, "before_step", lambda self, progress: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        go(old, overwrite=True)
    assert content(old) == before


def test_a_run_that_takes_a_step_replaces_the_old_one_and_nothing_else(old, tmp_path, monkeypatch):
    go(tmp_path / "new", **{"train.seed": 3})
    forward = Learner.forward

    def watched(self, batch):
        gone = int(self.step) > 0
        assert (old / ".old").exists() != gone
        return forward(self, batch)

    monkeypatch.setattr(Learner, "forward", watched)
    go(old, overwrite=True, **{"train.seed": 3})
    found, expected = content(old), content(tmp_path / "new")
    assert found.pop("notes.txt") == b"mine" and found.keys() == expected.keys()
    assert found["backbone.safetensors"] == expected["backbone.safetensors"]


def test_files_of_a_folder_that_holds_no_run_are_nobodys_to_remove(tmp_path):
    """Such as a project's own, with --out . --overwrite."""
    names = ("package.json", "labels.jsonl", "features/w.txt", "checkpoints/theirs.pt", "a.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    go(tmp_path, overwrite=True)
    go(tmp_path, overwrite=True, **{"train.seed": 3})  # and where there is one, those whose names a run does not use
    assert all((tmp_path / name).read_text() == name for name in ("package.json", "labels.jsonl", "a.txt"))
    assert RunFolder(tmp_path).read_json("recipe.json")["train"]["seed"] == 3


@pytest.mark.parametrize("left", [(), ("tensorboard",), ("features", "metrics.jsonl")])
def test_a_recovery_that_was_killed_is_taken_up_again(old, left):
    """It removes the new run's files and its recipe last: whatever is left of it, the old run comes back whole."""
    before = content(old)
    with contextlib.suppress(KeyboardInterrupt), RunFolder(old).replacing():
        (old / "recipe.json").write_text("{}")
        for name in left:
            (old / name).mkdir() if "." not in name else (old / name).write_text("")
        (old / ".old").rename(old / ".kept")  # as if killed here: what follows does not recover
        raise KeyboardInterrupt
    (old / ".kept").rename(old / ".old")
    RunFolder(old).recover()
    assert content(old) == before


def test_nothing_of_a_folder_without_a_run_is_set_aside(tmp_path):
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "w.txt").write_text("mine")
    with RunFolder(tmp_path).replacing() as gone:
        assert (tmp_path / "features" / "w.txt").exists()
        gone()
    assert (tmp_path / "features" / "w.txt").read_text() == "mine"


def test_a_failure_after_the_first_step_is_a_run_to_go_on_with(old, monkeypatch):
    forward = Learner.forward

    def later(self, batch):
        if int(self.step) == 3:
            raise ValueError("out of luck")
        return forward(self, batch)

    monkeypatch.setattr(Learner, "forward", later)
    with pytest.raises(ValueError, match="out of luck"):
        go(old, epochs=2, overwrite=True, **{"train.seed": 3, "train.checkpoint_every": 1})
    monkeypatch.undo()
    assert RunFolder(old).read_json("recipe.json")["train"]["seed"] == 3
    go(old, epochs=2, **{"train.seed": 3})
    assert [row["step"] for row in RunFolder(old).metrics()] == [0, 1, 2, 3]


def dies_after(count, work):
    """Do work in a process that ends at once after so many changes to the disk; whether it came to its end."""
    child = os.fork()
    if not child:
        left = itertools.count(count, -1)

        def counted(change):
            def one(*arguments, **options):
                if not next(left):
                    os._exit(1)
                return change(*arguments, **options)

            return one

        for name in ("rename", "unlink", "mkdir", "rmdir"):
            setattr(Path, name, counted(getattr(Path, name)))
        shutil.rmtree = counted(shutil.rmtree)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@posix
@pytest.mark.parametrize("stands", [False, True])
def test_a_kill_at_any_moment_leaves_one_of_the_two_runs_whole(tmp_path, stands):
    """Small stand-ins for two runs, and a death before every single change of the disk."""

    def made(path, word):
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        for name in ("recipe.json", "metrics.jsonl", "checkpoints/last.pt", "scores.json")[: 4 if word == "old" else 3]:
            (path / name).write_text(word)

    def work():
        with run.replacing() as settle:
            made(run.path, "new")
            if stands:
                settle()

    outcomes = set()
    for count in itertools.count():
        run = RunFolder(tmp_path / f"{count}")
        made(run.path, "old")
        done = dies_after(count, work)
        run.recover()
        words = {name: text.decode() for name, text in content(run.path).items()}
        assert set(words.values()) == ({"old"} if "scores.json" in words else {"new"}) and len(words) in (3, 4), count
        outcomes.add(words["recipe.json"])
        if done:
            assert words["recipe.json"] == ("new" if stands else "old")
            break
    assert count > 8 and outcomes == ({"old", "new"} if stands else {"old"})


@posix
def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    """A second one waits a moment for the first to end, then says which it is."""
    hold = "import fcntl, sys, os; f = open(sys.argv[1], 'a+'); fcntl.lockf(f, fcntl.LOCK_EX); "
    hold += "print(os.getpid(), end='', file=f, flush=True); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        run = RunFolder(tmp_path)
        with pytest.raises(ValueError, match=rf"is in use: process {other.pid} trains there, wait for it or stop it"):
            run.claim(patience=0.2)
        other.stdin.close()
        run.claim(patience=30)
    assert (tmp_path / ".lock").read_text() == str(os.getpid())
    run.release()
    RunFolder(tmp_path).claim(patience=0)


CLAIM = "import sys; from antipode.runs.folder import RunFolder; RunFolder(sys.argv[1]).claim(patience=0)"


@posix
def test_a_folder_belongs_to_one_in_a_process_too(tmp_path):
    """A record lock alone would be given to a second thread as well, and be lost for the first when that lets go."""
    one, other = RunFolder(tmp_path), RunFolder(tmp_path / "." / ".." / tmp_path.name)
    claim = [sys.executable, "-c", CLAIM, str(tmp_path)]
    one.claim()
    with pytest.raises(ValueError, match=f"is in use: process {os.getpid()} trains there"):
        other.claim(patience=0)
    assert b"is in use" in subprocess.run(claim, capture_output=True, check=False).stderr
    one.release()
    other.claim(patience=0)
    child = os.fork()
    if not child:  # which has our memory but not our lock
        try:
            RunFolder(tmp_path).claim(patience=0)
        except ValueError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    read, write = os.pipe()
    child = os.fork()
    if not child:  # what it had of ours it may drop, and keeps what it took itself
        os.read(read, 1)
        mine = RunFolder(tmp_path)
        mine.claim(patience=5)
        other.release()
        os._exit(b"is in use" in subprocess.run(claim, capture_output=True, check=False).stderr)
    other.release()
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    other.claim(patience=5)
    shutil.rmtree(tmp_path)
    third = RunFolder(tmp_path)  # the folder is another one now
    third.claim(patience=0)
    assert b"is in use" in subprocess.run(claim, capture_output=True, check=False).stderr
    other.release()
    third.release()
    assert subprocess.run(claim, capture_output=True, check=False).returncode == 0


@posix
def test_a_call_that_fails_lets_go_of_the_folder(tmp_path):
    """Also where somebody keeps the exception, as a notebook does; and it leaves no folder that it made."""
    pretrain(tmp_path / "run", "simclr", 1, {})
    kept = []
    for name, method in (("run", "byol"), ("new", "simo")):
        with pytest.raises(ValueError, match=r"another recipe|500 negatives") as told:
            pretrain(tmp_path / name, method, 1, {"method.negatives": 500} if method == "simo" else {})
        kept.append(told.value)
    claim = [sys.executable, "-c", CLAIM, str(tmp_path / "run")]
    assert subprocess.run(claim, capture_output=True, check=False).returncode == 0


def test_lines_of_the_log_that_are_none_are_passed_over(old):
    """It decides nothing, and so it must not keep a run from going on."""
    file = old / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(b"5\n" + b'{"step": 1, "loss": \xff}\n' + b"[1]\n" + whole)
    assert RunFolder(old).metrics() == [json.loads(line) for line in whole.splitlines()]
    RunFolder(old).rewind(1)
    assert [row["step"] for row in RunFolder(old).metrics()] == [0]


def test_a_checkpoint_that_torch_cannot_write_is_told_in_a_sentence(tmp_path, monkeypatch):
    """Its writer says neither what the system said nor where."""

    def broken(content, file):
        raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(OSError, match=r"no checkpoint could be written into .*checkpoints \(.*unexpected pos\)"):
        go(tmp_path / "run")


def test_the_commit_is_that_of_our_own_checkout_alone(tmp_path):
    """Not that of a project whose environment the package is installed into."""
    place = tmp_path / ".venv" / "lib" / "site-packages"
    shutil.copytree(Path(rundir.__file__).parents[1], place / "antipode")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    code = "from antipode.runs import folder; print(folder._commit())"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(place)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == "None", found


def test_a_wrong_setting_does_not_cost_the_run_that_is_there(tmp_path):
    """More negatives than a batch has is known in the first step only."""
    pretrain(tmp_path / "run", "simo", 1, {})
    before = content(tmp_path / "run")
    with pytest.raises(ValueError, match="500 negatives asked for"):
        pretrain(tmp_path / "run", "simo", 1, {"method.negatives": 500}, overwrite=True)
    assert content(tmp_path / "run") == before
    pretrain(tmp_path / "run", "simo", 1, {})  # and goes on being that run
    assert content(tmp_path / "run")["metrics.jsonl"] == before["metrics.jsonl"]
