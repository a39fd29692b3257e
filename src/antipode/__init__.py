"""Self-supervised visual representation learning, exact to the papers."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from antipode import functional
    from antipode.api import Run, analyse, embed, evaluate, export, load_backbone, pretrain, report
    from antipode.data.views.views import views
    from antipode.listing import list_datasets, list_protocols, list_recipes
    from antipode.papers import build, list_methods
    from antipode.reproduction.make import reproduce

# no part of the package may bear one of these names, or importing it would hide the function
# imported when first used, so that `antipode --help` need not wait for torch
HOMES = {
    **dict.fromkeys(
        ("Run", "analyse", "embed", "evaluate", "export", "load_backbone", "pretrain", "report"),
        "antipode.api",
    ),
    **dict.fromkeys(("build", "list_methods"), "antipode.papers"),
    **dict.fromkeys(("list_datasets", "list_protocols", "list_recipes"), "antipode.listing"),
    "reproduce": "antipode.reproduction.make",
    "views": "antipode.data.views.views",
    "functional": "antipode.functional",
}

__all__ = [
    "Run",
    "analyse",
    "build",
    "embed",
    "evaluate",
    "export",
    "functional",
    "list_datasets",
    "list_methods",
    "list_protocols",
    "list_recipes",
    "load_backbone",
    "pretrain",
    "report",
    "reproduce",
    "views",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'antipode' has no attribute {name!r}")
    module = importlib.import_module(HOMES[name])
    value = module if name == "functional" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
