"""Traces of profilers: readers, steps, classes, and the ledger that sums to the step."""

import json
from pathlib import Path

import pytest
from chrome_traces import ADAM, BACKWARD, GEMM, ChromeTrace, training
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.traces.classes import rules, titles
from tensorprimat.traces.ledger import Ledger
from tensorprimat.traces.sides import ledger_at

OWN = Path(__file__).parent / "traces"


def ledger(made: ChromeTrace, folder: Path) -> Ledger:
    return ledger_at(made.write(folder / "made.trace.json.gz"))


def milliseconds(found: Ledger) -> dict[str, float]:
    return {name: round(1000 * seconds, 6) for name, seconds in found.classes.items()}


def test_classes_of_a_step_sum_to_its_time(tmp_path):
    found = ledger(training(), tmp_path)
    for step, (start, end) in zip(found.by_step, found.steps.windows, strict=True):
        assert sum(step.values()) == pytest.approx(end - start, rel=1e-9)
    assert found.closure == pytest.approx(0, abs=0.005)


def test_of_work_at_once_computation_comes_before_communication_before_copies(tmp_path):
    made = ChromeTrace()
    made.mark(0, 0, 1000)
    made.kernel(GEMM, 100, 400)
    made.kernel("ncclDevKernel_AllGather_RING_LL(x)", 300, 600, stream=20)
    made.kernel("Memcpy HtoD", 500, 800, stream=30, category="gpu_memcpy", launch=50)
    found = ledger(made, tmp_path)
    shown = milliseconds(found)
    assert (shown["products_bf16"], shown["communication_all_gather"], shown["copies"]) == (0.3, 0.2, 0.2)
    assert found.hidden_communication == pytest.approx(100e-6)
    assert sum(shown.values()) == pytest.approx(1.0)


def test_the_span_of_the_kernels_leaves_out_the_last_mark_and_what_was_launched_before_the_trace(tmp_path):
    made = ChromeTrace()
    for number in range(3):
        made.mark(number, 1000 * number, 1000 * number + 900)
        made.kernel(GEMM, 1000 * number + 100, 1000 * number + 400)
        made.kernel("ncclDevKernel_AllGather_RING_LL(x)", 1000 * number + 300, 1000 * number + 600, stream=20)
    made.events.append({**made.events[-1], "ts": 10, "args": {"device": 0, "stream": 7}})
    span = ledger(made, tmp_path).span
    assert (span.seconds, span.idle_share, span.overlap_share) == pytest.approx((1500e-6, 1 / 3, 1 / 3))


def test_two_kernels_at_once_share_no_moment(tmp_path):
    made = ChromeTrace()
    made.mark(0, 0, 1000)
    made.kernel(GEMM, 100, 500)
    made.kernel("triton_poi_fused_add_0", 200, 700, stream=8)
    shown = milliseconds(ledger(made, tmp_path))
    assert (shown["products_bf16"], shown["elementwise"]) == (0.4, 0.2)


def test_steps_come_from_marks_then_the_optimizer_then_repetition(tmp_path):
    assert ledger(training(), tmp_path).steps.by == "marks"
    unmarked = ledger(training(marked=False), tmp_path)
    assert (unmarked.steps.by, len(unmarked.by_step)) == ("optimizer", 3)
    made = training(5, marked=False)
    made.events[:] = [one for one in made.events if one["name"] not in (ADAM, "aten::_fused_adamw_")]
    now = 0.0
    for number in range(5):  # inference: an embedding, then layers
        for name in ("embedding_kernel", GEMM, "flash_fwd_kernel", GEMM, "flash_fwd_kernel", "softmax_x"):
            made.events[:] = made.events if number or name != "embedding_kernel" else []
            made.kernel(name, now, now + 90)
            now += 100
    repeated = ledger(made, tmp_path)
    assert (repeated.steps.by, len(repeated.by_step)) == ("repetition", 4)
    assert repeated.step_seconds == pytest.approx(600e-6)


