#!/usr/bin/env python3
"""Write the package's library of MLPerf results from checkouts of the public rounds.

python3 tools/write_mlperf_library.py v4.1=training_results_v4.1 v5.0=training_results_v5.0 v5.1=training_results_v5.1

Entries of rounds that are not named stay as they are. The rounds are mlcommons/training_results_vX.Y (Apache-2.0).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PLACE = ROOT / "tensorprimat" / "data" / "mlperf_library.jsonl"


def main() -> int:
    """Read the rounds and write the file; exit 2 without arguments."""
    from tensorprimat.mlperf import library as mlperf_library
    from tensorprimat.mlperf import round as mlperf_round

    rounds = [argument.partition("=")[::2] for argument in sys.argv[1:]]
    if not rounds or not all(folder for _, folder in rounds):
        print(__doc__, file=sys.stderr)
        return 2
    libraries = [mlperf_library.load(PLACE)] if PLACE.exists() else []
    for version, folder in rounds:
        name = mlperf_round.round_name(version)
        found = mlperf_round.find_round_entries(Path(folder), name)
        libraries.append(
            mlperf_round.library_of(found, [mlperf_round.read_entry(pair) for pair in found.pairs], round=name)
        )
    entries, sources = {}, {}
    for library in libraries:  # an entry of a later one takes the place of the same entry of an earlier one
        entries |= {entry.name: entry for entry in library.entries}
        sources |= {str(source.get("round")): source for source in library.sources}
    library = mlperf_library.Library(
        entries=tuple(entries[name] for name in sorted(entries)), sources=tuple(sources.values())
    )
    PLACE.write_text(mlperf_library.dump(library), "utf-8")
    print(f"{PLACE.relative_to(ROOT)}: {len(library.entries)} entries, {PLACE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
