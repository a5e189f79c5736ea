"""Tests of convert_checkpoint.py with NeMo's real importers: every weight arrives where Megatron reads it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "nemo_env"
WIDTH, HEADS, GROUPS, HEAD, INNER, LAYERS, WORDS = 32, 4, 2, 8, 48, 2, 128


def configuration(model):
    """Return a tiny configuration of the model's architecture, as its published checkpoint has one."""
    import transformers

    kinds = {
        "llama": (
            transformers.LlamaConfig,
            {
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            },
        ),
        "qwen": (transformers.Qwen2Config, {}),
        "mistral": (transformers.MistralConfig, {"sliding_window": 64, "head_dim": HEAD}),
    }  # fmt: skip
    kind, more = kinds[model]
    return kind(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, max_position_embeddings=64, tie_word_embeddings=False,
        **more,
    )  # fmt: skip


def write_checkpoint(model, folder):
    """Write a Hugging Face checkpoint of random weights, in bfloat16, with a tokenizer; return its weights."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(configuration(model), dtype=torch.bfloat16)
    with torch.no_grad():
        for weight in made.parameters():  # norms start at 1 and biases at 0, in NeMo's model too
            weight.normal_()
    made.save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{index}": index for index in range(WORDS)}, unk_token="w0")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), unk_token="w0")
    tokenizer.save_pretrained(folder)
    return made.state_dict()


def read_weights(folder):
    """Return the weights of a NeMo checkpoint, by Megatron's names, layers stacked."""
    import torch
    from torch.distributed import checkpoint

    reader = checkpoint.FileSystemReader(folder / "weights")
    entries = reader.read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, checkpoint.metadata.TensorStorageMetadata)
    }
    checkpoint.load(weights, storage_reader=reader, no_dist=True)
    return {name.removeprefix("module."): weight for name, weight in weights.items()}


def grouped(query, key, value):
    """Return the rows in Megatron's order: of each group of heads its queries, then its key, then its value."""
    import torch

    per_group = HEADS // GROUPS * HEAD
    parts = [
        part[group * rows : (group + 1) * rows]
        for group in range(GROUPS)
        for part, rows in ((query, per_group), (key, HEAD), (value, HEAD))
    ]
    return torch.cat(parts)


def expected(theirs):
    """Return the weights that Megatron should hold, from those of a Hugging Face model."""
    import torch

    def each(join, *names):
        layers = (f"model.layers.{layer}." for layer in range(LAYERS))
        return torch.stack([join(*(theirs[layer + name] for name in names)) for layer in layers])

    def same(weight):
        return weight

    attention, mlp = "self_attn.{}_proj", "mlp.{}_proj.weight"
    linear = "decoder.layers.self_attention.linear_"
    held = {
        "embedding.word_embeddings.weight": theirs["model.embed_tokens.weight"],
        f"{linear}qkv.layer_norm_weight": each(same, "input_layernorm.weight"),
        f"{linear}qkv.weight": each(grouped, *(f"{attention.format(part)}.weight" for part in "qkv")),
        f"{linear}proj.weight": each(same, f"{attention.format('o')}.weight"),
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": each(same, "post_attention_layernorm.weight"),
        "decoder.layers.mlp.linear_fc1.weight": each(
            lambda *parts: torch.cat(parts), mlp.format("gate"), mlp.format("up")
        ),
        "decoder.layers.mlp.linear_fc2.weight": each(same, mlp.format("down")),
        "decoder.final_layernorm.weight": theirs["model.norm.weight"],
        "output_layer.weight": theirs["lm_head.weight"],
    }
    if "model.layers.0.self_attn.q_proj.bias" in theirs:
        held[f"{linear}qkv.bias"] = each(grouped, *(f"{attention.format(part)}.bias" for part in "qkv"))
    return held


MODELS = ("llama", "qwen", "mistral")


@dataclass(frozen=True)
class Converted:
    folder: Path
    stdout: str
    stderr: str
    theirs: dict


@pytest.fixture(scope="module")
def converted(shim, tmp_path_factory):
    """Every model, in one process: most of a tiny conversion is NeMo's import."""
    folder = tmp_path_factory.mktemp("conversion")
    theirs = {model: write_checkpoint(model, folder / f"from {model}") for model in MODELS}
    path = os.pathsep.join(map(str, (ROOT, shim)))
    done = subprocess.run(
        [sys.executable, HERE / "convert_on_cpu.py", *MODELS], capture_output=True, text=True, timeout=300,
        cwd=folder, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return Converted(folder, done.stdout, done.stderr, theirs)


@pytest.mark.parametrize("model", MODELS)
def test_a_converted_checkpoint_holds_every_weight_of_the_hugging_face_checkpoint(model, converted):
    import torch

    target = converted.folder / f"to {model}"
    assert (target / "context" / "model.yaml").is_file()
    ours, held = read_weights(target), expected(converted.theirs[model])
    assert set(ours) == set(held)
    for name, weight in held.items():
        assert torch.equal(ours[name], weight), name


def test_the_needed_space_is_printed_and_only_the_checkpoint_remains(converted):
    assert converted.stderr.count("This needs at least") == len(MODELS)
    assert [line for line in converted.stdout.splitlines() if line.startswith("to ")] == [f"to {m}" for m in MODELS]
    left = {path.name for path in converted.folder.iterdir()}
    assert left == {f"{which} {model}" for which in ("from", "to") for model in MODELS}
