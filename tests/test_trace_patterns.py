"""Rates of the classes of a ledger, and known patterns of lost time, each planted into a trace."""

from pathlib import Path

import preflights
import pytest
from chrome_traces import ADAM, BACKWARD, GEMM, ChromeTrace, training
from each import in_each

from tensorprimat.cli import main
from tensorprimat.models.presets import find_preset
from tensorprimat.reports.ledger import rates_table
from tensorprimat.traces.ledger import Ledger
from tensorprimat.traces.patterns import patterns_of
from tensorprimat.traces.sides import ledger_at
from tensorprimat.traces.work import Rate, TraceFacts, rates_of

LLAMA = TraceFacts(shape=find_preset("llama").shape, sequence_length=8192)
OF_16_BITS = ["c10::BFloat16", "c10::BFloat16"]


def ledger(made: ChromeTrace, folder: Path) -> Ledger:
    return ledger_at(made.write(folder / "made.json"))


def codes(found: Ledger) -> list[str]:
    return [notice.code for notice in patterns_of(found)]


def step_of(*works: tuple[str, str, float], gap: float = 0, **more) -> ChromeTrace:
    """Return a step of works, each an operator, a kernel and its microseconds. more: arguments of the operators."""
    made, now = ChromeTrace(), 20.0
    for operator, kernel, duration in works:
        made.under(operator, kernel, now, now + duration, **more)
        now += duration + gap
    made.mark(0, 0, now)
    return made


BULK = ("aten::mm", GEMM, 5000.0)
ATTENTION = ("aten::_scaled_dot_product_flash_attention", "flash_fwd_kernel", 100.0)
PLANTED = {
    "pattern_dense_attention": [BULK, ("aten::bmm", GEMM, 500), ("aten::_softmax", "softmax_warp_forward", 500)],
    "pattern_unfused_optimizer": [BULK, ("aten::_fused_adamw_", "multi_tensor_apply_kernel<BinaryOp>()", 500)],
    "pattern_full_precision": [BULK, ("aten::mm", "ampere_sgemm_128x64_nn", 500)],
    "pattern_exposed": [BULK, ("c10d::x", "ncclDevKernel_AllGather_RING_LL(x)", 500)],
    "pattern_copies": [BULK, ("aten::copy_", "Memcpy HtoD", 500)],
    "pattern_small_products": [("aten::mm", GEMM, 10)] * 60,
    "pattern_unfused_elementwise": [BULK, ("aten::add", "vectorized_elementwise_kernel<4>()", 2500)],
    "pattern_scaling": [BULK, ("aten::x", "triton_red_fused_abs_max_t_2", 500)],
}


@in_each("code", PLANTED)
def test_a_planted_pattern_is_the_one_that_is_said(tmp_path, code):
    made = step_of(*PLANTED[code])
    for one in made.events:
        if one["name"].startswith("Memcpy"):
            one["cat"] = "gpu_memcpy"
    assert codes(ledger(made, tmp_path)) == [code]


def test_a_training_without_a_pattern_is_told_none(tmp_path):
    assert codes(ledger(training(product=2000), tmp_path)) == []


def test_a_late_host_a_wait_for_data_and_a_synchronisation_are_three_patterns(tmp_path):
    assert codes(ledger(step_of(*[BULK] * 5, gap=1000), tmp_path)) == ["pattern_late_host"]
    made = step_of(*[BULK] * 5, gap=1000)
    made.host("enumerate(DataLoader)#_Iter.__next__", 5000, 5900, category="user_annotation")
    assert "pattern_data" in codes(ledger(made, tmp_path))
    made = step_of(*[BULK] * 5, gap=1000)
    made.host("cudaStreamSynchronize", 4900, 5030, category="cuda_runtime")
    assert "pattern_synchronisation" in codes(ledger(made, tmp_path))


def test_a_dimension_that_no_unit_loads_at_once_is_named(tmp_path):
    shapes = {"Input Dims": [[4096, 768], [768, 50257]], "Input type": OF_16_BITS}
    (notice,) = patterns_of(ledger(step_of(BULK, **shapes), tmp_path))
    assert (notice.code, notice.values["size"]) == ("pattern_misaligned", 50257)


def test_an_odd_number_of_tokens_is_no_alignment(tmp_path):
    shapes = {"Input Dims": [[788, 768], [768, 3072]], "Input type": OF_16_BITS}
    assert not patterns_of(ledger(step_of(BULK, **shapes), tmp_path))


