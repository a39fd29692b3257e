"""A replaced run is kept until the new one has taken a step; one process at a time has a folder."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

from antipode.core.learner import Learner
from antipode.runs import environment
from antipode.runs.folder import RunFolder
from antipode.training.loop import train
from tests.toys import Tiny
from tests.training.runs import pretrain, small_recipe, small_splits

posix = pytest.mark.skipif(os.name != "posix", reason="forks")


def go(path, epochs=1, overwrite=False, **more):
    torch.manual_seed(5)
    recipe = small_recipe("simclr", epochs, **more)
    train(
        recipe,
        RunFolder(path),
        splits=small_splits(),
        backbone=Tiny(),
        overwrite=overwrite,
        quiet=True,
    )


def content(path):
    """Return all files of a folder except its lock."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != ".lock"]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.fixture
def old(tmp_path):
    """A finished run, in a folder with a file that does not belong to it."""
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

    def interrupted(self, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "before_step", interrupted)
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
    files = content(old)
    expected = content(tmp_path / "new")
    assert files.pop("notes.txt") == b"mine" and files.keys() == expected.keys()
    assert files["backbone.safetensors"] == expected["backbone.safetensors"]


def test_files_of_a_folder_that_holds_no_run_are_nobodys_to_remove(tmp_path):
    """Such as the files of a project, with --out . --overwrite."""
    names = ("package.json", "labels.jsonl", "features/w.txt", "checkpoints/theirs.pt", "a.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    go(tmp_path, overwrite=True)
    # now the folder holds a run, and files whose names a run does not use must stay
    go(tmp_path, overwrite=True, **{"train.seed": 3})
    kept = ("package.json", "labels.jsonl", "a.txt")
    assert all((tmp_path / name).read_text() == name for name in kept)
    assert RunFolder(tmp_path).read_json("recipe.json")["train"]["seed"] == 3


@pytest.mark.parametrize("left", [(), ("tensorboard",), ("features", "metrics.jsonl")])
def test_a_recovery_that_was_killed_is_taken_up_again(old, left):
    """A recovery deletes the files of the new run, its recipe last, and restores the old run.

    Whatever a killed recovery has left of the new run, the next one restores the whole old run.
    """
    before = content(old)
    with contextlib.suppress(KeyboardInterrupt), RunFolder(old).replacing():
        (old / "recipe.json").write_text("{}")
        for name in left:
            (old / name).mkdir() if "." not in name else (old / name).write_text("")
        (old / ".old").rename(old / ".kept")  # as if killed here: `replacing` cannot recover
        raise KeyboardInterrupt
    (old / ".kept").rename(old / ".old")
    RunFolder(old).recover()
    assert content(old) == before


def test_nothing_of_a_folder_without_a_run_is_set_aside(tmp_path):
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "w.txt").write_text("mine")
    with RunFolder(tmp_path).replacing() as commit:
        assert (tmp_path / "features" / "w.txt").exists()
        commit()
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


# exit statuses of forked children; an error in a child gives 1, so they must differ from it
FINISHED = 0
KILLED = 3
IN_USE = 4


def fork(work):
    """Fork a child that ends with the status that `work` returns, or with 1 after an error.

    Return the id of the child.
    """
    child = os.fork()
    if not child:
        status = 1
        try:
            status = work()
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:  # the child must not run the other tests
            os._exit(status)
    return child


