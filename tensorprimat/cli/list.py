"""`tprimat list`: show every result below folders as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tensorprimat.cli import known_values as known
from tensorprimat.cli import options
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.errors import UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER


def command(
    folders: Annotated[
        list[Path] | None,
        argument("DIR", "Folders of results, searched with their subfolders.", show_default=str(DEFAULT_FOLDER)),
    ] = None,
    filter: Annotated[
        list[str] | None, takes("CONDITION", 'Keep results: "gpu=H100", "num_gpus >= 8"; may be repeated.')
    ] = None,
    sort: Annotated[str | None, takes("COLUMNS", "Order by columns, -COLUMN from large to small.")] = None,
    group: Annotated[str | None, takes("COLUMNS", "Show one row for each group of results.")] = None,
    best: Annotated[bool, switch("--best", "Show the best result of each model and GPU, or of each group.")] = False,
    metric: Annotated[
        str, takes("NAME", "Metric to show and to order by.", offers=known.metrics_over_time)
    ] = "tokens_per_second_per_gpu",
    expect: Annotated[
        str | None, takes("MATRIX", 'Also show what a plan lacks: "model=llama,qwen gpu=H100,MI300X".')
    ] = None,
    json: Annotated[bool, switch("--json", "Print every column as JSON.")] = False,
    html: Annotated[Path | None, takes("FILE.html", "Also write the tables as one HTML page.")] = None,
    from_store: Annotated[
        Path | None, takes("FOLDER", "Read the store that tprimat export wrote, instead of DIR.", "--from")
    ] = None,
    query: Annotated[str | None, takes("SQL", "With --from: show the answer of DuckDB to a query.")] = None,
) -> int:
    """Show every result in and below folders as one table, best first for each model and GPU.

    A file whose content equals that of another one is shown once. --best leaves out incomplete and profiled results and
    those without the metric; of each group the best remains. --group counts the results of each group and shows lowest,
    median and highest metric. --expect names planned values of columns; each combination that no usable result has is
    missing. All names of a model or a GPU count as the same: H100 is NVIDIA H100 80GB HBM3. Columns are those of
    --json; expressions are those of tprimat aggregate. A query finds the tables results, runs and steps, joined by
    their column file; it reads no other file. Broken files are named on stderr.

    \b
    Examples:
      tprimat list output/ --best --expect "model=llama,qwen gpu=H100,MI300X"
      tprimat list output/ --filter "gpu=H100" --group model,precision --html list.html
      tprimat list --from output/store --query "SELECT gpu, max(tokens_per_second) FROM results GROUP BY gpu"

    \b
    Exit codes:
      0  shown
      1  interrupted, or the page could not be written
      2  a flag is wrong, a package is missing, or there is no result
    """
    from tensorprimat.analysis import collection
    from tensorprimat.reports import collection as report
    from tensorprimat.session import collection as session
    from tensorprimat.session import export
    from tensorprimat.system.atomic import write_atomically

    options.refuse_unwritable(html=html)
    if from_store is not None and folders:
        raise UsageError(f"--from {from_store}: choose the store or {folders[0]}")
    if query is not None and (from_store is None or filter or sort or group or best or expect):
        raise UsageError("--query: needs --from FOLDER, and replaces --filter, --sort, --group, --best and --expect")
    definition = collection.metric_named(metric)
    if from_store is not None and query is not None:
        answer = export.query(from_store, query)
        tables, document = [report.answer_table(answer)], report.list_json(rows=answer)
    else:
        if from_store is not None:
            rows = export.stored_results(from_store)
        else:
            rows, left_out = session.table_of_results(folders or [DEFAULT_FOLDER])
            options.say_each(left_out)
        keys, columns = _words(sort), _words(group)
        rows = collection.rows_chosen(rows, filter or ())
        missing = collection.missing_of_plan(rows, expect) if expect else None
        if best:
            rows = collection.best_of_groups(rows, columns or collection.GROUP, definition)
        rows = collection.rows_in_order(rows, [] if columns and not best else keys, definition)
        groups = None
        if columns and not best:
            groups = collection.rows_in_order(collection.grouped(rows, columns, definition), keys, definition)
        tables = [report.results_table(rows, definition) if groups is None else report.groups_table(groups, definition)]
        tables += [] if missing is None else [report.missing_table(missing)]
        document = report.list_json(results=rows if groups is None else None, groups=groups, missing=missing)
    if html is not None:
        from tensorprimat.reports.html import tables_page

        write_atomically(html, tables_page(tables, heading="Results"))
        options.say_files("Files", [str(html)])
    if json:
        print(document)
    else:
        report.print_tables(tables)
    return 0


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]
