"""Self-supervised visual representation learning, exact to the papers."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from antipode import functional
    from antipode import types as types
    from antipode.api import analyse, evaluate, export, load_backbone, pretrain, report
    from antipode.data.views.views import views
    from antipode.finetuning.model import load_classifier
    from antipode.finetuning.predict import predict
    from antipode.finetuning.train import finetune
    from antipode.launch.spread import embed
    from antipode.listing import list_datasets, list_protocols, list_recipes
    from antipode.papers import build, list_methods
    from antipode.reproduction.make import reproduce
    from antipode.runs.run import Run
    from antipode.sweeps.run import sweep
    from antipode.training.planning import plan

# A module is imported when one of its names is first used, so that `antipode --help` does not
# import torch. No module of the package may have one of these names, since importing it would
# replace the function.
HOMES = {
    **dict.fromkeys(
        ("analyse", "evaluate", "export", "load_backbone", "pretrain", "report"),
        "antipode.api",
    ),
    **dict.fromkeys(("build", "list_methods"), "antipode.papers"),
    **dict.fromkeys(("list_datasets", "list_protocols", "list_recipes"), "antipode.listing"),
    "Run": "antipode.runs.run",
    "embed": "antipode.launch.spread",
    "finetune": "antipode.finetuning.train",
    "load_classifier": "antipode.finetuning.model",
    "plan": "antipode.training.planning",
    "predict": "antipode.finetuning.predict",
    "reproduce": "antipode.reproduction.make",
    "sweep": "antipode.sweeps.run",
    "views": "antipode.data.views.views",
    "functional": "antipode.functional",
    "types": "antipode.types",
    # used by the command line, and not part of the public interface
    "job_lines": "antipode.launch.jobs",
    "job_table": "antipode.launch.jobs",
    "judgement": "antipode.evaluation.judgement",
    "list_names": "antipode.listing",
    "pack": "antipode.launch.spread",
    "plain_command": "antipode.launch.commands",
    "plan_item": "antipode.reproduction.make",
    "plan_sweep": "antipode.sweeps.run",
    "sweep_summary": "antipode.sweeps.table",
    "ranked": "antipode.launch.commands",
    "place": "antipode.launch.place",
    "rescaled": "antipode.recipe.resolve",
    "shown_recipe": "antipode.recipe.show",
    "summary_text": "antipode.reproduction.present",
}

__all__ = [
    "Run",
    "analyse",
    "build",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "functional",
    "list_datasets",
    "list_methods",
    "list_protocols",
    "list_recipes",
    "load_backbone",
    "load_classifier",
    "plan",
    "predict",
    "pretrain",
    "report",
    "reproduce",
    "sweep",
    "views",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'antipode' has no attribute {name!r}")
    module = importlib.import_module(HOMES[name])
    value = module if HOMES[name] == f"antipode.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
