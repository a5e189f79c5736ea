"""`tprimat enhance`, `./compare_with_enhanced_metrics.py`: results with MFU, memory, energy, cost and time to train."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import options, shared_options
from tensorprimat.cli.compare import PLACES, folders_here, write_report
from tensorprimat.cli.shared_options import argument, switch, takes, typed_option, with_options
from tensorprimat.core.errors import UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER

if TYPE_CHECKING:
    from tensorprimat.analysis.metrics import MetricChoices

_FLOPS = "FLOPs convention: megatron, palm, 6n, torchtitan, full_attention or nemo_transformer."
BUDGET = "Tokens to train on, such as 1e12, for cost, time and energy."
_RESULTS = "Results, logs, or folders of them; NAME=PATH names a side, the first is the baseline."
OF_METRICS = (
    typed_option("price", list[str] | None, "[GPU=]USD", shared_options.PRICE),
    typed_option("flops", str, "CONVENTION", _FLOPS, default="megatron"),
    typed_option("budget_tokens", str, "N", BUDGET, default="1e12"),
)
"""Options of the commands that show derived metrics."""


@shared_options.with_fact_options(after="output_dir")
@with_options(OF_METRICS, after="results")
def command(
    results: Annotated[list[str] | None, argument("[NAME=]PATH", _RESULTS, show_default=PLACES)] = None,
    output_dir: Annotated[
        Path, takes("DIR|FILE", f"Folder for enhanced_*{options.to_file(options.REPORT_ENDINGS)}")
    ] = DEFAULT_FOLDER,
    no_plot: Annotated[bool, switch("--no-plot", "Write no picture.")] = False,
    explain: Annotated[bool, switch("--explain", "Show formula and inputs of every figure.")] = False,
    json: Annotated[bool, switch("--json", "Print enhanced_metrics.json on stdout instead of the tables.")] = False,
    **typed: Any,
) -> int:
    """Compare efficiency and cost of benchmark results: MFU, memory, energy, cost and time to train.

    Writes the report of `tprimat compare` with further sections on derived metrics. Results are grouped by platform; if
    an argument has a name, each argument is a side, as in `tprimat compare`.
    Every figure states its basis: MFU its FLOPs convention and dense peak, power its origin (measured or nameplate), a
    price its provider and date. A figure that cannot be known (unknown GPU, precision or model shape) is empty, with
    the reason. Prices change: set yours with --price.

    Writes enhanced_report.html and .md, enhanced_plot.png and .svg, and enhanced_metrics.json and .csv into DIR.

    \b
    Examples:
      ./compare_with_enhanced_metrics.py --price "H100=2.10" --price "MI300X=1.85"
      ./compare_with_enhanced_metrics.py output/benchmark_cuda_llama.json --flops palm --budget-tokens 15e12 --explain

    \b
    Exit codes:
      0  shown and written
      1  interrupted, or a file could not be written
      2  a flag is wrong, or there is no result
    """
    from tensorprimat.analysis.compare import compare
    from tensorprimat.analysis.sides import labels_of
    from tensorprimat.reports.json import render
    from tensorprimat.reports.sections import ENHANCED
    from tensorprimat.session import sides
    from tensorprimat.session.sides import laid_over

    options.refuse_output("--output-dir", output_dir, options.REPORT_ENDINGS)
    arguments = sides.parse_argument(results or [str(folder) for folder in folders_here()])
    stated = shared_options.statements(typed)
    chosen = choices(typed, near=[one.path for one in arguments])
    loaded, problems = sides.load_sides(arguments, by_argument=any(one.name is not None for one in arguments))
    options.say_each(problems)
    comparison = compare(laid_over(loaded, stated, labels_of), choices=chosen)
    files = write_report(comparison, ENHANCED, output_dir, None if no_plot else partial)
    if json:
        print(render(comparison, ENHANCED), end="")
    else:
        from tensorprimat.reports.console import print_summary

        print_summary(comparison, report=ENHANCED, explain=explain)
    options.say_files(f"Written to {output_dir}", files)
    return 0


def choices(typed: Mapping[str, Any], *, near: Sequence[Path]) -> MetricChoices:
    """Return the values of OF_METRICS, checked, and the preflights found with the results.

    Raises UsageError that names the flag.
    """
    from tensorprimat.analysis.metrics import MetricChoices
    from tensorprimat.core.fact_values import typed_tokens
    from tensorprimat.models.flops import convention_named
    from tensorprimat.storage import preflight

    tokens = typed_tokens(typed["budget_tokens"])
    if tokens is None or tokens < 1:
        raise UsageError(f"--budget-tokens {typed['budget_tokens']}: must be a number of tokens, such as 1e12")
    return MetricChoices(
        convention=convention_named(typed["flops"]).name,
        prices=shared_options.typed_prices(typed["price"]),
        budget_tokens=tokens,
        preflights=preflight.kept(dict.fromkeys(path if os.path.isdir(path) else path.parent for path in near)),
    )
