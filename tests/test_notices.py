"""Notices of a result: sentences from one table, with codes that programs and this code read."""

import json
import pickle
import re
import string
from pathlib import Path

import plausible
import pytest
from each import in_each

from tensorprimat.core.notices import REMARK, SEVERITIES, Notice, notice_kinds
from tensorprimat.storage import store

PACKAGE = Path(__file__).parents[1] / "tensorprimat"
SOURCES = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def test_a_notice_is_its_sentence_with_code_field_values_and_remedies() -> None:
    notice = Notice("rate_unknown", "tokens_per_second", missing=["--num-gpus"], remedies=["--num-gpus"])
    assert notice == "tokens_per_second: unknown without --num-gpus"
    assert (notice.code, notice.field, notice.severity) == ("rate_unknown", "tokens_per_second", "caution")
    assert (notice.remedies, notice.text) == (("--num-gpus",), "unknown without --num-gpus")
    assert Notice("few_rows", "steps", run=2, rows=1, others="") == (
        "steps: run 2: only 1 measured row, too few for an interval of this run alone"
    )
    assert pickle.loads(pickle.dumps(notice)).code == "rate_unknown"


def test_a_value_that_the_table_does_not_name_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError):
        Notice("few_rows", "steps")


def test_every_row_of_the_table_is_used_and_every_code_is_in_it() -> None:
    calls = re.compile(r'(?:Notice|say|caps)\(\s*"([a-z_]+)"|partial\(Notice, "([a-z_]+)"')
    used = {one or other for text in SOURCES.values() for one, other in calls.findall(text)}
    every = " ".join(SOURCES.values())
    assert used <= notice_kinds().keys()
    assert [code for code in notice_kinds() if f'"{code}"' not in every] == []


def test_every_sentence_can_be_written() -> None:
    for code, kind in notice_kinds().items():
        assert kind.severity in SEVERITIES, code
        for text in filter(None, (kind.text, kind.many)):
            names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
            assert all(name.isidentifier() for name in names), code
        assert all(flag.startswith("--") for flag in kind.flags), code


def test_a_file_keeps_sentences_for_people_and_codes_for_programs(tmp_path: Path) -> None:
    notice = Notice("ends_early", "steps", last=343, planned=500)
    path = store.write(plausible.result("h100").changed(warnings=(notice, "host: is warm")), tmp_path / "result.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["warnings"] == ["steps: the log ends at step 343 of the 500 that it plans", "host: is warm"]
    assert document["notices"][0] == {
        "code": "ends_early", "field": "steps", "severity": "info", "values": {"last": 343, "planned": 500},
        "remedies": [], "run": None,
    }  # fmt: skip
    known, other = store.load(path).remarks
    assert (known.code, known.values) == ("ends_early", {"last": 343, "planned": 500})
    assert (other.code, other.field) == (REMARK, "host")


def test_a_file_without_codes_is_read_by_its_sentences(tmp_path: Path) -> None:
    path = store.write(plausible.result("h100").changed(warnings=("host: is warm",)), tmp_path / "result.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["notices"]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert [(one.code, one.field, one.text) for one in store.load(path).remarks] == [(REMARK, "host", "is warm")]


@in_each("codes", [[], [{}], [{"code": 3, "severity": "loud", "values": "x"}], "text", [None]])
def test_damaged_codes_cost_no_sentence(tmp_path: Path, codes: object) -> None:
    path = store.write(plausible.result("h100").changed(warnings=("host: is warm",)), tmp_path / "result.json")
    document = json.loads(path.read_text(encoding="utf-8")) | {"notices": codes}
    path.write_text(json.dumps(document), encoding="utf-8")
    assert store.load(path).warnings == ("host: is warm",)


def test_nothing_decides_by_the_words_of_a_warning() -> None:
    decides = re.compile(r"\b(?:warning|note|notice)\.(?:starts|ends)with\(|\bin (?:warning|notice)\b(?![s.])")
    allowed = re.compile(r"for \w+ in (?:warning|notice)\b")
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path, text in SOURCES.items()
        for line in text.splitlines()
        if decides.search(line) and not allowed.search(line)
    ]
    assert found == []
