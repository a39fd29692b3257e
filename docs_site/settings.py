"""MkDocs hook that adds the settings of a method's recipes, with their sources, to its page.

The tables are made from the resolved recipes, as `antipode show` prints them, so they cannot differ
from the program.
"""

from typing import Any

from antipode.papers import methods
from antipode.recipe.resolve import resolve

DATA = {"imagenet": "ImageNet", "cifar10": "CIFAR-10"}
# page -> the methods that it describes, where these are not the one of its name
SHARED = {"moco": ("mocov1", "mocov2"), "eqco": ("eqco", "simo"), "dcl": ("dcl", "dclw")}
PLACE = "## When to use"
SECTIONS = ("method.", "backbone.", "views.", "optim.", "train.batch", "train.epochs")
SELF = ("method.name", "views.views")
# sources that say nothing about the method: defaults, and values that follow from others
PLAIN = ("default", "as optim.network")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the settings to the page of a method, before the advice on when to use it."""
    folder, _, name = page.file.src_uri.removesuffix(".md").rpartition("/")
    described = SHARED.get(name, (name,))
    if folder != "methods" or described[0] not in methods() or PLACE not in markdown:
        return markdown
    added = "".join(section(method) for method in described)
    return markdown.replace(PLACE, f"{added}{PLACE}", 1)


def section(method: str) -> str:
    """Return the settings of the recipes of one method, as a block that the reader can open."""
    lines = [f'??? abstract "Settings of the recipes of `{method}`, with their sources"']
    for data, title in DATA.items():
        command = f"antipode show {data}.{method}"
        lines += [f"    **{title}** (`{command}` prints all settings):", ""]
        lines += ["    | settings | source |", "    |---|---|"]
        lines += [f"    | {values} | {source} |" for source, values in rows(f"{data}.{method}")]
        lines.append("")
    return "\n".join([*lines, ""])


def rows(recipe: str) -> list[tuple[str, str]]:
    """Return each source that a recipe names, with the settings that come from it."""
    found: dict[str, list[str]] = {}
    for key, value, source in resolve(recipe).show():
        if key.startswith(SECTIONS) and key not in SELF and not source.startswith(PLAIN):
            found.setdefault(source.replace("|", "\\|"), []).append(f"`{key}={text(value)}`")
    return [(source, ", ".join(values)) for source, values in found.items()]


def text(value: Any) -> str:
    """Return a value as people write it."""
    if isinstance(value, tuple):
        return "[" + ",".join(text(part) for part in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
