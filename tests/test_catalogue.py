"""Facts as data: GPUs, prices, methodologies, published results."""

import copy
import math
import re

import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.facts import catalogue, data_rows, methodologies, mlperf_rules
from tensorprimat.facts.catalogue import find_gpu
from tensorprimat.models import flops, names, presets, shapes
from tensorprimat.reproduce.published import as_result

DRIVER_NAMES = {
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA GH200 480GB": "GH200 96GB",
    "NVIDIA GH200 120GB": "GH200 96GB",
    "NVIDIA H20-3e": "H20 141GB",
    "NVIDIA GH200 144G HBM3e": "GH200 144GB",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GB300": "GB300",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X VF": "MI300X",
    "AMD Instinct MI300X OAM": "MI300X",
    "AMD Instinct MI300A": "MI300A",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI325X VF": "MI325X",
    "AMD Instinct MI350X": "MI350X",
    "AMD Instinct MI355X": "MI355X",
    "AMD Instinct MI250X/MI250": "MI250X",
    "AMD Instinct MI250X / MI250": "MI250X",
    "NVIDIA A100-SXM4-40GB": "A100 SXM 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 SXM 80GB",
    "A100-SXM4-80GB": "A100 SXM 80GB",
    "NVIDIA A100-PCIE-40GB": "A100 PCIe 40GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe 80GB",
    "Tesla V100-SXM2-16GB": "V100 SXM2 16GB",
    "Tesla V100-SXM2-32GB": "V100 SXM2 32GB",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA GeForce RTX 5090": "RTX 5090",
    "NVIDIA L40S": "L40S",
    "NVIDIA L40": "L40",
    "NVIDIA A10G": "A10G",
    "NVIDIA H20": "H20",
    "NVIDIA H800": "H800 SXM",
    "NVIDIA H800 PCIe": "H800 PCIe",
    "NVIDIA A800-SXM4-80GB": "A800 SXM 80GB",
    "NVIDIA A800 80GB PCIe": "A800 PCIe 80GB",
    "NVIDIA RTX A6000": "RTX A6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Workstation",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Server",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX PRO 6000 Max-Q",
    "AMD Instinct MI210": "MI210",
    "AMD Instinct MI308X": "MI308X",
    "AMD Instinct MI355X OAM": "MI355X",
}


@in_each(("printed", "name"), DRIVER_NAMES.items())
def test_a_device_is_found_by_the_name_that_its_driver_prints(printed, name):
    assert find_gpu(printed).name == name
    assert find_gpu(printed.lower()).name == name
    assert find_gpu(printed.upper()).name == name


@in_each(
    "printed",
    [
        None,
        "",
        "  ",
        "NVIDIA",
        "AMD Instinct",
        "AMD EPYC 9654 96-Core Processor",
        "NVIDIA L4",  # a tenth of an L40S
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "Tesla V100-PCIE-16GB",
        "NVIDIA H100",  # SXM, PCIe and NVL differ in every peak
        "NVIDIA Rubin",
        "AMD Instinct MI100",
    ],
)
def test_an_unknown_device_is_none_and_never_a_default(printed):
    assert find_gpu(printed) is None


@in_each(
    ("written", "name"),
    [
        ("AMD Instinct MI355X 288GB HBM3e", "MI355X"),
        ("AMD Instinct MI350X 288GB HBM3E", "MI350X"),
        ("NVIDIA Blackwell Ultra GPU (B300-SXM-288GB)", "B300"),
        ("NVIDIA B300 Blackwell Ultra GPU", "B300"),
        ("NVIDIA H200-SXM-141GB", "H200 SXM"),
    ],
)
def test_the_name_of_a_submission_finds_its_device_despite_memory_and_brackets(written, name):
    found = find_gpu(written)
    assert found is not None
    assert found.name == name


@in_each("written", ["NVIDIA H200 64GB", "MI355X 64GB HBM3e", "288GB HBM3e", "Unknown (8 cores)"])
def test_a_name_with_another_memory_is_not_in_the_catalogue(written):
    assert find_gpu(written) is None


