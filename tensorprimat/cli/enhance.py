"""`tprimat enhance`, `./compare_with_enhanced_metrics.py`: results with MFU, memory, energy, cost and time to train."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorprimat.cli import fact_options as facts
from tensorprimat.cli import price_options as prices
from tensorprimat.cli.compare import PLACES, folders_here
from tensorprimat.cli.options import TO_FILE, named_file, say_files, writable_folder
from tensorprimat.core.errors import MissingPackageError, UsageError
from tensorprimat.core.safe_text import one_line

if TYPE_CHECKING:
    from tensorprimat.analysis.economics import Economics
    from tensorprimat.analysis.metrics import MetricChoices

DEFAULT_FOLDER = Path("output")
FLOPS = "FLOPs convention: megatron, palm, 6n, torchtitan, full_attention or nemo_transformer."
PICTURE = "enhanced_plot"


@facts.with_facts(after="output_dir")
def command(
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RESULT]...", help="Result files, or folders of them.", show_default=PLACES),
    ] = None,
    price: prices.Prices = None,
    flops: Annotated[str, typer.Option(metavar="CONVENTION", help=FLOPS)] = "megatron",
    budget_tokens: Annotated[
        str, typer.Option(metavar="N", help="Tokens to train on, such as 1e12, for cost, time and energy.")
    ] = "1e12",
    output_dir: Annotated[
        Path, typer.Option(metavar="DIR|FILE", help=f"Folder for enhanced_*{TO_FILE}")
    ] = DEFAULT_FOLDER,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no picture.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show formula and inputs of every figure.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print enhanced_metrics.json on stdout instead.")] = False,
    **typed_facts: Any,
) -> int:
    """Show efficiency and cost of benchmark results: MFU, memory, energy, cost and time to train.

    Every figure states its basis: MFU its FLOPs convention and dense peak, power its origin (measured or
    nameplate), a price its provider and date. A figure that cannot be known (unknown GPU, precision or model shape)
    is empty, with the reason. Prices change: set yours with --price.

    Writes enhanced_report.md, enhanced_plot.png and .svg, and enhanced_metrics.json into DIR.

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
    from tensorprimat.analysis.economics import economics
    from tensorprimat.core.atomic import write_atomically
    from tensorprimat.core.statements import laid_over
    from tensorprimat.core.store import load_all
    from tensorprimat.reports import enhanced, enhanced_json

    results = results or folders_here()
    stated = facts.statements(typed_facts)
    assumptions = assumed(price, flops, budget_tokens, near=results)
    loaded, problems = load_all(results)
    for problem in problems:
        print(one_line(problem), file=sys.stderr)
    content = economics(laid_over(loaded, stated), assumptions)
    document = enhanced_json.render(content)
    files: dict[str, str | bytes] = {}
    if file := named_file("--output-dir", output_dir):
        ending = file.suffix.lower()
        table = enhanced_json.render_csv(content) if ending == ".csv" else enhanced.render_markdown(content)
        write_atomically(file, document if ending == ".json" else table)
    else:
        folder = writable_folder("--output-dir", output_dir)
        files = {} if no_plot else _pictures(content)
        picture = next((name for name in files if name.endswith(".png")), None)
        files |= {
            "enhanced_report.md": enhanced.render_markdown(content, picture=picture),
            "enhanced_metrics.json": document,
        }
        for name, written in files.items():
            write_atomically(folder / name, written)
    if json:
        print(document, end="")
    else:
        from tensorprimat.reports import harmless

        enhanced.show(content, harmless.console(highlight=False).print, explain=explain)
    say_files(f"Written to {output_dir}", list(files))
    return 0


def _pictures(content: Economics) -> dict[str, str | bytes]:
    """Return the plot's files; none where matplotlib is missing, which stderr says."""
    from tensorprimat.reports.plots import metric_panels

    try:
        return {f"{PICTURE}.{form}": picture for form, picture in metric_panels.render(content).items()}
    except MissingPackageError as error:
        print(error, file=sys.stderr)
        return {}


def assumed(
    typed_prices: Sequence[str] | None, convention: str, budget_tokens: str, *, near: Sequence[Path] = ()
) -> MetricChoices:
    """Return the user's choices, checked, and the preflights found with the results. Raises UsageError that names the
    flag.
    """
    from tensorprimat.analysis.metrics import MetricChoices
    from tensorprimat.core import preflight
    from tensorprimat.core.flops import convention_named

    return MetricChoices(
        convention=convention_named(convention).name,
        prices=prices.of(typed_prices),
        budget_tokens=_tokens(budget_tokens),
        preflights=preflight.kept(dict.fromkeys(path if path.is_dir() else path.parent for path in near)),
    )


def _tokens(text: str) -> float:
    tokens = prices.number(text)
    if tokens is None or tokens < 1:
        raise UsageError(f"--budget-tokens {text}: must be a number of tokens, such as 1e12")
    return tokens
