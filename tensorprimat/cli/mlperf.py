"""`tprimat mlperf`: import whole MLPerf Training rounds and list their results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tensorprimat.cli import known_values as known
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorprimat.mlperf.library import Entry

ACTIONS = ("import", "list", "show", "compare")


def command(
    action: Annotated[str, argument("ACTION", "import, list, show or compare.", offers=lambda: ACTIONS)],
    names: Annotated[
        list[str] | None,
        argument(
            "NAME", "import: the round's folder; list, show: parts of names; compare: one GPU or two, or vendors."
        ),
    ] = None,
    round: Annotated[
        str | None,
        takes("VERSION", "The round, such as v5.1.", "--round", offers=known.of_mlperf("round")),
    ] = None,
    output: Annotated[Path | None, takes("FILE", "Library that import writes.", "--output", "-o")] = None,
    library: Annotated[
        Path | None, takes("FILE", "Library to read, as written by import (default: the package's).")
    ] = None,
    benchmark: Annotated[
        str | None,
        takes("NAME", "Only this benchmark, such as llama31_8b.", offers=known.of_mlperf("benchmark")),
    ] = None,
    gpu: Annotated[str | None, takes("NAME", "Only this GPU, such as MI355X.", offers=known.of_mlperf("gpu"))] = None,
    gpus: Annotated[int | None, takes("NUMBER", "Only entries with this number of GPUs.")] = None,
    submitter: Annotated[str | None, takes("NAME", "Only this submitter.", offers=known.of_mlperf("submitter"))] = None,
    published: Annotated[bool, switch("--published", "list: the rows of vendors' published tables too.")] = False,
    plot: Annotated[
        Path | None, takes("FILE", "compare: draw one task, or one benchmark's scaling (.png, .svg).")
    ] = None,
    price: Annotated[
        list[str] | None,
        takes(
            "[GPU=]USD", 'compare: USD per hour of one GPU, such as "MI355X=2.50,B200=4", for the cost of a training.'
        ),
    ] = None,
    confidence: Annotated[str, takes("PERCENT", "Confidence of every interval.")] = "95%",
    as_json: Annotated[bool, switch("--json", "Print JSON.")] = False,
) -> int:
    """Read, list and compare the results of MLPerf Training, with all their runs.

    The package holds the language-model results of v4.1, v5.0 and v5.1, and a part of v6.0: facts from the logs of the
    public rounds. Times to train are scored by the rules of MLPerf: the fastest and the slowest run are dropped, the
    others are averaged, and the mean is multiplied by the factor in the entry's scaling.json, if it has one; at most
    one run may fail. Rates are derived from the logs and not verified by MLCommons.

    list --published also shows the rows of the vendors' published tables. gate --against takes a name from either list.

    \b
    import   read a checkout of mlcommons/training_results_vX.Y into a library, a file for --library
    list     one row per system and benchmark
    show     all data of the entries whose name contains NAME, each run with its file and SHA-256
    compare  two GPUs: time to train on one task, split into rate, samples, evaluation and set-up;
             one GPU: its scaling over the number of GPUs, and its results over the rounds;
             AMD, NVIDIA or both: the vendor's fastest entry in each round; GPU@ROUND selects a round of a GPU

    \b
    Examples:
      tprimat mlperf list --benchmark llama31_8b --gpus 8
      tprimat mlperf show v5.1/AMD/MI355X
      tprimat mlperf compare MI355X B200 --benchmark llama31_8b --gpus 8
      tprimat mlperf compare MI355X B300 --benchmark llama31_8b --gpus 8 --price MI355X=2.50,B300=4
      tprimat mlperf compare B200 --benchmark llama31_8b --plot scaling.png
      tprimat mlperf compare AMD NVIDIA --benchmark llama2_70b_lora --gpus 8
      tprimat mlperf compare MI300X@v5.0 MI300X@v5.1 --benchmark llama2_70b_lora
      tprimat mlperf import training_results_v5.1 --round v5.1 --output mlperf_v5.1.jsonl
      tprimat mlperf list --library mlperf_v5.1.jsonl --json

    \b
    Exit codes:
      0  done
      2  a flag is wrong, the folder is not a round, or nothing matches
    """
    if action not in ACTIONS:
        raise UsageError(f"no action {action!r}; actions: {', '.join(ACTIONS)}")
    if action == "import":
        return _import(names or [], round, output)
    if output is not None:
        raise UsageError(f"--output belongs to import; {action} prints, so redirect its output with >")
    if published and action != "list":
        raise UsageError(f"--published belongs to list, not to {action}")
    for flag, value in (("--plot", plot), ("--price", price)):
        if value is not None and action != "compare":
            raise UsageError(f"{flag} belongs to compare, not to {action}")
    from tensorprimat.analysis.ratios import checked_confidence
    from tensorprimat.cli.options import fraction, refuse_unwritable, say_each
    from tensorprimat.cli.shared_options import typed_prices
    from tensorprimat.mlperf import library as mlperf_library
    from tensorprimat.mlperf.library import EntryChoice, choose_entries
    from tensorprimat.reproduce import report as lists
    from tensorprimat.reproduce.published import choose_baselines

    refuse_unwritable(plot=plot)
    level = checked_confidence(fraction("--confidence", confidence))
    found = mlperf_library.load(library)
    choice = EntryChoice(round=round, benchmark=benchmark, gpu=gpu, num_gpus=gpus, submitter=submitter)
    chosen = () if published else choose_entries(found, choice)
    say_each(found.incomplete(chosen))
    if published:
        baselines = choose_baselines(found, choice, names or [])
        print((lists.baselines_json if as_json else lists.baselines_table)(baselines), end="")
    elif action == "compare":
        _compare(names or [], chosen, level, typed_prices(price), as_json=as_json, plot=plot)
    else:
        _print(action, names or [], chosen, as_json)
    return 0


def _print(action: str, names: list[str], chosen: tuple[Entry, ...], as_json: bool) -> None:
    from tensorprimat.mlperf import library, report

    if action == "show" and not names:
        raise UsageError("show: name an entry or a part of its name, as list prints it")
    entries = library.entries_named(chosen, names) if names else chosen
    shown = report.listing(entries) if action == "list" else report.details(entries)
    print(report.entries_json(entries, details=action == "show") if as_json else shown, end="")


def _compare(
    names: list[str],
    chosen: tuple[Entry, ...],
    confidence: float,
    prices: Mapping[str, float],
    *,
    as_json: bool,
    plot: Path | None,
) -> None:
    from tensorprimat.analysis.economics import unused_prices_of_gpus
    from tensorprimat.cli.options import picture_form, say_each
    from tensorprimat.mlperf import comparison_report as report
    from tensorprimat.mlperf.scaling import comparison_of

    found = comparison_of(names, chosen, confidence, for_plot=plot is not None)
    form = picture_form("--plot", plot) if plot is not None else "png"
    say_each(unused_prices_of_gpus(found.gpus, prices))
    if found.kind == "vendors":
        print((report.vendor_json if as_json else report.vendor_text)(found.vendors, prices), end="")
    elif found.kind == "two GPUs":
        print((report.as_json if as_json else report.comparison_text)(found.tasks, confidence, prices), end="")
    else:
        shown = (report.gpu_json if as_json else report.gpu_text)(found.scalings, found.tasks, confidence, prices)
        print(shown, end="")
    if plot is None:
        return
    from tensorprimat.mlperf import plot as mlperf_plot
    from tensorprimat.system.atomic import write_atomically

    if found.kind == "two GPUs":
        pictures = mlperf_plot.task(found.tasks[0], confidence, (form,))
    else:
        pictures = mlperf_plot.strong_scaling_plot(found.scalings, confidence, (form,))
    write_atomically(plot, pictures[form])
    print(f"Plot: {plot}", file=sys.stderr)


def _import(names: list[str], round: str | None, output: Path | None) -> int:
    from tensorprimat.cli.live import with_progress
    from tensorprimat.cli.options import refuse_unwritable
    from tensorprimat.mlperf import library as mlperf_library
    from tensorprimat.mlperf import report
    from tensorprimat.mlperf import round as mlperf_round
    from tensorprimat.session.second_process import in_processes
    from tensorprimat.system.atomic import write_atomically

    if len(names) != 1:
        raise UsageError(f"import: name one folder, not {len(names)}")
    if round is None or output is None:
        raise UsageError(f"import: {'--round' if round is None else '--output'} is missing")
    try:
        name = mlperf_round.round_name(round)
    except ValueError as error:
        raise UsageError(f"--round {round}: {error}") from None
    refuse_unwritable(output=output)
    found = mlperf_round.find_round_entries(Path(names[0]), name)
    if not found.pairs:
        raise InputError("no result of a language-model benchmark in it", path=names[0])
    reading = in_processes(mlperf_round.read_entry, found.pairs, worth=mlperf_round.WORTH_A_PROCESS)
    library = mlperf_round.library_of(found, list(with_progress(reading, len(found.pairs))), round=name)
    write_atomically(output, mlperf_library.dump(library))
    notes, summary = report.of_import(library)
    for note in notes:
        print(note, file=sys.stderr)
    print(f"{output}: {summary}")
    return 0
