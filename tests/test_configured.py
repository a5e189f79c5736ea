"""`--model config.json`: what is read, refused, shrunk to a CPU's size, and trained."""

import json
from types import SimpleNamespace

import pytest
import torch
from architectures import completed, tiny
from each import in_each, in_some

from tensorprimat.analysis import metrics
from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSettings
from tensorprimat.engines import introspect, prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.engines.torch import config as torch_config
from tensorprimat.engines.torch import engine as torch_engine
from tensorprimat.engines.torch import memory as torch_memory
from tensorprimat.engines.torch import model as torch_model
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.machine.platform import Machine
from tensorprimat.models import custom, presets, training_memory
from tensorprimat.models.families import FAMILIES
from tensorprimat.storage import store

CPU = Machine(platform="cpu", gpu_info=GpuInfo(), host="here")
H100 = Machine(
    platform="nvd",
    gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=1, total_memory_gb=85.0),
    host="here",
)


def written(folder, entries, name="config.json"):
    path = folder / name
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return path


def settings(config, **changes):
    return RunSettings(**{"steps": 3, "warmup_steps": 1, "seed": 1, "config": config, **changes})


SCALED = {
    "gemma2": {"final_logit_softcapping": 0.5},
    "granite": {"logits_scaling": 8.0, "attention_multiplier": 0.02, "embedding_multiplier": 12.0},
}


