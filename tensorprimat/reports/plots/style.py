"""The style of every plot: colours, markers, sizes and the settings of matplotlib.

The colours are those of Okabe and Ito, distinct for every kind of colour vision; hatches, markers and line styles
repeat the distinction for print without colour.
"""

from __future__ import annotations

# Okabe & Ito, "Color Universal Design" (2008), without yellow, which is too light on white paper
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++")
LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = "osD^vP*X"
INK, FAINT = "#222222", "#8a8a8a"

DPI = 150
WIDTH_INCHES = 13.0
LEAST_PANEL_INCHES = 3.1
LEGEND_COLUMNS = 3
LINE_CHARACTERS = 165  # of a line below the title
MOST_POINTS = 3000  # per curve: more than a panel has pixels

STYLE = {
    "font.size": 9.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,  # "1.00004" on an axis, not "0.00004" and "+1" below it
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "text.parse_math": False,  # a "$" in a device name is a dollar
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "tensorprimat",  # the same comparison gives the same file
}
