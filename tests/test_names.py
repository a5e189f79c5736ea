"""Every spelling of a known model is one model, and no other model is taken for it."""

from each import in_each
from plausible import result as plausible_result

from tensorprimat.analysis.compare import compare
from tensorprimat.core.result import Model
from tensorprimat.core.user_facts import UserFacts, amended
from tensorprimat.models import names
from tensorprimat.storage.store import Loaded

SPELLINGS = {
    "llama": (
        "llama", "llama31_8b", "llama3_8b", "llama3.1_8B", "llama3_1_8b_pretrain_fp8", "Llama-3.1-8B-Instruct",
        "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "NousResearch/Meta-Llama-3-8B", "llama3 8B",
        "Llama31Config8B", "llama3/8B", "llama3.1:8b", "llama_test_fp8", "llama31_8b_20251001",
        "examples/megatron/configs/MI300X/llama3.1_8B-BF16-pretrain.yaml", "primus_training_llama3.1_8B",
        "models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f249a16976918f6564b8830bc894c89659",
        "/models/Llama-3.1-8B/checkpoint-500",
    ),
    "qwen": (
        "qwen", "qwen25_7b", "qwen2.5_7B", "Qwen/Qwen2.5-7B", "Qwen2.5-7B-Instruct", "qwen25_7b_test_fp8",
        "qwen2p5_7b", "Qwen25Config7B", "qwen2.5_7B-FP8-pretrain.yaml",
    ),
    "mistral": (
        "mistral", "mistral_7b", "mistralai/Mistral-7B-v0.1", "Mistral-7B-Instruct-v0.2", "MistralConfig7B",
        "mistral-7b-v0.1-bf16", "Mistral7B",
    ),
}  # fmt: skip
OTHERS = (
    "llama2_70b_lora", "llama3.1_70B", "llama3_70b", "Llama-3.2-1B", "llama3.3_8b", "llama2_8b", "llama3.1-18b",
    "llama3.1-405b", "codellama-7b", "TinyLlama-1.1B", "ollama", "DeepSeek-R1-Distill-Llama-8B", "qwen2_7b", "qwen_7b",
    "qwen2.5_72B", "Qwen3-8B", "mixtral_8x7b", "Mistral-Nemo-12B", "mistral-small-24b", "gpt3", "flux1", "",
    "Llama3-8B-moe", "qwen2.5-7b-moe", "llama-3-8b-4experts",
)  # fmt: skip


@in_each(("name", "spelled"), [(name, word) for name, words in SPELLINGS.items() for word in words])
def test_every_spelling_of_a_known_model_is_that_model(name, spelled):
    assert names.known_model(spelled) == names.key(spelled) == name


@in_each("spelled", OTHERS)
def test_no_other_model_is_taken_for_a_known_one(spelled):
    assert names.known_model(spelled) is None
    assert names.key(spelled) not in SPELLINGS


@in_each(
    ("one", "other"),
    [
        ("llama31_70b", "meta-llama/Meta-Llama-3.1-70B"), ("llama3.1_70B-BF16-pretrain.yaml", "Llama-3.1-70B-Instruct"),
        ("llama2_70b_lora", "Llama2-70B-LoRA"), ("Qwen/Qwen2.5-72B", "qwen25_72b"), ("gpt_oss_20B", "gpt-oss-20b"),
    ],
)  # fmt: skip
def test_spellings_of_another_model_pair_too(one, other):
    assert names.key(one) == names.key(other)


def test_a_size_or_a_fine_tuning_keeps_models_apart():
    keys = {names.key(name) for name in ("llama3.1_70B", "llama3_70b", "llama2_70b", "llama2_70b_lora", "llama31_8b")}
    assert len(keys) == 5


def test_results_pair_under_every_spelling_of_their_model(tmp_path):
    def side(machine, name):
        result = plausible_result(machine)
        model = Model(name=name)  # without a shape the name decides
        return Loaded(path=tmp_path / f"{machine}.json", result=result.model_copy(update={"model": model}))

    (pair,) = compare([side("h100", "llama31_8b"), side("mi300x", "meta-llama/Llama-3.1-8B")]).pairs
    assert pair.fairness.verdict != "not_comparable"
    others = compare([side("h100", "llama31_8b"), side("mi300x", "llama3.1_70B")]).pairs
    assert {pair.fairness.verdict for pair in others} <= {"not_comparable"}


def test_the_flag_takes_every_spelling_and_another_model_is_a_conflict():
    def stated_for(name, flag):
        result = plausible_result("h100").model_copy(update={"model": Model(name=name), "warnings": ()})
        return amended(result, UserFacts(model_name=flag))

    def conflicts(result):
        return [(one.code, one.values) for one in result.remarks if one.field == "model"]

    same = stated_for("llama31_8b", "Llama-3.1-8B")
    assert (same.model.name, conflicts(same)) == ("llama", [])
    other = stated_for("llama2_70b_lora", "llama")
    assert conflicts(other) == [
        ("fact_overridden", {"flag": "--model-name", "stated": "llama", "known": "llama2_70b_lora"})
    ]
