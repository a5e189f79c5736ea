"""`tprimat reproduce`: a published speed beside your own, setting by setting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tensorprimat.cli import known_values as known
from tensorprimat.cli.shared_options import argument, switch
from tensorprimat.core.errors import UsageError


def command(
    name: Annotated[
        str | None, argument("NAME", "Published result, or a part of its name.", offers=known.published_names)
    ] = None,
    result: Annotated[Path | None, argument("RESULT", "Your result file or training log.")] = None,
    show_list: Annotated[
        bool, switch("--list", "List the published results; with NAME, those that contain it.")
    ] = False,
    as_json: Annotated[bool, switch("--json", "Print JSON.")] = False,
) -> int:
    """Show which settings differ between a published speed and your own, and how much of the gap they explain.

    The published results are rows of vendors' tables and entries of MLPerf Training. The table shows the settings that
    differ, those with the largest known cost first; equal settings and those that one side does not state are listed
    below it. A cost is the ratio of two published rates that differ in this setting alone; others are unknown.

    \b
    Examples:
      tprimat reproduce --list torchtitan
      tprimat reproduce torchtitan/llama/8xH100_96GB_HBM2e/bf16/16x8192/FSDP_8_compile output/benchmark_cuda_llama.json
      tprimat reproduce mlperf:v6.0/AMD/MI355X_EPYC_9575F_primus/llama31_8b result_0.txt --json

    \b
    Exit codes:
      0  shown, whatever differs
      2  a flag is wrong, no published result has the name, or the result cannot be read
    """
    from tensorprimat.cli.options import say_each
    from tensorprimat.mlperf.library import EntryChoice, bundled
    from tensorprimat.reports import harmless
    from tensorprimat.reproduce import report
    from tensorprimat.reproduce.published import choose_baselines, find_baseline
    from tensorprimat.reproduce.reproduction import reproduction_of
    from tensorprimat.session.sides import load_any

    if show_list:
        if result is not None:
            raise UsageError("--list takes a part of a name, and no result")
        found = choose_baselines(bundled(), EntryChoice(), [name] if name else [])
        print((report.baselines_json if as_json else report.baselines_table)(found), end="")
        return 0
    if name is None or result is None:
        raise UsageError("name a published result and your result; --list prints the names")
    baseline = find_baseline(name)
    loaded, notes = load_any([result])
    say_each(notes)
    if len(loaded) != 1:
        raise UsageError(f"{result}: {len(loaded)} results; name the file of one")
    reproduction = reproduction_of(baseline, loaded[0].result, str(loaded[0].path))
    if as_json:
        print(report.reproduction_json(reproduction), end="")
    else:
        report.show(reproduction, harmless.console(highlight=False))
    return 0
