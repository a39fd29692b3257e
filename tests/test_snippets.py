"""Tests that every command and every piece of code in the documents runs."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

from antipode import types  # noqa: F401 (a name that fragments use)
from antipode.recipe.resolve import resolve
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
    "docs/methods/custom.md",
    "docs/reference/losses.md",
}
WITH_SNIPPETS = [path for path in PAGES if snippets(path)]
# pages that start a scheduler, and the package that they need
CLUSTER = {"docs/guides/ray.md": "ray"}
OPTIONAL = (
    *("lightning", "transformers", "accelerate", "datasets", "timm"),
    *("pandas", "faiss", "fiftyone"),
)
NEEDS = {"hf:": "datasets", "timm:": "timm", "--format onnx": "onnx", "detect-": "pycocotools"}


def marked(path):
    name = str(path.relative_to(ROOT))
    marks = [] if name in QUICK else [pytest.mark.slow]
    if name in CLUSTER:
        absent = importlib.util.find_spec(CLUSTER[name]) is None
        reason = f"needs the extra {CLUSTER[name]}"
        marks += [pytest.mark.skipif(absent, reason=reason)]
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


def absent(name):
    """Return whether a package is not installed."""
    return importlib.util.find_spec(name) is None


def missing(code):
    """Return the optional packages that a piece of code imports and that are not installed."""
    return sorted(name for name in imported(code) & set(OPTIONAL) if absent(name))


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
        if snippet.language == "json":
            resolve(json.loads(snippet.text))
            continue
        for command in snippet.commands():
            if reason_not_run(command):
                continue
            lacking = [name for text, name in NEEDS.items() if text in command and absent(name)]
            skipped |= set(lacking)
            if lacking:
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
    """Run a torchrun command on two ranks of this machine."""
    for old, new in smaller.items():
        command = command.replace(old, new)
    _, flag, ranks, *words = command.split()
    assert flag == "--nproc-per-node", command
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


@pytest.mark.slow
def test_the_file_of_add_a_method_is_a_method(tmp_path):
    """The file of the page is all that a new method needs: every command finds it."""
    page = ROOT / "docs" / "methods" / "add-a-method.md"
    shutil.copytree(ROOT / "src" / "antipode", tmp_path / "antipode")
    blocks = snippets(page)
    (code,) = (block.text for block in blocks if block.language == "python")
    (tmp_path / "antipode" / "papers" / "mymethod.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    commands = [line for block in blocks if block.language == "sh" for line in block.commands()]
    for command in commands:
        small = "--epochs 1 --batch 256 --device cpu".split() if "pretrain" in command else []
        words = [sys.executable, "-m", *command.split(), *small]
        process = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, f"{command}: {process.stderr[-2000:]}"


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