def test_every_catalogue_name_finds_itself():
    for gpu in catalogue.gpus():
        assert find_gpu(gpu.name) is gpu


def test_a_name_of_several_variants_gives_the_facts_that_they_share():
    a100 = find_gpu("NVIDIA A100")
    assert a100.peak("bf16").value == 312
    assert a100.memory_gb is None
    assert a100.lacks == ("fp8", "fp4")


def test_reported_memory_distinguishes_variants():
    assert find_gpu("NVIDIA A100-SXM4", memory_gb=42.4).name == "A100 SXM 40GB"
    assert find_gpu("NVIDIA A100-SXM4", memory_gb=85.0).name == "A100 SXM 80GB"
    assert find_gpu("NVIDIA H100", memory_gb=100.5).name == "H100 NVL"
    assert find_gpu("NVIDIA H100", memory_gb=102.0) is None  # 95 GiB: a 96 GB variant that the catalogue does not hold
    assert find_gpu("NVIDIA H100", memory_gb=85.0) is None  # SXM and PCIe both have 80


def test_names_that_mean_several_variants_are_listed():
    assert [gpu.name for gpu in catalogue.variants("H100")] == ["H100 SXM", "H100 PCIe", "H100 NVL"]


# What other tools' tables get wrong (HARDWARE notes): each line is a figure that somebody's MFU was divided by.


def test_989_is_bf16_of_h100_and_653_is_tf32_of_mi300x():
    h100, mi300x = find_gpu("NVIDIA H100 80GB HBM3"), find_gpu("AMD Instinct MI300X")
    assert (h100.peak("bf16").value, h100.peak("fp8").value) == (989.4, 1978.9)
    assert (mi300x.peak("tf32").value, mi300x.peak("fp16").value) == (653.7, 1307.4)


def test_one_gcd_of_mi250x_has_half_of_the_board():
    gcd = find_gpu("AMD Instinct MI250X/MI250")
    assert (gcd.peak("bf16").value, gcd.memory_gb.value, gcd.cores.value) == (191.5, 64, 7040)
    assert gcd.peak("fp32").value == 47.85  # matrix units, half of 95.7


def test_fp4_of_b300_is_not_derived_from_fp8():
    fp4 = find_gpu("NVIDIA B300").peak("fp4")
    assert (fp4.value, fp4.low, fp4.high) == (None, 12600, 13500)


@in_each(
    ("name", "precision", "megahertz", "multiply_adds", "units"),
    [
        ("H100 SXM", "bf16", 1830, 512, 528),
        ("H100 SXM", "fp8", 1830, 1024, 528),
        ("H200 SXM", "bf16", 1830, 512, 528),
        ("A100 SXM 80GB", "bf16", 1410, 256, 432),
        ("MI300X", "bf16", 2100, 256, 1216),
        ("MI300X", "fp8", 2100, 512, 1216),
        ("MI350X", "bf16", 2200, 512, 1024),
        ("MI355X", "bf16", 2400, 512, 1024),
        ("MI355X", "fp8", 2400, 1024, 1024),
        ("MI250X", "bf16", 1700, 128, 440),
    ],
)
def test_peaks_follow_from_clock_and_units(name, precision, megahertz, multiply_adds, units):
    computed = megahertz * 1e6 * multiply_adds * 2 * units / 1e12
    assert find_gpu(name).peak(precision).value == pytest.approx(computed, rel=1e-3)
    assert find_gpu(name).matrix_clock_mhz.value == megahertz


def test_the_clock_of_the_peaks_gives_them_with_a_power_of_two_flop_per_clock_and_core():
    for gpu in catalogue.gpus():
        if clock := gpu.matrix_clock_mhz:
            work = math.log2(gpu.peak("bf16").value * 1e6 / (gpu.cores.value * clock.value))
            assert work == pytest.approx(round(work), abs=2e-3), gpu.name