def test_what_runs_between_two_marks_belongs_to_the_step_before(tmp_path):
    made = ChromeTrace()
    for start in (0, 1000):
        made.mark(start, start, start + 800)
        made.kernel(GEMM, start + 100, start + 700)
        made.kernel("Memcpy HtoD", start + 850, start + 900, category="gpu_memcpy")
    found = ledger(made, tmp_path)
    assert [end - start for start, end in found.steps.windows] == pytest.approx([1000e-6, 800e-6])
    assert found.closure == pytest.approx(0)


def test_launches_that_lost_their_kernels_are_counted_up_to_the_hundredth_that_is_refused(tmp_path):
    for lost, codes in ((0, []), (1, ["trace_launches_lost"])):
        made = training(layers=10)
        for _ in range(lost):
            made.kernel(GEMM, 300, 400, lost=True)
        assert [one.code for one in ledger(made, tmp_path).notices] == codes


def test_layers_of_one_step_are_no_steps(tmp_path):
    made = ChromeTrace()
    made.kernel("embedding_kernel", 0, 90)
    for number in range(8):
        made.kernel(GEMM, 100 + 200 * number, 190 + 200 * number)
        made.kernel("flash_fwd_kernel", 200 + 200 * number, 290 + 200 * number)
    with pytest.raises(InputError, match="no steps"):
        ledger(made, tmp_path)


def test_a_partial_step_at_the_end_is_left_out(tmp_path):
    made = training(4)
    last = max(one["ts"] for one in made.events if one["name"] == ADAM)
    made.events[:] = [one for one in made.events if one["ts"] < last - 3000 or one["name"].startswith("Profiler")]
    found = ledger(made, tmp_path)
    assert len(found.by_step) == 3
    assert [notice.code for notice in found.notices] == ["trace_steps_left_out"]


def test_kernels_launched_before_the_trace_belong_to_no_step_of_it(tmp_path):
    """The device may still run a step whose launches came before the profiler started."""
    made = ChromeTrace()
    made.mark(0, 0, 900)
    for number in range(4):
        made.kernel("vectorized_elementwise_kernel", 10 + 100 * number, 100 + 100 * number)
        made.events[:] = [one for one in made.events if one["cat"] != "cuda_runtime"]
    for number in range(6):
        made.kernel(GEMM, 410 + 100 * number, 510 + 100 * number, launch=20 + 10 * number)
    found = ledger(made, tmp_path)
    assert milliseconds(found) == {"products_bf16": 0.6}


def test_ranges_of_a_program_or_a_server_mark_its_steps(tmp_path):
    marks = (("iteration 7", "iteration 8"), ("train_step#1", "train_step#2"),
             ("execute_context_1(8)_generation_0(0)", "execute_32_context_0(sq0)_generation_32(sq32)"))  # fmt: skip
    for names in marks:
        made = ChromeTrace()
        for number, name in enumerate(names):
            made.host(name, 1000 * number, 1000 * number + 900, category="user_annotation")
            made.kernel(GEMM, 1000 * number + 100, 1000 * number + 600)
        found = ledger(made, tmp_path)
        assert (found.steps.by, len(found.by_step)) == ("marks", 2)


def test_the_work_of_an_unknown_device_is_refused(tmp_path):
    made = ChromeTrace()
    made.host("aten::mm", 0, 100)
    made.host("kernel", 100, 200, category="mtia_ccp_events")
    with pytest.raises(InputError, match="device that is not known"):
        ledger(made, tmp_path)


