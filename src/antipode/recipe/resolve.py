"""A recipe: everything that decides a run, each value with its source.

`resolve` puts layers on top of each other: defaults, data set, method, the recipe's own values, what was asked for.
Importing this module does not import torch; resolving does, since a method's signature is its schema.
"""

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from antipode.files import atomic_write
from antipode.recipe import package as recipes
from antipode.recipe.datasets import DATASETS, known
from antipode.recipe.derived import OWN, follow, policy_arguments, sketch
from antipode.recipe.layer import FOLLOWING, Layer, RecipeContext, with_source
from antipode.recipe.pairs import VARIANTS
from antipode.recipe.papers import PAPERS
from antipode.recipe.parsing import (
    check_key,
    convert,
    flatten,
    nearest,
    nest,
    of_content,
    of_file,
    settings,
)
from antipode.recipe.schema import (
    SECTIONS,
    Backbone,
    Data,
    Group,
    Method,
    Monitor,
    Section,
    Train,
    Views,
    fields,
)
from antipode.schedule import scaled

FLAGS = {  # the command line's names for keys
    "method.name": "--method",
    "data.name": "--data",
    "backbone.name": "--backbone",
    "train.epochs": "--epochs",
    "train.batch": "--batch",
    "train.seed": "--seed",
    "train.device": "--device",
    "train.precision": "--precision",
}
# what may change when a run goes on: none of it decides a weight
HARMLESS = (
    *(
        "data.root",
        "data.download",
        "data.workers",
        "train.checkpoint_every",
        "train.keep",
        "train.on_collapse",
    ),
    "train.device",
    *(f"monitor.{name}" for name in Monitor.model_fields),
)


class Recipe(Section):
    """Made by `resolve` or `read`. Two are equal if their values are, wherever these come from."""

    method: Method
    backbone: Backbone
    data: Data
    views: Views
    optim: dict[str, Group]  # one entry per parameter group of the method
    train: Train
    monitor: Monitor
    sources: dict[str, str] = Field(default_factory=dict)

    def leaves(self) -> dict[str, Any]:
        """Values by dotted key, in the order of the sections."""
        sections = {name: _pairs(value) for name, value in self if isinstance(value, Section)}
        groups = {name: _pairs(group) for name, group in self.optim.items()}
        return flatten({name: groups if name == "optim" else sections[name] for name in SECTIONS})

    def __eq__(self, other: object) -> bool:
        return self.leaves() == other.leaves() if isinstance(other, Recipe) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # some values are dicts

    def write(self, path: str | Path) -> None:
        """As JSON, with the sources."""
        content = nest(self.leaves()) | {"sources": self.sources}
        with atomic_write(Path(path)) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())

    @staticmethod
    def read(path: str | Path) -> "Recipe":
        """From the JSON that `write` wrote: every value as it stands there; what came later has its default."""
        found, there = resolve(Path(path)), of_file(Path(path))
        later = ("default", "preset ")
        absent = [
            key
            for key in found.leaves()
            if key not in there and not found.sources[key].startswith(later)
        ]
        if absent:
            raise ValueError(f"{path} is no whole recipe: {absent[0]} is missing")
        return found


class User(NamedTuple):
    """What a user gave: the recipe's own values, and what was asked for on top of them."""

    given: Layer
    asked: Layer
    variant: str | None = None

    @property
    def values(self) -> Layer:
        """Both."""
        return self.given | self.asked


def resolve(
    recipe: "str | Path | Mapping[str, Any] | Recipe | None" = None,
    *,
    method: str | None = None,
    data: str | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    images: int | None = None,
) -> Recipe:
    """The whole recipe of `dataset.method`, a method, a file, a run folder or a mapping, with overrides on top.

    `flags` are values by dotted key that the command line has names of its own for; none is not given. `images` counts
    a data set that is not ours, for the sizes that follow from it. Wrong input is a ValueError of one sentence.
    """
    user = _user(recipe, {"method.name": method, "data.name": data, **(flags or {})}, overrides)
    start = with_source("default", {"method.name": "dcl", "data.name": "shapes"}) | user.values
    case = _case(start, user, images)
    package = recipes.layers(case, user.variant)
    if "views.policy" in user.values:  # the arguments of another policy are not its own
        package = {
            key: value
            for key, value in package.items()
            if not key.startswith("views.") or key == "views.size"
        }
    values = package | start
    kinds, defaults = _schema(values)
    for key in user.values:
        check_key(key, kinds, _owner(key, values))
    whole = {
        key: (convert(key, value, kinds[key]), by)
        for key, (value, by) in (defaults | values).items()
    }
    whole = follow(whole, user.values, user.asked)
    found = _assemble({key: whole[key] for key in kinds if key in whole})
    _check(found)
    return found


