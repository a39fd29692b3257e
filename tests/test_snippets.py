"""Tests that every command and every piece of code in the documents runs."""

import importlib.util
import os
import subprocess
import sys

import pytest

from antipode import types  # noqa: F401 (a name that fragments use)
from tests.snippets import (
    NETWORK,
    PAGES,
    ROOT,
    World,
    build_world,
    imported,
    reason_not_run,
    smaller,
    snippets,
)

# pages that run in a few seconds each; the others are marked slow
QUICK = {
    "README.md",
    "docs/choose.md",
    "docs/guides/large-data.md",
    "docs/guides/own-loop.md",
    "docs/index.md",
    "docs/methods/custom.md",
}
WITH_SNIPPETS = [path for path in PAGES if snippets(path)]
# pages that start a scheduler, and the package that they need
CLUSTER = {"docs/guides/ray.md": "ray"}
OPTIONAL = ("lightning", "transformers", "accelerate", "datasets", "timm")


def marked(path):
    name = str(path.relative_to(ROOT))
    marks = [] if name in QUICK else [pytest.mark.slow]
    if name in CLUSTER:
        absent = importlib.util.find_spec(CLUSTER[name]) is None
        reason = f"needs the extra {CLUSTER[name]}"
        marks += [pytest.mark.cluster, pytest.mark.skipif(absent, reason=reason)]
    return pytest.param(path, id=name, marks=marks)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    home = tmp_path_factory.mktemp("shared")
    build_world(home)
    return home


@pytest.fixture
def ray():
    """Ray on this machine. All commands use one connection, and so the same workers."""
    module = importlib.import_module("ray")
    module.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    module.shutdown()


def missing(code):
    """Return the optional packages that a piece of code imports and that are not installed."""
    wanted = imported(code) & set(OPTIONAL)
    return sorted(name for name in wanted if importlib.util.find_spec(name) is None)


@pytest.mark.xdist_group("snippets")
@pytest.mark.parametrize("path", [marked(path) for path in WITH_SNIPPETS])
def test_commands_and_code_run(path, shared, tmp_path, monkeypatch, request):
    world = World(tmp_path, shared, monkeypatch, path.name)
    if str(path.relative_to(ROOT)) in CLUSTER:
        request.getfixturevalue("ray")
    skipped = set()
    for snippet in snippets(path):
        place = f"{path.name}:{snippet.line}"
        if snippet.language == "python":
            lacking = missing(snippet.text)
            skipped |= set(lacking)
            if not lacking:
                try:
                    world.run_python(snippet.text)
                except Exception as error:
                    pytest.fail(f"{place}: {type(error).__name__}: {error}\n{snippet.text}")
            continue
        for command in snippet.commands():
            if reason_not_run(command):
                continue
            print(f"{place}: {command}")
            if command.startswith("torchrun "):
                world.provide(command.split())
                run_ranks(command, tmp_path)
            else:
                assert command.startswith("antipode "), f"{place}: {command}"
                world.run_command(command)
    if skipped:
        pytest.skip(f"{path.name}: the rest ran; not installed: {', '.join(sorted(skipped))}")


def run_ranks(command, home):
    """Run a torchrun command on two ranks."""
    for old, new in smaller.items():
        command = command.replace(old, new)
    _, _, ranks, *words = command.split()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    small = ["--device", "cpu"]
    if "evaluate" in words:  # torchvision checks CIFAR's files in a process of its own
        small += ["--data", "folder:photos"]
    if "pretrain" in words:
        small += f"--epochs 1 --batch 16 --backbone {NETWORK} --set views.size=32".split()
    process = subprocess.run(
        [*launcher, "--nproc-per-node", ranks, *words, *small],
        cwd=home,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]


def test_every_reason_not_to_run_a_command_is_used():
    from tests.snippets import NOT_RUN

    lines = [
        command
        for path in WITH_SNIPPETS
        for snippet in snippets(path)
        if snippet.language == "sh"
        for command in snippet.commands()
    ]
    unused = {text for text in NOT_RUN if not any(text in f"{line} " for line in lines)}
    assert unused <= {"python benchmarks/", "python -m http.server"}, unused