def test_of_a_cut_file_only_steps_that_are_whole_count(tmp_path):
    """Profilers write events by stream and buffer, so that a file without its end lacks some of every step."""

    def without(made: ChromeTrace, shares: tuple[float, ...]) -> Path:
        marks = [one for one in made.events if one["name"].startswith("Profiler")]
        made.events[:] = [one for one in made.events if one not in marks]
        for mark, share in zip(marks, shares, strict=True):
            own = [one for one in made.events if mark["ts"] <= one["ts"] < mark["ts"] + mark["dur"]]
            for one in own[round(share * len(own)) :]:
                made.events.remove(one)
        made.events[:0] = marks
        return made.write(tmp_path / "cut.json", cut=-20)

    assert len(ledger_at(without(training(4, layers=30), (1, 0.3, 1, 0.9))).by_step) == 2
    for steps, shares in ((2, (1, 0.3)), (3, (0.4, 0.8, 0.6))):
        with pytest.raises(InputError, match="no two of its steps are alike"):
            ledger_at(without(training(steps, layers=30), shares))
    forward = ChromeTrace()
    forward.host("aten::mm", 0, 100)
    forward.host("aten::mm", 200, 300)
    with pytest.raises(InputError, match="no work of a GPU"):
        ledger_at(forward.write(tmp_path / "cut.json", cut=-20))


def test_a_step_without_its_kernels_belongs_to_no_other_step(tmp_path):
    made = training(4)
    marks = {one["name"]: one["ts"] for one in made.events}
    second, third = marks["ProfilerStep#1"], marks["ProfilerStep#2"]
    made.events[:] = [one for one in made.events if one["name"].startswith("Prof") or not second < one["ts"] < third]
    usual = ledger(training(4), tmp_path).step_seconds
    assert ledger(made, tmp_path).step_seconds == pytest.approx(usual, rel=0.01)


def gap_of(folder: Path, *, launch: float, host: tuple[str, str] | None = None, **more: str) -> str:
    """Return the class of a gap from 300 to 700 whose kernel was launched at a time."""
    made = ChromeTrace()
    made.mark(0, 0, 1000)
    made.kernel(GEMM, 0, 300, launch=0)
    made.kernel(GEMM, 700, 1000, launch=launch, **more)
    if host:
        made.host(host[0], 250, 340 if host[1] != "user_annotation" else 700, category=host[1])
    shown = milliseconds(ledger(made, folder))
    return next(name for name, time in shown.items() if time == 0.4)


def test_a_gap_has_the_reason_that_the_launch_after_it_shows(tmp_path):
    assert gap_of(tmp_path, launch=690) == "gap_launch"
    assert gap_of(tmp_path, launch=270) == "gap_unexplained"
    assert gap_of(tmp_path, launch=270, call="cudaGraphLaunch") == "gap_graph"
    assert gap_of(tmp_path, launch=690, host=("cudaStreamSynchronize", "cuda_runtime")) == "gap_synchronisation"
    loading = ("enumerate(DataLoader)#_Iter.__next__", "user_annotation")
    assert gap_of(tmp_path, launch=690, host=loading) == "data_wait"


def test_the_time_of_a_graph_without_its_kernels_is_no_gap_of_the_host(tmp_path):
    made = ChromeTrace()
    made.mark(0, 0, 1000)
    made.kernel(GEMM, 0, 300)
    made.kernel("", 0, 0, launch=400, lost=True, call="cudaGraphLaunch")
    made.kernel(GEMM, 900, 1000, launch=890)
    found = ledger(made, tmp_path)
    shown = milliseconds(found)
    assert (shown["gap_launch"], shown["gap_graph"]) == (0.1, 0.5)
    assert [notice.code for notice in found.notices] == ["trace_graphs"]


def test_a_launch_shortly_before_a_gap_explains_its_beginning(tmp_path):
    made = ChromeTrace()
    made.mark(0, 0, 1000)
    made.kernel(GEMM, 0, 300, launch=0)
    made.kernel(GEMM, 700, 1000, launch=290)  # a GPU that idles starts a kernel within 20 µs
    shown = milliseconds(ledger(made, tmp_path))
    assert (shown["gap_launch"], shown["gap_unexplained"]) == (0.011, 0.389)


