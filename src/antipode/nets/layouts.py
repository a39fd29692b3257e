"""Find a network among the tensors of a file, however another project has named them.

No list of prefixes such as MoCo's `module.encoder_q.` or Lightning's `backbone.` is needed: the
network is where its names are. Besides torchvision's names, a ResNet may have the numbers of a
Sequential of its children, as in lightly's examples (`backbone.0.weight`).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antipode.names import brief, printable
from antipode.nets.backbone import ResNet

# words in the names of networks that follow another network
TWINS = {"k", "key", "momentum", "target", "teacher", "ema", "twin"}
# words in the names of what stands beside the layers of a backbone: classifiers, projection heads
# (MoCo and SimSiam call theirs `fc`), SwAV's prototypes, stored keys
HEADS = {
    *("fc", "classifier", "head", "heads", "linear", "mlp", "projection", "projector", "proj"),
    *("predictor", "prediction", "prototypes", "queue", "center", "bank"),
}
# it has no effect if the momentum is fixed, and files from before 2019 do not have it
COUNTER = "num_batches_tracked"
DEEPEST = 32  # levels of dictionaries in a file
LONGEST = 1000  # characters of a tensor's name
PLACES = 100  # places in a file that are looked at; a ResNet-152 has 50 blocks with a `conv1`


class LeftOut(UserWarning):
    """A file holds more than the network, or several networks; the message says what is used."""


class Candidate(NamedTuple):
    """A place in a file where a network may be.

    Args:
        prefix: what the names of its tensors start with.
        state: the tensors that are or may be the network's, by the names in the network.
        keys: the names in the file of the tensors that the network has.
    """

    prefix: str
    state: dict[str, Tensor]
    keys: set[str]

    @property
    def follows(self) -> bool:
        """True for a key encoder, teacher or moving average."""
        return not TWINS.isdisjoint(_words(self.prefix))


class Found(NamedTuple):
    """A network that was found in a file.

    Args:
        state: its tensors, by the names in the network.
        remark: a sentence on what was used and what was left out; empty if that is clear.
    """

    state: dict[str, Tensor]
    remark: str


def flat(content: Mapping[Any, Any], path: Path) -> dict[str, Tensor]:
    """Return all tensors of nested dictionaries by dotted name.

    Keys of outer dictionaries, such as `state_dict`, become part of the name. A dictionary that
    appears several times, even inside itself, is read once.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    level: list[tuple[str, Mapping[Any, Any]]] = [("", content)]
    for _ in range(DEEPEST):
        inner: list[tuple[str, Mapping[Any, Any]]] = []
        for prefix, mapping in level:
            if id(mapping) in seen:
                continue
            seen.add(id(mapping))
            for name, value in _entries(prefix, mapping, path):
                if isinstance(value, Tensor):
                    tensors[name] = value
                else:
                    inner.append((f"{name}.", value))
        level = inner
        if not level:
            return tensors
    raise ValueError(f"{path} holds dictionaries that are nested more than {DEEPEST} levels deep")


def _entries(
    prefix: str, mapping: Mapping[Any, Any], path: Path
) -> Iterator[tuple[str, Tensor | Mapping[Any, Any]]]:
    """Yield the tensors and dictionaries directly inside a dictionary, by dotted name.

    Sparse, quantised and nested tensors are left out, since no backbone has them.
    """
    for key, value in mapping.items():
        if isinstance(key, str | int) and (isinstance(value, Mapping) or _is_plain(value)):
            if len(str(key)) + len(prefix) > LONGEST:
                raise ValueError(f"{path} holds names of more than {LONGEST} characters")
            yield f"{prefix}{key}", value


def _is_plain(value: Any) -> bool:
    """Return True for an ordinary tensor on the CPU."""
    if type(value) not in (Tensor, nn.Parameter):
        return False
    return value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized


