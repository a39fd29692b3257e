"""MkDocs hooks that change the HTML of pages: formulas, pictures of losses, tables and labels.

LaTeX becomes MathML, which needs no script in the browser. A picture inside the page takes the
colours of its theme. Tables can be scrolled with the keyboard.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

DOCS = Path(__file__).parents[1] / "docs"
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
PICTURE = re.compile(r'<p><img alt="([^"]*)" src="[^"]*pictures/losses/([\w-]+\.svg)"\s*/?></p>')


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas, the pictures of losses and the tables."""
    content = PICTURE.sub(inline, FORMULA.sub(mathml, content))
    content = content.replace("<table>", '<div class="scroll" tabindex="0"><table class="data">')
    return re.sub(r'(<table class="data">.*?</table>)', r"\1</div>", content, flags=re.DOTALL)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search dialog for screen readers, which the theme does not."""
    plain = 'data-md-component="search" role="dialog"'
    return output.replace(plain, f'{plain} aria-label="Search"')


def mathml(formula: re.Match[str]) -> str:
    r"""Return a formula \(...\) or \[...\] as MathML, with its source as the label."""
    tag, text = formula.groups()
    latex = html.unescape(text.strip())[2:-2].strip()
    block = tag == "div"
    math = convert(latex, display="block" if block else "inline")
    return f'<div class="formula" tabindex="0">{math}</div>' if block else math


def inline(picture: re.Match[str]) -> str:
    """Return the panels of a picture as SVG elements, with the description below them."""
    description, name = picture.groups()
    drawing = (DOCS / "pictures" / "losses" / name).read_text()
    panels = "".join(re.findall(r"^<svg x=.*</svg>$", drawing, re.MULTILINE))
    return (
        f'<figure class="loss"><div role="img" aria-label="{description}">{panels}</div>'
        f"<figcaption>{description}.</figcaption></figure>"
    )