KERNELS = {
    "nvjet_sm90_qqtst_320x128_128x3_1x2_h_bz_coopB_TNT": "products_fp8",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64>(Params)": "products_bf16",
    "ampere_sgemm_128x64_nn": "products_fp32",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params)": "products_tf32",
    "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_LDSB1": "products_bf16",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7": "attention_forward",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26": "attention_backward",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(void const*)": "attention_helpers",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<T>(Params)": "attention_backward",
    "_ZN5aiter14fmha_bwd_hd128E": "attention_backward", "ck_tile::FmhaFwdKernel<X>": "attention_forward",
    "attn_fwd": "attention_forward",
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<X>(P)": "normalisation",
    "void transformer_engine::cast_transpose_kernel<X>(P)": "quantisation",
    "triton_poi_fused__unsafe_view_mul_silu_4": "activation", "triton_red_fused_abs_max_t_2": "quantisation",
    "miopenBatchNormFwdTrainSpatial": "normalisation",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32": "convolution",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)": "communication_reduce_scatter",
    "void fbgemm_gpu::permute_indices_weights_kernel<false, int>(int)": "elementwise",
    "void (anonymous namespace)::softmax_warp_forward<float>(float*)": "attention_helpers",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)": "attention_helpers",
    "void store_kvcache<2048l, 4, false, long>(StoreKVCacheParams)": "attention_helpers",
    "sage_fwd": "attention_forward", "bwd_kernel_fuse": "attention_backward",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1": "products_bf16",
    "void epilogue::impl::globalKernel<float, float, float, true, true>(int)": "products_fp32",
    "multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<int, long>>": "elementwise",
    "triton__0d1d2d3d4d5d": "elementwise", "rocprim::detail::transform_kernel<true>": "elementwise",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": "communication_collective",
}  # fmt: skip


@in_each(("name", "expected"), KERNELS.items())
def test_a_kernel_of_each_library_has_its_class(tmp_path, name, expected):
    made = ChromeTrace()
    made.mark(0, 0, 1000)
    made.kernel("triton_poi_fused_add_0", 0, 10, launch=0)
    made.kernel(name, 100, 500)
    shown = milliseconds(ledger(made, tmp_path))
    assert shown[expected] == (0.41 if expected == "elementwise" else 0.4)


def test_the_operator_above_a_launch_decides_before_the_name_of_the_kernel(tmp_path):
    made = ChromeTrace()
    made.mark(0, 0, 1000)
    made.under("aten::mm", "vectorized_elementwise_kernel", 100, 200)
    made.host("Optimizer.step#AdamW.step", 250, 800, category="user_annotation")
    made.under("aten::mul_", "vectorized_elementwise_kernel", 300, 500)
    made.kernel("somebodys_own", 900, 1000)
    shown = milliseconds(ledger(made, tmp_path))
    assert (shown["products"], shown["optimizer"], shown["unknown"]) == (0.1, 0.2, 0.1)


def test_an_all_to_all_runs_in_the_kernel_of_send_and_receive(tmp_path):
    made = ChromeTrace()
    made.mark(0, 0, 1000)
    made.kernel(GEMM, 0, 50, launch=0)
    made.under("nccl:all_to_all", "ncclDevKernel_SendRecv(x)", 100, 300)
    made.under("nccl:send 0->1", "ncclDevKernel_SendRecv(x)", 400, 500)
    shown = milliseconds(ledger(made, tmp_path))
    assert (shown["communication_all_to_all"], shown["communication_send_receive"]) == (0.2, 0.1)


def test_every_rule_gives_a_class_that_has_a_title():
    assert {rule.gives for rule in rules()} <= set(titles())


def test_an_operator_of_the_forward_pass_inside_of_the_backward_pass_is_recomputed(tmp_path):
    made = ChromeTrace()
    made.mark(0, 0, 5000)
    made.under("aten::mm", GEMM, 100, 200)
    made.host("autograd::engine::evaluate_function: CheckpointFunctionBackward", 300, 2000, thread=BACKWARD)
    made.host("CheckpointFunctionBackward", 310, 1900, thread=BACKWARD, **{"Sequence number": 5, "Fwd thread id": 1})
    made.host("aten::linear", 400, 600, thread=BACKWARD, **{"Sequence number": 9})
    made.under("aten::mm", GEMM, 500, 600, thread=BACKWARD)
    made.under("aten::mm", GEMM, 1000, 1100, thread=BACKWARD)
    shown = milliseconds(ledger(made, tmp_path))
    assert (shown["products_bf16"], shown["recomputed_products"]) == (0.2, 0.1)


