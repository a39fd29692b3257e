"""Files are written whole or not at all, and what a killed process leaves is removed."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from antipode.files import atomic_write, remove_leftovers

posix = pytest.mark.skipif(os.name != "posix", reason="locks")


def names(folder):
    return sorted(file.name for file in folder.iterdir())


WRITE = """import os, sys; from pathlib import Path; from antipode.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"new"); print("writing", flush=True)
    os._exit(9) if sys.argv[2:] else sys.stdin.read()"""


def writer(path, *words):
    """Return a process that writes a file until its input ends, or that dies while it writes."""
    command = [sys.executable, "-c", WRITE, str(path), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_block_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "x") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "old"


@posix
def test_a_file_gets_its_name_after_its_content_is_on_the_disk(tmp_path, monkeypatch):
    """After a power failure, the name leads to the old content or to the new one."""
    done = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        done.append((kind, os.fstat(descriptor).st_size if kind == "file" else 0))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(
        Path, "replace", lambda self, to: done.append(("name", 0)) or replace(self, to)
    )
    with atomic_write(tmp_path / "x") as file:
        file.write(b"content")
    assert done == [("file", 7), ("name", 0), ("folder", 0)]


@posix
def test_what_a_killed_process_left_is_removed_by_the_next_writer_of_the_file(tmp_path):
    for name in ("x", "y"):
        with writer(tmp_path / name, "die") as child:
            assert child.stdout.readline() == b"writing\n"
    assert len(names(tmp_path)) == 2
    with atomic_write(tmp_path / "x") as file:
        file.write(b"new")
    assert "x" in names(tmp_path) and len(names(tmp_path)) == 2  # that of y is still there
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["x"]


@posix
def test_what_a_running_process_writes_is_left_alone(tmp_path):
    with writer(tmp_path / "x") as child:
        assert child.stdout.readline() == b"writing\n"
        with atomic_write(tmp_path / "x") as file:
            file.write(b"mine")
        remove_leftovers(tmp_path)
        assert len(names(tmp_path)) == 2 and (tmp_path / "x").read_text() == "mine"
        child.stdin.close()
    assert child.returncode == 0
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "new"


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path):
    contents = [bytes([number]) * 10_000 for number in range(8)]
    errors = []

    def write(content):
        try:
            for _ in range(20):
                with atomic_write(tmp_path / "x") as file:
                    file.write(content)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() in contents


def test_files_of_other_programs_are_not_removed(tmp_path):
    """Only names with the id of a process are ours, and with `names` only those of these files."""
    others = [".x.tmp", "x.12.tmp", ".x.12.tmp.bak", ".12.tmp", "x.tmp"]
    for name in (*others, ".x.99999999.tmp", ".x.99999999-3.tmp", ".y.99999999-0.tmp"):
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path, ["x"])
    assert names(tmp_path) == sorted([*others, ".y.99999999-0.tmp"])
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted(others)
    remove_leftovers(tmp_path / "missing")


@posix
def test_a_link_in_place_of_a_temporary_file_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("dear")
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(100_000, 100_200):
        (folder / f".x.{os.getpid()}-{number}.tmp").symlink_to(victim)
    monkeypatch.setattr("antipode.files.NUMBERS", iter(range(100_000, 100_300)))
    with pytest.raises(OSError), atomic_write(folder / "x") as file:
        file.write(b"mine")
    assert victim.read_text() == "dear"
