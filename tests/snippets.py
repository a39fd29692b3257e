"""The commands and code of the documents, and a small world in which they run.

Commands and code run as they are printed, with small networks, few images and one epoch. `smaller`
lists every other change. Data sets are random images in the layouts of the real ones.
"""

import ast
import importlib.util
import json
import pickle
import re
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image

import antipode
from antipode.evaluation import detect
from tests.evaluation import scenes

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    key=lambda path: str(path.relative_to(ROOT)),
)
NETWORK = "resnet10-slim"
# Text of a command -> what runs in its place. Networks become small. Weights and data sets that
# would be downloaded are left out, and paths of other machines become relative.
smaller = {
    "torchvision:resnet50": f"random:{NETWORK}",
    "backbone.weights=torchvision": "backbone.weights=none",
    "resnet50": NETWORK,
    "resnet18": NETWORK,
    "?patch_size=4": "?patch_size=8,depth=1,embed_dim=32,num_heads=2",
    "/fast/": "fast/",
    "data.root=/data": "data.root=data",
    "data.download=true": "data.download=false",
    " | jq .knn.value": "",
    "--nproc-per-node 8": "--nproc-per-node 2",
    "/shared/": "shared/",
    "--nnodes 2 ": "",  # one machine
    "--rdzv-backend c10d --rdzv-endpoint HOST:29500 ": "",
    "antipode analyse ": "antipode analyse --images 48 ",
    "--protocol lowshot-svm": "--protocol lowshot-svm --data cifar10",  # VOC has 20 classes
    "--scale small": "--scale small --plan",  # hours on a GPU
    "reproduce dcl.fig1 ": "reproduce dcl.fig1 --plan ",  # a minute; tests/reproduction runs it
    "--on ray://head:10001": "--on ray",  # tests/launch/test_ray_cluster.py has such an address
}
# The same for code. A detector would train for hours; tests/evaluation/test_detect.py trains one.
smaller_code = {
    "models.resnet50(num_classes=3)": "models.resnet18(num_classes=3)",
    "detect.run(task, settings)": "settings.fitted()",
    '"resnet50"': f'"{NETWORK}"',
    '"resnet18"': f'"{NETWORK}"',
}
# Pages whose runs must have a network that torchvision has, with its stem.
NETWORKS = {"export.md": ("resnet18", "small"), "finetune.md": ("resnet18", "imagenet")}
# Commands of other programs, and commands that need the network, with the reason.
NOT_RUN = {
    "pip install": "installs packages",
    "python3 -m venv": "creates an environment",
    "make ": "starts this test suite, the demo or the site",
    "tensorboard ": "starts a server",
    "embedding-atlas ": "starts a server",
    "python benchmarks/": "measures on a GPU",
    "python -m http.server": "starts a server",
    "--on slurm": "needs a cluster; tests/cluster/test_slurm.py runs it on one",
    "antipode jobs ": "shows the jobs of a cluster; tests/cluster/test_slurm.py runs it",
    "shapes.mymethod": "needs a new file; test_the_file_of_add_a_method_is_a_method runs it",
    "runs/mine --protocol knn": "evaluates that run",
}


