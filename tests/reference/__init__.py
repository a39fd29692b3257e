"""Naive reference implementations, one page per paper: loops and plain arithmetic."""