@in_each(
    ("name", "recomputed", "attention"),
    [("bf16_a", 0, 0), ("bf16_recomputed", 48, 8), ("fp8", 0, 0), ("fp8_recomputed", 48, 8)],
)
def test_recomputation_inside_of_a_compiled_backward_pass_is_told_apart(name, recomputed, attention):
    """Eight passes through a layer repeat six of its seven products each (tests/test_gpu_traces.py)."""
    found = ledger_at(OWN / f"h200_{name}.trace.json.gz")
    assert found.launches("recomputed_products") == recomputed
    assert found.launches("recomputed_attention") == attention
    assert found.unknown_share == 0
    assert abs(found.closure) < 0.005


BY_HAND = {
    "h100_every_second_layer_recomputed": {"step": 905, "products": 599, "attention": 156, "optimizer": 53.0,
                                           "clipping": 21.6, "idle": 6.5},
    "h200_all_layers_recomputed": {"step": 970, "products": 670, "attention": 169, "optimizer": 46.5,
                                   "clipping": 18.5, "idle": 6.8},
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_the_ledger_agrees_with_the_one_made_by_hand(shared, name):
    found, expected = ledger_at(shared / "gpu" / f"{name}.trace.json.gz"), BY_HAND[name]
    idle = 1000 * found.seconds("gap", "data_wait")
    assert 1000 * found.step_seconds == pytest.approx(expected["step"], rel=0.01)
    assert 1000 * found.seconds("products", "recomputed_products") == pytest.approx(expected["products"], rel=0.01)
    assert 1000 * found.seconds("attention", "recomputed_attention") == pytest.approx(expected["attention"], rel=0.01)
    assert 1000 * found.seconds("optimizer") == pytest.approx(expected["optimizer"], rel=0.01)
    assert 1000 * found.seconds("clipping") == pytest.approx(expected["clipping"], rel=0.01)
    assert idle == pytest.approx(expected["idle"], abs=1)
    assert found.unknown_share < 0.02


def test_of_a_trace_that_is_cut_the_whole_steps_are_used(tmp_path):
    made = training(4)
    made.events.sort(key=lambda one: one["ts"])
    whole = len(json.dumps(made.document))
    found = ledger_at(made.write(tmp_path / "cut.json", cut=int(0.9 * whole)))
    assert found.trace.is_cut
    assert 2 <= len(found.by_step) <= 3
    assert "trace_cut" in [notice.code for notice in found.notices]


def bad(kind: str, path: Path) -> None:
    """Write a file that is no usable trace."""
    made = training()
    if kind == "lost":
        for number in range(5):
            made.kernel(GEMM, 10**6 + number, 10**6 + number + 1, lost=True)
    elif kind == "no gpu":
        made.events[:] = [one for one in made.events if one["cat"] not in ("kernel", "cpu_op")]
    elif kind == "no steps":
        made = ChromeTrace()
        made.kernel(GEMM, 100, 200)
    made.write(path)
    if kind in ("other program", "text"):
        path.write_text('{"tokens_per_second": 3}' if kind == "other program" else "iteration 5 | 300 ms")


@in_each(
    ("kind", "says"),
    [
        ("lost", "5 of 68 launches have no kernel"), ("no gpu", "no work of a GPU"), ("no steps", "no steps"),
        ("other program", "no trace"), ("text", "no trace that is known"), ("absent", "no such file"),
    ],
)  # fmt: skip
def test_a_bad_trace_is_refused_in_one_line(tmp_path, capsys, kind, says):
    path = tmp_path / "bad.json"
    if kind != "absent":
        bad(kind, path)
    assert main(["explain", str(path)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
