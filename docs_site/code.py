"""MkDocs hook that fits code into the width of a page, so that no line must be scrolled.

The sources align comments for wide editors. In a block with a line that is too long, comments move
closer to the code, or above it. A shell command is continued on the next line.
"""

import re
from typing import Any

WIDTH = 88  # characters of a code block in a window of 1280 pixels
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"^(\s*)(\S.*?)\s{2,}(# .*)$")
COMMAND = ("antipode ", "torchrun ", "python ", "pip ", "make ")
LANGUAGES = ("sh", "bash", "python", "py")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fit the blocks of shell commands and of Python."""
    return BLOCK.sub(replaced, markdown)


def replaced(block: re.Match[str]) -> str:
    """Return a block of code that fits; one that starts with a command is of the shell."""
    language = block[1] or ("sh" if block[2].startswith(COMMAND) else "")
    return f"```{language}\n{fitted(block[2])}```" if language in LANGUAGES else block[0]


def fitted(code: str) -> str:
    """Return code whose comments and shell commands end within `WIDTH` characters."""
    lines = code.splitlines()
    if all(len(line) <= WIDTH for line in lines):
        return code
    lines = [part for line in lines for part in commented(line)]
    lines = [part for line in lines for part in continued(line)]
    return "\n".join(lines) + "\n"


def commented(line: str) -> list[str]:
    """Return a line with its comment beside it if there is space, otherwise above it."""
    found = COMMENT.match(line)
    if not found:
        return [line]
    indent, code, comment = found.groups()
    beside = f"{indent}{code}  {comment}"
    return [beside] if len(beside) <= WIDTH else [indent + comment, indent + code]


def continued(line: str) -> list[str]:
    """Return a long shell command as several lines."""
    if len(line) <= WIDTH or not line.lstrip().startswith((*COMMAND, "-")):
        return [line]
    place = line.rfind(" --", 0, WIDTH - 2)
    place = place if place > 4 else line.rfind(" ", 0, WIDTH - 2)
    if place <= 4:  # one word that is longer than a line
        return [line]
    return [f"{line[:place]} \\", *continued("    " + line[place + 1 :])]
