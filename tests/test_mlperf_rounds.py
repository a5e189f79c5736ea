"""Whole rounds of MLPerf Training: reading, scores, and notes on unreadable files."""

import json
import os
from pathlib import Path

import mlperf_score_by_hand
import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.facts import catalogue
from tensorprimat.logs.mlperf.system import LONGEST_FACT
from tensorprimat.mlperf import library as mlperf_library
from tensorprimat.mlperf import round as mlperf_round
from tensorprimat.mlperf.score import Scored

ROUNDS = Path(os.environ.get("MLPERF_ROUNDS", Path(__file__).parents[2] / "shared" / "mlperf"))
"""Holds v4.1, v5.0 and v5.1, each a checkout of mlcommons/training_results_vX.Y."""

START = 1_700_000_000_000
SYSTEM = {
    "submitter": "Here",
    "division": "closed",
    "status": "Available on-premise",
    "number_of_nodes": "1",
    "accelerators_per_node": "8",
    "accelerator_model_name": "AMD Instinct MI355X",
    "framework": "NeMo 2.3",
    "other_software_stack": {"rocm": "7.0"},
}


def log(minutes: float, status: str | None = "success", samples: int = 36864, batch: int = 32) -> str:
    """Return a run with three blocks, an evaluation of six seconds after each, and ten seconds of nothing."""
    lines = []
    now = START

    def say(key, value=None, after=0.0, **metadata):
        nonlocal now
        now += round(after * 1000)
        event = {"namespace": "", "time_ms": now, "event_type": "POINT_IN_TIME", "key": key, "value": value}
        lines.append(":::MLLOG " + json.dumps({**event, "metadata": {"file": "x.py", **metadata}}))

    say("submission_benchmark", "llama31_8b")
    say("global_batch_size", batch)
    say("max_sequence_length", 8192)
    say("init_stop")
    say("run_start")
    block = (minutes * 60 - 28) / 3
    for done in (samples // 3, 2 * samples // 3, samples):
        say("block_start", after=10 / 3, samples_count=12288)
        say("tracked_stats", {"throughput": 30.0}, block, step=done)
        say("block_stop", samples_count=done)
        say("eval_start", samples_count=done)
        say("eval_stop", after=6, samples_count=done)
    if status is not None:
        say("run_stop", samples_count=samples, status=status)
    return "\n".join(lines) + "\n"


def write(root: Path, logs: list[str], *, system=SYSTEM, scaling=None, benchmark="llama31_8b", name="box") -> Path:
    folder = root / "Here" / "results" / name / benchmark
    folder.mkdir(parents=True)
    for number, text in enumerate(logs):
        (folder / f"result_{number}.txt").write_text(text)
    (root / "Here" / "systems").mkdir(exist_ok=True)
    text = system if isinstance(system, str) else json.dumps(system)
    (root / "Here" / "systems" / f"{name}.json").write_text(text)
    if scaling is not None:
        (folder / "scaling.json").write_text(scaling)
    return root


def scored(root: Path) -> Scored:
    [pair] = mlperf_round.find_round_entries(root, "v9.9").pairs
    return Scored(mlperf_round.read_entry(pair))


TEN = [log(minutes) for minutes in range(90, 100)]


def test_ten_runs_are_scored_without_the_fastest_and_the_slowest(tmp_path):
    assert scored(write(tmp_path, TEN)).minutes == pytest.approx(94.5)


def test_a_failed_run_is_the_slowest_so_that_nothing_more_is_dropped(tmp_path):
    one = scored(write(tmp_path, [*TEN[:9], log(120, "aborted")]))
    assert one.minutes == pytest.approx(sum(range(91, 99)) / 8)
    assert one.entry.notes == ("result_9.txt: aborted; it counts as a failed run",)


def test_two_failed_runs_leave_no_score_and_a_reason(tmp_path):
    one = scored(write(tmp_path, [*TEN[:8], log(120, "aborted"), log(120, None)]))
    assert (one.minutes, one.reason) == (None, "2 of 10 runs failed; at most one may fail")


def test_a_missing_run_counts_as_a_failed_one(tmp_path):
    one = scored(write(tmp_path, TEN[:9]))
    assert (one.minutes, one.missing) == (pytest.approx(94.5), 1)  # 91 to 98


def test_a_truncated_log_has_no_time_and_counts_as_failed(tmp_path):
    whole = TEN[0]
    one = scored(write(tmp_path, [whole[: whole.rindex('"status"')], *TEN[1:]]))
    assert len(one.succeeded) == 9
    assert any("no run_stop" in note for note in one.entry.notes)
    assert any("truncated line" in note for note in one.entry.notes)


def test_events_of_two_processes_on_one_line_both_count(tmp_path):
    lines = log(90).splitlines()
    stop = lines.index(next(line for line in lines if '"run_stop"' in line))
    lines[stop - 1 :] = [f"0: {lines[stop - 1]}1: {lines[stop]}"]
    entry = scored(write(tmp_path, ["\n".join(lines) + "\n"])).entry
    assert [run.status for run in entry.runs] == ["success"]
    assert entry.runs[0].seconds == pytest.approx(90 * 60, abs=1)


def test_three_runs_are_scored_by_their_median_where_the_benchmark_needs_three(tmp_path):
    one = scored(write(tmp_path, TEN[:3], benchmark="llama31_405b"))
    assert one.minutes == pytest.approx(91.0)
    assert one.estimate is not None
    assert one.estimate.degrees == 2


def test_the_factor_of_scaling_json_multiplies_the_score(tmp_path):
    assert scored(write(tmp_path, TEN, scaling='{"scaling_factor": 1.02}')).minutes == pytest.approx(94.5 * 1.02)


@in_each("text", ['{"scaling_factor": "1.02"}', '{"factor": 1.02}', "1.02", "{", '{"scaling_factor": 0}'])
def test_a_scaling_factor_of_unknown_form_leaves_no_score(tmp_path, text):
    one = scored(write(tmp_path, TEN, scaling=text))
    assert (one.minutes, one.reason) == (None, "scaling.json has no usable factor")


@in_each("nodes", ["2", 2, " 2 ", 2.0])
def test_nodes_are_read_as_text_and_as_numbers(tmp_path, nodes):
    assert scored(write(tmp_path, TEN, system={**SYSTEM, "number_of_nodes": nodes})).entry.num_gpus == 16


@in_each("text", ["{", "[]", '"text"', ""])
def test_a_system_description_that_is_not_json_is_named_and_nothing_is_invented(tmp_path, text):
    one = scored(write(tmp_path, TEN, system=text))
    assert (one.entry.gpu, one.entry.num_gpus, one.tokens_per_second_per_gpu) == (None, None, None)
    assert one.minutes == pytest.approx(94.5)
    assert one.entry.notes[0].startswith("systems/box.json: no JSON")


def test_the_rate_excludes_evaluation_and_set_up(tmp_path):
    one = scored(write(tmp_path, TEN))
    training = sum(minutes * 60 - 28 for minutes in range(91, 99))
    assert one.samples_per_second == pytest.approx(8 * 36864 / training, rel=1e-5)
    assert one.tokens_per_second_per_gpu == pytest.approx(8 * 36864 / training * 8192 / 8, rel=1e-5)


def test_a_folder_that_is_not_a_round_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a round of MLPerf Training"):
        mlperf_round.find_round_entries(tmp_path, "v5.1")
    with pytest.raises(InputError, match="no such folder"):
        mlperf_round.find_round_entries(tmp_path / "absent", "v5.1")


def test_other_benchmarks_are_counted_and_named(tmp_path, capsys):
    root = write(tmp_path / "round", TEN)
    write(tmp_path / "round", TEN[:2], benchmark="rgat", name="other")
    assert main(["mlperf", "import", str(root), "--round", "9.9", "--output", str(tmp_path / "lib")]) == 0
    printed = capsys.readouterr()
    assert "Other benchmarks, not read: 2 files of rgat (2)." in printed.err
    assert "10 runs of 1 system and benchmark; 0 failed, 0 missing, 0 without a score." in printed.out


def test_a_benchmark_that_the_rules_do_not_name_is_imported_with_its_minutes_and_a_note(tmp_path, capsys):
    root = write(tmp_path / "round", TEN[:4], benchmark="mamba5_1t")
    assert main(["mlperf", "import", str(root), "--round", "9.9", "--output", str(tmp_path / "lib")]) == 0
    assert "the rules of mamba5_1t are not known, so 4 runs count as all that it needs" in capsys.readouterr().err
    assert main(["mlperf", "list", "--library", str(tmp_path / "lib"), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["minutes"], row["tokens_per_second_per_gpu"]) == (pytest.approx(91.5), None)
    assert row["samples_per_second"] is not None


def test_a_reinforcement_learning_benchmark_is_scored_by_its_rules_without_counting_tokens(tmp_path):
    one = scored(write(tmp_path, TEN[:2], benchmark="qwen35_397b_grpo"))
    assert (one.missing, one.tokens_per_second_per_gpu) == (1, None)


def test_an_imported_library_is_listed_with_every_named_field(tmp_path, capsys):
    root = write(tmp_path / "round", TEN, scaling='{"scaling_factor": 1.02}')
    target = tmp_path / "lib.jsonl"
    assert main(["mlperf", "import", str(root), "--round", "v9.9", "--output", str(target)]) == 0
    capsys.readouterr()
    assert main(["mlperf", "list", "--library", str(target), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    expected = {
        "round": "v9.9", "benchmark": "llama31_8b", "submitter": "Here", "system": "box", "gpu": "MI355X",
        "num_gpus": 8, "runs": 10, "successes": 10, "global_batch_size": 32, "precision": None,
    }  # fmt: skip
    assert expected.items() <= row.items()
    assert row["minutes"] == pytest.approx(94.5 * 1.02, rel=1e-5)
    assert row["tokens_per_second_per_gpu"] == pytest.approx(6691, rel=1e-3)


def test_a_file_that_is_not_a_library_is_refused_with_its_line(tmp_path):
    path = tmp_path / "lib.jsonl"
    for text, shown in (("", "not JSON"), ("{}", "not a library"), ('{"format":"x"}\n', "not a library")):
        path.write_text(text)
        with pytest.raises(InputError, match=shown):
            mlperf_library.load(path)
    head = json.dumps({"format": mlperf_library.FORMAT, "version": 1, "sources": []})
    for line in ("{}", '{"runs": 3}', "[", '{"round":1,"runs":{}}'):
        path.write_text(f"{head}\n{line}\n")
        with pytest.raises(InputError, match=":2: "):
            mlperf_library.load(path)


def test_a_library_comes_back_as_it_was_written():
    library = mlperf_library.bundled()
    assert mlperf_library.parse_library(mlperf_library.dump(library), name="text") == library


KNOWN = {
    "v5.1/AMD/MI355X_EPYC_9575F_pytorch/llama2_70b_lora": 10.185,
    "v5.1/AMD/MI355X_EPYC_9575F_pytorch/llama31_8b": 99.709,
    "v5.1/NVIDIA/tyche_ngpu8_ngc25.09_nemo/llama31_8b": 79.325,
    "v5.1/NVIDIA/theia_ngpu8_ngc25.09_nemo/llama31_8b": 67.373,
    "v5.1/NVIDIA/theia_ngpu512_ngc25.09_nemo/llama31_8b": 5.219,
    "v6.0/AMD/MI355X_EPYC_9575F_primus/llama31_8b": 86.845,
    "v6.0/GigaComputing/G894-SD3-AAX7_pytorch/llama31_8b": 74.081,
    "v6.0/GigaComputing/G894-SD3-AAX7_pytorch/llama2_70b_lora": 6.771,
}


def test_the_package_s_library_scores_what_mlcommons_published():
    scores = {entry.name: Scored(entry).minutes for entry in mlperf_library.bundled().entries}
    assert {name: round(scores[name], 3) for name in KNOWN} == KNOWN


def test_the_package_s_library_is_small_and_names_its_sources_and_their_licence():
    library = mlperf_library.bundled()
    assert len(mlperf_library.dump(library).encode()) < 2**20
    assert {source["round"] for source in library.sources} == {entry.round for entry in library.entries}
    assert all(source["licence"] == "Apache-2.0" for source in library.sources)
    assert all("/training_results_" + source["round"] in source["source"] for source in library.sources)


def test_a_round_of_which_the_library_contains_a_part_says_so_where_it_is_shown(capsys):
    library = mlperf_library.bundled()
    part = {entry.round for entry in library.entries if not all(run.sha256 for run in entry.runs)}
    for round in {entry.round for entry in library.entries}:
        assert main(["mlperf", "list", "--round", round]) == 0
        assert (f"{round} is not complete here: " in capsys.readouterr().err) == (round in part)


def test_every_entry_of_a_copy_has_all_its_runs_and_says_that_it_has_no_hashes():
    copied = [Scored(entry) for entry in mlperf_library.bundled().entries if entry.round == "v6.0"]
    assert len(copied) >= 8
    for one in copied:
        assert (one.missing, len(one.entry.runs)) == (0, one.expected), one.entry.name
        assert (one.minutes is None) == (one.entry.scaling_factor is None), one.entry.name
        assert any("no SHA-256" in note for note in one.entry.notes), one.entry.name
        for run in one.entry.runs:
            assert run.succeeded or any(Path(run.file).name in note for note in one.entry.notes), run.file


def test_an_entry_of_a_copy_has_the_scaling_factor_of_every_entry_with_its_batch_and_samples():
    factors = {}
    for entry in mlperf_library.bundled().entries:
        samples = [run.samples for run in entry.runs if run.samples is not None]
        if entry.benchmark == "llama2_70b_lora" and entry.global_batch_size == 8 and len(samples) == 10:
            kept = sorted(samples)[1:-1]
            factors.setdefault(sum(kept) / len(kept), {})[entry.name] = entry.scaling_factor
        elif entry.round == "v6.0" and entry.benchmark == "llama31_8b" and entry.global_batch_size == 32:
            reference = (178858.667, 178890.795)  # samples × factor of the entries of v5.1 at batch 32 that have one
            likely = [pytest.approx(max(1, one / Scored(entry).samples), rel=1e-5) for one in reference]
            assert entry.scaling_factor in likely, entry.name
    assert any("v6.0/AMD" in name for name in factors[3168])
    for samples, of_entry in factors.items():
        assert list(of_entry.values()) == pytest.approx([max(1, 9536 / 3 / samples)] * len(of_entry)), of_entry


@in_each("name", ["v4.1", "v5.0", "v5.1"])
def test_every_score_of_a_round_agrees_with_an_independent_script(name):
    if not (ROUNDS / name).is_dir():
        pytest.skip(f"no round {name} in {ROUNDS}; MLPERF_ROUNDS names the folder that holds it")
    by_hand = mlperf_score_by_hand.scores(ROUNDS / name)
    bundled = [Scored(entry) for entry in mlperf_library.bundled().entries if entry.round == name]
    assert {one.entry.name.partition("/")[2] for one in bundled} == set(by_hand)
    for one in bundled:
        minutes, successes, files = by_hand[one.entry.name.partition("/")[2]]
        assert (len(one.succeeded), len(one.entry.runs)) == (successes, files), one.entry.name
        assert one.minutes == (None if minutes is None else pytest.approx(minutes, rel=1e-3)), one.entry.name


@in_each("kind", ["whole", "failed", "missing"])
def test_the_independent_script_and_the_package_agree_on_a_small_round(tmp_path, kind):
    logs = {"whole": TEN, "failed": [*TEN[:9], log(50, "aborted")], "missing": TEN[:9]}[kind]
    root = write(tmp_path, logs, scaling='{"scaling_factor": 1.02}')
    [(minutes, _, _)] = mlperf_score_by_hand.scores(root).values()
    assert scored(root).minutes == pytest.approx(minutes)


V6 = Path(__file__).parents[2] / "shared" / "logs" / "mlperf" / "v6.0_amd_mi355x_llama31_8b.txt"


@in_each("benchmark", ["llama31_8b", "gpt_oss_20b", "deepseekv3_671b"])
def test_a_log_of_v6_0_states_precision_parallelism_and_samples(tmp_path, benchmark):
    if not V6.exists():
        pytest.skip(f"no {V6.name} in {V6.parent}")
    folder = tmp_path / "AMD" / "results" / "MI355X" / benchmark
    folder.mkdir(parents=True)
    (tmp_path / "AMD" / "systems").mkdir()
    (tmp_path / "AMD" / "systems" / "MI355X.json").write_text(json.dumps({**SYSTEM, "number_of_nodes": 1}))
    for number in range(3 if benchmark == "deepseekv3_671b" else 10):
        (folder / f"result_{number}.txt").write_text(V6.read_text().replace("llama31_8b", benchmark))
    [pair] = mlperf_round.find_round_entries(tmp_path, "v6.0").pairs
    scored = Scored(mlperf_round.read_entry(pair))
    assert scored.entry.notes == ()
    assert scored.minutes == pytest.approx(86.274, rel=1e-4)  # its own run_duration says 86.27
    assert (scored.precision, scored.precision_source) == ("fp4", "the logs")
    assert scored.entry.parallelism == {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
    assert scored.tokens_per_second_per_gpu == pytest.approx(37463, rel=1e-3)


@in_each(
    ("device", "gpu"),
    [
        ("NVIDIA Blackwell Ultra Superchip (GB300)", "GB300"),
        ("AMD Instinct accelerator (MI355X)", "MI355X"),
        ("NVIDIA H200 (something new)", None),
        ("NVIDIA (B200) or (GB200)", None),
    ],
)
def test_a_device_is_known_by_the_name_in_its_brackets_if_that_is_one(device, gpu):
    found = catalogue.find_gpu(device)
    assert (found.name if found else None) == gpu


def test_a_long_description_of_software_is_kept_whole_or_shown_as_cut(tmp_path):
    stack = "megatron-190213a1, TransformerEngine-385d10eb, " * 2
    system = SYSTEM | {"framework": f"{stack} nemo", "other_software_stack": 9 * stack}
    entry = scored(write(tmp_path, TEN, system=system)).entry
    assert entry.framework == f"{stack}nemo"
    assert (len(entry.software["stack"]), entry.software["stack"][-1]) == (LONGEST_FACT, "…")


def test_no_description_of_software_in_the_package_is_cut():
    texts = {text for one in mlperf_library.bundled().entries for text in (one.framework or "", *one.software.values())}
    assert not {text for text in texts if len(text) in (80, LONGEST_FACT)}
