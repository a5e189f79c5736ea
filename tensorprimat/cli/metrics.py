"""`tprimat metrics`, `./enhanced_metrics.py`: every derived figure of one result, with formula, inputs and sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tensorprimat.cli import fact_options as facts
from tensorprimat.cli import price_options as prices
from tensorprimat.cli.enhance import FLOPS, assumed


@facts.with_facts(after="budget_tokens")
def command(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="One result file.")],
    price: prices.Prices = None,
    flops: Annotated[str, typer.Option(metavar="CONVENTION", help=FLOPS)] = "megatron",
    budget_tokens: Annotated[
        str, typer.Option(metavar="N", help="Tokens to train on, such as 1e12, for cost, time and energy.")
    ] = "1e12",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    **typed_facts: Any,
) -> int:
    """Show every derived figure of one result with its inputs: MFU, memory, energy, cost, time to train.

    A figure that cannot be known is shown as unknown with the reason. Nothing is written; to compare results and keep a
    report, use compare_with_enhanced_metrics.py.

    \b
    Examples:
      ./enhanced_metrics.py output/benchmark_cuda_llama.json
      ./enhanced_metrics.py output/benchmark_rocm_llama.json --price 1.85 --flops palm --json

    \b
    Exit codes:
      0  shown
      2  a flag is wrong, or the file is no result
    """
    from tensorprimat.analysis.economics import economics
    from tensorprimat.core.statements import laid_over
    from tensorprimat.core.store import Loaded, load
    from tensorprimat.reports import enhanced, enhanced_json

    stated = facts.statements(typed_facts)
    loaded = laid_over([Loaded(path=result, result=load(result))], stated)
    content = economics(loaded, assumed(price, flops, budget_tokens, near=[result]))
    if json:
        print(enhanced_json.render(content), end="")
        return 0
    from tensorprimat.reports import harmless

    console = harmless.console(highlight=False)
    for sides in content.models.values():
        for side in sides:
            enhanced.show_explanation(side, console.print)
    return 0
