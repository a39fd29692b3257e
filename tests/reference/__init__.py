"""Each paper on one page, naive: loops and plain arithmetic on unit vectors, written from the papers."""