def rescaled(recipe: Recipe) -> str | None:
    """What a batch other than the recipe's own does to the rates, where one was asked for."""
    if not recipe.sources.get("train.batch", "").startswith("--"):
        return None
    batch, views = recipe.train.batch, views_needed(recipe.method.name, recipe.method.arguments)
    rates = [
        f"{name} {scaled(one.lr, one.rule, batch, views):.4g} ({one.rule})"
        for name, one in recipe.optim.items()
    ]
    return f"a batch of {batch}: rates {', '.join(rates)}"


def views_needed(method: str, arguments: Mapping[str, Any] | None = None) -> int:
    """How many views of each image a method takes."""
    return sketch(method, arguments or {}).views


def list_recipes() -> list[str]:
    """The names of all recipes; other data sets go with any method too."""
    return recipes.names()


def show(recipe: Recipe) -> list[tuple[str, Any, str]]:
    """Key, value and source of everything, in the order of the sections."""
    return [(key, value, recipe.sources.get(key, "")) for key, value in recipe.leaves().items()]


def difference(a: Recipe, b: Recipe, *, ignore: Collection[str] = HARMLESS) -> list[str]:
    """What changed from one recipe to another, as lines `key: old -> new`; by default what decides a weight."""
    old, new = a.leaves(), b.leaves()
    keys = [
        key
        for key in old | new
        if key not in ignore and (key not in old or key not in new or old[key] != new[key])
    ]
    return [f"{key}: {_text(old, key)} -> {_text(new, key)}" for key in keys]


def _pairs(section: Section) -> dict[str, Any]:
    """Not dict(section): JCL's argument `keys` would be taken for the method that dict looks for."""
    return {name: value for name, value in section}


def _text(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "nothing"


def _user(
    recipe: Any, flags: Mapping[str, Any], overrides: Mapping[str, Any] | Sequence[str]
) -> User:
    """The layers of a user, and the recipe's variant."""
    given, asked = _given(recipe), with_source("--set", settings(overrides))
    for key, value in flags.items():
        if value is not None and key in asked and str(asked[key][0]) != str(value):
            raise ValueError(
                f"{key} is given twice, {value} by {FLAGS.get(key, key)} and {asked[key][0]} by --set"
            )
        if value is not None:
            asked[key] = value, FLAGS.get(key, "--set")
    named = given.get(
        "method.name", ("", "")
    )  # a recipe is the source of its method's name, in a file too
    variant = named[1] if named[1] in VARIANTS else None
    own = variant or any(
        key.split(".")[0] in ("method", "views", "optim") for key in given if key != "method.name"
    )
    wanted = asked.get("method.name", named)[0]
    if own and named[0] and wanted != named[0]:
        raise ValueError(
            f"this recipe is one for {named[0]}: its settings do not fit {wanted}, leave it out"
        )
    return User(_lasting(given, asked) if asked else given, asked, variant)


def _lasting(given: Layer, asked: Layer) -> Layer:
    """Of a recipe's own values those that do not follow from others, which may have changed."""
    policy = given.get("views.policy", ("", ""))[1].startswith(FOLLOWING) or "views.policy" in asked
    stale = (*FOLLOWING, "policy ") if policy else FOLLOWING
    return {key: value for key, value in given.items() if not value[1].startswith(stale)}


def _given(recipe: Any) -> Layer:
    """The recipe's own values."""
    if recipe is None:
        return {}
    if isinstance(recipe, Recipe):
        return {
            key: (value, recipe.sources.get(key, "recipe"))
            for key, value in recipe.leaves().items()
        }
    if isinstance(recipe, Mapping):
        return of_content(recipe, "recipe")
    if isinstance(recipe, str):
        data, dot, method = recipe.partition(".")
        if recipe in VARIANTS:
            data, method, _ = VARIANTS[recipe]
        if data in DATASETS and method in PAPERS:
            return with_source(recipe, {"method.name": method, "data.name": data})
        if not dot and data in PAPERS:
            return with_source(recipe, {"method.name": data})
        if not recipe or not (Path(recipe).exists() or "/" in recipe or recipe.endswith(".json")):
            near = difflib.get_close_matches(recipe, [*recipes.names(), *PAPERS], 1, 0.5)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"there is no recipe {recipe!r}{hint}: it is dataset.method, a method or a file"
            )
    if not isinstance(recipe, str | Path):
        raise ValueError(f"a recipe is a name, a file or a mapping, not {type(recipe).__name__}")
    return of_file(Path(recipe).expanduser())