def status_of(child):
    """Wait for a child to end and return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dies_after(count, work):
    """Run `work` in a process that is ended after `count` changes to the disk.

    Return True if the work was finished before.
    """

    def work_until_killed():
        left = itertools.count(count, -1)

        def counted(change):
            def changed(*arguments, **options):
                if not next(left):
                    os._exit(KILLED)
                return change(*arguments, **options)

            return changed

        for name in ("rename", "unlink", "mkdir", "rmdir"):
            setattr(Path, name, counted(getattr(Path, name)))
        shutil.rmtree = counted(shutil.rmtree)
        work()
        return FINISHED

    status = status_of(fork(work_until_killed))
    assert status in (FINISHED, KILLED)
    return status == FINISHED


@posix
@pytest.mark.parametrize("commits", [False, True])
def test_a_kill_at_any_moment_leaves_one_of_the_two_runs_whole(tmp_path, commits):
    """Two fake runs; the process is killed before every single change to the disk."""

    def write_run(path, word):
        names = ["recipe.json", "metrics.jsonl", "checkpoints/last.pt"]
        names += ["scores.json"] if word == "old" else []
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        for name in names:
            (path / name).write_text(word)

    def work():
        with run.replacing() as commit:
            write_run(run.path, "new")
            if commits:
                commit()

    outcomes = set()
    for count in itertools.count():
        run = RunFolder(tmp_path / f"{count}")
        write_run(run.path, "old")
        done = dies_after(count, work)
        run.recover()
        words = {name: text.decode() for name, text in content(run.path).items()}
        assert set(words.values()) == ({"old"} if "scores.json" in words else {"new"}), count
        assert len(words) in (3, 4), count
        outcomes.add(words["recipe.json"])
        if done:
            assert words["recipe.json"] == ("new" if commits else "old")
            break
    assert count > 8 and outcomes == ({"old", "new"} if commits else {"old"})


@posix
def test_a_deletion_that_was_killed_is_completed_by_the_next(tmp_path):
    """The recipe marks a folder without checkpoints as a run, so it must be deleted last.

    The process is killed before every single change to the disk.
    """
    names = ("recipe.json", "env.json", "metrics.jsonl", "scores.json", "report.html")
    for count in itertools.count():
        run = RunFolder(tmp_path / f"{count}")
        run.path.mkdir()
        for name in (*names, "notes.txt"):
            (run.path / name).write_text(name)
        done = dies_after(count, run.clear)
        left = content(run.path).keys() - {"notes.txt"}
        assert len(left) == len(names) - count
        assert ("recipe.json" in left) == (not done)
        run.clear()
        assert content(run.path) == {"notes.txt": b"notes.txt"}
        if done:
            break
    assert count == len(names)


@pytest.mark.parametrize("commits", [False, True])
def test_nothing_of_the_old_run_outlives_an_overwrite(tmp_path, commits):
    """Also not what evaluations, analyses, reports and loggers have added to it."""
    names = ["recipe.json", "env.json", "metrics.jsonl", "scores.json", "analysis.json"]
    names += ["network.json", "wandb.json", "backbone.safetensors", "report.html"]
    names += ["checkpoints/last.pt", "tensorboard/events", "features/x.npz"]
    for name in (*names, "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = content(tmp_path)
    notes = {"notes.txt": b"notes.txt"}
    with RunFolder(tmp_path).replacing() as commit:
        in_place = content(tmp_path).items()
        assert {name: text for name, text in in_place if not name.startswith(".old")} == notes
        if commits:
            commit()
            assert content(tmp_path) == notes
    assert content(tmp_path) == (notes if commits else before)


@posix
def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    """A second process waits for the first to end, and then raises an error with its id."""
    hold = "import fcntl, sys, os; f = open(sys.argv[1], 'a+'); fcntl.lockf(f, fcntl.LOCK_EX); "
    hold += "print(os.getpid(), end='', file=f, flush=True); print('locked', flush=True); "
    hold += "sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        run = RunFolder(tmp_path)
        sentence = f"is in use: process {other.pid} is training there; wait for it or stop it"
        with pytest.raises(ValueError, match=sentence):
            run.claim(patience=0.2)
        other.stdin.close()
        run.claim(patience=30)
    assert (tmp_path / ".lock").read_text() == str(os.getpid())
    run.release()
    RunFolder(tmp_path).claim(patience=0)


CLAIM = "import sys; from antipode.runs.folder import RunFolder; "
CLAIM += "RunFolder(sys.argv[1]).claim(patience=0)"


@posix
def test_a_folder_belongs_to_one_in_a_process_too(tmp_path):
    """The system would give a record lock to a second thread, too.

    When that thread released it, the first thread would lose it.
    """
    first = RunFolder(tmp_path)
    other = RunFolder(tmp_path / "." / ".." / tmp_path.name)
    claim = [sys.executable, "-c", CLAIM, str(tmp_path)]
    first.claim()
    with pytest.raises(ValueError, match=f"is in use: process {os.getpid()} is training there"):
        other.claim(patience=0)
    assert b"is in use" in subprocess.run(claim, capture_output=True, check=False).stderr
    first.release()
    other.claim(patience=0)

    def claim_in_vain():
        """Claim the folder in a child that has a copy of our memory but does not hold the lock."""
        try:
            RunFolder(tmp_path).claim(patience=0)
        except ValueError:
            return IN_USE
        return FINISHED

    assert status_of(fork(claim_in_vain)) == IN_USE
    read, write = os.pipe()

    def claim_after_us():
        """Acquire the lock, release the copy of our lock, and still hold the acquired one."""
        os.read(read, 1)
        mine = RunFolder(tmp_path)
        mine.claim(patience=1)
        other.release()
        stderr = subprocess.run(claim, capture_output=True, check=False).stderr
        return IN_USE if b"is in use" in stderr else FINISHED

    child = fork(claim_after_us)
    other.release()
    os.write(write, b"x")
    assert status_of(child) == IN_USE
    other.claim(patience=5)
    shutil.rmtree(tmp_path)
    third = RunFolder(tmp_path)  # a new folder with the same path
    third.claim(patience=0)
    assert b"is in use" in subprocess.run(claim, capture_output=True, check=False).stderr
    other.release()
    third.release()
    assert subprocess.run(claim, capture_output=True, check=False).returncode == 0


@posix
def test_a_call_that_fails_lets_go_of_the_folder(tmp_path):
    """Also if the exception is kept alive, as in a notebook."""
    pretrain(tmp_path / "run", "simclr", 1, {})
    kept = []
    for name, method in (("run", "byol"), ("new", "simo")):
        more = {"method.negatives": 500} if method == "simo" else {}
        with pytest.raises(ValueError, match=r"another recipe|500 negatives") as caught:
            pretrain(tmp_path / name, method, 1, more)
        kept.append(caught.value)
    claim = [sys.executable, "-c", CLAIM, str(tmp_path / "run")]
    assert subprocess.run(claim, capture_output=True, check=False).returncode == 0


def test_lines_of_the_log_that_are_none_are_passed_over(old):
    """The log decides nothing about training, so bad lines must not keep a run from resuming."""
    file = old / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(b"5\n" + b'{"step": 1, "loss": \xff}\n' + b"[1]\n" + whole)
    assert RunFolder(old).metrics() == [json.loads(line) for line in whole.splitlines()]
    RunFolder(old).rewind(1)
    assert [row["step"] for row in RunFolder(old).metrics()] == [0]


def test_a_checkpoint_that_torch_cannot_write_is_told_in_a_sentence(tmp_path, monkeypatch):
    """torch's writer reports neither the error of the system nor the file."""

    def broken(content, file):
        raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos")

    monkeypatch.setattr(torch, "save", broken)
    sentence = r"no checkpoint could be written to .*checkpoints \(.*unexpected pos\)"
    with pytest.raises(OSError, match=sentence):
        go(tmp_path / "run")


def test_the_commit_is_that_of_our_own_checkout_alone(tmp_path, monkeypatch):
    """It is not the commit of a project into whose environment antipode is installed."""
    place = tmp_path / ".venv" / "lib" / "site-packages" / "antipode" / "runs"
    place.mkdir(parents=True)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(environment, "__file__", str(place / "environment.py"))
    assert environment.commit() is None
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "src" / "antipode" / "x" / "y.py"))
    assert len(environment.commit()) == 40, "in the checkout itself"


def test_a_wrong_setting_does_not_cost_the_run_that_is_there(tmp_path):
    """That a batch has too few negatives for the setting is found in the first step only."""
    pretrain(tmp_path / "run", "simo", 1, {})
    before = content(tmp_path / "run")
    with pytest.raises(ValueError, match="500 negatives asked for"):
        pretrain(tmp_path / "run", "simo", 1, {"method.negatives": 500}, overwrite=True)
    assert content(tmp_path / "run") == before
    pretrain(tmp_path / "run", "simo", 1, {})  # resumes the old run
    assert content(tmp_path / "run")["metrics.jsonl"] == before["metrics.jsonl"]