def find(tensors: Mapping[str, Tensor], net: nn.Module, path: Path) -> Found:
    """Return the tensors of a file that belong to a network.

    If a file holds the same network twice, either is used. Of two different networks the online
    one is used: a key encoder, teacher or moving average only if the file holds nothing else.
    Raises ValueError for two different online networks. A network that does not fit is returned as
    well; `weights.fit` then says what differs.
    """
    if isinstance(net, ResNet):  # the name in many networks for CIFAR, after kuangliu's
        tensors = {key.replace(".shortcut.", ".downsample."): tensors[key] for key in tensors}
    places = [*_named(tensors, net), *_numbered(tensors, net)]
    if not places:
        first = next(iter(net.state_dict()), "anything")
        raise ValueError(f"{path} holds no such backbone: nothing in it is called {first}")
    whole = [place for place in places if _is_whole(place, net)]
    if not whole:
        best = max(places, key=lambda place: (len(place.keys), not place.follows))
        return Found(best.state, "")
    pool = [place for place in whole if not place.follows] or whole
    used = pool[0]
    others = [place for place in pool[1:] if not _is_same(place, used, net)]
    if others:
        where = " and ".join(_place(place) for place in (used, *others))
        raise ValueError(
            f"{path} holds {1 + len(others)} different networks of this form, {where}: save only "
            "the one you want"
        )
    return Found(used.state, _remark(tensors, used, whole, path))


def _named(tensors: Mapping[str, Tensor], net: nn.Module) -> Iterator[Candidate]:
    """Yield the places where a file has the network's own names under some prefix."""
    names = set(net.state_dict())
    first = next(iter(net.state_dict()), "")
    modules = {name.split(".")[0] for name in names}
    prefixes = {key[: -len(first)] for key in tensors if first and f".{key}".endswith(f".{first}")}
    counts = {prefix: sum(prefix + name in tensors for name in names) for prefix in prefixes}
    for prefix in sorted(counts, key=lambda one: (-counts[one], len(one), one))[:PLACES]:
        inner = {
            key.removeprefix(prefix): value
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
        # anything else beside the layers is kept, since it may mean that this is another network
        kept = {
            name: value
            for name, value in inner.items()
            if name in names or name.split(".")[0] in modules or not _is_beside(name, names)
        }
        yield Candidate(prefix, kept, {prefix + name for name in kept if name in names})


def _is_beside(name: str, names: set[str]) -> bool:
    """Return True if a name is that of a head, or belongs to another copy of the network."""
    parts = name.split(".")
    if not HEADS.isdisjoint(_words(parts[0])):
        return True
    return any(".".join(parts[start:]) in names for start in range(1, min(len(parts), DEEPEST)))


def _numbered(tensors: Mapping[str, Tensor], net: nn.Module) -> Iterator[Candidate]:
    """Yield the places where a file has a Sequential of the children of a ResNet.

    The children that have tensors are compared in their order, because some projects leave out the
    max pool: conv1 is 0, bn1 is 1, and the four stages are 4 to 7, or 3 to 6.
    """
    if not isinstance(net, ResNet):
        return
    children = [name for name, child in net.named_children() if child.state_dict()]
    state = net.state_dict()
    firsts = [key for key in tensors if f".{key}".endswith(".0.weight")]
    prefixes = [key.removesuffix("0.weight") for key in firsts if tensors[key].ndim == 4]
    for prefix in sorted(prefixes, key=lambda prefix: (len(prefix), prefix))[:PLACES]:
        pattern = re.compile(rf"{re.escape(prefix)}(\d{{1,3}})\.(.+)")
        parts = {key: match for key in tensors if (match := pattern.fullmatch(key))}
        numbers = sorted({int(match[1]) for match in parts.values()})
        child_of = dict(zip(map(str, numbers), children, strict=False))
        kept = {
            f"{child_of[match[1]]}.{match[2]}": key
            for key, match in parts.items()
            if match[1] in child_of
        }
        if kept.keys() >= {name for name in state if not name.endswith(COUNTER)}:
            used = {key for name, key in kept.items() if name in state}
            yield Candidate(prefix, {name: tensors[key] for name, key in kept.items()}, used)


def _is_whole(place: Candidate, net: nn.Module) -> bool:
    """Return True if a place holds exactly the tensors of the network, with their shapes.

    The channels and the kernel of a ResNet's first convolution may differ.
    """
    state = net.state_dict()
    needed = {name for name in state if not name.endswith(COUNTER)}
    if not needed <= place.state.keys() <= state.keys():
        return False
    names = needed - {"conv1.weight"} if isinstance(net, ResNet) else needed
    if not all(fits(place.state[name], state[name]) for name in names):
        return False
    return names == needed or _is_stem(place.state["conv1.weight"], state["conv1.weight"])


def fits(value: Tensor, like: Tensor) -> bool:
    """Return True if a tensor has the shape of another one.

    A convolution of colour images also fits one of grey images, see `weights.fit`.
    """
    return value.shape == like.shape or is_coloured(value, like)


def is_coloured(value: Tensor, like: Tensor) -> bool:
    """Return True for convolutions (O,3,H,W) of colour images and (O,1,H,W) of grey images."""
    colours = (*like.shape[:1], 3, *like.shape[2:])
    return like.ndim == 4 and like.shape[1] == 1 and tuple(value.shape) == colours


def _is_stem(value: Tensor, like: Tensor) -> bool:
    """Return True if a tensor may be the first convolution of a ResNet of this width."""
    if value.ndim != 4 or value.shape[0] != like.shape[0]:
        return False
    return value.shape[1] <= 1024 and max(value.shape[2:]) <= 16


def _is_same(place: Candidate, other: Candidate, net: nn.Module) -> bool:
    """Return True if two places hold equal tensors."""
    names = [name for name in net.state_dict() if not name.endswith(COUNTER)]
    pairs = [(place.state[name], other.state[name]) for name in names]
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes(a), _bytes(b))
        for a, b in pairs
    )


