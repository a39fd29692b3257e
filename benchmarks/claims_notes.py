"""What we think about single claims, for claims_page.py: by item and by the text of the claim."""

NOTES: dict[tuple[str, str], str] = {}