def recomputed(products: int) -> ChromeTrace:
    """Return a step of one layer of 4 products, of which the backward pass repeats some, and the attention."""
    made = step_of(*[BULK] * 4, ATTENTION)
    now = 30_000.0
    made.host("autograd::engine::evaluate_function: XBackward", now, now + 60_000, thread=BACKWARD)
    made.host("XBackward", now + 1, now + 59_000, thread=BACKWARD)
    made.host("CompiledFunction", now + 2, now + 30_000, thread=BACKWARD, **{"Sequence number": 7})
    for operator, kernel, duration in [*[BULK] * products, ATTENTION]:
        made.under(operator, kernel, now + 10, now + 10 + duration, thread=BACKWARD)
        now += duration + 10
    made.mark(0, 0, 95_000)
    del made.events[next(place for place, one in enumerate(made.events) if one["name"].startswith("Profiler"))]
    return made


def test_a_recomputed_last_product_is_counted_against_what_the_model_needs(tmp_path):
    notice = next(one for one in patterns_of(ledger(recomputed(4), tmp_path)) if one.code == "pattern_last_product")
    assert (notice.values["products"], notice.values["needed"]) == (8, 7)
    assert "pattern_last_product" not in codes(ledger(recomputed(3), tmp_path))


def test_the_trace_of_all_layers_shows_the_32_products_too_many(shared):
    found = ledger_at(shared / "gpu" / "h200_all_layers_recomputed.trace.json.gz")
    (notice,) = patterns_of(found)
    assert notice.code == "pattern_last_product"
    assert notice.values["products"] - notice.values["needed"] == 32


def test_rates_of_a_model_follow_from_its_shape(shared):
    """AdamW moves 7 × 16.06 GB in 46.5 ms: 2.4 TB/s of 4.8 (gpu/INDEX.md)."""
    found = ledger_at(shared / "gpu" / "h200_all_layers_recomputed.trace.json.gz")
    rates = rates_of(found, LLAMA)
    assert rates["optimizer"].amount == pytest.approx(112.4e9, rel=0.01)
    assert rates["optimizer"].per_second == pytest.approx(2.41e12, rel=0.01)
    assert rates["optimizer"].peak == 4.8e12
    assert rates["products_bf16"].amount == pytest.approx(6 * 7.504e9 * 8192, rel=0.01)


def test_rates_follow_from_shapes_where_the_trace_has_them(tmp_path):
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": OF_16_BITS}
    rates = rates_of(ledger(step_of(("aten::mm", GEMM, 1000.0), **shapes), tmp_path), TraceFacts())
    assert rates["products_bf16"].amount == 2 * 4096**3
    (at_clock,) = rates_of(
        ledger(step_of(("aten::mm", GEMM, 1000.0), **shapes), tmp_path), TraceFacts(clock_hz=915e6)
    ).values()
    assert at_clock.peak_at_clock == pytest.approx(at_clock.peak / 2)  # the peak of an H100 is defined at 1,830 MHz
    facts = TraceFacts(preflight=preflights.made())
    for work, best in (("aten::mm", GEMM), 7e14), (("aten::add", "add_kernel"), 2.8e12):
        (rate,) = rates_of(ledger(step_of((*work, 1000.0), **shapes), tmp_path), facts).values()
        assert rate.best == best
    moved = rates_of(ledger(step_of(("aten::add", "add_kernel", 1000.0), **shapes), tmp_path), TraceFacts())
    assert moved["elementwise"].amount == 3 * 2 * 4096**2


@in_each(("causal", "times"), [("True", 2), ("False", 4)])
def test_the_work_of_an_attention_follows_from_its_shapes_and_its_mask(causal, times, tmp_path):
    dims = [[2, 8, 1024, 128], [2, 2, 1024, 128], [2, 2, 1024, 128]]
    more = {"Input type": OF_16_BITS * 2, "Concrete Inputs": [*[""] * 4, "True", "0.", causal, "False", ""]}
    works = ("aten::_scaled_dot_product_cudnn_attention", "cudnn_flash_fprop", 1000.0)
    rates = rates_of(ledger(step_of(works, **{"Input Dims": dims, **more}), tmp_path), TraceFacts())
    assert rates["attention_forward"].amount == times * 2 * 8 * 1024**2 * 128
    more["Concrete Inputs"] = [*[""] * 14, causal, ""]
    works = ("aten::_scaled_dot_product_cudnn_attention_backward", "cudnn_flash_bprop", 1000.0)
    rates = rates_of(ledger(step_of(works, **{"Input Dims": [dims[0], *dims], **more}), tmp_path), TraceFacts())
    assert rates["attention_backward"].amount == 2.5 * times * 2 * 8 * 1024**2 * 128


