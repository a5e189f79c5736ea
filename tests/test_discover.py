"""Logs of a machine are found model by model: by variable, by name, by content; the choice has a reason."""

import lzma
import os
from pathlib import Path

import pytest
from each import in_each
from test_megatron_settings import ARGUMENTS

from tensorprimat.core.errors import InputError
from tensorprimat.logs import discover

ROW = " iteration {:8d}/     100 | elapsed time per iteration (ms): 2500.0 | lm loss: 2.5E+00 | loss scale: 1.0 |\n"
LOG = "".join(ROW.format(number) for number in range(1, 9))
MODELS = ("llama", "qwen", "mistral")


def write(path, content=LOG, *, age=0.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    moment = path.stat().st_mtime - age
    os.utime(path, (moment, moment))
    return path


def find(*folders, **environment):
    with pytest.MonkeyPatch.context() as changed:
        for name, value in environment.items():
            changed.setenv(name, value)
        return discover.find_logs(MODELS, folders=folders)


def test_an_empty_folder_has_no_log(tmp_path):
    search = find(tmp_path)["llama"]
    assert search.path is None
    assert search.searched == ("LLAMA_LOG", str(tmp_path))


def test_a_variable_overrides_every_file_name(tmp_path):
    write(tmp_path / "training_llama.log")
    path = write(tmp_path / "elsewhere" / "x.out")
    search = find(tmp_path, LLAMA_LOG=str(path))["llama"]
    assert (search.path, search.because) == (path, "LLAMA_LOG names it")


def test_a_variable_that_names_no_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match="LLAMA_LOG"):
        find(tmp_path, LLAMA_LOG=str(tmp_path / "absent.log"))


def test_the_best_file_name_is_preferred_to_a_newer_file_for_each_model(tmp_path):
    best = write(tmp_path / "b" / "training_llama.log", age=900)
    write(tmp_path / "a" / "my_llama_run.log")
    qwen = write(tmp_path / "a" / "primus_training_qwen2.5_7B.log")
    searches = find(tmp_path / "a", tmp_path / "b")
    assert searches["llama"].path == best
    assert searches["qwen"].path == qwen
    assert searches["mistral"].path is None


def test_the_newest_of_equal_names_is_read_and_the_others_are_named(tmp_path):
    old = write(tmp_path / "a" / "llama_1.log", age=900)
    new = write(tmp_path / "b" / "LLAMA_2.log", age=100)
    search = find(tmp_path / "a", tmp_path / "b")["llama"]
    assert search.path == new
    assert "newest" in search.because
    assert search.others == (f"{old} (older)",)


def test_a_file_of_the_right_name_without_steps_is_skipped_with_the_reason(tmp_path):
    write(tmp_path / "training_llama.log", "Traceback (most recent call last):\n")
    good = write(tmp_path / "run_llama.log")
    search = find(tmp_path)["llama"]
    assert search.path == good
    assert search.others == (f"{tmp_path / 'training_llama.log'} (no training steps in it)",)


def test_the_tools_own_logs_are_recognised_and_ignored(tmp_path):
    write(tmp_path / "training_llama.log", "[CUDA] Step  10 | Time: 1.234s | Avg: 1.245s | Memory: 45.67GB\n" + LOG)
    search = find(tmp_path)["llama"]
    assert search.path is None
    assert "written by this tool" in search.others[0]


@in_each(
    "name",
    ["nohup", "slurm-4711", "job.o4711", "train.2026-01-05", "x.log.1", "x.stdout", "x.err", "X.LOG", "x.txt.xz"],
)
def test_the_content_of_a_log_names_its_model_whatever_the_file_is_called(tmp_path, name):
    text = "--tokenizer-model /data/Qwen/Qwen2.5-7B\n" + LOG
    path = tmp_path / name
    path.write_bytes(lzma.compress(text.encode()) if name.endswith("xz") else text.encode())
    write(tmp_path / "LICENSE", "Qwen2.5-7B\n")
    write(tmp_path / "train.py", text)
    assert find(tmp_path)["qwen"].path == path


def test_the_content_of_a_log_names_its_model_if_no_file_name_does(tmp_path):
    experiment = "EXP=examples/megatron/configs/MI300X/qwen2.5_7B-BF16-pretrain.yaml\n"
    old = write(tmp_path / "job_17.txt", experiment + LOG, age=900)
    new = write(tmp_path / "job_18.txt", experiment + LOG)
    write(tmp_path / "notes.txt", "buy milk\n")
    searches = find(tmp_path)
    assert searches["qwen"].path == new
    assert searches["qwen"].because == "its content names qwen"
    assert searches["qwen"].others == (f"{old} (older)",)
    assert searches["llama"].path is None


@in_each("name", ["x.log", "job.out", "slurm-12.err", "notes.txt"])
@in_each(
    "mention",
    [
        "loading tokenizer meta-llama/Llama-3.1-8B",
        "  tokenizer_model ................................. /data/models/Meta-Llama-3.1-8B/tokenizer.model",
        "+ python pretrain_gpt.py --load checkpoints/llama3.1_8B-bf16",
    ],
)
def test_a_mention_of_a_model_with_its_size_in_the_text_names_the_model_of_the_log(tmp_path, name, mention):
    path = write(tmp_path / name, f"{mention}\n{LOG}")
    searches = find(tmp_path)
    assert searches["llama"].path == path
    assert searches["llama"].because.startswith("its content names llama (line 1: ")
    assert searches["qwen"].path is None


