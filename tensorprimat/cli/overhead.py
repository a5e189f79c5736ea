"""`tprimat overhead`: measure what the measurement itself adds to a step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli.options import fraction
from tensorprimat.cli.shared_options import setting_values, switch, takes, with_settings


@with_settings(
    "preset", "precision", "micro_batch_size", "global_batch_size", "sequence_length", after="model", engines=False
)
def command(
    model: Annotated[str, takes("MODEL", "Model to train.", offers=known.models)] = "llama",
    half_width: Annotated[
        str, takes("PERCENT", "Half the width of the interval at which the measurement ends.")
    ] = "0.1%",
    steps: Annotated[int, takes("N", "Largest number of steps.")] = 4000,
    add_to: Annotated[
        Path | None, takes("RESULT", "Write the figure into this result of the same model and device.")
    ] = None,
    json: Annotated[bool, switch("--json", "Print JSON.")] = False,
    **chosen: Any,
) -> int:
    """Measure by how much BenchmarkCallback and the sampling of power make a step longer.

    One training of the torch engine has both in every second turn of 10 steps, until the interval of the difference is
    narrow. On a CPU the default is the tiny version of the model, whose steps are short, so the share is large.

    \b
    Examples:
      tprimat overhead --model llama
      tprimat overhead --model llama --add-to output/benchmark_cuda_llama.json

    \b
    Exit codes:
      0  measured
      1  the training failed, or Ctrl-C
      2  a flag is wrong, or the model cannot be trained here
      3  the steps ended before the interval was as narrow as --half-width
    """
    import json as json_module
    from dataclasses import asdict

    from tensorprimat.core.quantities import change, counted, seconds
    from tensorprimat.core.spec import RunSettings
    from tensorprimat.session.overhead import measure_overhead, with_overhead
    from tensorprimat.storage import store

    width = fraction("--half-width", half_width)
    result = None if add_to is None else store.load(add_to)
    settings = RunSettings(steps=steps, warmup_steps=5, seed=1234, **setting_values(chosen))
    measured = measure_overhead(model, settings, half_width=width)
    if result is not None and add_to is not None:
        store.write(with_overhead(result, measured), add_to)
        print(f"Written to {add_to}", file=sys.stderr)
    if json:
        print(json_module.dumps({"kind": "overhead", **asdict(measured)}, indent=2))
    else:
        span = f"{change(measured.low, 2)} to {change(measured.high, 2)}"
        of = f"a step of {seconds(measured.step_seconds)}"
        print(f"{change(measured.share, 2)} ({span}) of {of}, {counted(measured.pairs, 'pair')} of turns")
        print(f"{measured.model} {measured.preset} on {measured.device_name}")
    return 0 if measured.half_width <= width else 3
