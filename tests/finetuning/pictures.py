"""Small folders of images whose classes are easy to tell apart, and a tiny classifier on them."""

import numpy as np
from PIL import Image

COLOURS = {"blue": (30, 40, 220), "green": (30, 200, 40), "red": (220, 30, 30)}


def picture(name, seed, size=20):
    """Return a noisy picture of a class: its colour tells the class."""
    noise = np.random.default_rng(seed).normal(0, 25, (size, size, 3))
    return Image.fromarray((np.array(COLOURS[name]) + noise).clip(0, 255).astype(np.uint8))


def folder(root, counts=None, size=20):
    """Write a folder of pictures for each class, by default 20 of each."""
    counts = counts or dict.fromkeys(COLOURS, 20)
    for place, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            picture(name, 1000 * place + number, size).save(root / name / f"{number:03}.png")
    return f"folder:{root}"


def flat(root, count=6):
    """Write pictures of all classes into one folder without subfolders."""
    root.mkdir()
    names = list(COLOURS)
    for number in range(count):
        picture(names[number % 3], 9000 + number).save(root / f"{number}.png")
    return f"folder:{root}"
