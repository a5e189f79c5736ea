"""Logs inside the JSON of docker, Loki and log services of clouds are read like the logs themselves."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import ContradictionError
from tensorprimat.logs import envelopes, files
from tensorprimat.logs.format import UserFacts
from tensorprimat.logs.text import Log

PLAIN = [
    *("  seq_length ............................ 8192", "  world_size ............................ 8"),
    *(
        f"\x1b[32m [2026-01-16 07:32:{n:02}] iteration {n:8d}/     100 | consumed samples: {n}28 | elapsed time per"
        f" iteration (ms): 27{n:02}.3 | global batch size:   128 | lm loss: 1.1{n:02}E+01 |\x1b[0m"
        for n in range(1, 21)
    ),
]


def docker(lines: list[str]) -> str:
    return "".join(
        json.dumps({"log": line + "\n", "stream": "stdout", "time": f"2026-01-16T07:32:00.{n:09}Z"}) + "\n"
        for n, line in enumerate(lines)
    )


def logcli(lines: list[str]) -> str:
    return "".join(
        json.dumps({"labels": {"pod": "a"}, "line": line, "timestamp": "2026-01-16T07:32:00Z"}) + "\n" for line in lines
    )


def loki_api(lines: list[str]) -> str:
    values = [[str(10**18 + n), line] for n, line in enumerate(lines)]
    streams = [{"stream": {"pod": "a"}, "values": values[::-1]}]
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}})


def cloud_logging(lines: list[str]) -> str:
    entries = [
        {"insertId": "a", "jsonPayload": {"message": line}, "timestamp": "2026-01-16T07:32:00Z"} for line in lines
    ]
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def gcloud_printed(lines: list[str]) -> str:
    entries = [{"insertId": "a", "textPayload": line, "timestamp": "2026-01-16T07:32:00Z"} for line in lines]
    return json.dumps(entries, indent=2) + "\n"


def cloudwatch(lines: list[str]) -> str:
    events = [{"timestamp": 170 + n, "message": line, "ingestionTime": 171} for n, line in enumerate(lines)]
    return json.dumps({"events": events, "nextForwardToken": "f/1"}, indent=4) + "\n"


def cloudwatch_in_one_line(lines: list[str]) -> str:
    return json.dumps(json.loads(cloudwatch(lines)))


def fluent_bit(lines: list[str]) -> str:
    return "".join(
        json.dumps({"log": line, "kubernetes": {"pod_name": "a"}, "@timestamp": "2026-01-16T07:32:00Z"}) + "\n"
        for line in lines
    )


def journal(lines: list[str]) -> str:
    """Return the lines as `journalctl -o json` prints them: as bytes where they have colours."""
    return "".join(
        json.dumps({"MESSAGE": list(line.encode()) if "\x1b" in line else line, "__REALTIME_TIMESTAMP": "1768548720"})
        + "\n"
        for line in lines
    )


ENVELOPES: dict[str, Callable[[list[str]], str]] = {
    "docker": docker,
    "logcli": logcli,
    "Loki's API": loki_api,
    "Cloud Logging": cloud_logging,
    "gcloud, printed": gcloud_printed,
    "CloudWatch": cloudwatch,
    "CloudWatch in one line": cloudwatch_in_one_line,
    "Fluent Bit": fluent_bit,
    "journald": journal,
}
each_envelope = in_each("envelope", ENVELOPES)


def written(tmp_path: Path, content: str, name: str = "a.log") -> Path:
    path = tmp_path / name
    path.write_text(content)
    return path


@each_envelope
def test_rows_and_settings_inside_an_envelope_are_those_of_the_log(tmp_path: Path, envelope: str) -> None:
    plain = logs.read(written(tmp_path, "\n".join(PLAIN) + "\n"))
    result = logs.read(written(tmp_path, ENVELOPES[envelope](PLAIN), "b.log"))
    assert result.training_config == plain.training_config
    assert result.training_config.sequence_length == 8192
    for column in ("index", "seconds", "loss", "ended_at"):
        assert result.steps.column(column).tolist() == plain.steps.column(column).tolist()
    assert result.performance_metrics == plain.performance_metrics


def test_a_line_of_the_file_stays_a_line_of_the_log(tmp_path: Path) -> None:
    steps = logs.read(written(tmp_path, docker(PLAIN))).steps
    assert steps.column("line").tolist() == list(range(3, 23))
    assert Log(written(tmp_path, docker(PLAIN))).count_lines() == len(PLAIN)


def test_a_message_of_several_lines_keeps_them_under_one_number(tmp_path: Path) -> None:
    log = Log(written(tmp_path, logcli(["one\ntwo", "three"])))
    assert list(log.lines()) == [(1, "one"), (1, "two"), (2, "three")]


def test_a_line_that_docker_cut_into_pieces_is_joined_again(tmp_path: Path) -> None:
    text = "x" * 16_384
    entries = [{"log": part, "stream": "stdout", "time": "t"} for part in (text, text, "end\n", "next\n")]
    log = Log(written(tmp_path, "".join(json.dumps(entry) + "\n" for entry in entries)))
    assert [(number, len(line)) for number, line in log.lines() if line] == [(3, 2 * 16_384 + 3), (4, 4)]
    dated = [{**entry, "time": "2026-01-16T07:32:00.5Z"} for entry in entries]
    log = Log(written(tmp_path, "".join(json.dumps(entry) + "\n" for entry in dated)))
    assert list(log.lines()) == [(1, ""), (2, ""), (3, 2 * text + "end"), (4, "next")]


def in_pieces(text: str) -> str:
    """Return a line as docker's json-file driver writes it: in pieces of 16 KiB, of which the last has the line end.

    Bytes of a character that is cut become one replacement character each, as Go's JSON writer spells them.
    """
    content = text.encode()
    pieces = [content[at : at + 16_384] for at in range(0, len(content), 16_384)]
    decoded = [part.decode("utf-8", "surrogateescape") for part in pieces]
    return docker([re.sub("[\udc80-\udcff]", "\ufffd", part) for part in decoded]).replace('\\n"', '"', len(pieces) - 1)


def test_a_line_in_pieces_is_dropped_beyond_the_length_of_a_plain_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100_000)
    log = Log(written(tmp_path, in_pieces("x" * 300_000) + docker(["next"])))
    (number, text), following = [line for line in log.lines() if line[1]]
    assert (number, set(text), following) == (19, {"x"}, (20, "next"))
    assert 100_000 <= len(text) < 100_000 + 16_384


def test_pieces_are_as_long_in_bytes_and_have_fewer_characters_where_a_bar_is_drawn_with_blocks(tmp_path: Path) -> None:
    drawings = [f"{n // 10:3}%|{'█' * 10:20}| {n}/1000 [loss 2.5]" for n in range(1000)]
    log = Log(written(tmp_path, in_pieces("\r".join(drawings))))
    read = [text for _, text in log.lines() if text]
    assert len(read) == len(drawings)
    assert sum(text != drawing for text, drawing in zip(read, drawings, strict=True)) <= 2  # a block that was cut


@in_each("lines", [[], ["one"]])
@in_each("pieces", [1, 3])
def test_a_line_that_a_running_container_has_not_ended_is_the_cut_last_line(
    tmp_path: Path, pieces: int, lines: list[str]
) -> None:
    text = "step 5 " * 10_000
    entries = docker(lines) + "".join(in_pieces(text).splitlines(keepends=True)[:pieces])
    log = Log(written(tmp_path, entries))
    *before, last = log.with_cuts(log.lines())
    assert last == (len(lines) + pieces, text[: 16_384 * pieces], True)
    assert [line for line in before if line[1]] == [(1, text, False) for text in lines]


@in_each("kept", [18, 19, 21, 23])
def test_a_last_row_whose_line_end_a_container_has_not_written_is_read_as_in_a_plain_log(
    tmp_path: Path, kept: int
) -> None:
    rows = [f"2026-03-01 09:00:{n:02},500 INFO step {n} loss 2.{n}5" for n in range(10, 40)]
    last = "2026-03-01 09:00:40,500 INFO step 40 loss 2.405"[: 24 + kept]
    plain = logs.read(written(tmp_path, "\n".join([*rows, last])))
    wrapped = logs.read(written(tmp_path, docker([*rows, last]).replace(f'{last}\\n"', f'{last}"'), "b.log"))
    assert len(plain.steps) == 30
    for column in ("index", "seconds", "loss", "ended_at"):
        assert wrapped.steps.column(column).tolist() == pytest.approx(plain.steps.column(column).tolist(), nan_ok=True)


def test_lines_of_services_that_never_store_line_ends_are_not_cut(tmp_path: Path) -> None:
    log = Log(written(tmp_path, logcli(["one", "two"])))
    assert list(log.with_cuts(log.lines())) == [(1, "one", False), (2, "two", False)]


def test_a_line_longer_than_docker_cuts_them_does_not_swallow_the_next_line(tmp_path: Path) -> None:
    log = Log(written(tmp_path, logcli(["x" * 20_000, "next"])))
    assert [(number, len(text)) for number, text in log.lines()] == [(1, 20_000), (2, 4)]


def test_every_drawing_of_a_bar_in_pieces_is_kept_however_long_the_line_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 20_000)
    drawings = [f"step {n}/9000 loss 2.5" for n in range(1, 9000)]
    log = Log(written(tmp_path, in_pieces("\r".join(drawings))))
    assert [text for _, text in log.lines() if text] == drawings


@in_each("envelope", ["docker", "Loki's API", "gcloud, printed", "CloudWatch", "journald"])
def test_half_of_a_surrogate_pair_in_the_json_becomes_a_question_mark(tmp_path: Path, envelope: str) -> None:
    log = Log(written(tmp_path, ENVELOPES[envelope](["loss \ud83d 2.5", "next"])))
    assert [text for _, text in log.lines() if "loss" in text] == ["loss ? 2.5"]


@in_each("values", [None, 8, True, "text", {}, [], [8, None]])
def test_a_stream_of_loki_without_a_list_of_lines_has_none(tmp_path: Path, values: object) -> None:
    document = json.loads(loki_api(PLAIN))
    document["data"]["result"].insert(0, {"stream": {}, "values": values})
    assert len(logs.read(written(tmp_path, json.dumps(document))).steps) == 20


@each_envelope
def test_a_compressed_envelope_is_read(tmp_path: Path, envelope: str) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(ENVELOPES[envelope](PLAIN).encode()))
    assert logs.read(path, facts=UserFacts(num_gpus=8)).performance_metrics.measured_steps


def test_a_document_longer_than_the_part_that_detection_reads_is_opened_too(tmp_path: Path) -> None:
    many = [*PLAIN[:2], *(PLAIN[2].replace("       1/", f"{n:8d}/") for n in range(1, 900))]
    assert len(logs.read(written(tmp_path, cloudwatch_in_one_line(many))).steps) == 899


@in_each(
    "text",
    [
        '{"loss": 1.5, "step": 3, "timestamp": "2026"}\n',
        '{"message": "no companion"}\n',
        '{"log": 5, "stream": "stdout"}\n',
        "[rank0]: iteration 5\n",
        "{'loss': 1.2, 'time': 3}\n",
        '{"log_history": [{"loss": 1.2, "step": 1}], "timestamp": 5}\n',
        '{"line": "cut, "stream\n',
    ],
)
def test_json_of_other_kinds_is_not_an_envelope(text: str) -> None:
    assert not envelopes.is_enveloped(text.encode())


@each_envelope
@pytest.mark.parametrize("cut", [1, 2, 5, 60, 300])
def test_a_cut_envelope_gives_the_rows_before_the_cut(tmp_path: Path, envelope: str, cut: int) -> None:
    path = written(tmp_path, ENVELOPES[envelope](PLAIN)[:-cut])
    if not Log(path).path.read_text().count("\n") > 3:
        return  # one document without its end holds nothing that can be trusted
    seconds = logs.read(path).steps.column("seconds").tolist()
    assert len(seconds) >= 16
    assert (
        seconds == [2.7003 + n / 1000 for n in range(1, len(seconds) + 1)]
        or max(abs(a - (2.7003 + n / 1000)) for n, a in enumerate(seconds, start=1)) < 1e-9
    )


WITHOUT_A_DATE = {
    "nemo": "Training epoch 0, iteration {n}/99 | lr: 1e-05 | global_batch_size: 8 | global_step: {n} | "
    "reduced_train_loss: 9.{n:02} | train_step_timing in s: 2.0 | consumed_samples: 80",
    "litgpt": "Epoch 1 | iter {n} step {n} | loss train: 9.{n:02}, val: n/a | iter time: 2000.00 ms (step) remaining "
    "time: 0:12:01",
    "verl": "(TaskRunner pid=71) step:{n} - actor/pg_loss:1.{n} - perf/time_per_step:2.0 - perf/total_num_tokens:512 "
    "- perf/throughput:256.0",
    "timestamps": "step {n} loss 9.{n:02} lr 1e-05",
}
DATED = {
    "docker": '{{"log": "{line}\\n", "stream": "stdout", "time": "{date}.{micro:06}789Z"}}',
    "docker without last zeros": '{{"log": "{line}\\n", "stream": "stdout", "time": "{date}{short}Z"}}',
    "logcli": '{{"labels": {{}}, "line": "{line}", "timestamp": "{date}.{micro:06}+02:00"}}',
    "Loki": '{{"streams": [{{"stream": {{}}, "values": [["{unix}{micro:06}000", "{line}"]]}}]}}',
    "Cloud Logging": '{{"insertId": "a", "jsonPayload": {{"message": "{line}"}}, "timestamp": "{date}.{micro:06}Z"}}',
    "gcloud, printed": '{{\n  "insertId": "a",\n  "textPayload": "{line}",\n  "timestamp": "{date}.{micro:06}Z"\n}}',
    "CloudWatch": '{{"events": [{{"timestamp": {unix}{milli:03}, "message": "{line}"}}]}}',
    "CloudWatch, printed": '{{\n  "timestamp": {unix}{milli:03},\n  "message": "{line}",\n  "ingestionTime": 5\n}}',
    "Fluent Bit": '{{"date": {unix}.{micro:06}, "log": "{line}", "kubernetes": {{}}}}',
    "zap": '{{"level": "info", "ts": {unix}.{milli:03}, "msg": "{line}", "stream": "out"}}',
    "journalctl -o json": '{{"MESSAGE": "{line}", "__REALTIME_TIMESTAMP": "{unix}{micro:06}"}}',
    "journalctl": "{month} node-3 train.service[12]: {line}",
    "journalctl -o short-precise": "{month}.{micro:06} node-3 python3[12]: {line}",
    "journalctl -o short-iso": "{date}+0000 node-3 python3[12]: {line}",
    "kubectl --timestamps": "{date}.{micro:06}789Z {line}",
    "ts": "{month} {line}",
}


def dated(row: str, collector: str, gap: float = 2.0, rows: int = 200) -> str:
    """Return rows of 2 s each as a collector of logs stores them, dated `gap` seconds apart."""
    lines = []
    for n in range(1, rows + 1):
        moment = datetime(2026, 1, 5, 8, tzinfo=timezone.utc) + timedelta(seconds=gap * n + 0.01 * (n % 7))
        spelled = {
            "date": f"{moment:%Y-%m-%dT%H:%M:%S}",
            "month": f"{moment:%b} {moment.day:2} {moment:%H:%M:%S}",
            "unix": int(moment.timestamp()),
            "micro": moment.microsecond,
            "milli": moment.microsecond // 1000,
            "short": f".{moment.microsecond:06}".rstrip("0").rstrip("."),
        }
        lines.append(DATED[collector].format(line=row.format(n=n), **spelled) + "\n")
    return "".join(lines)


@in_each("row", WITHOUT_A_DATE)
@in_each("collector", DATED)
def test_rows_without_dates_are_checked_against_the_dates_of_the_collector(
    tmp_path: Path, collector: str, row: str
) -> None:
    result = logs.read(written(tmp_path, dated(WITHOUT_A_DATE[row], collector)))
    assert result.provenance.format == row
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.005)
    if result.provenance.timing == "reported":
        assert result.audit is not None
        assert result.audit.clock == "the timestamps of the rows"
        assert result.audit.ratio == pytest.approx(1, abs=0.01)


@in_each("collector", DATED)
def test_the_dates_of_a_collector_refuse_rows_that_leave_out_a_third_of_the_time(
    tmp_path: Path, collector: str
) -> None:
    with pytest.raises(ContradictionError, match="by the timestamps of the rows"):
        logs.read(written(tmp_path, dated(WITHOUT_A_DATE["litgpt"], collector, gap=3.0)))


def test_a_stamp_of_the_logger_comes_before_that_of_the_collector(tmp_path: Path) -> None:
    row = "2026-03-01 09:{minute:02}:{second:02},500 INFO step {n} loss 2.5"
    rows = [row.format(n=n, minute=n // 30, second=2 * n % 60) for n in range(1, 40)]
    for wrapped in (docker(rows), "".join(f"2026-03-01T10:00:00+0100 host train[5]: {text}\n" for text in rows)):
        result = logs.read(written(tmp_path, wrapped))
        assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
        assert result.timestamp == "2026-03-01T09:00:02"


def test_a_table_after_the_stamps_of_kubernetes_is_read(tmp_path: Path) -> None:
    rows = ["step,step_time,train/loss", *(f"{n},2.5,9.{n}" for n in range(1, 20))]
    text = "".join(f"2026-01-05T08:00:{n:02}.{n:09}Z {row}\n" for n, row in enumerate(rows))
    assert logs.read(written(tmp_path, text)).performance_metrics.avg_step_time_seconds == pytest.approx(2.5)


@pytest.mark.parametrize("form", ["{:%Y-%m-%dT%H:%M:%S.%f}{} ", "{:%Y-%m-%dT%H:%M:%S}{} node-3 python3[12]: "])
def test_a_clock_that_is_put_forward_in_the_night_is_not_a_pause(tmp_path: Path, form: str) -> None:
    lines = []
    for n in range(1, 201):
        moment = datetime(2026, 3, 29, 0, 58) + timedelta(seconds=2 * n)
        summer = moment >= datetime(2026, 3, 29, 1)
        local = form.format(moment + timedelta(hours=1 + summer), "+02:00" if summer else "+01:00")
        lines.append(local + WITHOUT_A_DATE["litgpt"].format(n=n) + "\n")
    audit = logs.read(written(tmp_path, "".join(lines))).audit
    assert audit is not None
    assert (audit.ratio, audit.explained_by) == (pytest.approx(1, abs=0.01), ())