def _stands_for(data: str) -> str:
    """The data set whose numbers hold: for a pack that of the set it was made of, where that has some."""
    kind, _, place = data.partition(":")
    if kind != "packed":
        return data
    try:
        name = json.loads((Path(place).expanduser() / "meta.json").read_text())["name"]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):  # the loader says what is wrong with the folder
        return data
    return name if name in DATASETS else data


def _case(start: Layer, user: User, images: int | None) -> RecipeContext:
    """What the layers depend on, checked."""
    from antipode.papers import arguments  # noqa: PLC0415  (torch)

    method, data = (convert(key, start[key][0], str) for key in ("method.name", "data.name"))
    _check_data(data)
    data = _stands_for(data)
    takes = {f"method.{name}": p.annotation for name, p in arguments(method).items()}
    asked: dict[str, Any] = {}
    for key, (value, _) in user.values.items():
        if key.startswith("method.") and key != "method.name":
            check_key(key, takes, f"method {method}")
            asked[key[7:]] = convert(key, value, takes[key])
    epochs = user.values.get("train.epochs") or recipes.length(data, method)["train.epochs"]
    length = convert("train.epochs", epochs[0], fields()["train.epochs"][0])
    return RecipeContext(
        method, data, asked, length, known(data).images if images is None else images
    )


def _schema(values: Layer) -> tuple[dict[str, Any], Layer]:
    """Annotations of all keys, in the order of the sections, and the defaults of those that have one."""
    from antipode.data.views.policy import POLICIES  # noqa: PLC0415  (torch)
    from antipode.papers import arguments  # noqa: PLC0415

    method, policy = (str(values[key][0]) for key in ("method.name", "views.policy"))
    if policy not in POLICIES:
        raise ValueError(f"there is no policy {policy!r}{nearest(policy, POLICIES)}")
    kinds: dict[str, Any] = {}
    defaults: Layer = {}
    further = {
        "method.name": ("method", f"preset {method}", arguments(method)),
        "views.size": ("views", f"policy {policy}", policy_arguments(policy)),
    }
    for key, (kind, default) in fields().items():
        kinds[key] = kind
        if default is not ... and not key.startswith("optim.predictor."):
            defaults[key] = default, "default"
        section, source, more = further.get(key, ("", "", {}))
        for name, parameter in more.items():
            kinds[f"{section}.{name}"] = parameter.annotation
            defaults[f"{section}.{name}"] = parameter.default, source
    return kinds, defaults


def _owner(key: str, values: Layer) -> str:
    """What the arguments of an open section belong to."""
    return (
        f"policy {values['views.policy'][0]}"
        if key.startswith("views.")
        else f"method {values['method.name'][0]}"
    )


def _assemble(values: Layer) -> Recipe:
    content = nest({key: value for key, (value, _) in values.items()})
    return Recipe.model_validate(
        content | {"sources": {key: source for key, (_, source) in values.items()}}
    )


def _check_data(name: str) -> None:
    from antipode.data.sources.catalog import PREFIXES, unknown  # noqa: PLC0415  (torch)

    prefix, _, rest = name.partition(":")
    if name not in DATASETS and not (rest and prefix in (*PREFIXES, "python")):
        raise ValueError(unknown(name))


def _check(recipe: Recipe) -> None:
    """Refuse values that do not fit each other, as far as that shows without the data."""
    from antipode.data.views.views import views  # noqa: PLC0415  (torch)

    _check_backbone(recipe.backbone)
    method, policy = recipe.method, recipe.views.policy
    made = views(policy, size=recipe.views.size, **recipe.views.arguments).count
    needed = views_needed(method.name, method.arguments)
    if made != needed:
        raise ValueError(
            f"method {method.name} takes {needed} views of each image, but policy {policy} makes {made}"
        )
    if recipe.train.batch % recipe.train.accumulate:
        raise ValueError(
            f"train.accumulate={recipe.train.accumulate} does not divide the batch of {recipe.train.batch}"
        )
    for name, group in recipe.optim.items():
        if group.nesterov and (group.name == "adamw" or not group.momentum):
            raise ValueError(f"optim.{name}.nesterov needs sgd or lars with a momentum above 0")
        try:
            group.scheduled(recipe.train.epochs)
        except ValueError as error:
            raise ValueError(f"optim.{name}: {error}") from None


def _check_backbone(backbone: Backbone) -> None:
    from antipode.nets.backbone import RESNETS, SUPERVISED  # noqa: PLC0415  (torch)

    name = backbone.name
    own = name.startswith(OWN) and not name.endswith(":")
    if name not in RESNETS and not own:
        raise ValueError(f"there is no backbone {name!r}{nearest(name, [*RESNETS, 'timm:NAME'])}")
    if backbone.weights == "torchvision" and name not in SUPERVISED:
        raise ValueError(f"backbone.weights=torchvision, but torchvision has no weights for {name}")