def test_a_log_that_names_several_models_is_reported_and_used_for_none(tmp_path):
    write(tmp_path / "x.log", f"student meta-llama/Llama-3.1-8B, teacher Qwen/Qwen2.5-72B\n{LOG}")
    search = find(tmp_path)["llama"]
    assert search.path is None
    (other,) = search.others
    assert "names llama and qwen2.5-72b" in other
    assert f"set LLAMA_LOG={tmp_path / 'x.log'}" in other


def test_a_mention_without_steps_or_size_is_not_a_log(tmp_path):
    write(tmp_path / "readme.txt", "how to train meta-llama/Llama-3.1-8B\n")
    write(tmp_path / "y.log", f"model_type llama\n{LOG}")
    assert find(tmp_path)["llama"].path is None


@in_each("name", ["llama3.1_70B.log", "primus_training_llama3.1_70B.log", "llama2.log", "tinyllama.log", "ollama.log"])
def test_a_name_of_another_size_or_version_is_not_the_models(tmp_path, name):
    write(tmp_path / name)
    assert find(tmp_path)["llama"].path is None


@in_each("name", ["llama31_8b_test_fp8.log", "Llama-3.1-8B-Instruct.out", "run_llama3_8b.txt"])
def test_every_spelling_in_a_name_finds_the_log(tmp_path, name):
    path = write(tmp_path / name)
    assert find(tmp_path)["llama"].path == path


def test_a_file_named_after_two_models_is_used_for_neither(tmp_path):
    write(tmp_path / "llama_and_qwen.log")
    assert {search.path for search in find(tmp_path).values()} == {None}


def test_the_search_is_not_recursive(tmp_path):
    write(tmp_path / "deep" / "training_llama.log")
    assert find(tmp_path)["llama"].path is None


def test_logs_are_searched_in_this_folder_output_and_primus(tmp_path, monkeypatch):
    (tmp_path / "output").mkdir()
    primus = tmp_path / "primus"
    primus.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIMUS_PATH", str(primus))
    assert discover.searched_folders()[:3] == [Path("."), Path("output"), primus]
    monkeypatch.setenv("PRIMUS_PATH", str(tmp_path))
    assert discover.searched_folders()[:2] == [Path("."), Path("output")], "each folder once"


@in_each(
    ("model", "mention"),
    [
        ("llama", '"architectures": ["LlamaForCausalLM"]'),
        ("llama", "  tokenizer_type .................................. Llama3Tokenizer"),
        ("llama", "loading checkpoint from /ckpt/llama at iteration 0"),
        ("qwen", "model class Qwen2ForCausalLM"),
        ("mistral", "--load=/models/mistral"),
    ],
)
def test_a_class_or_a_path_is_a_label_by_which_a_log_is_found(tmp_path, model, mention):
    path = write(tmp_path / "job.out", f"{mention}\n{LOG}")
    searches = find(tmp_path)
    assert {name for name, search in searches.items() if search.path == path} == {model}
    assert "no size" in searches[model].because


def test_the_shape_of_a_log_decides_what_a_label_leaves_open(tmp_path):
    arguments = ARGUMENTS | {"ffn_hidden_size": 11008, "padded_vocab_size": 64000, "tokenizer_model": None}
    dump = "".join(f"  {name} ................................. {value}\n" for name, value in arguments.items())
    path = write(tmp_path / "yi.log", f"------ arguments ------\n{dump}LlamaForCausalLM\n{LOG}")
    search = find(tmp_path)["llama"]
    assert (search.path, search.unassigned) == (None, False)
    assert search.others == (f"{path} (its shape is that of another model)",)


@pytest.mark.parametrize("mention", ["", "LlamaForCausalLM and MistralForCausalLM\n"])
def test_a_log_that_belongs_to_no_model_is_named_with_the_variable_that_assigns_it(tmp_path, mention):
    path = write(tmp_path / "job.out", mention + LOG)
    search = find(tmp_path)["llama"]
    assert (search.path, search.unassigned) == (None, True)
    assert f"set LLAMA_LOG={path}" in search.others[0]


@in_each(
    "text", ["/opt/llama.cpp/main\n", "Llama2Tokenizer\n", "LlamaFactory\n", "pip: llama-index\n", "Llama-2-70B\n"]
)
def test_software_and_other_models_are_no_label(tmp_path, text):
    write(tmp_path / "job.out", text + LOG)
    assert find(tmp_path)["llama"].path is None


def test_a_log_of_another_model_is_named_for_every_model_that_was_searched(tmp_path):
    write(tmp_path / "job.out", LOG + "\nsave ........ /ckpt/llama-1b-test\n")
    searches = find(tmp_path)
    assert all(search.path is None for search in searches.values())
    assert all("its content names llama-1b" in search.others[0] for search in searches.values())
