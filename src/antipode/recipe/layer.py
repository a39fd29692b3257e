"""A layer of a recipe: dotted keys, each with its value and where the value comes from. Later layers win."""

from typing import Any, NamedTuple

Layer = dict[str, tuple[Any, str]]

# sources of values that follow others, and are found anew when those change
EPOCHS = "train.epochs: "
VIEWS = "the method's number of views"
NETWORK = "as optim.network"
BANK = ("method.bank_", "optim.bank.")
OWN_STEM = "backbone.name: it has a stem of its own"
IMAGES = "the images of the data set"
FOLLOWING = (EPOCHS, VIEWS, NETWORK, *BANK, OWN_STEM, IMAGES)


class RecipeContext(NamedTuple):
    """What the numbers of a recipe may depend on."""

    method: str
    data: str
    arguments: dict[str, Any]  # of the method, as far as they were asked for
    epochs: int
    images: int | None  # in the data set; None where nobody knows before it is opened

    @property
    def base(self) -> str:
        """The framework that a loss of EqCo or DCL is put on; the method itself elsewhere."""
        own = {"dcl": "simclr", "dclw": "simclr", "eqco": "mocov2"}
        return (
            str(self.arguments.get("base", own[self.method])) if self.method in own else self.method
        )


def with_source(source: str, values: dict[str, Any]) -> Layer:
    """Values of one source."""
    return {key: (value, source) for key, value in values.items()}


def method(source: str, **values: Any) -> Layer:
    """Arguments of the method."""
    return with_source(source, {f"method.{key}": value for key, value in values.items()})


def optimiser(source: str, name: str, lr: float, **values: Any) -> Layer:
    """The optimiser of the network; momentum .9 and a cosine are common to nearly all papers."""
    own = {
        "name": name,
        "lr": lr,
        "rule": "linear",
        "momentum": 0.9,
        "schedule": "cosine",
        **values,
    }
    return with_source(source, {f"optim.network.{key}": value for key, value in own.items()})


def policy(source: str, name: str, **values: Any) -> Layer:
    """The views."""
    return with_source(
        source, {f"views.{key}": value for key, value in {"policy": name, **values}.items()}
    )


def warm_up(case: RecipeContext, source: str, epochs: int = 10) -> Layer:
    """A paper's warm-up; a tenth of a run that is shorter than the paper's."""
    found = min(epochs, round(case.epochs / 10))
    return {
        "optim.network.warmup": (found, f"{EPOCHS}{epochs}, or a tenth of a short run; {source}")
    }


def steps(case: RecipeContext, source: str, *at: int, of: int = 200) -> Layer:
    """The epochs at which a paper's rate drops, in proportion."""
    places: list[int] = []
    for epoch in at:
        places.append(max(round(epoch * case.epochs / of), places[-1] + 1 if places else 1))
    text = f"{EPOCHS}at {', '.join(map(str, at))} of {of}; {source}"
    return {"optim.network.at": (tuple(places), text)}


def stack(*layers: Layer) -> Layer:
    """Layers on top of each other; one that names an optimiser or a policy leaves nothing of the one below."""
    whole: Layer = {}
    for layer in layers:
        for naming, belongs in (
            ("optim.network.name", "optim.network."),
            ("views.policy", "views."),
        ):
            if naming in layer:
                whole = {
                    key: with_source
                    for key, with_source in whole.items()
                    if not key.startswith(belongs) or key == "views.size"
                }
        whole |= layer
    return whole
