"""The command line. A command parses its arguments, calls one function of the package and prints.

Wrong input prints one sentence on stderr and exits with status 2. Torch is imported only when a
command needs it, so that `--help` is quick.
"""

import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import antipode
from antipode import early
from antipode.exits import FRESH, INTERRUPTED, Stopped, exit_with, failure, terminable, warn
from antipode.files import finite
from antipode.names import printable
from antipode.paths import absolute
from antipode.wording import command_line, counted, final_loss


class Commands(TyperGroup):
    """The commands. A KeyboardInterrupt keeps its sentence, which typer would drop."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            if str(stop):
                raise Stopped(str(stop)) from stop
            raise


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _whole(text: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"expected a whole number, not {text!r}") from None


def _path(text: str) -> Path:
    """Parse a path. An empty text, such as an unset shell variable, is not the current folder.

    The path is made absolute, so that it stays the same if a data set changes the current folder.
    """
    if not text:
        raise typer.BadParameter("expected a path, not an empty text")
    try:
        return absolute(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _number(help_text: str) -> Any:
    return typer.Option(parser=_whole, metavar="N", help=help_text)


def _folder(help_text: str, metavar: str = "DIR") -> Any:
    return typer.Option(parser=_path, metavar=metavar, help=help_text)


METHOD = typer.Option(help="name of a method; see `antipode list methods`")
DATA = typer.Option(help="name of a data set, or folder:PATH; see `antipode list datasets`")
BACKBONE = typer.Option(help="name of a network; see `antipode list backbones`")
EPOCHS = _number("number of passes over the data set")
BATCH = _number("number of images per step, over all ranks")
SEED = _number("seed of weights, image order, views and noise")
PRECISION = typer.Option(help="auto, fp32, bf16 or fp64")
LABELS = typer.Option(
    help="whether subfolders of folder: are classes: auto (default), folders or none"
)
PACKED_LABELS = typer.Option(
    help="whether subfolders of folder: are classes: folders, none or auto"
)
DEVICE = typer.Option(help="auto, cpu, cuda or mps")
SET = typer.Option(
    "--set",
    metavar="KEY=VALUE",
    help="set a value of the recipe, such as method.tau=0.2; can be repeated",
)
AT_ONCE = typer.Option(
    "--at-once", metavar="M", help="train M runs at the same time on the device, or auto"
)
ON = typer.Option("--on", help="where to run: local, slurm, ray or ray://HOST:PORT")
RESOURCES = typer.Option(
    "--resources",
    metavar="KEY=VALUE,...",
    help="what each job gets: gpus, nodes, processes, cpus, memory, hours, partition, account, "
    "qos, constraint",
)
JSON = typer.Option("--json", help="print one JSON object and nothing else")
RUN = typer.Argument(help="run folder, random:NETWORK, torchvision:NETWORK or file:PATH@NETWORK")
RUNS = typer.Argument(help="run folders")


def _version(asked: bool) -> None:
    if asked:
        print(antipode.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Self-supervised visual representation learning, exact to the papers."""


