"""Prefixes of launchers and colours of consoles: a log of every format is read alike with each of them."""

import re

from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat.logs import prefixes

COMPOSE = ("trainer-1  | ", "my_project_trainer_1      | ", "llm-train-12  | 2026-01-16T07:32:00.123456789Z ")


@in_each("prefix", COMPOSE)
def test_the_prefix_of_docker_compose_is_taken_off(prefix):
    assert prefixes.strip(f"{prefix}[default0]: iteration 5") == "iteration 5"
    assert prefixes.split(f"{prefix}3: iteration 5")[0].rank == 3


@in_each("line", ["step-1 | loss 2.5", "a | b", "epoch 1  | loss 2.5", "loss-1.5  | x", "| step-1  | 2 |"])
def test_a_line_that_only_resembles_a_prefixed_row_keeps_its_text(line):
    assert prefixes.strip(line) == line


@in_each("format", ALL_JOBS)
def test_a_log_with_the_prefix_of_docker_compose_is_read_like_the_log_itself(format, read_text):
    lines = ALL_JOBS[format](Job())
    plain = read_text("\n".join(lines) + "\n")
    behind = read_text("\n".join(f"trainer-1  | {line}" for line in lines) + "\n")
    assert behind.provenance.format == plain.provenance.format
    assert behind.performance_metrics == plain.performance_metrics
    assert behind.training_config == plain.training_config


@in_each("format", ALL_JOBS)
def test_a_log_whose_numbers_are_coloured_is_read_like_the_log_itself(format, read_text):
    text = "\n".join(ALL_JOBS[format](Job())) + "\n"
    coloured = re.sub(r"(?<![\w.])\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w.])", "\x1b[1;36m\\g<0>\x1b[0m", text)
    plain, read = read_text(text), read_text(coloured)
    assert read.provenance.format == plain.provenance.format
    assert read.performance_metrics == plain.performance_metrics
    assert read.training_config == plain.training_config
