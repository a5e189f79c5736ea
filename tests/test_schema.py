"""Tests of docs/result.schema.json: generated from the records, and valid for written files."""

import json
from pathlib import Path

import plausible
import pytest
import scripts

from tensorprimat.core.provenance import Provenance, Source
from tensorprimat.core.result import (
    GpuInfo,
    MemoryMetrics,
    Model,
    ModelShape,
    PerformanceMetrics,
    PowerMetrics,
    Run,
    TrainingConfig,
)
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import summarise
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "docs" / "result.schema.json").read_text())


def test_the_committed_schema_is_the_one_of_the_records():
    expected = scripts.load("tools/write_docs.py").schema()
    assert (ROOT / "docs" / "result.schema.json").read_text() == expected, "run python3 tools/write_docs.py"


def test_the_page_of_the_result_file_explains_every_key():
    page = (ROOT / "docs" / "reference" / "result-file.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert [row for row in rows if row.endswith("|  |")] == []


FULL = summarise(
    plausible.bare(
        gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=8),
        model=Model(
            name="llama",
            shape=ModelShape(
                num_layers=2, hidden_size=8, ffn_hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
                head_dim=4, vocab_size=32,
            ),
        ),
        training_config=TrainingConfig(global_batch_size=8, sequence_length=16, num_gpus=8, versions={"torch": "2"}),
        provenance=Provenance(sources=(Source(file="some.log", sha256="0" * 64),)),
        runs=(Run(index=0, seed=1),),
        steps=Steps.of(
            Step(
                index=i,
                seconds=0.5,
                loss=float("nan") if i == 3 else 2.0,
                memory_allocated_bytes=4e9,
                power_watts_per_gpu=600.0,
                interrupted_by="checkpoint" if i == 5 else "",
            )
            for i in range(12)
        ),
    )
)  # fmt: skip
MINIMAL = plausible.bare(
    platform=None, performance_metrics=PerformanceMetrics(avg_step_time_seconds=1.0, basis="reported_means")
)


@pytest.mark.parametrize("result", [FULL, MINIMAL], ids=["full", "minimal"])
def test_every_key_that_is_written_is_described(result):
    assert list(undescribed(json.loads(store.to_json(result)), SCHEMA)) == []


def test_the_full_example_holds_every_part_that_can_be_there():
    document = json.loads(store.to_json(FULL))
    assert [name for name in ("memory_metrics", "power_metrics", "runs") if not document[name]] == []
    assert set(document) == set(SCHEMA["properties"])


def test_the_schema_keeps_the_keys_that_scripts_of_users_read():
    for section, keys in {
        "gpu_info": ("device_name", "device_count", "total_memory_gb", "gpu_cores", "software_stack"),
        "training_config": ("max_steps", "global_batch_size", "micro_batch_size", "sequence_length", "num_gpus"),
        "performance_metrics": ("avg_step_time_seconds", "steps_per_second", "tokens_per_second_per_gpu"),
        "memory_metrics": ("avg_memory_allocated_gb", "peak_memory_reserved_gb"),
    }.items():
        described = resolved(SCHEMA["properties"][section])
        assert set(keys) <= set(described["properties"]), section
    assert set(MemoryMetrics.model_fields) == set(SCHEMA["$defs"]["MemoryMetrics"]["properties"])
    assert set(PowerMetrics.model_fields) == set(SCHEMA["$defs"]["PowerMetrics"]["properties"])


JSON_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def resolved(schema):
    """Return the schema behind a reference; of an optional part, the part."""
    if "$ref" in schema:
        return resolved(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    parts = [part for part in schema.get("anyOf", []) if part.get("type") != "null"]
    return resolved(parts[0]) if parts else schema


def undescribed(value, schema, where=""):
    """Yield a sentence for each part of a JSON value that the schema does not allow."""
    if "anyOf" in schema:
        tried = [list(undescribed(value, part, where)) for part in schema["anyOf"]]
        yield from min(tried, key=len)
        return
    if "$ref" in schema:
        schema = resolved(schema)
    kind = JSON_TYPES.get(schema.get("type"), object)
    if not isinstance(value, kind) or ("enum" in schema and value not in schema["enum"]):
        yield f"{where}: {value!r} fits nothing"
    elif isinstance(value, dict):
        for key, part in value.items():
            below = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            path = f"{where}.{key}".strip(".")
            if isinstance(below, dict):
                yield from undescribed(part, below, path)
            elif not below:
                yield f"{path}: no such property"
        yield from (f"{where}.{key} is missing".strip(".") for key in schema.get("required", []) if key not in value)
    elif isinstance(value, list):
        for position, part in enumerate(value):
            yield from undescribed(part, schema.get("items", {}), f"{where}[{position}]")