@app.command()
def pretrain(
    recipe: Annotated[
        str | None, typer.Argument(help="dataset.method, or the path of a recipe file")
    ] = None,
    method: Annotated[str | None, METHOD] = None,
    data: Annotated[str | None, DATA] = None,
    backbone: Annotated[str | None, BACKBONE] = None,
    epochs: Annotated[int | None, EPOCHS] = None,
    batch: Annotated[int | None, BATCH] = None,
    out: Annotated[
        Path | None, _folder("run folder; the same command with the same folder resumes the run")
    ] = None,
    seed: Annotated[int | None, SEED] = None,
    device: Annotated[str | None, DEVICE] = None,
    precision: Annotated[str | None, PRECISION] = None,
    labels: Annotated[str | None, LABELS] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="only print what would be done, with estimated time and memory"
        ),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="evaluate and write the report when training ends")
    ] = False,
    on: Annotated[str, ON] = "local",
    resources: Annotated[str | None, RESOURCES] = None,
    resume: Annotated[bool, typer.Option(help="resume a run that the folder holds")] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace a run that the folder holds")
    ] = False,
    set_: Annotated[list[str] | None, SET] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Train on images without labels."""
    early.check_recipe(recipe, method)
    early.check_data(data)
    arguments: dict[str, Any] = {
        "method": method,
        "data": data,
        "backbone": backbone,
        "epochs": epochs,
        "batch": batch,
        "out": out,
        "seed": seed,
        "device": device,
        "precision": precision,
        "labels": labels,
        "overwrite": overwrite,
        "overrides": set_ or [],
    }
    antipode.place(on)  # raises for an unknown one, also with --plan
    if plan:
        flags = arguments | {"report": report, "no-resume": not resume}
        command = antipode.ranked(antipode.plain_command("pretrain", recipe, flags), resources)
        planned = antipode.plan(recipe, **arguments, resume=resume)
        content = {**planned.json(), "command": command}
        say(content, "\n".join([*planned.lines(), f"Command: {command}"]), as_json)
        return
    run = antipode.pretrain(
        recipe, **arguments, resume=resume, quiet=as_json, on=on, resources=resources
    )
    content, lines = _trained(run, as_json)
    if report:
        more, further = _reported(run, device or "auto")
        content |= more
        lines += further
    say(content, "\n".join(lines), as_json)


def _trained(run: Any, as_json: bool) -> tuple[dict[str, Any], list[str]]:
    """Return what a finished run is described by, as JSON and as lines."""
    last: dict[str, Any] = {}
    for row in run.folder.rows():
        last = row if "loss" in row else last
    final = run.log.final_loss()
    shown = "nan" if final is None else final_loss(*final)
    if skipped := last.get("skipped"):
        shown += f", skipped steps: {skipped} (loss or gradient was not finite)"
    if as_json and (sentence := antipode.rescaled(run.recipe)):
        typer.echo(sentence, err=True)  # without --json, training prints it after the first step
    return {"run": str(run.path), "last": last}, [f"{near(run.path)}: done, loss {shown}"]


def _reported(run: Any, device: str) -> tuple[dict[str, Any], list[str]]:
    """Evaluate a run by the default protocols and write its report.

    Returns the scores and the path of the report, as JSON and as lines.
    """
    scores = antipode.evaluate(run, device=device)
    content: dict[str, Any] = {"scores": {name: score.json() for name, score in scores.items()}}
    lines = [score.line() for score in scores.values()]
    lines += antipode.judgement(run, scores)
    if os.environ.get("RANK", "0") == "0":
        file = antipode.report(run)
        content["report"] = str(file)
        lines.append(near(file))
    return content, lines


@app.command()
def evaluate(
    run: Annotated[
        str,
        typer.Argument(help="run folder, random:NETWORK, torchvision:NETWORK or file:PATH@NETWORK"),
    ],
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="name of a protocol; see `antipode list protocols`; can be repeated; by default "
            "knn, or retrieval and alignment-uniformity without labels"
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="data set; by default the one that the run was trained on")
    ] = None,
    out: Annotated[
        Path | None, _folder("folder for the scores of a network that no run trained")
    ] = None,
    seed: Annotated[int | None, _number("seed; by default that of the run")] = None,
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Evaluate a backbone, and add the scores to the run's scores.json."""
    early.check_protocols(protocol)
    early.check_run(run)
    failed: Exception | None = None
    try:
        scores = antipode.evaluate(
            run, protocol or None, data=data, out=out, seed=seed, device=device
        )
    except (ValueError, OSError) as error:  # the scores of other protocols are still printed
        failed = error
        scores = getattr(error, "scores", {})
    lines = [score.line() for score in scores.values()]
    if scores and not as_json:
        lines += antipode.judgement(run, scores, out)
    if scores:
        say({name: score.json() for name, score in scores.items()}, "\n".join(lines), as_json)
    if failed:
        raise failed


