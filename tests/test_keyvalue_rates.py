"""Rates of rows of unknown or different tokens: each is weighted by the work of its step."""

from typing import Any

import pytest
from keyvalue_rows import automodel, composer, log, torchtune

TOKENS = [100_000 + 40_000 * (7 * n % 11) for n in range(40)]
SECONDS = [1.0 + tokens / 200_000 * (1 + 0.1 * (n % 3)) for n, tokens in enumerate(TOKENS)]
RATES = [tokens / seconds for tokens, seconds in zip(TOKENS, SECONDS, strict=True)]
ALL_OVER_ALL = sum(TOKENS[1:]) / sum(SECONDS[1:])
OF_EQUAL_STEPS = 39 / sum(1 / rate for rate in RATES[1:])


def clock(n: int) -> str:
    """Return minutes and seconds at the end of a step."""
    passed = int(sum(SECONDS[: n + 1]))
    return f"{passed // 60:02}:{passed % 60:02}"


def test_rates_of_steps_of_unknown_tokens_are_weighted_by_the_dates_of_their_rows(read_text: Any) -> None:
    rows = [automodel(n, RATES[n], f" | num_label_tokens {9000 + 37 * n % 5000}") for n in range(40)]
    dated = [row.replace(row[:19], f"2026-01-05 08:{clock(n)}") for n, row in enumerate(rows)]
    result = read_text("\n".join(dated) + "\n")
    assert result.performance_metrics.tokens_per_second == pytest.approx(ALL_OVER_ALL, rel=0.01)
    assert result.performance_metrics.avg_step_time_seconds is None
    (how,) = [one.values["how"] for one in result.remarks if one.code == "rates_weighted"]
    assert how.startswith("are weighted by the timestamps of the rows")


def test_rates_of_steps_of_unknown_tokens_are_weighted_by_the_progress_bar(read_text: Any) -> None:
    def drawn(n: int) -> str:
        return f"\r1|{n + 1}|Loss: 1.9:  10%|# | {n + 1}/40 [{clock(n)}<00:20, 3.0s/it]"

    text = "".join(torchtune(n + 1, RATES[n]) + "\n" + drawn(n) for n in range(40))
    result = read_text(text)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(ALL_OVER_ALL, rel=0.01)


def test_rates_without_any_clock_are_weighted_by_the_tokens_of_the_loss(read_text: Any) -> None:
    rows = [automodel(n, RATES[n], f" | num_label_tokens {TOKENS[n] // 2}")[22:] for n in range(40)]
    result = read_text("\n".join(rows) + "\n")
    assert result.performance_metrics.tokens_per_second == pytest.approx(ALL_OVER_ALL, rel=1e-4)
    (how,) = [one.values["how"] for one in result.remarks if one.code == "rates_weighted"]
    assert how.startswith("are weighted by the tokens that enter the loss")


def test_rows_without_tokens_or_time_have_a_warning_about_their_mean(read_text: Any) -> None:
    result = read_text("".join(torchtune(n + 1, RATES[n]) + "\n" for n in range(40)))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(OF_EQUAL_STEPS)
    (how,) = [one.values["how"] for one in result.remarks if one.code == "rates_weighted"]
    assert how.startswith("have equal weight")
    assert "rates_weighted" not in [one.code for one in read_text(log("torchtune")).remarks]


def test_a_rate_and_a_time_give_the_tokens_of_a_step(read_text: Any) -> None:
    rows = [automodel(n, RATES[n], f" | time {SECONDS[n]:.4f}s | num_label_tokens 9") for n in range(40)]
    figures = read_text("\n".join(rows) + "\n").performance_metrics
    assert figures.tokens_per_second == pytest.approx(ALL_OVER_ALL, rel=1e-4)
    assert figures.tokens_per_step == pytest.approx(sum(TOKENS[1:]) / 39, rel=1e-4)


def test_a_rate_per_gpu_counts_by_the_tokens_of_its_row(read_text: Any) -> None:
    rows = [
        f"(TaskRunner pid=4711) step:{n + 1} - actor/pg_loss:-0.25 - perf/total_num_tokens:{TOKENS[n]}"
        f" - perf/throughput:{RATES[n]!r}"
        for n in range(40)
    ]
    result = read_text("\n".join(rows) + "\n")
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(ALL_OVER_ALL)
    assert [
        warning for warning in result.warnings if warning.startswith("tokens_per_step: varies from 100,000 to 500,000")
    ]


def test_a_change_of_the_tokens_is_warned_about_once(read_text: Any) -> None:
    rows = [
        f"(TaskRunner pid=4711) step:{n + 1} - actor/pg_loss:{n / 100}"
        f" - perf/total_num_tokens:{100_000 if n < 20 else 200_000} - perf/time_per_step:{1 + n % 3 / 100}"
        for n in range(40)
    ]
    of_tokens = [one for one in read_text("\n".join(rows) + "\n").remarks if one.field == "tokens_per_step"]
    assert [(one.code, one.values) for one in of_tokens] == [("tokens_change", {"step": 21})]


def test_composers_total_leaves_out_the_tokens_of_its_own_step(read_text: Any) -> None:
    rows = [
        composer(n + 1, SECONDS[n]).replace(f"time/token: {n * 65536}", f"time/token: {sum(TOKENS[:n])}")
        for n in range(40)
    ]
    steps = read_text("\n".join(rows) + "\n").steps
    assert steps.column("tokens").tolist()[1:-1] == TOKENS[1:-1]


def test_automodels_rate_per_data_parallel_rank_gives_the_gpus_with_the_other_sizes(read_text: Any) -> None:
    sizes = "- nemo_automodel: 0.6.0 (/opt/nemo)\ndistributed:\n  tp_size: 2\n  pp_size: 2\n"
    result = read_text(sizes + log("automodel"))
    assert result.training_config.num_gpus == 32
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(131072 / 32)
    stated = read_text(f"World size: 32\n{log('automodel')}")
    assert stated.performance_metrics.tokens_per_second_per_gpu == pytest.approx(131072 / 32)
    assert "rate_of_replicas" not in [one.code for one in (*result.remarks, *stated.remarks)]
    assert "rate_of_replicas" in [one.code for one in read_text(log("automodel")).remarks]
