"""Plots as PNG and SVG; only `canvas` imports matplotlib."""
