"""The tables and figures of the papers: plan, make, judge and present them."""
