"""MkDocs hooks that add pages made from other files of the repository, and adapt links to them.

Added are the changelog, the guide for contributors, the measurements, the examples, and a
stylesheet with the colours of the report. The page of all commands is filled from the program.
"""

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File

from antipode.cli import app
from antipode.reporting.look import colours

ROOT = Path(__file__).parents[1]
# file of the repository -> page of the site
COPIED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "benchmarks/RESULTS.md": "results.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)]*)?\)")
FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and the stylesheet that are made at build time."""
    made = {page: (ROOT / file).read_text() for file, page in COPIED.items() if page != "index.md"}
    made |= {page: example_page(ROOT / file) for file, page in example_pages().items()}
    made["stylesheets/colours.css"] = colour_rules()
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files of the repository at the pages that show them."""
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]  # the home page has the whole width
    if uri == "reference/commands.md":
        markdown += "\n" + command_sections()
    origin = {page: file for file, page in COPIED.items()}.get(uri, f"docs/{uri}")
    parts = FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda m: adapted(m, origin, uri), part)
        for part in parts
    )


def example_pages() -> dict[str, str]:
    """Return the page of each example, by its path in the repository."""
    found = [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")]
    return {f"examples/{file.name}": f"examples/{file.stem}.md" for file in sorted(found)}


def adapted(link: re.Match[str], origin: str, uri: str) -> str:
    """Return a link for the page `uri` whose text comes from the file `origin`.

    A link to a file that the site does not show becomes plain text.
    """
    mark, text, target, anchor = link.groups()
    if not target or re.match(r"\w+:", target):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    shown = COPIED | example_pages()
    if path.startswith("docs/"):
        path = path.removeprefix("docs/")
    elif path in shown:
        path = shown[path]
    elif (ROOT / path).exists():
        return text
    else:
        return link[0]  # MkDocs reports the broken link
    relative = posixpath.relpath(path, posixpath.dirname(uri) or ".")
    return f"{mark}[{text}]({relative}{anchor or ''})"


def example_page(file: Path) -> str:
    """Return an example as a page: its title, its explanation and its code."""
    if file.suffix == ".ipynb":
        return notebook_page(file)
    source = file.read_text()
    title, _, rest = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    rest = re.sub(r"\n\n( {4}\S.*?)\n(?=\n|$)", r"\n\n```\n\1\n```\n", rest + "\n", flags=re.DOTALL)
    rest = re.sub(r"^ {4}", "", rest, flags=re.MULTILINE)
    code = source.split('"""', 2)[2].lstrip("\n")
    name = file.stem.replace("_", " ").capitalize()
    return f"# {name}\n\n{title}\n{rest}\n`examples/{file.name}`:\n\n```python\n{code}```\n"


def notebook_page(file: Path) -> str:
    """Return the cells of a notebook as a page."""
    parts = []
    for cell in json.loads(file.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join([*parts, f"This page is the notebook `examples/{file.name}`.\n"])


def command_sections() -> str:
    """Return the reference of all commands, read from the command line itself."""
    program: Any = typer.main.get_command(app)
    return "\n".join(command_section(name, c) for name, c in program.commands.items())


def command_section(name: str, command: Any) -> str:
    """Return the section of one command: its purpose, its usage and a table of its arguments."""
    given = [option for option in command.params if option.param_type_name == "argument"]
    usage = " ".join([f"antipode {name}", *(metavar(argument) for argument in given), "[FLAGS]"])
    rows = [f"| {spelling(x)} | {cell(x.help or '')}{default(x)} |" for x in command.params]
    table = "\n".join(["| argument | meaning |", "|---|---|", *rows])
    return f"## {name}\n\n{command.help or ''}\n\n```text\n{usage}\n```\n\n{table}\n"


def metavar(argument: Any) -> str:
    """Return the place of an argument in the usage line."""
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def spelling(option: Any) -> str:
    """Return how an argument or a flag is written."""
    if option.param_type_name == "argument":
        return f"`{metavar(option)}`"
    names = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    return ", ".join(f"`{name}{value}`" for name in names)


def default(option: Any) -> str:
    """Return the default of an argument in brackets, empty if there is none."""
    if option.required:
        return " (required)"
    none = option.param_type_name == "argument" or option.default in {None, False, ()}
    return "" if none else f" (default: `{str(option.default).lower()}`)"


def cell(text: str) -> str:
    """Return a help text as a table cell: placeholders in capitals are not HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def colour_rules() -> str:
    """Return the colours of the report as CSS for the light and the dark scheme of the site."""
    rules = []
    for scheme, dark in (("default", False), ("slate", True)):
        values = " ".join(f"--{name}: {value};" for name, value in colours(dark).items())
        rules.append(f'[data-md-color-scheme="{scheme}"] {{ {values} }}')
    return "\n".join(rules) + "\n"
