"""Tests of the look that all pages share: colours for any kind of colour vision, one style."""

import itertools
import re

import numpy as np
import pytest

from antipode.reporting.look import BRAND, colours, matplotlib_style, series, stylesheet
from antipode.reproduction.present import page

# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def linear(text):
    """Return the linear RGB of a colour such as #2a7de1."""
    c = np.array([int(text[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Return the CIELAB coordinates of linear RGB."""
    matrix = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = matrix @ rgb / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(first, second):
    """Return the contrast ratio of two colours (WCAG 2)."""
    bright = sorted(float(linear(one) @ [0.2126, 0.7152, 0.0722]) for one in (first, second))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISION)
def test_all_series_are_told_apart_with_any_colour_vision(vision, dark):
    """A difference of 2.3 is just noticeable. The two blues of an earlier palette had 3."""
    palette = colours(dark)
    seen = [lab(np.clip(VISION[vision] @ linear(palette[f"s{at}"]), 0, 1)) for at in range(10)]
    apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert min(apart) > 18


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_series_stand_out_from_the_page(dark):
    palette = colours(dark)
    for name in ("ink", "soft", "faint", "accent", "grave", "good"):
        for back in ("paper", "card"):
            assert contrast(palette[name], palette[back]) > 4.5, (name, back)
    for name, back in (("grave", "graveback"), ("good", "goodback"), ("soft", "wash")):
        assert contrast(palette[name], palette[back]) > 4.5, name
    for at in range(10):
        assert contrast(palette[f"s{at}"], palette["card"]) > 2.6, at


def test_both_dark_themes_are_the_same():
    """One follows the system and one the button."""
    blocks = re.findall(r"--paper: #121417.*?color-scheme", stylesheet(), re.DOTALL)
    assert len(blocks) == 2
    assert len({" ".join(block.split()) for block in blocks}) == 1


def test_pictures_use_the_colours_of_the_pages():
    style = matplotlib_style()
    assert style["figure.facecolor"] == colours()["paper"] and len(set(series())) == 10


def test_the_page_of_an_item_has_the_look_of_the_report():
    record = {
        **{"title": "A <b>", "question": "q", "item": "x.y", "scale": "smoke", "note": "n"},
        **{"panels": [], "source": "s", "trend": "t", "laws": [], "missing": [], "cells": []},
        **{"not judged": [], "runs": []},
    }
    text = page(record, None)
    assert stylesheet("item") in text and BRAND in text
    assert "<b>" not in text.replace("A &lt;b&gt;", "")
