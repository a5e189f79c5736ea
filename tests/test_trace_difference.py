"""The difference of two traces: rows that sum, a sentence, other work said before, and refusals."""

import json
from pathlib import Path

import pytest
from chrome_traces import ADAM, GEMM, ChromeTrace, training
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.reports.ledger import sentence
from tensorprimat.traces.difference import LedgerDifference, difference_of
from tensorprimat.traces.sides import ledger_at
from tensorprimat.traces.work import TraceFacts

OWN = Path(__file__).parent / "traces"
NOTHING = (TraceFacts(), TraceFacts())


def difference(one: ChromeTrace, other: ChromeTrace, folder: Path, facts=NOTHING) -> LedgerDifference:
    sides = [made.write(folder / f"{name}.json") for name, made in (("a", one), ("b", other))]
    return difference_of(ledger_at(sides[0]), ledger_at(sides[1]), facts)


def contributions(found: LedgerDifference) -> dict[str, float]:
    return {row.name: round(1000 * row.difference, 6) for row in found.rows}


def codes(found: LedgerDifference) -> list[str]:
    return [notice.code for notice in found.notices]


def test_rows_sum_to_the_difference_of_the_steps(tmp_path):
    found = difference(training(), training(product=400, extra={"triton_poi_fused_add_0": 300}), tmp_path)
    assert sum(row.difference for row in found.rows) == pytest.approx(found.total.difference, rel=1e-9)
    shown = contributions(found)
    assert (shown["products_bf16"], shown["elementwise"]) == (-1.2, 0.301)


PLANTED = {
    "triton_poi_fused_add_0": "elementwise", "Memcpy": "elementwise", "rms_norm_kernel": "normalisation",
    "silu_kernel": "activation", "cross_entropy_kernel": "loss", "embedding_kernel": "embedding",
    "LpNormFunctor": "clipping", "ncclDevKernel_AllReduce_Sum": "communication_all_reduce",
    "amax_kernel": "quantisation",
    "compute_dot_do_o": "attention_helpers", "nvjet_tst_x": "products_bf16", "conv_fwd": "convolution",
}  # fmt: skip


@in_each(("kernel", "expected"), PLANTED.items())
def test_a_planted_class_is_named_first_with_its_seconds(tmp_path, kernel, expected):
    name = "copy_kernel" if kernel == "Memcpy" else kernel
    found = difference(training(), training(extra={name: 700}), tmp_path)
    largest = max(found.rows, key=lambda row: abs(row.difference))
    assert largest.name == expected
    assert largest.difference == pytest.approx(701e-6, rel=0.05)


def test_the_sentence_names_the_largest_parts_and_their_direction(tmp_path):
    found = difference(training(), training(product=400, extra={"triton_poi_fused_add_0": 300}), tmp_path)
    assert (
        sentence(found)
        == "B is 0.897 ms faster a step: products 1.2 ms, other elementwise 0.301 ms slower, rest 0.002 ms slower"
    )


def test_two_traces_of_one_training_show_no_difference():
    sides = [ledger_at(OWN / f"h200_bf16_{name}.trace.json.gz") for name in "ab"]
    found = difference_of(*sides, NOTHING)
    assert not found.total.is_shown
    assert sentence(found).startswith("The steps of A and B show no difference")
    beyond = [row for row in found.rows if row.is_shown and abs(row.difference) > 0.001 * found.total.baseline]
    assert not beyond
    assert not found.notices


def test_work_that_differs_is_said():
    sides = {name: ledger_at(OWN / f"h200_{name}.trace.json.gz") for name in ("bf16_a", "fp8", "bf16_recomputed")}
    found = difference_of(sides["bf16_a"], sides["fp8"], NOTHING)
    assert codes(found) == ["trace_precisions_differ", "trace_fusion_differs"]
    found = difference_of(sides["bf16_a"], sides["bf16_recomputed"], NOTHING)
    assert codes(found) == ["trace_recomputation_differs", "trace_fusion_differs"]
    assert max(found.rows, key=lambda row: row.difference).name == "recomputed_products"


def test_a_step_of_twice_the_micro_batches_is_scaled_to_the_same_work(tmp_path):
    found = difference(training(), training(batches=2), tmp_path)
    assert found.scale == 0.5
    assert codes(found) == ["trace_batches_differ"]
    assert contributions(found)["optimizer"] == pytest.approx(-0.1, abs=0.001)


def of_shapes(layers: int, tokens: int) -> ChromeTrace:
    """Return three steps of a forward pass whose products have shapes."""
    made = ChromeTrace()
    for step in range(3):
        made.mark(step, 10_000 * step, 10_000 * step + 9000)
        for layer in range(layers):
            at = 10_000 * step + 100 * layer + 10
            made.under("aten::mm", GEMM, at, at + 80, **{"Input Dims": [[tokens, 64], [64, 64]],
                                                         "Input type": ["c10::BFloat16"] * 2})  # fmt: skip
    return made


@in_each(("sequences", "lengths", "scale"), [((1, 2), (64, 64), 0.5), ((1, 1), (64, 64), 1), ((1, 2), (64, 128), 1)])
def test_without_shapes_the_results_state_a_larger_micro_batch(tmp_path, sequences, lengths, scale):
    facts = [TraceFacts(sequences=one, sequence_length=other) for one, other in zip(sequences, lengths, strict=True)]
    ledgers = [
        ledger_at(training(product=500 * one).write(tmp_path / f"{place}.json")) for place, one in enumerate(sequences)
    ]
    found = difference_of(*ledgers, tuple(facts))
    assert found.scale == scale
    assert ("trace_sequences_differ" in [one.code for one in found.notices]) == (lengths[0] != lengths[1])