@app.command()
def analyse(
    runs: Annotated[list[str], RUNS],
    what: Annotated[
        list[str] | None,
        typer.Option(
            help="name of an analysis; see `antipode list analyses`; can be repeated; by default "
            "all analyses that fit the runs"
        ),
    ] = None,
    images: Annotated[
        int | None, _number("largest number of images; by default each analysis has its own")
    ] = None,
    seed: Annotated[int, _number("seed of images, views and random draws")] = 0,
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compute what the figures of the papers show, and add it to the runs' analysis.json."""
    early.check_runs(runs)
    results = antipode.analyse(runs, what, images=images, seed=seed, device=device)
    lines = [
        f"{run}  {name}  {line}"
        for run, analyses in results.items()
        for name, result in analyses.items()
        for line in _lines(result)
    ]
    say(results, "\n".join(lines), as_json)


def _lines(result: dict[str, Any]) -> list[str]:
    """Return the numbers of an analysis as lines, or the reason why there are none."""
    if "skipped" in result:
        return [f"skipped: {result['skipped']}"]
    numbers = result.get("values", {}).items()
    return [
        f"{name}: {'-' if number is None else format(number, '.5g')}" for name, number in numbers
    ]


@app.command()
def pack(
    data: Annotated[str, typer.Argument(help="name of a data set, or folder:PATH")],
    out: Annotated[Path, _folder("folder to write; read it with --data packed:DIR")],
    size: Annotated[
        int | None, _number("reduce images to this length of the shorter side, and store pixels")
    ] = None,
    quality: Annotated[int | None, _number("with --size: store JPEG of this quality")] = None,
    root: Annotated[Path | None, _folder("folder that holds the data set")] = None,
    labels: Annotated[str, PACKED_LABELS] = "folders",
    on: Annotated[str, ON] = "local",
    resources: Annotated[str | None, RESOURCES] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write a large data set once into a few memory-mapped files."""
    home = antipode.pack(
        data,
        out,
        size=size,
        quality=quality,
        root=root,
        progress=not as_json,
        labels=labels,
        on=on,
        resources=resources,
    )
    shown = near(home)
    say({"packed": str(home)}, f"{shown}: read it with --data packed:{shown}", as_json)


@app.command()
def embed(
    run: Annotated[str, RUN],
    data: Annotated[str, DATA],
    out: Annotated[Path, _folder("file to write, .npz or .parquet", "FILE")],
    on: Annotated[str, ON] = "local",
    resources: Annotated[str | None, RESOURCES] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write the features of a data set to a file."""
    early.check_run(run)
    early.check_data(data)
    replaced = out.exists()
    features = antipode.embed(run, data, out, on=on, resources=resources)
    n, d = features.x.shape
    lost: int | None = getattr(features, "left_out", None)  # unknown if a cluster has computed them
    content = {"file": str(out), "images": n, "features": d, "left_out": lost}
    numbers = f"{counted(n, 'image')}, {counted(d, 'feature')} each{_lost(lost)}"
    say(content, f"{near(out)}{_mark(replaced)}: {numbers}", as_json)


def _mark(replaced: bool) -> str:
    """Return a mark for a file that existed before."""
    return " (replaced)" if replaced else ""


def _lost(count: int | None) -> str:
    """Return a remark on images that could not be used."""
    return f"; {counted(count, 'file')} left out" if count else ""


@app.command()
def export(
    run: Annotated[str, RUN],
    to: Annotated[
        str, typer.Option("--format", help="torchvision, timm, detectron2, onnx or safetensors")
    ],
    out: Annotated[Path, _folder("file to write", "FILE")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="do not warn if the file exists and is replaced")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write the online backbone in a format that other software reads."""
    early.check_run(run)
    file = antipode.export(run, to, out, overwrite=overwrite)
    say({"file": str(file), "format": to}, near(file), as_json)


@app.command()
def report(
    runs: Annotated[list[str], RUNS],
    out: Annotated[
        Path | None,
        _folder("HTML file to write; by default report.html in the first run folder", "FILE"),
    ] = None,
    images: Annotated[
        bool,
        typer.Option(
            "--images/--no-images", help="whether the page contains images of the data set"
        ),
    ] = True,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write one self-contained HTML page about one or several runs."""
    early.check_runs(runs)
    replaced = (out or Path(runs[0]) / "report.html").exists()
    file = antipode.report(runs, out, images=images)
    say({"report": str(file)}, f"{near(file)}{_mark(replaced and len(runs) > 1)}", as_json)


@app.command()
def finetune(
    run: Annotated[
        str,
        typer.Argument(help="run folder, random:NETWORK, torchvision:NETWORK or file:PATH@NETWORK"),
    ],
    data: Annotated[str, typer.Option(help="labelled data set; subfolders of folder: are classes")],
    out: Annotated[Path, _folder("folder for the classifier")],
    epochs: Annotated[
        int | None, _number("number of passes; the default depends on the number of images")
    ] = (None),
    lr: Annotated[
        float | None,
        typer.Option(help="learning rate of the backbone, or of the classifier with --freeze"),
    ] = None,
    batch: Annotated[int | None, _number("number of images per step")] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="train only the classifier")] = False,
    balanced: Annotated[
        bool, typer.Option("--balanced", help="show every class equally often")
    ] = False,
    flip: Annotated[bool, typer.Option(help="flip half of the crops horizontally")] = True,
    seed: Annotated[int, _number("seed of weights, image order and crops")] = 0,
    device: Annotated[str, DEVICE] = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace a classifier that the folder holds")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Train a backbone and a classifier on labelled images."""
    early.check_run(run)
    early.check_data(data)
    model = antipode.finetune(
        run,
        data,
        out,
        epochs=epochs,
        lr=lr,
        batch=batch,
        freeze=freeze,
        balanced=balanced,
        flip=flip,
        seed=seed,
        device=device,
        overwrite=overwrite,
        quiet=as_json,
    )
    content = {"model": str(model.path), "classes": model.classes, "scores": model.scores}
    say(content, f"{near(model.path)}: {model.line()}", as_json)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="folder that `antipode finetune` has written")],
    data: Annotated[str, DATA],
    out: Annotated[Path, _folder("file to write, .csv or .parquet", "FILE")],
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write the class of every image to a file."""
    replaced = out.exists()
    found = antipode.predict(model, data, out, device=device)
    counts = {name: 0 for name in found.classes} | Counter(found.predicted)
    shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lost = found.left_out
    content = {"file": str(out), "images": len(found.names), "classes": counts, "left_out": lost}
    number = counted(len(found.names), "image")
    text = f"{near(out)}{_mark(replaced)}: {number} ({shown}){_lost(lost)}"
    say(content, text, as_json)


@app.command()
def reproduce(
    item: Annotated[
        str,
        typer.Argument(help="a table or figure, such as dcl.table1; see `antipode list items`"),
    ],
    scale: Annotated[str, typer.Option(help="smoke, small or paper")] = "smoke",
    out: Annotated[Path | None, _folder("folder to write; by default repro/SCALE")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="only print which runs are needed and what they cost")
    ] = False,
    seeds: Annotated[
        int | None, _number("number of seeds per setting; by default that of the scale")
    ] = None,
    root: Annotated[Path | None, _folder("folder that holds the data sets")] = None,
    at_once: Annotated[str, AT_ONCE] = "1",
    on: Annotated[str, ON] = "local",
    resources: Annotated[str | None, RESOURCES] = None,
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Reproduce a table or figure of a paper, beside the paper's numbers.

    The exit status is 1 if a claim of the paper does not hold, or if a run is missing.
    """
    if plan:
        content, lines = antipode.plan_item(
            item,
            scale,
            out,
            seeds=seeds,
            root=root,
            device=device,
            at_once=at_once,
            on=on,
            resources=resources,
        )
        say(content, "\n".join(lines), as_json)
        return
    outcome = antipode.reproduce(
        item,
        scale,
        out,
        seeds=seeds,
        root=root,
        device=device,
        at_once=at_once,
        quiet=as_json,
        on=on,
        resources=resources,
    )
    written = {kind: str(file) for kind, file in outcome.files.items()}
    shown = map(near, outcome.files.values())
    content = json.loads(outcome.files["json"].read_text()) | {"files": written}
    say(content, "\n".join([antipode.summary_text(content), *shown]), as_json)
    raise typer.Exit(0 if outcome.ok else 1)