def of_h200(name: str, plan: str = "") -> dict[str, float]:
    """Return the work of a step of a trace of perf/gpu_traces.py, from the model that ran."""
    shape = LLAMA.shape.model_copy(update={"num_layers": 4, "vocab_size": 32_000})
    facts = TraceFacts(shape=shape, sequence_length=4096, sequences=2, recompute=plan)
    found = rates_of(ledger_at(Path(__file__).parent / "traces" / f"h200_{name}.trace.json.gz"), facts)
    return {key: rate.amount for key, rate in found.items()}


WIDE, NARROW, MLP = 4096 * 4096, 4096 * 1024, 4096 * 14336


@in_each("name", ["bf16_recomputed", "fp8_recomputed"])
def test_the_work_of_recomputed_products_follows_from_their_number_or_from_the_plan(name):
    of_step = 2 * 8192 * 4
    assert of_h200(name)["recomputed_products"] == of_step * (2 * WIDE + 2 * NARROW + 2 * MLP)
    assert of_h200(name, "full") == of_h200(name)
    all_but_one = "10 % of activations kept: queries, keys, values, attention, output, gate, up recomputed"
    assert of_h200(name, all_but_one) == of_h200(name)
    assert "recomputed_products" not in of_h200(name, "35 % of activations kept: queries, up recomputed")


def test_a_recomputed_last_product_is_work_too(shared):
    found = ledger_at(shared / "gpu" / "h200_all_layers_recomputed.trace.json.gz")
    assert rates_of(found, LLAMA)["recomputed_products"].amount == 2 * 8192 * 32 * (2 * WIDE + 2 * NARROW + 3 * MLP)


def test_products_of_layers_and_head_in_two_precisions_share_the_work_of_the_model():
    amounts, once = of_h200("fp8"), of_h200("bf16_a")
    assert amounts["products_bf16"] == 6 * 8192 * 4096 * 32_000
    assert amounts["products_fp8"] + amounts["products_bf16"] == once["products_bf16"]


def test_a_rate_above_the_peak_is_no_rate(tmp_path):
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": OF_16_BITS}
    assert not rates_of(ledger(step_of(("aten::mm", GEMM, 100.0), **shapes), tmp_path), TraceFacts())


def test_the_rate_of_a_class_that_one_side_has_stands_alone():
    (row,) = rates_table([{}, {"recomputed_products": Rate(amount=1e12, per_second=5e14, peak=1e15, unit="FLOP")}]).rows
    assert [cell.text for cell in row] == ["recomputed products", "1 TFLOP", "", "500 TFLOP/s, 50 %"]


def test_without_shapes_and_a_model_there_is_no_rate_and_the_reason_is_said(tmp_path, capsys):
    assert main(["explain", str(training().write(tmp_path / "a.json"))]) == 0
    assert "no rates: the trace has no shapes" in " ".join(capsys.readouterr().out.split())
    assert not rates_of(ledger(training(extra={ADAM: 5}), tmp_path), TraceFacts())
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": OF_16_BITS}
    assert main(["explain", str(step_of(BULK, (*ATTENTION[:2], 500), **shapes).write(tmp_path / "a.json"))]) == 0
    assert "no rate of attention, forward: neither shapes" in " ".join(capsys.readouterr().out.split())


@in_each(("kernel", "peak"), [(GEMM, 989.4e12), ("ampere_sgemm_128x128_tn", 66.9e12), ("unheard_of_kernel", None)])
def test_the_peak_of_an_attention_is_that_of_the_precision_of_the_products(kernel, peak, tmp_path):
    works = (("aten::mm", kernel, 9e6), ("aten::_scaled_dot_product_flash_attention", "flash_fwd_kernel", 5e6))
    rates = rates_of(ledger(step_of(*works), tmp_path), LLAMA)
    assert rates["attention_forward"].peak == pytest.approx(peak)
