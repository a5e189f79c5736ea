"""`tprimat metrics`, `./enhanced_metrics.py`: every derived figure of one result, with formula, inputs and sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from tensorprimat.cli import shared_options
from tensorprimat.cli.enhance import OF_METRICS, choices
from tensorprimat.cli.options import say_each
from tensorprimat.cli.shared_options import argument, switch, with_options


@shared_options.with_fact_options(after="budget_tokens", side="")
@with_options(OF_METRICS, after="result")
def command(
    result: Annotated[Path, argument("RESULT", "One result, log, or folder of them.")],
    explain: Annotated[bool, switch("--explain", "Show formula and inputs of every figure.")] = False,
    json: Annotated[bool, switch("--json", "Print JSON.")] = False,
    **typed: Any,
) -> int:
    """Show every derived figure of one result: MFU, memory, energy, cost, time to train.

    A figure that cannot be known is listed with the reason; --explain shows formulas and inputs. Nothing is written;
    to compare results and keep a report, use compare_with_enhanced_metrics.py.

    \b
    Examples:
      ./enhanced_metrics.py output/benchmark_cuda_llama.json
      ./enhanced_metrics.py output/benchmark_rocm_llama.json --price 1.85 --flops palm --json

    \b
    Exit codes:
      0  shown
      2  a flag is wrong, or the file is neither a result nor a training log
    """
    from tensorprimat.analysis.compare import compare
    from tensorprimat.analysis.sides import labels_of
    from tensorprimat.reports.json import render
    from tensorprimat.reports.sections import ENHANCED
    from tensorprimat.session.sides import laid_over, load_any

    stated = shared_options.statements(typed)
    read, notes = load_any([result])
    say_each(notes)
    loaded = laid_over(read, stated, labels_of)
    comparison = compare(loaded, choices=choices(typed, near=[result]))
    if json:
        print(render(comparison, ENHANCED), end="")
    else:
        from tensorprimat.reports.console import print_metrics

        print_metrics(comparison, explain=explain)
    return 0