def test_another_length_of_the_sequences_is_said(tmp_path):
    sides = [of_shapes(4, 512), of_shapes(4, 512)]
    for made, tokens in zip(sides, (128, 256), strict=True):
        for at in (5000, 15_000, 25_000):
            made.under("aten::_scaled_dot_product_flash_attention", "flash_fwd_kernel", at, at + 500,
                       **{"Input Dims": [[1, 4, tokens, 64]] * 3, "Input type": ["c10::BFloat16"] * 3})  # fmt: skip
    assert codes(difference(sides[0], sides[1], tmp_path)) == ["trace_sequences_differ"]


def test_a_larger_batch_is_scaled_by_the_shapes(tmp_path):
    found = difference(of_shapes(4, 512), of_shapes(4, 1536), tmp_path)
    assert (found.scale, codes(found)) == (pytest.approx(1 / 3), ["trace_batches_differ"])


def test_traces_of_unlike_programs_are_refused(tmp_path):
    with pytest.raises(InputError, match="unlike programs"):
        difference(training(layers=4), training(layers=7), tmp_path)
    for layers, tokens in ((12, 2902), (12, 2901), (4, 1800)):  # 17 times, no whole number of times, no multiple
        sides = [of_shapes(4, 512), of_shapes(layers, tokens)]
        with pytest.raises(InputError, match="unlike programs"):
            difference(*sides, tmp_path)
    forward = training()
    forward.events[:] = [one for one in forward.events if "ackward" not in one["name"]]
    with pytest.raises(InputError, match="backward"):
        difference(training(), forward, tmp_path)
    worlds = [training(), training()]
    for made, ranks in zip(worlds, (8, 2), strict=True):
        made.document["distributedInfo"] = {"rank": 0, "world_size": ranks}
    with pytest.raises(InputError, match="8 ranks and B on 2"):
        difference(*worlds, tmp_path)


def test_another_clock_is_a_row_of_its_own(tmp_path):
    facts = (TraceFacts(clock_hz=1.5e9), TraceFacts(clock_hz=1.0e9))
    shown = contributions(found := difference(training(product=400), training(product=600), tmp_path, facts))
    assert shown["products_bf16"] == pytest.approx(0, abs=0.01)
    assert shown["clock"] == pytest.approx(0.5 * (4812 + 404 + 1004) / 1000)
    assert sum(shown.values()) == pytest.approx(1000 * found.total.difference, abs=1e-4)


def test_one_step_gives_no_interval(tmp_path):
    found = difference(training(1), training(1, product=400), tmp_path)
    assert found.total.low is None
    assert found.total.is_shown


def test_the_command_prints_the_json_that_programs_read(tmp_path, capsys):
    sides = [str(training(product=product).write(tmp_path / f"{product}.json")) for product in (500, 400)]
    assert main(["explain", *sides, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {"step_seconds", "classes", "unknown_share", "closure"} <= shown["sides"][0].keys()
    for side in shown["sides"]:
        assert sum(side["classes"].values()) == pytest.approx(side["step_seconds"], rel=1e-6)
    steps = [side["step_seconds"] for side in shown["sides"]]
    assert sum(shown["difference"].values()) == pytest.approx(steps[1] - steps[0], rel=1e-4)
    assert main(["explain", sides[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_a_difference_fits_into_the_terminal(tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    sides = [
        str(training(extra=extra).write(tmp_path / f"{len(extra)}.json")) for extra in ({}, {ADAM + "x" * 300: 90})
    ]
    assert main(["explain", *sides]) == 0
    shown = capsys.readouterr().out
    assert "step of B" in shown
    assert max(map(len, shown.splitlines())) <= width


def test_the_waterfall_shows_both_steps_and_every_large_class(tmp_path, capsys):
    extra = {"triton_poi_fused_add_0": 300.0}
    sides = [str(made.write(tmp_path / f"{n}.json")) for n, made in enumerate((training(), training(extra=extra)))]
    assert main(["explain", *sides, "--plot", str(tmp_path / "why.svg")]) == 0
    shown = (tmp_path / "why.svg").read_text()
    assert main(["explain", *sides, "--plot", str(tmp_path / "why.html")]) == 0
    assert "<svg" in (tmp_path / "why.html").read_text()[:200]
    for label in ("step of A", "step of B", "other elementwise", "+0.301", "Why is it faster?"):
        assert f"<!-- {label} -->" in shown
    assert main(["explain", sides[0], "--plot", str(tmp_path / "why.png")]) == 0
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    assert main(["explain", sides[0], "--plot", str(tmp_path / "why.gif")]) == 2
    assert "must end in .png or .svg" in capsys.readouterr().err


def test_workbooks_are_compared_by_their_totals_and_not_with_a_trace(shared, capsys, tmp_path):
    pytest.importorskip("openpyxl")
    books = [str(shared / "excel" / f"{name}_qwen_rank0.xlsx") for name in ("h100", "mi300x")]
    assert main(["explain", *books]) == 0
    assert "GEMM kernels" in capsys.readouterr().out
    assert main(["explain", books[0], str(training(3).write(tmp_path / "a.json"))]) == 2
    assert "holds totals; give two of them, or two traces" in capsys.readouterr().err