@in_some(4, "kind", FAMILIES)
def test_the_loss_is_that_of_transformers(kind):
    torch.manual_seed(1)
    model = tiny(kind, **SCALED.get(kind, {}))
    network = LanguageModel(model)
    tokens = torch.randint(0, 1000, (2, 100))  # longer than the window of 64
    untouched = torch_model.causal_model(model, attention="eager")
    untouched.load_state_dict(network.causal.state_dict())
    reference = untouched.eval()(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss = network.eval()(tokens)  # in training Phi-3.5-MoE draws experts at random
    loss.backward()
    reference.backward()
    assert float(loss.detach()) == pytest.approx(float(reference.detach()), rel=1e-4)
    assert all(weight.grad is not None for weight in network.parameters())
    for ours, theirs in zip(network.causal.lm_head.parameters(), untouched.lm_head.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def run(tmp_path, kind):
    """Train three steps of the tiny preset; return the spec and the result."""
    path = written(tmp_path, {"model_type": kind, "torch_dtype": "bfloat16"}, name=f"my-{kind}.json")
    name, config = torch_config.read_model_config(str(path))
    spec = prepare.spec_of(
        name, settings(config, micro_batch_size=2, global_batch_size=2), engine=ENGINES["torch"], machine=CPU
    )
    torch_engine.train(type(spec).model_validate_json(spec.model_dump_json()), tmp_path / "result.json")
    return spec, store.load(tmp_path / "result.json")


@in_each("kind", ["qwen3", "gemma3_text", "gpt_oss", "deepseek_v3"])
def test_a_configured_model_trains_on_a_cpu_and_its_result_names_it(tmp_path, kind):
    spec, result = run(tmp_path, kind)
    assert result.complete
    assert (result.model.name, result.model.preset) == (f"my-{kind}", "tiny")
    assert result.model.parameters == custom.model_of(spec).parameters
    assert not [warning for warning in result.warnings if warning.startswith("model:")]
    losses = result.steps.column("loss")
    assert losses[-1] < losses[0]
    model = custom.model_of(spec)
    assert result.model.shape == model.shape is not None
    per_token = metrics.flops_per_token(result, "megatron")
    assert per_token.value == pytest.approx(model.decoder.flops_per_token([spec.sequence_length]), rel=1e-3)
    again = json.loads((tmp_path / "result.json").read_text())
    assert again["training_config"]["fused_kernels"].count("linear cross-entropy") == 1


def test_a_model_that_no_shape_expresses_has_the_flops_of_its_layers(tmp_path):
    spec, result = run(tmp_path, "llama4_text")  # attention in chunks
    assert result.model.shape is None
    flops = custom.model_of(spec).decoder.flops_per_token([spec.sequence_length])
    assert metrics.flops_per_token(result, "megatron").value == result.model.training_flops_per_token == round(flops)
    assert metrics.flops_per_token(result, "palm").value is None


@in_each("kind", [kind for kind in FAMILIES if kind != "llama4_text"])
def test_the_layers_of_a_live_model_have_the_shape_of_its_configuration(kind):
    model = tiny(kind)
    found, warnings = introspect.describe_model(torch_model.causal_model(model), sharded=False)
    assert (found.shape, found.parameters, warnings) == (model.shape, model.parameters, [])


def test_a_configuration_that_a_shape_expresses_has_that_shape(tmp_path):
    shape = presets.find_preset("llama").shape
    entries = {
        "model_type": "llama", "vocab_size": shape.vocab_size, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "rope_theta": 5e5, "bos_token_id": 128000,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192},
    }  # fmt: skip
    name, config = torch_config.read_model_config(str(written(tmp_path, entries)))
    model = torch_config.model_of_config(name, config, "full")
    assert (model.shape, model.parameters) == (shape, presets.parameters(shape))
    assert torch_config.model_of_config(name, config, "tiny").shape.num_key_value_heads == 2


def test_the_tiny_shape_keeps_what_the_architecture_has():
    deepseek = tiny("deepseek_v3")
    assert [layer.experts > 0 for layer in deepseek.decoder.layers] == [False, True, True, True]
    assert deepseek.config["kv_lora_rank"]
    assert deepseek.config["q_lora_rank"]
    gemma = tiny("gemma3_text")
    assert [layer.window for layer in gemma.decoder.layers].count(None) == 1
    assert tiny("llama", num_key_value_heads=8).config["num_key_value_heads"] == 2
    assert {layer.active_experts for layer in tiny("mixtral").decoder.layers} == {2}


@in_each(
    ("content", "printed"),
    [
        ("", "not a config.json"),
        ("[1]", "holds no object"),
        ("{}", "no model_type"),
        ({"model_type": "nonesuch"}, "the torch engine does not train model_type 'nonesuch'"),
        ({"model_type": "bert"}, "the torch engine does not train model_type 'bert'"),
        ({"model_type": 3}, "no model_type"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "multimodal"),
        ({"model_type": "llama", "hidden_size": "wide"}, "refuses the configuration"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers: must be a whole number above 0"),
        (
            {"model_type": "qwen3", "num_key_value_heads": 3},
            "num_key_value_heads: 3 does not divide 32 attention heads",
        ),
        ({"model_type": "qwen3", "vocab_size": 1}, "vocab_size: must be at least 2"),
        ({"model_type": "qwen3", "hidden_act": "soft"}, "hidden_act: transformers .* has no 'soft'"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "long", "factor": 2.0}}, "rope_type: .* no 'long'"),
        ({"model_type": "qwen3", "rms_norm_eps": "small"}, "refuses|cannot build"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok: 9 is more than the 8 experts"),
    ],
)
def test_a_file_that_is_not_a_model_is_refused_in_one_line(tmp_path, content, printed):
    path = written(tmp_path, content)
    with pytest.raises(UsageError, match=printed) as refused:
        torch_config.read_model_config(str(path))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"--model {path}: ")


def test_a_model_that_does_not_exist_is_refused_with_the_names_that_do():
    with pytest.raises(UsageError, match=r"--model lama: no such model; models: llama, qwen"):
        torch_config.read_model_config("lama")


def test_an_architecture_that_this_transformers_lacks_is_named_with_its_version(tmp_path, monkeypatch):
    import transformers

    monkeypatch.setattr(transformers, "CONFIG_MAPPING", {"llama": None})
    with pytest.raises(UsageError, match=rf"transformers {transformers.__version__} has no architecture 'gpt_oss'"):
        torch_config.read_model_config(str(written(tmp_path, {"model_type": "gpt_oss"})))


