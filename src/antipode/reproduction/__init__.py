"""Reproduce the tables and figures of the papers: plan runs, train, check laws, show results."""