@dataclass(frozen=True)
class Snippet:
    """A block of a document: its language and its text."""

    language: str
    text: str
    line: int

    def commands(self):
        """Return the commands of a shell block, each as one line without its comment."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return [line for raw in joined.splitlines() if (line := uncommented(raw))]


def uncommented(line):
    """Return a command without its comment."""
    return re.sub(r"\s+#\s.*$", "", line).strip() if not line.startswith("#") else ""


def snippets(path):
    """Return the shell and Python blocks of a document, and its recipes in JSON.

    A block without a language is a shell block if it starts with a command.
    """
    text = path.read_text()
    found = []
    for block in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        language, body = block.groups()
        starts = body.lstrip().startswith(("antipode ", "torchrun "))
        kind = {"bash": "sh", "py": "python", "": "sh" if starts else ""}.get(language, language)
        if kind in {"sh", "python", "json"}:
            found.append(Snippet(kind, body, text[: block.start()].count("\n") + 1))
    for block in re.finditer(r"^(?:    antipode .*\n)+", text, re.MULTILINE):
        body = re.sub(r"^    ", "", block[0], flags=re.MULTILINE)
        found.append(Snippet("sh", body, text[: block.start()].count("\n") + 1))
    return sorted(found, key=lambda snippet: snippet.line)


def imported(code):
    """Return the top-level packages that a piece of code imports."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def reason_not_run(command):
    """Return why a command is not run, or None."""
    return next((reason for text, reason in NOT_RUN.items() if text in f"{command} "), None)


# The world


