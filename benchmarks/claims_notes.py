"""What we think about single claims, for claims_page.py.

The keys are an item and the text of a claim. The values are the verdict that a note explains, and
the note. If the verdict has changed since, the note is not shown.
"""

NOTES: dict[tuple[str, str], tuple[str, str]] = {}
