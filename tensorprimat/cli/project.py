"""`tprimat project`: project the rate of a training to another number of GPUs, as an interval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from tensorprimat.cli import known_values as known
from tensorprimat.cli.shared_options import switch, takes
from tensorprimat.core.errors import UsageError


def command(
    benchmark: Annotated[
        str,
        takes(
            "NAME",
            "MLPerf benchmark whose scaling is used, such as llama2_70b_lora.",
            offers=known.of_mlperf("benchmark"),
        ),
    ] = "llama2_70b_lora",
    source: Annotated[Path | None, takes("RESULT", "Result file that holds the measured rate.", "--from")] = None,
    gpus: Annotated[int | None, takes("NUMBER", "Number of GPUs to project to.")] = None,
    gpu: Annotated[
        str | None,
        takes(
            "NAME",
            "GPU of the result, as a check; any other GPU is refused.",
            offers=known.of_mlperf("gpu"),
        ),
    ] = None,
    library: Annotated[Path | None, takes("FILE", "Library with the scaling points (default: the package's).")] = None,
    as_json: Annotated[bool, switch("--json", "Print JSON.")] = False,
) -> int:
    """Project the rate of a result to another number of GPUs, as a 90 % interval (strong scaling).

    The model: samples/s grow as a power of the number of GPUs. The exponent and its spread come from the submitters of
    MLPerf Training that ran one benchmark on several numbers of GPUs. As a check, every measured point is also
    predicted from other GPU models alone. A projection is refused as not reliable unless there are at least 20 such
    points and 85 % to 95 % of them lie in their predicted interval. Without --from, the command lists these points.
    Reports contain no projection.

    \b
    Examples:
      tprimat project --benchmark llama2_70b_lora
      tprimat project --from output/benchmark_rocm_llama2-70b-lora.json --gpus 64

    \b
    Exit codes:
      0  done
      2  a flag is wrong, or --from is given and projection is not reliable for the benchmark
    """
    from tensorprimat.mlperf import library as mlperf_library
    from tensorprimat.mlperf import projection
    from tensorprimat.mlperf.library import EntryChoice, choose_entries
    from tensorprimat.storage.store import load

    entries = choose_entries(mlperf_library.load(library), EntryChoice(benchmark=benchmark))
    benchmark = entries[0].benchmark  # as it is spelled there
    found = projection.groups(entries)
    repeats = projection.repeats(entries, benchmark)
    if source is None:
        if gpus is not None or gpu is not None:
            raise UsageError("--gpus and --gpu need --from, the result that holds the measured rate")
        shown = projection.validate([group for group in found if group.benchmark == benchmark])
        text, document = projection.validation_text(benchmark, shown), projection.validation_document(benchmark, shown)
    else:
        projected = projection.project(found, load(source), path=source, benchmark=benchmark, gpus=gpus or 0, gpu=gpu)
        text, document = projection.projection_sentence(projected), projection.projection_document(projected)
    document["derived"] = derived = projection.derivation_notice([one for one in found if one.benchmark == benchmark])
    document["left_out"] = [one.sentence for one in repeats]
    print(json.dumps(document, indent=2, ensure_ascii=False) if as_json else text + projection.notes(repeats, derived))
    return 0
