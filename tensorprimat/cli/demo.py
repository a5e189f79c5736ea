"""`tprimat demo`: compare bundled MLPerf Training results of AMD and NVIDIA and open the page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from tensorprimat.cli.shared_options import TypedFolder, switch, takes
from tensorprimat.system.regular import resolved

ENTRIES = {
    "AMD MI355X": "mlperf:v5.1/AMD/MI355X_EPYC_9575F_pytorch/llama31_8b",
    "NVIDIA GB200": "mlperf:v5.1/NVIDIA/tyche_ngpu8_ngc25.09_nemo/llama31_8b",
}
"""Each vendor's own entry on eight GPUs, in the newest round with the training time of every run."""
GPUS = ("MI355X", "B300")
"""GPUs of the newest round, for the plot over submitters."""
PICTURE = "mlperf_llama31_8b.png"


def command(
    output_dir: Annotated[Path, takes("DIR", "Folder for the page and the reports.")] = Path("tprimat_demo"),
    no_open: Annotated[bool, switch("--no-open", "Do not open the page in a browser.")] = False,
) -> int:
    """Compare AMD and NVIDIA on Llama 3.1 8B with results of MLPerf Training v5.1 that the package contains.

    Writes the same page and reports as compare, from ten runs on each side, and a plot of all submitters of MI355X and
    B300 in v6.0; opens the page if there is a browser. Nothing is trained and nothing is downloaded.

    \b
    Examples:
      tprimat demo
      tprimat demo --output-dir /tmp/demo --no-open

    \b
    Exit codes:
      0  done
      1  a file could not be written
      2  a flag is wrong
    """
    from tensorprimat.analysis.compare import compare
    from tensorprimat.cli.compare import write_report
    from tensorprimat.mlperf import compare as mlperf_compare
    from tensorprimat.mlperf.library import bundled
    from tensorprimat.mlperf.plot import task
    from tensorprimat.reports import harmless
    from tensorprimat.reports.console import headlines, print_summary
    from tensorprimat.reports.page import page_of
    from tensorprimat.reports.plots.canvas import can_draw
    from tensorprimat.reports.sections import COMPARISON
    from tensorprimat.reproduce.published import find_baseline, result_of_baseline
    from tensorprimat.session.second_process import second_process
    from tensorprimat.storage.store import Loaded
    from tensorprimat.system.atomic import write_atomically

    loaded = [
        Loaded(path=Path(name), result=result_of_baseline(find_baseline(name)), side=label)
        for label, name in ENTRIES.items()
    ]
    comparison = compare(loaded)
    folder = TypedFolder(output_dir)
    with second_process() as start_call:
        write_report(comparison, COMPARISON, folder, start_call)
    [whole] = mlperf_compare.compare_gpus(
        [entry for entry in bundled().entries if (entry.benchmark, entry.num_gpus) == ("llama31_8b", 8)], *GPUS
    )
    if can_draw():
        write_atomically(folder / PICTURE, task(whole, 0.95)["png"])
    screen = harmless.console(highlight=False)
    print_summary(comparison, screen)
    page = resolved(folder / "comparison_report.html")
    print(f"Page: {page}")
    if can_draw():
        print(f"Plot of all submitters, {GPUS[0]} and {GPUS[1]}: {resolved(folder / PICTURE)}")
    print()
    screen.print(*headlines(page_of(comparison, COMPARISON), screen.width), sep="\n")
    if not no_open:
        _open(page)
    return 0


def _open(page: Path) -> None:
    """Open a page on a desktop only; a terminal browser would occupy the terminal."""
    import webbrowser

    desktop = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if desktop and sys.stdout.isatty():
        webbrowser.open(page.as_uri())
