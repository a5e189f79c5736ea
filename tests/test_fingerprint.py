"""Fingerprints of training data: equal for equal tokens in any file, and compared as a setting."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from test_legacy import VERSION_1

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.storage import store
from tensorprimat.system.fingerprint import FINGERPRINT, fingerprint

DOCUMENTS = [np.arange(n, dtype=np.int64) * 31 % 50_000 for n in (900, 2, 0, 500)]


def indexed(path, code, dtype):
    """Write Megatron's pair of files. code: of the type of tokens, in the index."""
    lengths = np.array([len(one) for one in DOCUMENTS])
    places = np.cumsum([0, *lengths[:-1]]) * np.dtype(dtype).itemsize
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(DOCUMENTS), len(DOCUMENTS) + 1)
    index += lengths.astype("<i4").tobytes() + places.astype("<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index + np.arange(len(DOCUMENTS) + 1, dtype="<i8").tobytes())
    path.with_suffix(".bin").write_bytes(np.concatenate(DOCUMENTS).astype(dtype).tobytes())


def test_equal_tokens_have_one_fingerprint_whatever_file_holds_them(tmp_path):
    indexed(tmp_path / "nvidia", 8, "<u2")
    indexed(tmp_path / "amd", 4, "<i4")
    tokens = np.concatenate(DOCUMENTS)
    np.save(tmp_path / "flat.npy", tokens)
    tokens.astype("<u2").tofile(tmp_path / "nanogpt.bin")
    for name, first, dtype in (("gpt2", 20240520, "<u2"), ("llama3", 20240801, "<u4")):
        header = np.array([first, 1, len(tokens)] + [0] * 253, "<i4").tobytes()
        (tmp_path / f"{name}.bin").write_bytes(header + tokens.astype(dtype).tobytes())
    rows = "".join(json.dumps({"input_ids": one.tolist()}) + "\n" for one in DOCUMENTS)
    (tmp_path / "rows.jsonl").write_text(rows)
    names = ("nvidia", "nvidia.bin", "amd.idx", "flat.npy", "nanogpt.bin", "rows.jsonl", "gpt2.bin", "llama3.bin")
    found = {fingerprint(tmp_path / name) for name in names}
    assert len(found) == 1
    assert FINGERPRINT.fullmatch(found.pop())
    tokens[3] += 1
    np.save(tmp_path / "other.npy", tokens)
    assert fingerprint(tmp_path / "other.npy") != fingerprint(tmp_path / "flat.npy")


def test_a_file_without_tokens_or_shorter_than_its_index_is_refused(tmp_path, monkeypatch):
    indexed(tmp_path / "cut", 8, "<u2")
    (tmp_path / "cut.bin").write_bytes((tmp_path / "cut.bin").read_bytes()[:500])
    (tmp_path / "text.txt").write_text("once upon a time")
    np.save(tmp_path / "weights.npy", np.ones(3))
    (tmp_path / "rows.jsonl").write_text('{"text": "once"}\n')
    (tmp_path / "rates.jsonl").write_text('{"tokens": [1.5]}\n')
    monkeypatch.chdir(tmp_path)
    for name in ("cut", "text.txt", "weights.npy", "rows.jsonl", "rates.jsonl", "missing", "."):
        with pytest.raises(InputError):
            fingerprint(Path(name))


def test_a_result_carries_the_fingerprint_and_a_comparison_names_other_data(tmp_path):
    for name in ("cuda", "rocm"):
        (tmp_path / f"benchmark_{name}_llama.json").write_text(json.dumps({**VERSION_1, "platform": name}))
    indexed(tmp_path / "data", 8, "<u2")
    own = fingerprint(tmp_path / "data")
    stated = ["--data-fingerprint", f"nvd={tmp_path / 'data'}", "--data-fingerprint", "amd=sha256:0123456789abcdef"]
    assert main(["compare", str(tmp_path), *stated, "--output", str(tmp_path / "out")]) == 0
    made = json.loads((tmp_path / "out" / "comparison.json").read_text())
    (difference,) = (one for one in made["pairs"][0]["fairness"]["differences"] if one["field"] == "data_fingerprint")
    assert set(difference["values"]) == {own, "sha256:0123456789abcdef"}
    losses = made["pairs"][0]["losses"]
    assert losses is None or losses["reason"] == "the fingerprints of the data differ"


def test_the_name_of_an_earlier_result_states_its_framework_and_its_data_set(tmp_path):
    stated = {
        "train_nvd_nemo_llama_c4": ("nemo", "c4"),
        "train_amd_prim_llama_bc": ("primus", "bc"),
        "train_nvd_mega_qwen_c4": ("mega", "c4"),
        "train_nvd_llama_c4": (None, "c4"),
        "train_nvd_c4": (None, "c4"),
        "train_amd_prim_llama": ("primus", None),
    }
    for name in stated:
        (tmp_path / f"{name}.json").write_text(json.dumps(VERSION_1))
    configs = {name: store.load(tmp_path / f"{name}.json").training_config for name in stated}
    assert {name: (config.framework, config.data) for name, config in configs.items()} == stated
