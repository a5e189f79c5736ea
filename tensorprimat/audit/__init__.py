"""Checks of a result against itself: clocks and counts of the log, figures that imply one another, odd rows."""
