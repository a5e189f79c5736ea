"""Rows joined or cut inside a number: found by comparison with the other rows; intact rows are never suspected."""

from each import in_each

from tensorprimat import logs

MAXTEXT = (
    "completed step: {0}, seconds: 5.{1:03d}, TFLOP/s/device: 141.250, Tokens/s/device: 9098.1{1:02d}, "
    "total_weights: 4096, loss: 11.3{1:02d}"
)
VERL = "step:{0} - train/loss:2.5{1} - perf/time_per_step:{2!r} - perf/throughput:408.{1}7"
NANOTRON = (
    "iteration: {0} / 50 | consumed_tokens: {0}.19M | time_per_iteration_ms: 2.0{1}K | tokens_per_sec: 524K |"
    " tokens_per_sec_per_gpu: 65.5K | global_batch_size: 1.05M | lm_loss: 10.9 | model_tflops_per_gpu: 420"
)
SIGNS = ("has another form", "seem cut", "left out as wrong", "in doubt", "folded at")


def maxtext(count=30):
    return [MAXTEXT.format(index, 10 * (index % 10)) for index in range(count)]


def signs(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return [warning for warning in logs.read(path).warnings if any(sign in warning for sign in SIGNS)]


@in_each("rest", ["5,", "5.,", "5.4,", "5.40,", "5.4401,"])
def test_a_number_with_other_decimals_than_on_every_other_row_is_a_warning_that_names_the_line(tmp_path, rest):
    lines = maxtext()
    before, _, behind = lines[20].partition("seconds: ")
    lines[20] = f"{before}seconds: {rest}{behind.partition(',')[2]}"
    assert "line 21" in signs(tmp_path / "a.log", lines)[0]


def test_a_row_that_holds_a_metric_twice_is_a_warning(tmp_path):
    lines = maxtext()
    lines[9] = lines[9].partition("/device: 9098")[0] + "/device: 909" + lines[10][lines[10].index("/device: 9098") :]
    assert "line 10" in signs(tmp_path / "a.log", lines)[0]


def test_rows_that_are_whole_are_never_suspected(tmp_path):
    assert signs(tmp_path / "a.log", maxtext()) == []
    drops_zeros = [VERL.format(index, index % 7, round(20 + index / 8, 4)) for index in range(1, 60)]
    assert signs(tmp_path / "b.log", drops_zeros) == []
    assert signs(tmp_path / "c.log", [NANOTRON.format(index, index % 10) for index in range(1, 30)]) == []


def test_a_first_number_of_four_digits_with_more_of_them_after_its_point_is_whole(tmp_path):
    clocks = ["0.7139", *(f"{1.351 + 1.071 * index:.3f}" for index in range(8))]  # transformers 5 prints by .4g
    row = "{{'loss': '{0}.5', 'learning_rate': '1e-05', 'train_runtime': '{1}', 'train_tokens_per_second': '5{0}8'}}"
    lines = [row.format(9 - index, clock) for index, clock in enumerate(clocks)]
    assert signs(tmp_path / "a.log", lines) == []


def test_a_whole_number_may_be_an_integer_on_some_lines_and_a_float_on_others(tmp_path):
    """Cisco's llama31_8b of MLPerf v5.1 writes "step": 0 with its warm-up time, and "step": 32.0 in the rows."""
    lines = ['stats {"value": {"warmup_time": 149.75}, "lineno": 168, "step": 0}', *maxtext()]
    lines[1:] = [f'{line}, "lineno": 312, "step": {32 * number}.0}}' for number, line in enumerate(lines[1:], start=1)]
    assert signs(tmp_path / "a.log", lines) == []
    lines[9] = lines[9].replace(".0}", "}")  # and in some of the rows
    assert signs(tmp_path / "a.log", lines) == []


@in_each("unit", ["65.5", "65.", "65", "6"])
def test_a_rate_without_the_delimiter_after_its_suffix_is_not_a_rate(tmp_path, unit):
    lines = [NANOTRON.format(index, index % 10).partition("65.5K")[0] + unit for index in range(1, 30)]
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    assert not logs.read(tmp_path / "a.log").steps.has("reported_tokens_per_second_per_gpu")
