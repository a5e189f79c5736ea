#!/usr/bin/env python3
"""Record profiles of a small Llama on the GPU at hand, as test data for readers of traces.

    python perf/gpu_traces.py FOLDER          # five traces of three steps each, in about a minute
    python perf/gpu_traces.py FOLDER --cpu    # a trial without a GPU

The torch engine trains four layers with the sizes of Llama 3.1 8B: in BF16 and FP8, without recomputation and with all
of it, and in BF16 twice the same. Paths and the machine's identity are removed from the traces.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tensorprimat.core.spec import RunSpec  # noqa: E402
from tensorprimat.engines import profiling  # noqa: E402
from tensorprimat.models.presets import find_preset  # noqa: E402

TRACES = {
    "bf16_a": ("bf16", "none"),
    "bf16_b": ("bf16", "none"),
    "bf16_recomputed": ("bf16", "full"),
    "fp8": ("fp8", "none"),
    "fp8_recomputed": ("fp8", "full"),
}
"""Name of a trace → precision and recomputation."""
STEPS = 3  # of a profile (engines/torch/profile.py)
MOST_BYTES = 4 * 10**6  # of a trace, as test data
KEPT = ("schemaVersion", "deviceProperties", "cuda_runtime_version", "cuda_driver_version", "displayTimeUnit",
        "baseTimeNanoseconds", "traceEvents")  # fmt: skip
"""Entries of a trace without paths and identities."""


def small_llama(*, layers: int, on_cpu: bool) -> dict[str, object]:
    """Return the configuration of a model with few layers, and a vocabulary so small that the head costs little."""
    shape = find_preset("llama", "tiny" if on_cpu else "full").shape
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_hidden_size, "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads, "head_dim": shape.head_dim, "vocab_size": 32_000,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.trace.json.gz"


def record(name: str, folder: Path, *, on_cpu: bool) -> Path:
    """Train under the profiler and return the file of the trace."""
    from tensorprimat.engines.torch import config, engine
    from tensorprimat.machine.platform import detect_platform

    precision, recompute = TRACES[name]
    entries = small_llama(layers=2 if on_cpu else 4, on_cpu=on_cpu)
    spec = RunSpec(
        model="llama-4-layers", preset="full", engine="torch", steps=STEPS + 1, warmup_steps=3, micro_batch_size=1,
        global_batch_size=2, sequence_length=64 if on_cpu else 4096, precision="fp32" if on_cpu else precision,
        num_gpus=1, platform="cpu" if on_cpu else detect_platform().platform, compile=not on_cpu, recompute=recompute,
        config=config.completed_config("llama-4-layers", "llama", entries),
        options={profiling.STEM: str(folder / name)},
    )  # fmt: skip
    engine.train(spec, folder / f"{name}.json")
    return path_of(folder, name)


def scrub(trace: Path) -> None:
    """Leave only the events of a trace, and the facts about GPU and versions."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        document = json.load(file)
    text = json.dumps({key: value for key, value in document.items() if key in KEPT}, separators=(",", ":"))
    trace.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--traces", default=",".join(TRACES), help="which (%(default)s)")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.traces.split(",") if name not in TRACES]:
        parser.error(f"--traces {unknown[0]}: must be one of {', '.join(TRACES)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.traces.split(","):
        trace = record(name, options.folder, on_cpu=options.cpu)
        scrub(trace)
        print(f"{trace}: {trace.stat().st_size / 1e6:.2f} MB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
