"""A resumed run remains one run in TensorBoard and Weights & Biases. The libraries are fakes."""

import sys
import types

import pytest

from antipode import dist
from antipode.recipe.schema import Monitor
from antipode.runs.folder import RunFolder
from antipode.training import logs

ROWS = [
    {"step": step, "epoch": 0, "loss": 1 / (step + 1), "phase": "warm", "gap": None}
    for step in range(4)
]


@pytest.fixture
def tensorboard(monkeypatch):
    """The writers that were created, each with its arguments and points."""
    writers = []

    class SummaryWriter:
        def __init__(self, log_dir, purge_step):
            self.folder = log_dir
            self.purge = purge_step
            self.points = []
            self.texts = []
            self.closed = False
            writers.append(self)

        def add_scalar(self, name, value, step):
            self.points.append((name, value, step))

        def add_text(self, name, text, step):
            self.texts.append((name, text, step))

        def close(self):
            self.closed = True

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return writers


@pytest.fixture
def wandb(monkeypatch):
    """A module that records its runs; `wandb.reachable = False` means no network connection."""
    module = types.ModuleType("wandb")
    module.runs = []
    module.reachable = True
    module.Error = type("Error", (Exception,), {})

    class Session:
        def __init__(self, options):
            self.options = options
            self.rows = []
            self.metrics = {}
            self.finished = False

        def define_metric(self, name, step_metric=None):
            self.metrics[name] = step_metric

        def log(self, row):
            self.rows.append(row)

        def finish(self):
            self.finished = True

    def init(**options):
        if not module.reachable and options.get("mode") != "offline":
            raise module.Error("no\nroute")
        module.runs.append(Session(options))
        return module.runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def use(plan, run, start):
    opened = logs.open(plan, run, start, {"train.seed": 0})
    for log in opened:
        for row in ROWS[start:]:
            log.row(row)
        log.close()
    return opened


def test_nothing_asked_opens_nothing_and_needs_nothing(tmp_path):
    assert logs.open(Monitor(), RunFolder(tmp_path / "run"), 0, {}) == []


def test_tensorboard_goes_on_in_its_folder_and_takes_back_what_is_done_again(tmp_path, tensorboard):
    run = RunFolder(tmp_path / "run")
    for start in (0, 2):
        use(Monitor(tensorboard=True), run, start)
    first, second = tensorboard
    assert first.folder == second.folder == str(run.path / "tensorboard")
    assert (first.purge, second.purge) == (0, 2)
    assert first.closed and second.closed
    assert [text[0] for text in first.texts] == ["recipe"] and not second.texts


def test_tensorboard_gets_every_number_at_its_step(tmp_path, tensorboard):
    use(Monitor(tensorboard=True), RunFolder(tmp_path), 2)
    expected = {("epoch", 0, 2), ("loss", 1 / 3, 2), ("epoch", 0, 3), ("loss", 1 / 4, 3)}
    assert set(tensorboard[0].points) == expected


def test_wandb_goes_on_with_the_run_whose_id_the_folder_holds(tmp_path, wandb):
    run = RunFolder(tmp_path / "run")
    for start in (0, 2):
        use(Monitor(wandb=True), run, start)
    first, second = (session.options for session in wandb.runs)
    assert first["id"] == second["id"] == run.read_json("wandb.json")["id"]
    assert first["resume"] == second["resume"] == "allow"
    assert first["config"] == {"train.seed": 0}
    assert first["dir"] == str(run.path) and first["name"] == "run"
    assert all(session.finished for session in wandb.runs)


def test_other_folders_are_other_runs_of_wandb(tmp_path, wandb):
    for name in ("a", "b"):
        use(Monitor(wandb=True), RunFolder(tmp_path / name), 0)
    assert wandb.runs[0].options["id"] != wandb.runs[1].options["id"]


def test_wandb_gets_every_number_with_the_step_as_axis(tmp_path, wandb):
    use(Monitor(wandb=True), RunFolder(tmp_path), 2)
    assert wandb.runs[0].rows == [
        {"step": 2, "epoch": 0, "loss": 1 / 3},
        {"step": 3, "epoch": 0, "loss": 1 / 4},
    ]
    assert wandb.runs[0].metrics == {"step": None, "*": "step"}


def test_wandb_without_a_network_logs_into_the_folder_and_says_so(tmp_path, wandb):
    wandb.reachable = False
    run = RunFolder(tmp_path)
    with pytest.warns(logs.Offline, match=r"cannot be reached \(no route\).*wandb sync"):
        use(Monitor(wandb=True), run, 0)
    (session,) = wandb.runs
    assert session.options["mode"] == "offline"
    assert session.options["id"] == run.read_json("wandb.json")["id"]
    assert session.rows and session.finished


def test_the_id_is_on_the_disk_before_wandb_hears_of_it(tmp_path, wandb):
    run = RunFolder(tmp_path)

    def crash(**options):
        assert run.read_json("wandb.json") == {"id": options["id"]}
        raise KeyboardInterrupt

    wandb.init = crash
    with pytest.raises(KeyboardInterrupt):
        logs.open(Monitor(wandb=True), run, 0, {})


def test_wandbs_project_is_the_users(tmp_path, wandb, monkeypatch):
    use(Monitor(wandb=True), RunFolder(tmp_path / "a"), 0)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    use(Monitor(wandb=True), RunFolder(tmp_path / "b"), 0)
    assert [session.options["project"] for session in wandb.runs] == ["antipode", "mine"]


def test_only_the_first_rank_logs(tmp_path, tensorboard, wandb, monkeypatch):
    monkeypatch.setattr(dist, "rank", lambda: 1)
    assert logs.open(Monitor(tensorboard=True, wandb=True), RunFolder(tmp_path), 0, {}) == []
    assert not tensorboard and not wandb.runs


def test_both_may_be_asked_for(tmp_path, tensorboard, wandb):
    assert len(use(Monitor(tensorboard=True, wandb=True), RunFolder(tmp_path), 0)) == 2


@pytest.mark.parametrize(
    ("extra", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")]
)
def test_a_missing_extra_is_a_sentence_with_its_command(tmp_path, monkeypatch, extra, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"pip install 'antipode\[{extra}\]'"):
        logs.open(Monitor(**{extra: True}), RunFolder(tmp_path), 0, {})


def test_tensorboards_own_reader_sees_one_curve(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start in (0, 2):
        use(Monitor(tensorboard=True), RunFolder(tmp_path), start)
    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    assert [point.step for point in reader.Scalars("loss")] == [0, 1, 2, 3]
