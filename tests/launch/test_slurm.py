"""SLURM jobs with fake commands: what is submitted, when, and how states are reported."""

import json
import os
import signal
import stat
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from antipode import dist
from antipode.launch import jobs, slurm, slurm_job, slurm_queue
from antipode.launch.place import Resources
from antipode.launch.record import Outcome, Record, read_outcome, write_outcome, write_record
from antipode.launch.task import Task

SBATCH = """#!/bin/sh
number=$(($(cat {folder}/number) + 1))
echo $number > {folder}/number
cp "$1" {folder}/script-$number
echo "Submitted batch job $number"
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Commands of SLURM that write down what they are called with."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "number").write_text("0")
    (folder / "queue").write_text("")
    commands = {
        "sbatch": SBATCH.format(folder=folder),
        "squeue": f"#!/bin/sh\ncat {folder}/queue\n",
        "srun": "#!/bin/sh\n",
        "sinfo": "#!/bin/sh\necho gpu:a100:4\n",
        "scontrol": f'#!/bin/sh\necho "$@" >> {folder}/requeued\n',
    }
    for name, text in commands.items():
        file = folder / name
        file.write_text(text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def nothing(quiet):
    """A task that does nothing."""


def task_in(folder, work=1.0, key=""):
    return Task("tau=0.1", folder, nothing, work=work, key=key)


def submit(tasks, **options):
    """Submit tasks and stop waiting at once; return the folders of those that failed."""
    return slurm.perform_on_slurm(tasks, resources=Resources(**options), quiet=True, poll=0.01)


def finish(folder, job, error=""):
    write_outcome(folder, Outcome(job, error, 61.0, 2))


def queue_line(fake, task, job, state):
    name = slurm.job_name(task.folder)
    (fake / "queue").write_text(f"{job}|{name}|{state}|1:01|(Resources)\n")


submitit = pytest.mark.skipif(not find_spec("submitit"), reason="submitit is not installed")


LIMITED = """#!/bin/sh
number=$(($(cat {folder}/number) + 1))
if [ -f {folder}/full ]; then echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; fi
echo $number > {folder}/number
touch {folder}/full
echo "Submitted batch job $number"
"""


@submitit
def test_tasks_beyond_a_submit_limit_are_submitted_as_jobs_end(fake, tmp_path, capsys):
    (fake / "sbatch").write_text(LIMITED.format(folder=fake))
    tasks = [Task(str(at), tmp_path / str(at), nothing, work=1.0) for at in range(3)]
    calls = []

    def ended(record, task):
        """The job ends when its outcome is first looked for; SLURM then takes another one."""
        calls.append(record)
        (fake / "full").unlink(missing_ok=True)
        return Outcome(task, "", 1.0, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm, "read_outcome", lambda folder, job: ended(folder.name, job))
        assert not slurm.perform_on_slurm(tasks, resources=Resources(), poll=0.01)
    assert calls == ["0", "1", "2"]
    assert "submitted 1 job (1), and 2 jobs later" in capsys.readouterr().err
    (fake / "full").unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:  # now the limit stays
        patch.setattr(slurm, "read_outcome", lambda folder, job: Outcome(job, "", 1.0, 1))
        failed = slurm.perform_on_slurm(tasks, resources=Resources(), quiet=True, poll=0.01)
    assert [*failed] == [tmp_path / "1", tmp_path / "2"]
    assert all("QOSMaxSubmitJobPerUserLimit" in sentence for sentence in failed.values())
    (fake / "full").touch()  # nothing of ours runs, so waiting would not help
    with pytest.raises(ValueError, match="QOSMaxSubmitJobPerUserLimit"):
        submit([task_in(tmp_path / "other")])


@submitit
def test_nothing_is_submitted_while_the_queue_cannot_be_read(fake, tmp_path):
    (fake / "squeue").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ValueError, match="squeue has failed 3 times"):
        submit([task_in(tmp_path / "run")])
    assert (fake / "number").read_text() == "0"


@submitit
def test_a_job_asks_for_the_resources_and_requeues(fake, tmp_path):
    folder = tmp_path / "run"
    finish(folder, "1")  # the job ends at once
    failed = submit(
        [task_in(folder)], gpus=4, nodes=2, hours=1.5, memory=64.0, partition="a", cpus=8
    )
    assert failed == {}
    script = (fake / "script-1").read_text()
    for line in (
        *("--gpus-per-node=4", "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=8"),
        *("--time=90", "--mem=65536MB", "--partition=a", "--requeue", "--signal=USR2@270"),
        *("--open-mode=append", f"--job-name={slurm.job_name(folder)}"),
    ):
        assert f"#SBATCH {line}\n" in script, line
    assert "--kill-on-bad-exit=1" in script and "wckey" not in script
    record = json.loads((folder / "jobs" / "job.json").read_text())
    assert record["id"] == "1" and record["log"] == str(folder / "jobs" / "1_0_log.out")


@submitit
def test_one_gpu_is_asked_for_where_there_are_some_unless_the_cpu_is_named(fake, tmp_path):
    for number, device in enumerate(("auto", "cpu"), 1):
        folder = tmp_path / device
        finish(folder, str(number))
        slurm.perform_on_slurm(
            [task_in(folder)], resources=Resources(), device=device, quiet=True, poll=0.01
        )
        script = (fake / f"script-{number}").read_text()
        assert ("--gpus-per-node=1" in script) == (device == "auto")


@submitit
@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_job_that_waits_or_runs_is_not_submitted_twice(fake, tmp_path, state):
    task = task_in(tmp_path / "run")
    queue_line(fake, task, 7, state)
    finish(task.folder, "7")
    assert submit([task]) == {}
    assert not (fake / "script-1").exists()
    # the job was found by its name, without a record
    assert json.loads((task.folder / "jobs" / "job.json").read_text())["id"] == "7"


@submitit
def test_a_finished_task_is_performed_again_only_if_its_key_has_changed(fake, tmp_path):
    task = task_in(tmp_path / "run", work=0.0, key="knn")
    write_record(task.folder, Record("slurm", "7", key="knn"))
    finish(task.folder, "7")
    assert submit([task]) == {} and not (fake / "script-1").exists()
    finish(task.folder, "7", "the loss is NaN")
    write_outcome(task.folder, Outcome("1"))  # of the next job
    assert submit([task]) == {} and (fake / "script-1").exists()
    (fake / "queue").write_text("")
    other = task_in(tmp_path / "run", work=0.0, key="knn linear")
    write_outcome(task.folder, Outcome("2"))
    assert submit([other]) == {} and (fake / "script-2").exists()


@submitit
def test_failed_jobs_are_named_with_their_logs(fake, tmp_path):
    task = task_in(tmp_path / "run")
    finish(task.folder, "1", "3 is too large")
    failed = submit([task])
    log = task.folder / "jobs" / "1_0_log.out"
    assert failed == {task.folder: f"tau=0.1: 3 is too large (log: {log})"}


@submitit
@pytest.mark.parametrize(
    ("state", "sentence"),
    [("CANCELLED", "was cancelled"), ("OUT_OF_MEMORY", "memory"), ("NODE_FAIL", "lost its node")],
)
def test_a_job_that_the_cluster_ended_is_explained(fake, tmp_path, state, sentence):
    task = task_in(tmp_path / "run")
    (fake / "queue").write_text(f"1|x|{state}|0:05|(None)\n")
    [text] = submit([task]).values()
    assert sentence in text and "resumes it" in text and "1_0_log.out" in text


@submitit
def test_a_job_killed_at_its_limit_is_requeued_if_it_has_advanced(fake, tmp_path):
    task = task_in(tmp_path / "run")
    (fake / "queue").write_text("1|x|TIMEOUT|0:05|(None)\n")
    assert "time limit" in submit([task])[task.folder]
    assert not (fake / "requeued").exists()
    checkpoint = task.folder / "checkpoints" / "last.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_text("")
    assert slurm_job.requeue_if_advanced(task.folder, "1", 0)
    assert (fake / "requeued").read_text() == "requeue 1\n"


@submitit
def test_a_rejected_job_is_an_error_with_the_reason_of_slurm(fake, tmp_path):
    text = "#!/bin/sh\necho 'sbatch: error: invalid partition specified: b' >&2\nexit 1\n"
    (fake / "sbatch").write_text(text)
    with pytest.raises(ValueError, match="invalid partition specified: b"):
        submit([task_in(tmp_path / "run")])


def test_without_submitit_or_slurm_one_sentence_says_what_is_missing(monkeypatch, tmp_path):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(slurm, "import_module", absent)
    with pytest.raises(ValueError, match=r"pip install 'antipode\[slurm\]'"):
        submit([task_in(tmp_path)])
    monkeypatch.setattr(slurm, "import_module", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="login node"):
        submit([task_in(tmp_path)])


@submitit
def test_an_interrupted_command_says_how_to_look_and_how_to_cancel(fake, tmp_path, monkeypatch):
    tasks = [task_in(tmp_path / "runs" / name) for name in "ab"]
    queue_line(fake, tasks[0], 7, "RUNNING")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        submit(tasks)
    text = str(caught.value)
    assert f"`antipode jobs {tmp_path}`" in text and "scancel 7`" in text


# Inside a job


def stop_by(number, quiet):
    os.kill(os.getpid(), number)


def fail(quiet):
    raise ValueError("3 is too large")


class Left(Exception):
    """In place of the end of the process."""


@pytest.fixture
def job(fake, monkeypatch):
    """The environment of job 5; ending the process raises an error."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "0")  # restored at the end of the test
        monkeypatch.delenv(name)
    for name in ("MASTER_ADDR", "MASTER_PORT", "ANTIPODE_LAUNCH", "ANTIPODE_RESTARTS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")

    def leave(status):
        raise Left(status)

    monkeypatch.setattr(slurm_job, "_leave", leave)
    return fake


