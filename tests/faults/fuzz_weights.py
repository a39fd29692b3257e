"""Damage files of weights at random and load them under a limit of memory.

    python tests/faults/fuzz_weights.py --safetensors 3000 --torch 600 --seed 0

Every damaged file must either load or raise a ValueError or OSError of one sentence that names it.
A file that antipode wrote must not load with other weights. Each process may use 1 GiB more address
space than it has at its start, so a file that asks for memory it does not need is noticed.
"""

import argparse
import io
import json
import os
import pickletools
import random
import resource
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import antipode
from antipode.nets.backbone import backbone

NAME = "resnet10-slim"
SPARE = 2**30  # bytes that loading may add to the address space
BATCH = 250  # files per process
# an undamaged file of each name, to begin with
GOOD = {"w.safetensors": "ours", "backbone.safetensors": "ours", "w.pth": "zip"}
NUMBERS = (0, -1, 1, 2**15, 2**31, 2**53, 2**63 - 1, 2**64, 10**30, 1.5, None, True, "3", [], {})
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I8", "U8", "BOOL", "C64", "F8_E4M3", "F4", "X", "")
TEXTS = ("", "[" * 5000, '{"mean": [NaN], "std": ["1e999"]}', "9" * 5000, "small", "\x1b]0;x\x07")


def state_of(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the tensors of a network with ImageNet's stem, which no file has to state."""
    torch.manual_seed(seed)
    return {name: value.clone() for name, value in backbone(NAME).state_dict().items()}


def described(state: dict[str, torch.Tensor]) -> bytes:
    """Return the safetensors file that antipode writes, with its digest."""
    from antipode.nets.weight_file import About, Normal, packed

    about = About(NAME, "imagenet", 3, 32, "simclr-cifar", Normal((0.5,) * 3, (0.2,) * 3))
    return packed(state, about)


# Safetensors


def mutated_safetensors(rng: random.Random, good: bytes) -> bytes:
    """Return a damaged safetensors file."""
    kinds: list[Callable[[random.Random, bytes], bytes]] = [flips, cut, inserted, lengths]
    kinds += 4 * [entries]
    content = rng.choice(kinds)(rng, good)
    return flips(rng, content) if rng.random() < 0.1 else content


def flips(rng: random.Random, content: bytes) -> bytes:
    """Flip bits, most of them in the header."""
    if not content:
        return content
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        end = min(len(changed), 6000) if rng.random() < 0.7 else len(changed)
        changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, content: bytes) -> bytes:
    """Cut the file off."""
    return content[: rng.randrange(len(content))]


def inserted(rng: random.Random, content: bytes) -> bytes:
    """Insert, remove or repeat some bytes."""
    at = rng.randrange(len(content))
    length = rng.choice((1, 7, 8, 64, 5000))
    middle = rng.choice((rng.randbytes(length), b"", content[at : at + length] * 2))
    return content[:at] + middle + content[at + length * (middle == b"") :]


def lengths(rng: random.Random, content: bytes) -> bytes:
    """State another length of the header."""
    number = rng.choice((0, 1, 2, 7, 2**24, 2**24 + 1, 10**8, 2**32, 2**63, 2**64 - 1))
    number = rng.randrange(len(content)) if rng.random() < 0.3 else number
    return number.to_bytes(8, "little") + content[8:]


