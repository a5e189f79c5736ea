"""Logs inside the JSON of docker, Loki and log services of clouds are read like the logs themselves."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorprimat import logs
from tensorprimat.logs import envelopes
from tensorprimat.logs.format import Given
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


ENVELOPES: dict[str, Callable[[list[str]], str]] = {
    "docker": docker,
    "logcli": logcli,
    "Loki's API": loki_api,
    "Cloud Logging": cloud_logging,
    "gcloud, printed": gcloud_printed,
    "CloudWatch": cloudwatch,
    "CloudWatch in one line": cloudwatch_in_one_line,
    "Fluent Bit": fluent_bit,
}
each_envelope = pytest.mark.parametrize("envelope", ENVELOPES)


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


def test_a_line_that_docker_cut_into_pieces_is_one_line_again(tmp_path: Path) -> None:
    text = "x" * 16_384
    entries = [{"log": part, "stream": "stdout", "time": "t"} for part in (text, text, "end\n", "next\n")]
    log = Log(written(tmp_path, "".join(json.dumps(entry) + "\n" for entry in entries)))
    assert [(number, len(line)) for number, line in log.lines() if line] == [(3, 2 * 16_384 + 3), (4, 4)]


@each_envelope
def test_a_packed_envelope_is_opened_twice(tmp_path: Path, envelope: str) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(ENVELOPES[envelope](PLAIN).encode()))
    assert logs.read(path, given=Given(num_gpus=8)).performance_metrics.measured_steps


def test_a_document_longer_than_what_is_looked_at_is_opened_too(tmp_path: Path) -> None:
    many = [*PLAIN[:2], *(PLAIN[2].replace("       1/", f"{n:8d}/") for n in range(1, 900))]
    assert len(logs.read(written(tmp_path, cloudwatch_in_one_line(many))).steps) == 899


@pytest.mark.parametrize(
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
def test_json_of_other_kinds_is_no_envelope(text: str) -> None:
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
