"""Reproducing a published speed: which setting differs, and how much of the gap the differences explain."""