def work(folder, do):
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    slurm_job.Work(Task("label", folder, do))()


def test_a_job_writes_its_outcome(job, tmp_path):
    work(tmp_path, nothing)
    outcome = read_outcome(tmp_path, "5")
    assert outcome.error == "" and outcome.attempts == 2
    assert read_outcome(tmp_path, "6") is None
    with pytest.raises(Left, match="1"):
        work(tmp_path, fail)
    assert read_outcome(tmp_path, "5").error == "3 is too large"
    assert dist.restarted() and dist.launch() == "slurm 5"


def test_a_job_requeues_itself_before_its_limit_and_gives_up_without_progress(job, tmp_path):
    for _ in range(slurm_job.IDLE - 1):
        with pytest.raises(Left, match="130"):
            work(tmp_path, partial(stop_by, signal.SIGUSR2))
        assert read_outcome(tmp_path, "5") is None
    assert (job / "requeued").read_text() == "requeue 5\n" * (slurm_job.IDLE - 1)
    with pytest.raises(Left, match="1"):
        work(tmp_path, partial(stop_by, signal.SIGUSR2))
    assert "give it more hours" in read_outcome(tmp_path, "5").error


def test_a_cancelled_job_does_not_requeue_itself(job, tmp_path):
    with pytest.raises(Left, match="130"):
        work(tmp_path, partial(stop_by, signal.SIGTERM))
    assert not (job / "requeued").exists() and read_outcome(tmp_path, "5") is None


