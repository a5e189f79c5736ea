"""Traces of a GPU, recorded by perf/gpu_traces.py: what a reader of traces can rely on.

tests/traces: one H200, 2026-11-27, torch 2.11.0, transformers 5.17.0, torchao 0.18.0, driver 580.159.04. Four layers of
Llama 3.1 8B, two micro-batches of 4,096 tokens in a step, three steps.
"""

import gzip
import json
from pathlib import Path

from each import in_each

TRACES = Path(__file__).parent / "traces"
LAYERS, MICRO_BATCHES, STEPS = 4, 2, 3
OF_HEAD = 3 * MICRO_BATCHES


def events_of(name):
    return json.loads(gzip.decompress((TRACES / f"h200_{name}.trace.json.gz").read_bytes()))["traceEvents"]


@in_each(("name", "of_layer"), [("bf16_a", 21), ("bf16_recomputed", 27), ("fp8_recomputed", 27)])
def test_a_recomputed_layer_repeats_six_of_its_seven_products_on_a_gpu(name, of_layer):
    """With a checkpoint outside of the compiled layer, as transformers 5.17 makes it, these would be 28."""
    products = [one for one in events_of(name) if one.get("cat") == "kernel" and "nvjet" in one["name"]]
    assert len(products) == STEPS * (LAYERS * MICRO_BATCHES * of_layer + OF_HEAD)


def test_a_profile_marks_steps_and_their_parts():
    marks = [one["name"] for one in events_of("bf16_b") if one.get("cat") == "user_annotation"]
    assert [name for name in marks if name.startswith("ProfilerStep")] == [f"ProfilerStep#{n}" for n in range(STEPS)]
    for name, times in (("micro-batch", 2), ("forward", 2), ("backward", 2), ("optimizer", 1)):
        assert marks.count(name) == times * STEPS