@pytest.mark.parametrize("fault", ["table of attentions", "own mask"])
def test_model_classes_that_accept_no_custom_attention_are_refused_with_their_version(tmp_path, monkeypatch, fault):
    import transformers

    def built(_):
        if fault == "own mask":
            return SimpleNamespace(model=SimpleNamespace(_update_causal_mask=print))
        raise KeyError("tensorprimat_causal_sdpa")

    monkeypatch.setattr(torch_model, "causal_model", built)
    version = transformers.__version__
    with pytest.raises(
        UsageError, match=rf"transformers {version} cannot build the model \(its attention .* newer one"
    ):
        torch_config.read_model_config(str(written(tmp_path, {"model_type": "olmoe"})))


def test_only_the_torch_engine_trains_a_configuration():
    config = completed("llama")
    with pytest.raises(UsageError, match="use --engine torch"):
        prepare.spec_of("mine", settings(config), engine=ENGINES["nemo"], machine=H100)


def test_a_file_named_like_a_built_in_model_is_not_taken_for_it(tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    name, _ = torch_config.read_model_config(str(written(folder, {"model_type": "qwen3"})))
    assert name == "llama-config"


@pytest.fixture
def uncounted(monkeypatch):
    """Have activations estimated by the shape: the weights alone are too many, or a few layers leave room."""
    monkeypatch.setattr(torch_memory, "counted_options", lambda *_: {})


@pytest.mark.usefixtures("uncounted")
def test_a_mixture_that_one_gpu_cannot_hold_is_refused_before_it_is_built():
    config = completed("mixtral")
    spec = prepare.spec_of("mixtral", settings(config, preset="full"), engine=ENGINES["torch"], machine=H100)
    assert training_memory.estimate(spec).weights == 2 * custom.model_of(spec).parameters > 90e9
    with pytest.raises(UsageError, match=r"needs about .* GB on each device"):
        prepare.check_memory(spec, H100)


@pytest.mark.usefixtures("uncounted")
@in_each(("kind", "length"), [("phi", 2048), ("deepseek_v3", 4096), ("qwen3", 8192)])
def test_sequences_are_as_long_as_the_model_allows_where_no_flag_sets_them(kind, length):
    config = completed(kind)
    node = Machine(platform="nvd", gpu_info=H100.gpu_info.model_copy(update={"device_count": 8}), host="here")
    plain = settings(config, preset="full", compile=False)
    spec = prepare.spec_of(kind, plain, engine=ENGINES["torch"], machine=node)
    assert spec.sequence_length == length


def test_attention_that_no_sdpa_kernel_computes_uses_flex_attention_or_eager():
    assert torch_model.attention_of("gpt_oss", "sdpa", "cuda") == "flex_attention"
    assert torch_model.attention_of("gemma2", "sdpa", "cpu") == "eager"
    assert torch_model.attention_of("llama4_text", "sdpa", "cuda") == "tensorprimat_causal_sdpa"
    assert torch_model.attention_of("qwen3", "sdpa", "cuda") == "tensorprimat_causal_sdpa"


@in_each("engine", ["logs", "primus", "bridge"])
def test_the_command_refuses_a_file_with_an_engine_that_cannot_train_it(tmp_path, engine, capsys):
    path = written(tmp_path, {"model_type": "qwen3"})
    assert main(["run", "--model", str(path), "--engine", engine, "--dry-run"]) == 2
    assert f"for --model {path} use --engine torch" in capsys.readouterr().err


def test_a_dry_run_states_the_model_of_a_file(tmp_path, capsys):
    path = written(tmp_path, {"model_type": "olmoe"}, name="own.json")
    assert main(["run", "--model", str(path), "--dry-run", "--preset", "tiny", "--output", str(tmp_path)]) == 0
    assert "own, 2,103,424 parameters (preset tiny)" in capsys.readouterr().out