def test_ranks_find_each_other_by_the_addresses_of_slurm(monkeypatch):
    answers = {"hostnames": "node7\nnode8\n", "node": "NodeName=node7 NodeAddr=10.0.0.7 Port=1\n"}
    monkeypatch.setattr(slurm_queue, "call", lambda words: answers[words[2]])
    environment = {
        "SLURM_JOB_ID": "5",
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_NODELIST": "node[7-8]",
    }
    ports = set()
    for attempt in (1, 2):
        slurm_job.join_ranks(environment, attempt)
        ports.add(environment["MASTER_PORT"])
    assert environment["RANK"] == "3" and environment["WORLD_SIZE"] == "4"
    assert environment["LOCAL_RANK"] in ("0", "1") and environment["LOCAL_WORLD_SIZE"] == "2"
    assert environment["MASTER_ADDR"] == "10.0.0.7" and len(ports) == 2
    single = {"SLURM_JOB_ID": "5"}
    slurm_job.join_ranks(single, 1)
    assert "RANK" not in single


# The table of states


def rows_of(folder):
    return {row["run"]: row for row in jobs.job_table(folder)}


def test_the_table_shows_the_state_of_every_run(fake, tmp_path):
    runs = tmp_path / "sweep" / "runs"
    queue = []
    for number, state in enumerate(("PENDING", "RUNNING", "CANCELLED", "TIMEOUT"), 1):
        folder = runs / state.lower()
        write_record(folder, Record("slurm", str(number), state, f"{folder}/log"))
        queue.append(f"{number}|name|{state}|0:0{number}|(Priority)\n")
    (fake / "queue").write_text("".join(queue))
    for name, error in (("done", ""), ("wrong", "3 is too large")):
        write_record(runs / name, Record("slurm", "8", name))
        finish(runs / name, "8", error)
    write_record(runs / "gone", Record("slurm", "9"))
    (runs / "plain").mkdir()
    (runs / "plain" / "recipe.json").write_text("{}")
    found = rows_of(tmp_path / "sweep")
    states = {name: row["state"] for name, row in found.items()}
    assert states == {
        "pending": "waiting",
        "running": "running",
        "cancelled": "cancelled",
        "timeout": "failed",
        "done": "finished",
        "wrong": "failed",
        "gone": "lost",
        "plain": "to train",
    }
    assert found["wrong"]["note"] == "3 is too large" and found["wrong"]["time"] == "0:01:01"
    assert found["running"]["time"] == "0:02" and found["pending"]["note"] == "Priority"
    text = "\n".join(jobs.job_lines(list(found.values())))
    assert "2 failed" in text and "scancel 1 2" in text.replace("scancel 2 1", "scancel 1 2")
    assert "start the same command again" in text
    assert rows_of(runs / "done")["done"]["state"] == "finished"


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run and no job"):
        jobs.job_table(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nope$"):
        jobs.job_table(tmp_path / "nope")


def test_other_schedulers_share_the_records(tmp_path):
    write_record(tmp_path / "a", Record("ray", "ab12", "tau=0.1"))
    assert rows_of(tmp_path)["a"]["state"] == "running"
    finish(tmp_path / "a", "ab12")
    assert rows_of(tmp_path)["a"]["state"] == "finished"
    assert "scancel" not in "\n".join(jobs.job_lines(jobs.job_table(tmp_path)))


def test_the_name_of_a_job_belongs_to_one_folder():
    one, other = (slurm.job_name(Path(f"/{place}/runs/digits.dcl-12")) for place in "ab")
    assert one != other and "digits.dcl-12" in one
    assert slurm.job_name(Path("/x/a b;c")).isascii()
