"""`tprimat export`: write every result below folders into Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tensorprimat.cli import options
from tensorprimat.cli.shared_options import argument, takes
from tensorprimat.core.folders import DEFAULT_FOLDER


def command(
    folders: Annotated[
        list[Path] | None,
        argument("DIR", "Folders of results, searched with their subfolders.", show_default=str(DEFAULT_FOLDER)),
    ] = None,
    output: Annotated[Path, takes("FOLDER", "Folder for the Parquet files.")] = DEFAULT_FOLDER / "store",
) -> int:
    """Write every result in and below folders into a store of Parquet files, which answers queries over many results.

    Writes results.parquet, runs.parquet and steps.parquet, one row per result, run and logged step; their column file
    joins them. The result files remain the truth: the same files give the same store again. tprimat list --from FOLDER
    shows and queries it. Needs the package pyarrow, and queries need duckdb: pip install 'tensorprimat[store]'.

    \b
    Examples:
      tprimat export output/ --output store
      tprimat list --from store --best

    \b
    Exit codes:
      0  written
      1  interrupted, or a file could not be written
      2  a flag is wrong, pyarrow is missing, or there is no result
    """
    import sys
    from functools import partial

    from tensorprimat.cli.live import with_progress
    from tensorprimat.core.quantities import count
    from tensorprimat.session.export import write_store

    options.refuse_file("--output", output, "name a folder")
    options.refuse_output("--output", output)
    written, left_out = write_store(folders or [DEFAULT_FOLDER], output, watch=partial(with_progress, total=None))
    options.say_each(left_out)
    options.say_files(f"Written to {output}", [f"{name}.parquet" for name in written])
    print(", ".join(f"{name}: {count(rows)} rows" for name, rows in written.items()), file=sys.stderr)
    return 0