def cells():
    for gpu in catalogue.gpus():
        single = {key: getattr(gpu, key) for key in catalogue.CELLS}
        for table in (single, gpu.peak_tflops, gpu.achievable_tflops):
            for name, fact in table.items():
                if fact is not None:
                    yield gpu, name, fact


def test_every_cell_has_a_source_a_date_and_a_value_or_a_range():
    for gpu, name, fact in cells():
        where = f"{gpu.name} {name}"
        assert fact.source, where
        assert fact.date, where
        assert (fact.value is None) == (fact.low is not None and fact.high is not None), where
        assert fact.low is None or fact.low < fact.high, where
        assert (fact.value or fact.low) > 0, where
        assert fact.checked != ("not checked" in fact.source), where


def test_every_unchecked_cell_has_a_reason():
    assert [(gpu.name, name) for gpu, name, fact in cells() if not fact.checked and not fact.note] == []


def test_every_peak_is_dense_and_lower_precision_is_faster():
    for gpu in catalogue.gpus():
        assert all(fact.dense for fact in gpu.peak_tflops.values()), gpu.name
        values = [
            fact.value for name in ("tf32", "fp16", "bf16", "fp8") if (fact := gpu.peak_tflops.get(name)) and fact.value
        ]
        assert values == sorted(values), gpu.name
        assert not set(gpu.lacks) & set(gpu.peak_tflops), gpu.name


def test_no_measured_matrix_rate_is_above_the_peak():
    for gpu in catalogue.gpus():
        for precision, best in gpu.achievable_tflops.items():
            assert 0.4 < best.value / gpu.peak(precision).value < 1, gpu.name


def test_prices_are_for_gpus_of_the_catalogue():
    known = {gpu.name for gpu in catalogue.gpus()}
    for price in catalogue.prices():
        assert price.gpu in known
        assert price.usd_per_gpu_hour > 0
        assert price.checked
        assert price.source.startswith("https://")
        assert price.provider
        assert price.date


