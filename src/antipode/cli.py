"""The command line: each command parses, calls one function of the package and prints. Torch is imported only to work.

Whatever is wrong with the input ends with status 2 and one sentence on stderr.
"""

import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from antipode import __version__
from antipode.files import finite

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"a whole number is needed, not {text!r}") from None


def _path(text: str) -> Path:
    """Not Path alone: an empty text, such as a shell variable that is not set, would be the current folder."""
    if not text:
        raise typer.BadParameter("a path is needed, not an empty text")
    return Path(text)


SET = typer.Option(
    "--set",
    metavar="KEY=VALUE",
    help="a value of the recipe, such as method.tau=0.2; may be repeated",
)
JSON = typer.Option("--json", help="print one JSON object and nothing else")

METHODS_HELP = (
    "simclr mocov1 mocov2 byol simsiam npid invspread adco eqco simo dcl dclw jcl msbreg custom"
)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def antipode(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")
    ] = False,
) -> None:
    """Self-supervised visual representation learning, exact to the papers."""


@app.command()
def pretrain(
    recipe: Annotated[
        str | None, typer.Argument(help="dataset.method, or the path of a recipe file")
    ] = None,
    method: Annotated[str | None, typer.Option(help=METHODS_HELP)] = None,
    data: Annotated[
        str | None,
        typer.Option(help="a data set by name, or folder:PATH; `antipode list datasets`"),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="a network by name; `antipode list backbones`")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(parser=_whole, metavar="N", help="passes over the data")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(parser=_whole, metavar="N", help="images per step, over all ranks")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=_path, metavar="DIR", help="the run folder; run again with the same one to go on"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(parser=_whole, metavar="N", help="of weights, order, views and noise"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, bf16 or fp64")] = None,
    resume: Annotated[bool, typer.Option(help="go on with a run that is in the folder")] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace a run that is in the folder")
    ] = False,
    set_: Annotated[list[str] | None, SET] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Train on images without labels."""
    from antipode import api  # noqa: PLC0415
    from antipode.recipe.resolve import rescaled  # noqa: PLC0415

    run = api.pretrain(
        recipe,
        method=method,
        data=data,
        backbone=backbone,
        epochs=epochs,
        batch=batch,
        out=out,
        seed=seed,
        device=device,
        precision=precision,
        resume=resume,
        overwrite=overwrite,
        overrides=set_ or [],
        quiet=as_json,
    )
    last: dict[str, Any] = next((row for row in reversed(run.metrics()) if "loss" in row), {})
    loss = last.get(
        "contrast", last.get("loss")
    )  # as the bar shows it; none in JSON is what was no number
    shown = "nan" if loss is None else f"{loss:.4f}"
    if as_json and (sentence := rescaled(run.recipe)):  # else it was said after the first step
        typer.echo(sentence, err=True)
    say({"run": str(run.path), "last": last}, f"{run.path}: done, loss {shown}", as_json)


@app.command()
def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            help="a run folder, random:NETWORK, torchvision:NETWORK or file:PATH@NETWORK"
        ),
    ],
    protocol: Annotated[
        list[str] | None, typer.Option(help="`antipode list protocols`; may be repeated")
    ] = None,
    data: Annotated[str | None, typer.Option(help="another data set than the run's own")] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=_path, metavar="DIR", help="the folder of a network that no run made"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(parser=_whole, metavar="N", help="instead of the run's own")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Score a backbone; adds to the run's scores.json."""
    from antipode import api  # noqa: PLC0415

    refusal: Exception | None = None
    try:
        scores = api.evaluate(
            run, protocol or ["knn"], data=data, out=out, seed=seed, device=device
        )
    except (ValueError, OSError) as error:  # what went well is said all the same
        refusal, scores = error, getattr(error, "scores", {})
    lines = [score.line() for score in scores.values()]
    if scores:
        say({name: score.json() for name, score in scores.items()}, "\n".join(lines), as_json)
    if refusal:
        raise refusal


@app.command()
def analyse(
    runs: Annotated[list[str], typer.Argument(help="run folders")],
    what: Annotated[
        list[str] | None,
        typer.Option(help="`antipode list analyses`; may be repeated; without it all that fit"),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            parser=_whole, metavar="N", help="use so many images at most, not what each says"
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(parser=_whole, metavar="N", help="of images, views and draws")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """What the papers' figures show; adds to the runs' analysis.json."""
    from antipode import api  # noqa: PLC0415

    found = api.analyse(runs, what, images=images, seed=seed, device=device)
    lines = [
        f"{run}  {name}  {line}"
        for run, results in found.items()
        for name, result in results.items()
        for line in _lines(result)
    ]
    say(found, "\n".join(lines), as_json)


def _lines(result: dict[str, Any]) -> list[str]:
    """The numbers of an analysis, or why there are none."""
    if "skipped" in result:
        return [f"skipped: {result['skipped']}"]
    numbers = result.get("values", {}).items()
    return [
        f"{name}: {'-' if number is None else format(number, '.5g')}" for name, number in numbers
    ]


@app.command()
def pack(
    data: Annotated[str, typer.Argument(help="a data set by name, or folder:PATH")],
    out: Annotated[
        Path,
        typer.Option(
            parser=_path, metavar="DIR", help="the folder to write; `--data packed:DIR` reads it"
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option(
            parser=_whole, metavar="N", help="reduce images to this shorter side and store pixels"
        ),
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option(parser=_whole, metavar="N", help="with --size: store JPEG of this quality"),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(parser=_path, metavar="DIR", help="where the data set lies")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write a large data set once into a memory-mapped cache."""
    from antipode.data.sources.pack import pack as write  # noqa: PLC0415

    home = write(data, out, size=size, quality=quality, root=root, progress=not as_json)
    say({"packed": str(home)}, f"{home}: read it with --data packed:{home}", as_json)


@app.command()
def embed(
    run: Annotated[str, typer.Argument(help="a run folder")],
    data: Annotated[str, typer.Option(help="a data set by name, or folder:PATH")],
    out: Annotated[Path, typer.Option(help="a .npz or .parquet file")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Features of any data set."""
    from antipode import api  # noqa: PLC0415

    features = api.embed(run, data, out)
    n, d = features.x.shape
    say(
        {"file": str(out), "images": n, "features": d},
        f"{out}: {n} images, {d} features each",
        as_json,
    )


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="a run folder")],
    to: Annotated[
        str, typer.Option("--format", help="torchvision, timm, detectron2, onnx or safetensors")
    ],
    out: Annotated[Path, typer.Option(help="the file to write")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """The online backbone for other software."""
    from antipode import api  # noqa: PLC0415

    file = api.export(run, to, out)
    say({"file": str(file), "format": to}, str(file), as_json)


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="run folders")],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=_path,
            metavar="FILE",
            help="the page; report.html in the first run folder by default",
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """One self-contained HTML page for one or several runs."""
    from antipode import api  # noqa: PLC0415

    file = api.report(runs, out)
    say({"report": str(file)}, str(file), as_json)


@app.command()
def reproduce(
    item: Annotated[
        str, typer.Argument(help="a table or figure, such as dcl.table1; `antipode list items`")
    ],
    scale: Annotated[str, typer.Option(help="smoke, small or paper")] = "smoke",
    out: Annotated[
        Path | None,
        typer.Option(parser=_path, metavar="DIR", help="the folder; repro/SCALE by default"),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="only say which runs it takes and what they cost")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            parser=_whole, metavar="N", help="runs of each kind, instead of the scale's own number"
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(parser=_path, metavar="DIR", help="where data sets lie")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """A table or figure of a paper: our numbers beside the paper's. Status 1 where a law is violated."""
    from antipode.reproduction import make, present  # noqa: PLC0415

    if plan:
        lines = make.planned(item, scale, out, seeds=seeds, root=root, device=device)
        say({"plan": lines}, "\n".join(lines), as_json)
        return
    outcome = make.reproduce(item, scale, out, seeds=seeds, root=root, device=device, quiet=as_json)
    written = {kind: str(file) for kind, file in outcome.files.items()}
    found = json.loads(outcome.files["json"].read_text()) | {"files": written}
    say(found, "\n".join([present.text(found), *written.values()]), as_json)
    raise typer.Exit(0 if outcome.ok else 1)


@app.command("list")
def list_(
    what: Annotated[
        str,
        typer.Argument(help="methods, recipes, datasets, protocols, analyses, items or backbones"),
    ],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Names, with one line each."""
    from antipode.listing import listing  # noqa: PLC0415

    rows = listing(what)
    width = max(map(len, rows))
    say(rows, "\n".join(f"{name:{width}}  {line}" for name, line in rows.items()), as_json)


@app.command()
def show(
    recipe: Annotated[
        str | None, typer.Argument(help="dataset.method, a recipe file or a run folder")
    ] = None,
    method: Annotated[str | None, typer.Option(help=METHODS_HELP)] = None,
    data: Annotated[
        str | None, typer.Option(help="a data set, or images of one's own, as folder:PATH")
    ] = None,
    set_: Annotated[list[str] | None, SET] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """The fully resolved recipe: every value and where it comes from."""
    from antipode.recipe import resolve as recipes  # noqa: PLC0415

    if recipe is None and method is None and data is None:
        raise ValueError("Missing argument 'recipe', or --method and --data in its place")
    path = Path(recipe or "") / "recipe.json"
    whole = recipe is not None and path.exists()  # of a run: every value stands there
    found = recipes.resolve(
        str(path) if whole else recipe, method=method, data=data, overrides=set_ or []
    )
    if ":" in found.data.name and not whole:
        from antipode.api import counted  # noqa: PLC0415

        found = counted(
            found, partial(recipes.resolve, recipe, method=method, data=data, overrides=set_ or [])
        )
    rows = recipes.show(found)
    width, values = max(len(key) for key, _, _ in rows), [json.dumps(value) for _, value, _ in rows]
    room = min(40, max(map(len, values)))
    lines = [
        f"{key:{width}}  {text:{room}}  {source}"
        for (key, _, source), text in zip(rows, values, strict=True)
    ]
    say(
        {key: {"value": value, "source": source} for key, value, source in rows},
        "\n".join(lines),
        as_json,
    )


def say(value: Any, text: str, as_json: bool) -> None:
    """Print for people or for programs; of several ranks one speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(finite(value), allow_nan=False) if as_json else text, flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; wrong input is one sentence and status 2, an interruption says how to go on and is status 130."""
    words = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = _warn
    try:
        with _terminable():
            status = app(args=repeated(words), prog_name="antipode", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        sentence, status = _refusal(error)
        if not sentence:
            raise
        _end(sentence, status)
    if status == 130:  # the parser makes this of a Ctrl-C
        _end(FRESH if "--overwrite" in words else INTERRUPTED.get(words[0], "interrupted"), 130)
    sys.exit(status if isinstance(status, int) else 0)


MANY = ("--protocol", "--what", "--set")


def repeated(words: list[str]) -> list[str]:
    """The words with `--what a b` spelt `--what a --what b`, which the parser takes.

    Words after such a flag's first value are values, too: with an equals sign for --set, else all but flags and runs.
    """
    found: list[str] = []
    flag, first = "", False
    for word in words:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            flag, first = (name if name in MANY else ""), not equals
        elif first or not flag:
            first = False
        elif (
            "=" in word
            if flag == "--set"
            else not (":" in word or Path(word).expanduser().exists())
        ):
            found.append(flag)
        else:
            flag = ""
        found.append(word)
    return found


INTERRUPTED = dict.fromkeys(
    ("pretrain", "pack", "reproduce"),
    "interrupted; the same command goes on from what is on the disk",
) | {
    "analyse": "interrupted; what was finished is in analysis.json",
    "evaluate": "interrupted; what was finished is in scores.json, the same command starts the rest anew",
}


FRESH = "interrupted; without --overwrite the same command goes on from what is on the disk"


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C, which schedulers do not send; while a run trains it has its own handler."""
    main = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != main:  # a worker that inherited this
            os._exit(128 + number)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread, whose matter signals are
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _refusal(error: BaseException) -> tuple[str, int]:
    """Sentence and status of what is wrong with the input or the machine; no sentence for a mistake of ours."""
    if hasattr(error, "format_message"):  # the parser's own
        return _usage(error), 2
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ in ("Abort", "Interrupted"):
        return str(error) or "interrupted", 130
    if isinstance(error, ConnectionError) and not error.errno:  # of another rank
        return str(error), 1
    sentence = _of_system(error)
    if not sentence and isinstance(error, ValueError | FileNotFoundError | MemoryError):
        sentence = str(error) or type(error).__name__
    return sentence, 2 if sentence else 1


def _of_system(error: BaseException) -> str:
    """The sentence for what the machine refused: a file, a folder, memory."""
    if isinstance(error, RuntimeError) and "allocate memory" in str(error):
        asked = re.search(r"allocate (\d+) bytes", str(error))
        return f"the memory is too small{f' for {int(asked[1]):,} bytes' if asked else ''}: choose smaller values"
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        path = Path(os.fsdecode(error.filename))
        file = next((one for one in (path, *path.parents) if one.is_file()), path)
        return f"{file} is a file, where a folder is needed"
    if isinstance(error, OSError) and error.errno:
        name = (
            error.filename2 or error.filename
        )  # the second: where a file that was written aside should go
        return f"{error.strerror or error}{f': {name}' if name else ''}"
    return ""


def _usage(error: Any) -> str:
    """The parser's sentence, and what there is instead."""
    sentence, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    commands = getattr(getattr(context, "command", None), "commands", None)
    if commands and "command" in sentence:
        return f"{sentence}: choose from {', '.join(commands)}"
    return f"{sentence}; see {context.command_path} --help" if context else sentence


def _warn(message: Any, category: Any, *_: Any, **__: Any) -> None:
    """A warning is a sentence, not a line of somebody's source."""
    print(f"warning: {message}", file=sys.stderr)


def _end(sentence: str, status: int) -> None:
    print(f"antipode: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(status)
