"""Import of a whole MLPerf round: several processes read its entries, which form a library with its source."""

from __future__ import annotations

from collections.abc import Iterator

from tensorprimat.core.mlperf_library import Entry, Library
from tensorprimat.logs.mlperf import round as mlperf_round
from tensorprimat.session.second_process import in_processes

_WORTH_A_PROCESS = 8  # number of entries for which starting a process pays
LICENCE = "Apache-2.0"


def imported_entries(found: mlperf_round.Found) -> Iterator[Entry]:
    """Return the entries of a round one by one as they are read. Raises RunError where a process is killed."""
    return in_processes(mlperf_round.read_entry, found.pairs, worth=_WORTH_A_PROCESS)


def library(found: mlperf_round.Found, read: list[Entry], *, round: str) -> Library:
    """Return the library of one round, with its source, its licence and the benchmarks that were not read."""
    source = {
        "round": round,
        "source": f"https://github.com/mlcommons/training_results_{round}",
        "licence": LICENCE,
        "not_read": dict(found.not_read),
        "empty": list(found.empty),
    }
    return Library(entries=tuple(sorted(read, key=lambda entry: entry.name)), sources=(source,))