@app.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help="dataset.method, or the path of a recipe file")],
    vary: Annotated[
        list[str],
        typer.Option(metavar="KEY=V1,V2,...", help="values of a key to try; can be repeated"),
    ],
    out: Annotated[Path, _folder("folder of the sweep; the same command resumes it")],
    seeds: Annotated[int, _number("number of runs of each setting")] = 1,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="name of a protocol; can be repeated; by default as in evaluate"),
    ] = None,
    set_: Annotated[list[str] | None, SET] = None,
    at_once: Annotated[str, AT_ONCE] = "1",
    on: Annotated[str, ON] = "local",
    resources: Annotated[str | None, RESOURCES] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="only print the runs, with a command for each of them")
    ] = False,
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Train and evaluate every combination of values, with several seeds.

    The exit status is 1 if a run failed.
    """
    early.check_protocols(protocol)
    given = set_ or []
    if plan:
        content, lines = antipode.plan_sweep(
            recipe,
            vary,
            out,
            seeds=seeds,
            overrides=given,
            device=device,
            at_once=at_once,
            on=on,
            resources=resources,
        )
        say(content, "\n".join(lines), as_json)
        return
    found = antipode.sweep(
        recipe,
        vary,
        out,
        seeds=seeds,
        protocols=protocol,
        overrides=given,
        at_once=at_once,
        device=device,
        quiet=as_json,
        on=on,
        resources=resources,
    )
    lines = [*antipode.sweep_summary(found.content), near(found.report)]
    say({**found.content, "sweep": str(found.path)}, "\n".join(lines), as_json)
    raise typer.Exit(0 if found.ok else 1)


@app.command()
def jobs(
    folder: Annotated[str, typer.Argument(help="folder of a sweep, a reproduction or a run")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show the states and logs of the runs in a folder, on this machine or on a cluster."""
    rows = antipode.job_table(folder)
    say({"jobs": rows}, "\n".join(antipode.job_lines(rows)), as_json)