def entries(rng: random.Random, content: bytes) -> bytes:
    """Change the entries of the header, which stays JSON."""
    start = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8:start])
    for _ in range(rng.choice((1, 1, 2, 5))):
        change_entry(rng, header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[start:]


def change_entry(rng: random.Random, header: dict[str, Any]) -> None:
    """Change one entry of a header."""
    name = rng.choice(list(header))
    what = rng.choice(("dtype", "shape", "data_offsets", "name", "value", "entries", "many"))
    entry = header[name]
    if what == "name":
        header[rng.choice((*header, "", "a." * 2000, "\x1b[31m", "\ud83d"))] = header.pop(name)
    elif what == "value":
        header[name] = rng.choice((*NUMBERS, "x", {"dtype": "F32"}))
    elif what == "many":
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        header |= {f"t{i}": empty for i in range(99)}
    elif what == "entries" or not isinstance(entry, dict) or "shape" not in entry:
        stated = header.get("__metadata__")
        stated = stated if isinstance(stated, dict) else {}
        key = rng.choice((*stated, "stem", "size", "channels", "antipode", "pixels"))
        header["__metadata__"] = stated | {key: rng.choice((*TEXTS, *NUMBERS))}
    elif what == "dtype":
        entry["dtype"] = rng.choice((*DTYPES, None, 3))
    else:
        numbers = entry[what] if isinstance(entry[what], list) else []
        numbers = [*numbers, rng.choice(NUMBERS)]
        rng.shuffle(numbers)
        entry[what] = rng.choice((numbers, numbers[1:], [rng.choice(NUMBERS)] * 40))


# Torch files


def mutated_torch(rng: random.Random, good: bytes, legacy: bytes) -> bytes:
    """Return a damaged torch file."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice((flips, cut, inserted))(rng, good)
    if kind == 1:
        return rng.choice((flips, cut, inserted))(rng, legacy)
    if kind == 2:
        start = legacy.find(b"collections")
        return legacy[:start] + changed_pickle(rng, legacy[start:])
    return changed_records(rng, good)


def changed_records(rng: random.Random, good: bytes) -> bytes:
    """Change records of the archive, whose checksums are then right again."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(file, "w") as new:
        names = old.namelist()
        chosen = {rng.choice(names), next(name for name in names if name.endswith("data.pkl"))}
        for name in names:
            content = old.read(name)
            if name in chosen:
                if name.endswith("data.pkl"):
                    content = changed_pickle(rng, content)
                else:
                    content = rng.choice((flips, cut, inserted))(rng, content or b"0")
            if rng.random() > 0.01:
                new.writestr(name, content)
            if rng.random() < 0.01:
                new.writestr(f"{name}x", content)
    return file.getvalue()


def changed_pickle(rng: random.Random, content: bytes) -> bytes:
    """Change single operations of a pickle: numbers, texts, calls, jumps in its memory."""
    try:
        places = [at for _, _, at in pickletools.genops(content) if at is not None]
    except ValueError:
        return flips(rng, content)
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.choice(places)
        length = rng.choice((1, 1, 2, 5))
        codes = [op.code.encode("latin-1") for op in pickletools.opcodes]
        number = rng.choice((b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"K\x00"))
        other = content[(start := rng.choice(places)) : start + rng.choice((1, 2, 8, 40))]
        choices = (rng.choice(codes), number, rng.randbytes(length), other, b"")
        changed[at : at + length] = rng.choice(choices)
    return bytes(changed)


# Load


def limit_memory(spare: int) -> None:
    """Limit the address space of this process to what it has now, and `spare` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + spare
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def outcome(path: Path, content: bytes, expected: dict[str, torch.Tensor] | None) -> str:
    """Load a file and return what happened; it starts with "wrong" if it must not."""
    path.write_bytes(content)
    run = path.parent if path.name == "backbone.safetensors" else f"file:{path}@{NAME}"
    try:
        state = antipode.load_backbone(run).state_dict()
    except (ValueError, OSError) as error:
        sentence = str(error)
        if "\n" in sentence or path.name not in sentence or len(sentence) > 600:
            return f"wrong: not a sentence that names the file: {type(error).__name__} {sentence}"
        return type(error).__name__
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"wrong: {type(error).__name__} {error} in {frame.filename}:{frame.lineno}"
    if expected is not None and any(not torch.equal(state[k], v) for k, v in expected.items()):
        return "wrong: other weights were loaded"
    return "loaded"


def case(kind: str, seed: int, number: int, goods: dict[str, bytes]) -> tuple[str, bytes, bool]:
    """Return the name of a damaged file, its content, and whether antipode wrote the original."""
    rng = random.Random(f"{kind} {seed} {number}")
    if kind == "torch":
        return "w.pth", mutated_torch(rng, goods["zip"], goods["legacy"]), False
    ours = rng.random() < 0.5
    name = rng.choice(("w.safetensors", "backbone.safetensors"))  # a file, or that of a run folder
    return name, mutated_safetensors(rng, goods["ours" if ours else "theirs"]), ours


def originals() -> dict[str, bytes]:
    """Return the files to damage."""
    state = state_of()
    files = {"theirs": save(state, metadata={"format": "pt"})}
    for name, new in (("zip", True), ("legacy", False)):
        file = io.BytesIO()
        content = {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}
        torch.save(content, file, _use_new_zipfile_serialization=new)
        files[name] = file.getvalue()
    try:
        files["ours"] = described(state)
    except ImportError:  # versions before the digest
        files["ours"] = files["theirs"]
    return files


def write_recipe(path: Path) -> None:
    """Write the recipe of a run that trained such a network."""
    try:
        from antipode.recipe.resolve import resolve
    except ImportError:  # earlier versions
        from antipode.engine.recipe import resolve
    overrides = {"backbone.name": NAME, "backbone.stem": "imagenet", "views.size": 32}
    resolve("cifar10.simclr", overrides=overrides).write(path)


def work(kind: str, seed: int, numbers: range, folder: Path, report: Any) -> None:
    """Load damaged files and report what happened, one line per file."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    goods = originals()
    expected = state_of()
    write_recipe(folder / "recipe.json")
    for name, good in GOOD.items():
        content = goods[good]
        result = outcome(folder / name, content, expected)
        assert result == "loaded", result
    limit_memory(SPARE)
    for number in numbers:
        name, content, ours = case(kind, seed, number, goods)
        report.write(f"{number} ")
        report.flush()
        result = outcome(folder / name, content, expected if ours else None)
        report.write(json.dumps(result) + "\n")
        report.flush()


def run(kind: str, count: int, seed: int = 0) -> Counter[str]:
    """Return how often each outcome was seen, from files that child processes load."""
    counts: Counter[str] = Counter()
    start = 0
    while start < count:
        numbers = range(start, min(count, start + BATCH))
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            child = os.fork()
            if not child:
                status = 1
                try:
                    with log.open("w") as report:
                        work(kind, seed, numbers, Path(folder), report)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            lines = log.read_text().splitlines() if log.exists() else []
        done = [line.partition(" ") for line in lines]
        for number, _, text in done:
            result = json.loads(text) if text else f"wrong: the process ended with {status}"
            counts[result] += 1
            if result.startswith("wrong"):
                print(f"{kind} {seed} {number}: {result}", file=sys.stderr)
        if status and not done:
            raise RuntimeError(f"the process ended with {status} before the first file")
        start = int(done[-1][0]) + 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--safetensors", type=int, default=3000)
    parser.add_argument("--torch", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind in ("safetensors", "torch"):
        counts = run(kind, getattr(options, kind), options.seed)
        print(f"{kind}: {sum(counts.values())} files, {dict(counts.most_common(8))}")


if __name__ == "__main__":
    main()