def test_the_batch_of_every_configuration_divides_over_eight_gpus():
    for row in methodologies.methodologies():
        parallel = row.tensor_model_parallel_size * row.pipeline_model_parallel_size * row.context_parallel_size
        assert 8 % parallel == 0, row
        assert row.global_batch_size % (row.micro_batch_size * 8 // parallel) == 0, row
        assert all(find_gpu(gpu) for gpu in row.gpus), row
        assert row.source, row


@in_each(
    ("methodology", "model", "platform", "gpu", "precision", "values"),
    [  # tensor parallel, context parallel, micro batch, global batch, sequence, precision
        ("max", "llama", "nvd", "H100 SXM", None, (1, 2, 1, 128, 8192, "fp8")),
        ("max", "llama", "nvd", "H200 SXM", "bf16", (1, 2, 1, 128, 8192, "bf16")),
        ("max", "llama", "nvd", "B200", None, (1, 1, 2, 128, 8192, "fp8")),
        ("max", "llama", "amd", "MI300X", None, (1, 1, 2, 128, 8192, "bf16")),
        ("max", "llama", "amd", "MI355X", "fp8", (1, 1, 6, 384, 8192, "fp8")),
        ("max", "qwen", "amd", "MI325X", None, (1, 1, 12, 384, 2048, "bf16")),
        ("max", "mistral", "nvd", "A100 SXM 80GB", None, (1, 1, 1, 128, 8192, "bf16")),
        ("agreed", "llama", "nvd", "B200", None, (1, 1, 2, 128, 8192, "fp8")),
        ("agreed", "llama", "amd", "MI355X", None, (1, 1, 4, 128, 8192, "fp8")),
        ("agreed", "qwen", "amd", "MI300X", None, (1, 1, 2, 128, 8192, "bf16")),
        ("agreed", "mistral", "amd", None, None, (1, 1, 1, 128, 8192, "bf16")),
        ("identical", "llama", "amd", "MI300X", None, (4, 1, 1, 128, 2048, "bf16")),
        ("identical", "mistral", "nvd", None, None, (4, 1, 1, 128, 2048, "bf16")),
        ("classic", "qwen", "nvd", "H100 SXM", None, (4, 1, 1, 128, 2048, "fp8")),
        ("classic", "llama", "amd", "MI300X", None, (1, 1, 1, 128, 2048, "bf16")),
    ],
)
def test_a_methodology_has_the_values_of_its_source(methodology, model, platform, gpu, precision, values):
    row = methodologies.find_configurations(methodology, model=model, platform=platform, gpu=gpu, precision=precision)[
        0
    ]
    assert (
        row.tensor_model_parallel_size,
        row.context_parallel_size,
        row.micro_batch_size,
        row.global_batch_size,
        row.sequence_length,
        row.precision,
    ) == values


def test_an_engine_has_its_own_row_where_its_vendor_tunes_it_otherwise():
    def context_parallel(engine):
        rows = methodologies.find_configurations("max", model="llama", platform="nvd", gpu="H100 SXM", engine=engine)
        return rows[0].context_parallel_size

    assert (context_parallel("nemo"), context_parallel("bridge")) == (2, 1)


def test_a_methodology_without_a_row_gives_no_configuration():
    find = methodologies.find_configurations
    assert not find("max", model="mistral", platform="amd", gpu="MI300X")
    assert not find("max", model="llama", platform="nvd", gpu="L40S")
    assert not find("classic", model="mistral", platform="nvd", gpu="H100 SXM")


def test_published_results_name_one_source_and_a_date():
    rows = catalogue.published_tables()
    assert len(rows) > 40
    for row in rows:
        assert row.source, row
        assert " or v" not in row.source, row
        assert re.fullmatch(r"(read )?20\d\d-\d\d(-\d\d)?", row.date or ""), row
        assert row.tokens_per_second_per_gpu or row.samples_per_second or row.note, row
        assert row.gpu in (None, "H100 96GB HBM2e", "RTX 3090") or find_gpu(row.gpu), row


def test_published_tflops_count_by_the_convention_that_they_name():
    shape = presets.find_preset("llama").shape
    for row in catalogue.published_tables():
        if row.tflops_per_gpu and row.flops_convention == "megatron":
            implied = row.tflops_per_gpu * 1e12 / row.tokens_per_second_per_gpu
            assert implied == pytest.approx(flops.per_token(shape, row.sequence_length), rel=2e-3), row


def test_a_published_rate_is_the_batch_over_the_step_time():
    rows = [row for row in catalogue.published_tables() if row.step_seconds and row.tokens_per_second_per_gpu]
    rows = [row for row in rows if row.global_batch_size and row.sequence_length]
    assert len(rows) > 10
    for row in rows:
        tokens = row.global_batch_size * row.sequence_length
        assert row.tokens_per_second_per_gpu * row.num_gpus * row.step_seconds == pytest.approx(tokens, rel=5e-3), row


def test_rows_of_a_release_of_primus_cite_its_commit_and_their_notes_state_the_flops_of_a_token():
    rows = [row for row in catalogue.published_tables() if "Primus v26.5.1" in row.source]
    assert len(rows) > 20
    assert {row.url.split("/blob/")[1].split("/")[0] for row in rows} == {"9a86ba8c99d6"}
    of_pipeline = [row for row in rows if "primus_pipeline" in row.source]
    for row in of_pipeline:
        shape, length = shapes.of_name(row.model).shape, 4096
        if row.model == "llama2-7b":  # more than its rate and its TFLOP/s leave for a token, as the note says
            assert row.tflops_per_gpu * 1e12 / row.tokens_per_second_per_gpu < 0.6 * 6 * presets.parameters(shape)
            shape, length = shape.changed(num_layers=16), 8192
        work = row.tokens_per_second_per_gpu * flops.per_token(shape, length)
        assert work == pytest.approx(row.tflops_per_gpu * 1e12, rel=2.5e-3), row
    assert {row.model: row.num_gpus for row in of_pipeline} == {"llama2-7b": 8, "qwen3-235b-a22b": 32}


def test_published_models_have_the_name_that_logs_get():
    assert [row.model for row in catalogue.published_tables() if names.key(row.model) != row.model] == []


def test_the_flops_of_llama_405b_are_those_of_megatron_bridges_published_tables():
    counted = flops.per_token(shapes.parse_shape(mlperf_rules.benchmark_rules("llama31_405b").shape).shape, 8192)
    rows = [row for row in catalogue.published_tables() if row.model == "llama3.1-405b" and "26.06" in row.source]
    assert len(rows) == 7
    for row in rows:
        assert row.tflops_per_gpu * 1e12 / row.tokens_per_second_per_gpu == pytest.approx(counted, rel=4e-3), row


def planted(monkeypatch, file, change):
    """Read a table of facts with one change, as if its file held it."""
    document = copy.deepcopy(data_rows.read_data(file))
    change(document)
    monkeypatch.setattr(data_rows, "read_data", lambda _: document)


@in_each(
    ("change", "complaint"),
    [
        (lambda gpu: gpu.update(vendor="nvida"), "vendor: Input should be 'nvidia' or 'amd', not 'nvida'"),
        (lambda gpu: gpu.update(vendor=["amd"]), "vendor: Input should be 'nvidia' or 'amd', not ['amd']"),
        (lambda gpu: gpu.pop("vendor"), "vendor: is missing"),
        (lambda gpu: gpu.update(wattage=300), "wattage: no such field; there are name, vendor, names,"),
        (lambda gpu: gpu.update(names="NVIDIA H200"), "names: Input should be a valid array, not 'NVIDIA H200'"),
        (lambda gpu: gpu.update(names=[7]), "names.0: Input should be a valid string, not 7"),
        (lambda gpu: gpu.update(lacks=["bf61"]), "lacks.0: String should match pattern '^(fp32|fp32_matrix|"),
        (lambda gpu: gpu.update(dies=0), "dies: Input should be greater than 0, not 0"),
        (lambda gpu: gpu.update(memory_gb=141), "memory_gb: Input should be an object, not 141"),
        (
            lambda gpu: gpu["memory_gb"].update(value="141"),
            "memory_gb.value: Input should be a valid number, not '141'",
        ),
        (lambda gpu: gpu["memory_gb"].update(value=-141), "memory_gb.value: Input should be greater than 0, not -141"),
        (lambda gpu: gpu["memory_gb"].update(value=True), "memory_gb.value: Input should be a valid number, not True"),
        (lambda gpu: gpu["memory_gb"].update(source="memory"), "memory_gb: source 'memory' is none of [sources]"),
        (lambda gpu: gpu["memory_gb"].pop("checked"), "memory_gb.checked: is missing"),
        (lambda gpu: gpu.update(peak_tflops=989.4), "peak_tflops: Input should be an object, not 989.4"),
        (lambda gpu: gpu["peak_tflops"].update(bf61={}), "peak_tflops.bf61: String should match pattern '^(fp32|"),
        (lambda gpu: gpu["peak_tflops"]["bf16"].update(value=math.nan), "peak_tflops.bf16.value: Input should be"),
    ],
)
def test_a_wrong_value_of_a_gpu_is_refused_with_its_place(monkeypatch, change, complaint):
    planted(monkeypatch, "gpus", lambda document: change(next(g for g in document["gpu"] if g["name"] == "H200 SXM")))
    with pytest.raises(InputError, match=r"^tensorprimat/data/gpus\.toml: gpu \d+ \(H200 SXM\): ") as refused:
        catalogue.gpus.__wrapped__()
    assert str(refused.value).partition("): ")[2].startswith(complaint)
    assert "\n" not in str(refused.value)


@in_each(
    ("file", "read", "change", "complaint"),
    [
        ("gpus", catalogue.gpus, lambda d: d.update(gpu={}), "gpu: must be a list of tables, [[gpu]]"),
        (
            "prices",
            catalogue.prices,
            lambda d: d["price"][0].update(usd_per_gpu_hour="2"),
            "price 1 (H100 SXM): usd_per",
        ),
        ("prices", catalogue.prices, lambda d: d["price"][0].update(usd_per_gpu_hour=0), "price 1 (H100 SXM): usd_per"),
        ("prices", catalogue.prices, lambda d: d["price"][0].update(date="2026"), "price 1 (H100 SXM): date: Input"),
        ("published", catalogue.published_tables, lambda d: d["result"][0].update(num_gpus="8"), "num_gpus: Input"),
        (
            "published",
            catalogue.published_tables,
            lambda d: d["result"][0].update(stepseconds=1),
            "stepseconds: no such",
        ),
        ("models", catalogue.published_models, lambda d: d["model"][0].update(num_layers="many"), "num_layers: Input"),
        ("models", catalogue.published_models, lambda d: d["model"][0].update(parameters=None), "parameters: Input"),
        *(
            ("methodologies", methodologies.methodologies, change, complaint)
            for change, complaint in (
                (
                    lambda d: d["configuration"][0].update(global_batch_size="128"),
                    "configuration 1 (mistral): global_b",
                ),
                (lambda d: d["configuration"][0].update(micro_batch_size=0), "greater than or equal to 1, not 0"),
                (lambda d: d["configuration"][0].update(gpus="H100 SXM"), "gpus: Input should be a valid array"),
                (lambda d: d["configuration"][0].update(precision="bf61"), "precision: Input should be 'fp32', 'tf32'"),
                (lambda d: d["configuration"][0].update(micro_batch=1), "micro_batch: no such field"),
                (lambda d: d["configuration"][0].pop("context_parallel_size"), "context_parallel_size: is missing"),
                (lambda d: d["agreed"].update(sequence_length=0.5), "agreed 1: sequence_length: Input should be"),
                (lambda d: d.pop("agreed"), "agreed 1: tuning_of: is missing"),
            )
        ),
        ("mlperf", mlperf_rules.benchmarks, lambda d: d["benchmark"][0].update(target="3.3"), "(llama31_8b): target"),
        ("mlperf", mlperf_rules.mlperf_rounds, lambda d: d["round"][0].update(published="2024"), "published: Input"),
        ("mlperf", mlperf_rules._precisions, lambda d: d["precision"][0].update(systems="all"), "systems: Input"),
    ],
)
def test_a_wrong_row_of_another_table_is_refused_with_its_place(monkeypatch, file, read, change, complaint):
    planted(monkeypatch, file, change)
    with pytest.raises(InputError, match=rf"^tensorprimat/data/{file}\.toml: ") as refused:
        read.__wrapped__()
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_published_row_can_state_any_setting_of_a_result(monkeypatch):
    planted(monkeypatch, "published", lambda d: d["result"][0].update(cuda_graphs=True, optimizer="Muon"))
    config = as_result(catalogue.published_tables.__wrapped__()[0]).training_config
    assert (config.cuda_graphs, config.optimizer) == (True, "Muon")


def test_a_command_reports_a_wrong_row_in_one_line(monkeypatch, capsys):
    planted(monkeypatch, "gpus", lambda document: document["gpu"][0].update(vendor="intel"))
    catalogue.gpus.cache_clear()
    try:
        assert main(["run", "--model", "llama", "--dry-run", "--gpu", "H100-SXM"]) == 2
    finally:
        catalogue.gpus.cache_clear()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("vendor: Input should be 'nvidia' or 'amd', not 'intel'")


def test_a_table_that_is_not_toml_is_refused(monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "broken.toml").write_text("[gpu")
    monkeypatch.setattr(data_rows, "files", lambda _: tmp_path)
    with pytest.raises(InputError, match=r"^tensorprimat/data/broken\.toml: not TOML: "):
        data_rows.read_data("broken")