@app.command("list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(help="methods, recipes, datasets, protocols, analyses, items or backbones"),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List names, each with a description."""
    if what is None:
        kinds = "methods, recipes, datasets, protocols, analyses, items, backbones"
        raise ValueError(f"Missing argument 'what': choose from {kinds}")
    rows = antipode.list_names(what)
    width = max(map(len, rows))
    say(rows, "\n".join(f"{name:{width}}  {line}" for name, line in rows.items()), as_json)


@app.command()
def show(
    recipe: Annotated[
        str | None, typer.Argument(help="dataset.method, a recipe file or a run folder")
    ] = None,
    method: Annotated[str | None, METHOD] = None,
    data: Annotated[str | None, DATA] = None,
    backbone: Annotated[str | None, BACKBONE] = None,
    epochs: Annotated[int | None, EPOCHS] = None,
    batch: Annotated[int | None, BATCH] = None,
    seed: Annotated[int | None, SEED] = None,
    device: Annotated[str | None, DEVICE] = None,
    precision: Annotated[str | None, PRECISION] = None,
    labels: Annotated[str | None, LABELS] = None,
    set_: Annotated[list[str] | None, SET] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print the complete recipe: every value and its source."""
    early.check_recipe(recipe, method)
    flags = {
        "backbone.name": backbone,
        "train.epochs": epochs,
        "train.batch": batch,
        "train.seed": seed,
        "train.device": device,
        "train.precision": precision,
        "data.labels": labels,
    }
    rows = antipode.shown_recipe(recipe, method, data, set_ or [], flags)
    texts = [json.dumps(value) for _, value, _ in rows]
    key_width = max(len(key) for key, _, _ in rows)
    value_width = min(40, max(map(len, texts)))
    lines = [
        f"{key:{key_width}}  {text:{value_width}}  {source}"
        for (key, _, source), text in zip(rows, texts, strict=True)
    ]
    content = {key: {"value": value, "source": source} for key, value, source in rows}
    say(content, "\n".join(lines), as_json)


def say(value: Any, text: str, as_json: bool) -> None:
    """Print `text`, or `value` as JSON if `as_json`. Of several ranks, only the first prints.

    Names in the text come from files, so control characters in its lines are escaped.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print(json.dumps(finite(value), allow_nan=False), flush=True)
    else:
        print("\n".join(map(printable, text.split("\n"))), flush=True)


def near(path: Path) -> str:
    """Return a path as a user would write it: relative, if it lies below the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit.

    Wrong input prints one sentence and exits with status 2. An interruption prints how to resume
    and exits with status 130.
    """
    words = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = new_warnings()
    try:
        with terminable(), command_line():
            status = app(args=repeated(words), prog_name="antipode", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        sentence, status = failure(located(error, words))
        if not sentence:
            raise
        exit_with(printable(" ".join(sentence.split())), status)
    if status == 130:  # typer turns Ctrl-C into this status
        usual = INTERRUPTED.get(words[0], "interrupted")
        fresh = "--overwrite" in words and words[0] != "finetune"
        exit_with(FRESH if fresh else usual, status)
    sys.exit(status if isinstance(status, int) else 0)


def located(error: BaseException, words: list[str]) -> BaseException:
    """Return an error with the path that the command writes, if the system did not name any.

    The system names no path if the disk is full or a file becomes too large.
    """
    if isinstance(error, OSError) and error.errno and not error.filename:
        separate = [value for word, value in pairwise(words) if word == "--out"]
        joined = [word.removeprefix("--out=") for word in words if word.startswith("--out=")]
        error.filename = next(iter(separate + joined), None)
    return error


def new_warnings() -> Callable[..., None]:
    """Return a function that prints each warning once, in one line.

    Several parts of a command may open the same data set, which warns each time. Control characters
    are escaped, since a warning may name files.
    """
    printed: set[str] = set()

    def print_new(message: Any, category: Any, *where: Any, **options: Any) -> None:
        text = printable(" ".join(str(message).split()))
        if text not in printed:
            printed.add(text)
            warn(text, category, *where, **options)

    return print_new


REPEATABLE = ("--protocol", "--what", "--set")


def repeated(words: list[str]) -> list[str]:
    """Return the words with `--what a b` written as `--what a --what b`, which typer understands.

    A word after the first value of such an option is another value of it. There are two exceptions:
    after --set, a word without an equals sign; after the other options, a run, which is a path that
    exists or a word with a colon.
    """
    expanded: list[str] = []
    option = ""
    awaits_value = False
    for word in words:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            option = name if name in REPEATABLE else ""
            awaits_value = not equals
        elif awaits_value or not option:
            awaits_value = False
        elif _is_value(option, word):
            expanded.append(option)
        else:
            option = ""
        expanded.append(word)
    return expanded


def _is_value(option: str, word: str) -> bool:
    """Return True if a word can be a value of a repeatable option."""
    if option == "--set":
        return "=" in word
    return ":" not in word and not absolute(word).exists()
