"""Files of a run folder that are opened in place are regular files of that folder."""

import os

import pytest

from antipode.runs import lock
from antipode.runs.folder import RunFolder
from antipode.runs.own_file import open_own


def test_a_file_is_created_and_appended_to(tmp_path):
    for text in ("a", "b"):
        with open_own(tmp_path / "log") as file:
            file.write(text)
    assert (tmp_path / "log").read_text() == "ab"


def test_a_link_is_not_followed_whether_it_leads_to_a_file_or_not(tmp_path):
    (tmp_path / "victim").write_text("precious")
    for target in ("victim", "absent"):
        link = tmp_path / f"to {target}"
        link.symlink_to(tmp_path / target)
        with pytest.raises(ValueError, match="is a symbolic link, which is not followed"):
            open_own(link)
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "absent").exists()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        open_own(tmp_path / "pipe")


def test_a_link_to_the_folder_itself_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = RunFolder(tmp_path / "link")
    folder.claim()
    folder.add_json("scores.json", {"a": 1})
    folder.release()
    assert (tmp_path / "real" / "scores.json").exists()


@pytest.mark.parametrize(("text", "name"), [("123", "process 123"), ("\x1b[2J", "another process")])
def test_the_owner_of_a_lock_is_a_number_or_unknown(text, name, tmp_path):
    (tmp_path / ".lock").write_text(text)
    assert lock.owner(tmp_path) == name