def picture(path, random, size=(40, 40)):
    """Write a random picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


def build_world(home):
    """Write pictures to a folder. Data sets and runs are made when a page needs them."""
    random = np.random.default_rng(0)
    for kind in ("cat", "dog", "owl"):
        for number in range(16):
            picture(home / "photos" / kind / f"{number}.png", random)
    for number in range(4):
        picture(home / "new" / f"{number}.png", random)
    for name in ("new.jpg", "photo.jpg"):
        picture(home / name, random)
    recipe = {"method": {"name": "mocov2"}, "data": {"name": "folder:photos"}}
    (home / "mine.json").write_text(json.dumps(recipe))
    (home / "data").mkdir()


def weights(home, random):
    """Write the weights of other projects that documents name."""
    net = antipode.build("mocov2", NETWORK, queue=16).backbone.state_dict()
    named = {f"module.encoder_q.{name}": value for name, value in net.items()}
    torch.save({"state_dict": named}, home / "moco_v2_800ep.pth.tar")
    small = antipode.build("mocov2", NETWORK, stem="small", queue=16).backbone
    torch.save(small.state_dict(), home / "simclr_cifar.pth")


def imagenet(home, random):
    """Write random pictures in the layout of ImageNet."""
    for split, count in {"train": 12, "val": 6}.items():
        for kind in range(3):
            for number in range(count):
                picture(home / "data/imagenet" / split / f"n{kind}" / f"{number}.jpeg", random)


def imagenet100(home, random):
    """Write a random picture of each of the hundred classes."""
    for kind in (ROOT / "src/antipode/data/sources/imagenet100.txt").read_text().split():
        for split in ("train", "val"):
            picture(home / "data/imagenet100" / split / kind / "0.jpeg", random, (24, 24))


def voc(home, random):
    """Write scenes in the layout of VOC."""
    scenes.voc(home / "data", train=60, test=30)


def cifar(home, random):
    """Write random images in the layouts of CIFAR-10 and CIFAR-100."""
    root = home / "data"
    keys = {"CIFAR10": ("labels", "label_names"), "CIFAR100": ("fine_labels", "fine_label_names")}
    for name, (key, names) in keys.items():
        kind = getattr(torchvision.datasets, name)
        (root / kind.base_folder).mkdir(parents=True)
        for file, _ in kind.train_list + kind.test_list:
            count = 240 if file == "train" else 48
            pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
            rows = {"data": pixels, key: [i % 3 for i in range(count)]}
            (root / kind.base_folder / file).write_bytes(pickle.dumps(rows))
        meta = root / kind.base_folder / kind.meta["filename"]
        meta.write_bytes(pickle.dumps({names: ["a", "b", "c"]}))


# word of a command or piece of code -> what writes the data set or the weights that it means
MADE = {
    "cifar": cifar,
    "runs/": cifar,
    "imagenet100": imagenet100,
    "imagenet": imagenet,
    "voc": voc,
    ".pth": weights,
}
RECIPES = {"adco": "cifar10.adco", "moco": "cifar10.mocov2", "dcl": "cifar10.dcl"}


class World:
    """A folder in which the snippets of one document run, one after the other."""

    def __init__(self, home, shared, monkeypatch, page=""):
        self.home, self.shared = home, shared
        self.network, self.stem = NETWORKS.get(page, (NETWORK, None))
        for entry in shared.iterdir():
            if entry.name != "prepared" and not entry.name.startswith("."):
                (home / entry.name).symlink_to(entry)
        monkeypatch.chdir(home)
        monkeypatch.setenv("ANTIPODE_DATA", str(home / "data"))
        for kind in (torchvision.datasets.CIFAR10, torchvision.datasets.CIFAR100):
            monkeypatch.setattr(kind, "_check_integrity", lambda self: True)
        monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
        monkeypatch.setattr(detect, "VOC", short_schedule(detect.VOC))
        if importlib.util.find_spec("datasets"):
            import datasets

            monkeypatch.setattr(datasets, "load_dataset", hub_tables)
        self.pretrain, self.plan, self.tune = antipode.pretrain, antipode.plan, antipode.finetune
        monkeypatch.setattr(antipode, "pretrain", self.small_pretrain)
        monkeypatch.setattr(antipode, "plan", self.small_plan)
        monkeypatch.setattr(antipode, "finetune", self.small_finetune)
        self.count = 0
        self.lent = set()  # run folders that `give_run` has copied
        self.names = given_names()

    def small_pretrain(self, recipe=None, *, network=NETWORK, **given):
        """Pretrain for one epoch with a small network on small views."""
        backbone = given.get("backbone")
        if not (isinstance(backbone, torch.nn.Module) or "timm:" in str(backbone)):
            given["backbone"] = network
        if not given.get("out"):
            self.count += 1
            given["out"] = self.home / "runs" / f"unnamed{self.count}"
        if str(given["out"]) in self.lent:  # the page trains this run itself
            shutil.rmtree(given["out"])
            self.lent.remove(str(given["out"]))
        text = isinstance(given.get("overrides", ()), list | tuple)
        values = (
            dict(pair.split("=", 1) for pair in given.get("overrides", ()))
            if text
            else {**given["overrides"]}
        )
        dropped = ("train.epochs", "train.batch", "backbone.name", "monitor.wandb")
        values = {key: value for key, value in values.items() if key not in dropped}
        values.setdefault("views.size", "32" if text else 32)
        if "train.accumulate" in values:
            values["train.accumulate"] = "2"
        given["overrides"] = [f"{k}={v}" for k, v in values.items()] if text else values
        batch = 256 if str(recipe).startswith(("shapes.", "digits.")) else 16
        return self.pretrain(recipe, **given | {"epochs": 1, "batch": batch, "device": "cpu"})

    def small_plan(self, recipe=None, **given):
        """Plan a run of one epoch with a small batch, as it is trained here."""
        return self.plan(recipe, **given | {"epochs": 1, "batch": 16, "device": "cpu"})

    def small_finetune(self, *positional, **given):
        """Fine-tune for one epoch."""
        return self.tune(*positional, **given | {"epochs": 1, "device": "cpu"})

    def provide(self, words):
        """Make the data sets and the run folders that a command reads and that are missing."""
        for text, make in MADE.items():
            stamp = self.shared / f".{make.__name__}"
            if not stamp.exists() and any(text in word for word in words):
                make(self.shared, np.random.default_rng(1))
                stamp.touch()
        if any("fast/imagenet" in word for word in words) and "pack" not in words:
            if not (self.home / "fast").exists():
                antipode.pack("imagenet", self.home / "fast" / "imagenet", progress=False)
        for entry in self.shared.glob("*.pth*"):
            if not (self.home / entry.name).exists():
                (self.home / entry.name).symlink_to(entry)
        for place, word in enumerate(words):
            written = place and words[place - 1] in {"--out", "--logdir"}
            match = re.fullmatch(r"(runs/[\w.*-]+?)(/recipe\.json)?", word)
            if match and not written:
                self.give_run(self.home / match[1].replace("*", "0"))

    def give_run(self, folder):
        """Copy a prepared run to a folder that does not exist."""
        if folder.exists():
            return
        kind = next((kind for kind in ("adco", "moco") if kind in folder.name), "dcl")
        prepared = self.shared / "prepared" / f"{kind}-{self.network}-{self.stem}"
        if not prepared.exists():
            size = 32 if self.network == NETWORK else 8
            values = {"views.size": size} | ({"backbone.stem": self.stem} if self.stem else {})
            self.small_pretrain(
                RECIPES[kind], network=self.network, out=prepared, overrides=values, quiet=True
            )
        shutil.copytree(prepared, folder)
        self.lent.add(str(folder))

    def run_command(self, command):
        """Run one antipode command in this process."""
        from antipode.cli import main

        for old, new in smaller.items():
            command = command.replace(old, new)
        words = shlex.split(command, comments=True)
        self.provide(words)
        words = [part for word in words for part in expanded(word)]
        try:
            main(words[1:])
        except SystemExit as end:
            assert not end.code, f"{command}: exit status {end.code}"

    def run_python(self, code):
        """Run a piece of Python with the names of earlier pieces."""
        read = re.sub(r'out=f?"[^"]*"', "", code)
        self.provide(re.findall(r"[\w./*-]+", read))
        for old, new in smaller_code.items():
            code = code.replace(old, new)
        exec(compile(code, "snippet", "exec"), self.names)


def short_schedule(settings):
    """Return the settings of a detector that trains for one step on small images."""
    short = {"iterations": 1, "falls": (), "warmup": 0, "batch": 2, "rule": "fixed", "precise": 1}
    small = {"sides": (64,), "longest": 128, "width": 16, "rois": 16}
    return replace(settings, **short, **small)


def hub_tables(*_):
    """Return a data set of the Hub: random images with labels."""
    import datasets

    pixels = np.random.default_rng(2).integers(0, 256, (96, 32, 32, 3), dtype=np.uint8)
    names = datasets.ClassLabel(names=["a", "b", "c"])
    table = datasets.Dataset.from_dict(
        {"img": list(map(Image.fromarray, pixels)), "label": [i % 3 for i in range(96)]},
        features=datasets.Features({"img": datasets.Image(), "label": names}),
    )
    return table.train_test_split(test_size=0.25, seed=0)


def expanded(word):
    """Return the paths that a pattern of the shell stands for, or the word itself."""
    found = sorted(map(str, Path().glob(word))) if "*" in word else []
    return found or [word]


def given_names():
    """Return the names that fragments use without defining them."""
    unit = torch.nn.functional.normalize
    vectors = [unit(torch.randn(16, 32), dim=1) for _ in range(4)]
    learner = antipode.build("mocov2", NETWORK, stem="half", queue=32)
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    pairs = torch.utils.data.TensorDataset(images.repeat(15, 1, 1, 1), torch.arange(240) % 3)
    views = [image / 255 for image in (images, images.flip(-1))]
    return {
        "antipode": antipode,
        "torch": torch,
        "torchvision": torchvision,
        "Image": Image,
        **dict(zip(("z0", "z1", "query", "keys"), vectors, strict=True)),
        "queue": unit(torch.randn(64, 32), dim=1),
        "many_keys": torch.randn(5, 16, 32),
        "log_tau": torch.zeros((), requires_grad=True),
        "batches": [(images, torch.arange(16))],
        "total": 1,
        "train": pairs,
        "test": pairs,
        "learner": learner,
        "batch": antipode.types.Batch(views, torch.arange(16)),
        "optimiser": torch.optim.SGD(learner.param_groups(), lr=0.1),
        "progress": 0.0,
        "generator": torch.Generator().manual_seed(0),
    }
