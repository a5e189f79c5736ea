"""The store of many results: a folder of Parquet files that pyarrow writes and DuckDB queries.

`results.parquet`, `runs.parquet` and `steps.parquet` have the columns of `analysis/collection`; `file` joins them. The
result files stay the truth: the same files give the same bytes again.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tensorprimat.analysis import collection
from tensorprimat.core.errors import InputError, MissingPackageError, UsageError
from tensorprimat.core.steps import FLAG_COLUMNS, FLOAT_COLUMNS, INTEGER_COLUMNS, INTERRUPTIONS, Steps
from tensorprimat.session.collection import ReadResult, read_results
from tensorprimat.storage.cell_rows import COLUMN_DTYPES
from tensorprimat.system.atomic import write_atomically

if TYPE_CHECKING:
    import pandas as pd

TABLES: Mapping[str, Mapping[str, type]] = {
    "results": collection.RESULT_COLUMNS,
    "runs": collection.RUN_COLUMNS,
    "steps": collection.STEP_COLUMNS,
}
"""Table → its columns; its file is the name with the suffix .parquet."""
RESULTS_AT_ONCE = 1000
STEPS_AT_ONCE = 200_000
"""Numbers of results and of steps that are in memory at most, apart from one result's; they become a row group."""


@dataclass(kw_only=True)
class _Batch:
    """The results that are written together."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    steps: list[tuple[str, Steps]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= RESULTS_AT_ONCE or sum(len(steps) for _, steps in self.steps) >= STEPS_AT_ONCE


def write_store(
    places: Sequence[Path], folder: Path, *, watch: Callable[[Iterator[ReadResult]], Iterator[ReadResult]]
) -> tuple[dict[str, int], list[str]]:
    """Write every result below the places; return the rows of each table, and a sentence for each file left out.

    Only one batch is in memory; a file appears under its name when all are complete. watch: shows the progress. Raises
    the errors of `read_results`, MissingPackageError without pyarrow, and OSError where the folder cannot be written.
    """
    pyarrow = _package("pyarrow", "Parquet files")
    types = _types(pyarrow)
    schemas = {
        table: pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
        for table, columns in TABLES.items()
    }
    left_out: list[str] = []
    written = dict.fromkeys(TABLES, 0)
    batches = _batches(watch(read_results(places, left_out, whole=True)))
    first = list(islice(batches, 1))  # what is refused is refused before a folder is made

    def fill(files: Mapping[str, IO[bytes]]) -> None:
        import pyarrow.parquet

        with contextlib.ExitStack() as opened:  # an open writer would be closed after its file
            writers = {
                name: opened.enter_context(pyarrow.parquet.ParquetWriter(file, schemas[name], compression="zstd"))
                for name, file in files.items()
            }
            for batch in chain(first, batches):
                tables = {
                    "results": pyarrow.Table.from_pylist(batch.rows, schema=schemas["results"]),
                    "runs": pyarrow.Table.from_pylist(batch.runs, schema=schemas["runs"]),
                    "steps": _table_of_steps(pyarrow, batch.steps, schemas["steps"]),
                }
                for name, table in tables.items():
                    writers[name].write_table(table)
                    written[name] += table.num_rows

    def open_all(files: Mapping[str, IO[bytes]]) -> None:
        if len(files) == len(TABLES):
            fill(files)
            return
        name = list(TABLES)[len(files)]
        write_atomically(folder / f"{name}.parquet", lambda file: open_all({**files, name: file}))

    open_all({})
    return written, left_out


def _batches(found: Iterator[ReadResult]) -> Iterator[_Batch]:
    batch = _Batch()
    for read in found:
        if read.row is None or read.result is None:
            continue
        file = read.row["file"]
        batch.rows.append(read.row)
        batch.runs += [{"file": file, **run.model_dump(mode="json")} for run in read.result.runs]
        batch.steps.append((file, read.result.steps))
        if batch.is_full:
            yield batch
            batch = _Batch()
    if batch.rows:
        yield batch


def _types(pyarrow: Any) -> dict[type, Any]:
    return {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}


def _table_of_steps(pyarrow: Any, found: Sequence[tuple[str, Steps]], schema: Any) -> Any:
    """Return the steps of several results as one table: null where unseen, NaN where NaN was logged."""
    files, every = zip(*found, strict=True)
    lengths = list(map(len, every))
    columns: dict[str, Any] = {
        "file": pyarrow.array(np.repeat(np.array(files, object), lengths)),
        "row": np.concatenate([np.arange(length) for length in lengths]),
    }
    for name in collection.STEP_COLUMNS:
        if name in columns:
            continue
        values = np.concatenate([steps.column(name) for steps in every])
        if name in FLOAT_COLUMNS:
            logged = np.concatenate([steps.logged_nan(name) for steps in every])
            columns[name] = pyarrow.array(values, mask=np.isnan(values) & ~logged)
        elif name in INTEGER_COLUMNS:
            columns[name] = pyarrow.array(values, mask=values < 0 if name == "line" else None)
        elif name in FLAG_COLUMNS and name != "interrupted_by":
            columns[name] = pyarrow.array(values.astype(bool))
        else:
            columns[name] = pyarrow.array([INTERRUPTIONS[int(value)] or None for value in values])
    arrays = [pyarrow.array(columns[one.name]).cast(one.type) for one in schema]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def stored_results(folder: Path) -> pd.DataFrame:
    """Return the results of a store as a table, as `table_of_results` returns those of files.

    Raises InputError where the folder is no store, MissingPackageError without DuckDB or pyarrow.
    """
    found = query(folder, "SELECT * FROM results")
    kinds = {name: COLUMN_DTYPES[kind] for name, kind in collection.RESULT_COLUMNS.items() if name in found}
    return found.astype(kinds).reindex(columns=list(collection.RESULT_COLUMNS))


def query(folder: Path, sql: str) -> pd.DataFrame:
    """Return the answer of DuckDB to a query of a store's tables: results, runs and steps.

    The query can read no other file, and write nothing: DuckDB would let another statement than SELECT write to the
    store, and a large one spill to the current folder. Raises InputError where the folder is no store, UsageError with
    the reason for a query that is refused, MissingPackageError without DuckDB or pyarrow.
    """
    import pandas as pd

    duckdb, pyarrow = (_package(name, "queries of a store") for name in ("duckdb", "pyarrow"))
    dtypes = {of_arrow: pd.api.types.pandas_dtype(COLUMN_DTYPES[kind]) for kind, of_arrow in _types(pyarrow).items()}
    files = {name: folder / f"{name}.parquet" for name in TABLES}
    if absent := [file.name for file in files.values() if not os.path.isfile(file)]:
        raise InputError(
            f"no {absent[0]} in it", path=folder, remedy="write it with tprimat export DIR --output FOLDER"
        )
    with duckdb.connect() as connection:
        try:
            for name, file in files.items():
                path = os.path.realpath(file).replace("'", "''")
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
        except duckdb.Error as error:
            raise InputError(f"no store that DuckDB can read: {_first_line(error)}", path=folder) from error
        names = [os.path.realpath(file) for file in files.values()]
        connection.execute("SET allowed_paths = $1", [names])
        connection.execute("SET temp_directory = ''")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            if [one.type.name for one in connection.extract_statements(sql)] != ["SELECT"]:
                raise UsageError("--query: not one statement that returns a table; write one SELECT")
            return connection.sql(sql).to_arrow_table().to_pandas(types_mapper=dtypes.get)
        except duckdb.Error as error:
            raise UsageError(f"--query: {_first_line(error)}") from error
        except RuntimeError as error:  # as DuckDB reports Ctrl-C
            raise KeyboardInterrupt from error


def _package(name: str, needed_for: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingPackageError(name, needed_for=needed_for) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