def _bytes(value: Tensor) -> Tensor:
    """Return the bytes of a tensor, which can be compared for every type of its values."""
    return value.detach().contiguous().flatten().view(torch.uint8)


def _remark(
    tensors: Mapping[str, Tensor], used: Candidate, whole: list[Candidate], path: Path
) -> str:
    """Return a sentence on what was used and what was left out; empty if nothing was."""
    # a second copy of the same network is not left out
    copies = [place for place in whole if place.follows == used.follows]
    keys = set().union(*(place.keys for place in copies))
    prefixes = [place.prefix for place in copies]
    groups = sorted({_group(key, prefixes) for key in tensors if key not in keys})
    parts = []
    if used.follows:
        parts.append("no online network is in the file, so this one that followed it is used")
    elif len(whole) > len(copies):
        parts.append("the online network is used, not the one that follows it")
    if groups:
        more = f" and {len(groups) - 8} more" if len(groups) > 8 else ""
        parts.append(f"left out: {printable(', '.join(groups[:8]))}{more}")
    if not parts:
        return ""
    return f"{path}: the network is {_place(used)}; {'; '.join(parts)}"


def _group(key: str, prefixes: list[str]) -> str:
    """Return the part of a name, after what it shares with a prefix, that names its module."""
    parts = key.split(".")
    depth = max(_shared(parts[:-1], prefix.split(".")[:-1]) for prefix in prefixes)
    return printable(parts[depth])[:40]


def _shared(parts: list[str], others: list[str]) -> int:
    """Return with how many equal entries two lists start."""
    pairs = enumerate(zip(parts, others, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(parts), len(others)))


def _place(place: Candidate) -> str:
    """Return where a network is, for a message."""
    return f"under {brief(place.prefix.rstrip('.'))}" if place.prefix else "at the top of the file"


def _words(name: str) -> list[str]:
    """Return the lower-case words of a name."""
    return re.split(r"[._\d]+", name.lower())
