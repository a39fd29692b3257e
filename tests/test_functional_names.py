"""`antipode.functional` shows its public functions and nothing that it imports for itself."""

from antipode import functional


def test_only_public_functions_are_listed():
    assert dir(functional) == sorted(functional.__all__)
    assert all(callable(getattr(functional, name)) for name in functional.__all__)
