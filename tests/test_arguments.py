"""Settings and shapes of models that frameworks print by name before their first row, or log in constant columns."""

import json

from each import in_each
from keyvalue_rows import composer, log, nanotron

from tensorprimat import logs
from tensorprimat.models import presets

LLAMA = {
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip
NANOTRON = """Config(general=GeneralArgs(project='debug', seed=42),
       parallelism=ParallelismArgs(dp=4,
                                   pp=1,
                                   tp=2,
                                   recompute_layer=False,
                                   context_parallel_size=1),
       model=ModelArgs(model_config=LlamaConfig(hidden_size=2048,
                                                intermediate_size=8192,
                                                num_attention_heads=32,
                                                num_hidden_layers=16,
                                                num_key_value_heads=8,
                                                tie_word_embeddings=True,
                                                vocab_size=128256),
                       dtype=torch.bfloat16),
       tokens=TokensArgs(sequence_length=4096, train_steps=50, micro_batch_size=8, batch_accumulation_per_replica=4),
       optimizer=OptimizerArgs(optimizer_factory=AdamWOptimizerArgs(adam_eps=1e-08, name='adamW'),
                               zero_stage=1,
                               learning_rate_scheduler=LRSchedulerArgs(learning_rate=0.0003))
Total number of parameters: {count} (2357.32MiB)
Local number of parameters: 618M (1178.66MiB)
"""
FOUNDRY = """max_seq_len: 2048
model:
  name: mpt_causal_lm
  d_model: 768
  n_heads: 12
  n_layers: 12
  expansion_ratio: 4
  vocab_size: 50368
  attn_config:
    attn_impl: flash
optimizer:
  name: decoupled_adamw
  lr: 0.0006
global_train_batch_size: 256
device_train_microbatch_size: 16
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  activation_checkpointing: false
n_gpus: 8
device_train_grad_accum: 2
n_params: 125311488
"""
LITGPT = """{'data': {'class_path': 'litgpt.data.TinyLlama'},
 'devices': 8,
 'model_config': {'block_size': 2048,
                  'head_size': 64,
                  'intermediate_size': 5632,
                  'n_embd': 2048,
                  'n_expert': 0,
                  'n_head': 32,
                  'n_layer': 22,
                  'n_query_groups': 4,
                  'padded_vocab_size': 32000,
                  'vocab_size': 31999},
 'optimizer': {'class_path': 'torch.optim.AdamW', 'init_args': {'lr': 0.0004}},
 'precision': 'bf16-mixed',
 'seed': 42,
 'train': TrainArgs(global_batch_size=512, micro_batch_size=64, max_steps=None, max_seq_length=None)}
Total parameters: 1,100,048,384
"""
LITGPT_ROW = "Epoch 1 | iter {n} step {n} | loss train: 10.{n:03}, val: n/a | iter time: 250.{n:02} ms (step)\n"
MAXTEXT = "".join(
    f"Config param {name}: {value}\n"
    for name, value in {
        "dcn_tensor_parallelism": 2, "dtype": "bfloat16", "emb_dim": 4096, "head_dim": 128,
        "ici_pipeline_parallelism": -1, "ici_tensor_parallelism": 4, "logits_via_embedding": False, "mlp_dim": 14336,
        "num_decoder_layers": 32, "num_experts": 1, "num_kv_heads": 8, "num_query_heads": 32,
        "sliding_window_size": 0, "vocab_size": 128256, "weight_dtype": "float32",
    }.items()
)  # fmt: skip
MAXTEXT_ROW = "completed step: {n}, seconds: 1.5{n:02}, TFLOP/s/device: 500.5, Tokens/s/device: 10922.6, loss: 9.1\n"
ROW = "step {n} | loss 9.{n:02} | 512.{n} ms/step | 8,{n}00 tok/s\n"
FMS = "step: {n}0\nloss: 2.5\ntokens seen: {tokens}\ncurrent step time: 1.5\ncurrent token per gpu per sec: 5461\n"


def rows(row):
    return "".join(row.format(n=n, tokens=65536 * 10 * n) for n in range(10, 40))


def of_transformers(**entries):
    return f">> Model config LlamaConfig {json.dumps({**LLAMA, 'model_type': 'llama', **entries}, indent=2)}\n"


def test_what_nanotron_prints_is_read(read_text):
    result = read_text(NANOTRON.replace("{count}", "1.24G") + "\n".join(map(nanotron, range(1, 20))))
    config, shape = result.training_config, result.model.shape
    assert (config.strategy, config.precision, config.optimizer, config.recompute) == (
        "zero-1",
        "bf16",
        "adamw",
        "none",
    )
    assert (config.learning_rate, config.seed, config.num_gpus) == (0.0003, 42, 8)
    assert (shape.num_layers, shape.gated_mlp, shape.tied_embeddings) == (16, True, True)


def test_numbers_that_have_other_parameters_than_the_log_states_are_no_shape(read_text):
    lines = list(map(nanotron, range(1, 20)))
    for count in ("1.30G", "990M", "{count}"):
        assert read_text(NANOTRON.replace("{count}", count) + "\n".join(lines)).model.shape is None
    lost = NANOTRON.replace("{count}", "1.24G").replace("intermediate_size=8192", "intermediate_size=81")
    assert read_text(lost + "\n".join(lines)).model.shape is None


def test_what_llm_foundry_prints_is_read(read_text):
    result = read_text(FOUNDRY + "\n".join(map(composer, range(1, 20))))
    config, shape = result.training_config, result.model.shape
    assert (config.strategy, config.optimizer, config.attention_backend) == ("fsdp", "decoupled_adamw", "flash")
    assert (config.micro_batch_size, config.gradient_accumulation_steps, config.recompute) == (16, 2, "none")
    assert (shape.ffn_hidden_size, shape.gated_mlp, shape.tied_embeddings) == (3072, False, True)


def test_what_litgpt_prints_is_read(read_text):
    result = read_text(LITGPT + rows(LITGPT_ROW))
    config = result.training_config
    assert (config.sequence_length, config.data_parallel_size, config.optimizer) == (2048, 8, "adamw")
    assert (config.learning_rate, config.seed) == (0.0004, 42)
    assert (result.model.shape.vocab_size, result.model.parameters) == (32000, 1_100_048_384)


def test_what_maxtext_prints_is_read(read_text):
    result = read_text(f"{MAXTEXT}number parameters: 8.030 billion\n{rows(MAXTEXT_ROW)}")
    config = result.training_config
    assert result.model.shape == presets.find_preset("llama").shape
    assert (config.tensor_model_parallel_size, config.pipeline_model_parallel_size) == (8, None)
    assert config.parameter_dtype == "float32"


def test_the_gpus_of_fms_fsdp_follow_from_its_counter_and_its_rates(read_text):
    settings = "--> running with these configs train_config(model_variant='llama2_7b', seq_length=4096, batch_size=2, "
    result = read_text(f"{settings}sharding_strategy='hsdp')\n--> model has 6738.415616 Million params\n{rows(FMS)}")
    config = result.training_config
    assert (config.num_gpus, config.global_batch_size, config.strategy) == (8, 16, "hsdp")
    assert result.model.shape.num_layers == 32  # of the named model, whose parameters these are


@in_each(
    ("text", "is_read"),
    [
        (of_transformers(), True),
        (of_transformers() * 2, True),
        (of_transformers() + of_transformers(num_hidden_layers=16), False),
        (of_transformers(model_type="of_tomorrow"), False),
        (of_transformers(num_attention_heads="many"), False),
        (of_transformers()[:-30], False),
        (of_transformers() + "Total parameters: 1,100,048,384\n", False),
        ("Model name: meta-llama/Llama-3.1-8B\n", False),
        ("Model name: meta-llama/Llama-3.1-8B\nTotal parameters: 8,030,261,248\n", True),
        ("model: meta-llama/Llama-3.1-8B\nLlamaForCausalLM: 8030.2612M Params (8030.2612M Trainable [100%])\n", True),
        ("model: meta-llama/Llama-3.1-8B\nModel size: 8,030,261,248 total parameters\n", True),
    ],
)
def test_a_configuration_or_a_name_with_the_parameters_states_the_shape(read_text, text, *, is_read):
    shape = read_text(text + rows(ROW)).model.shape
    assert shape == (presets.find_preset("llama").shape if is_read else None)


@in_each(
    ("text", "field", "value"),
    [
        ("Optimizer: torch.optim.AdamW", "optimizer", "adamw"),
        ("optimizer=OptimizerArgs(name='x')", "optimizer", None),
        ("- Gradient accumulation steps: 4", "gradient_accumulation_steps", 4),
        ("lr: 1e-4\nlearning_rate=0.0001", "learning_rate", 0.0001),
        ("lr: 1e-4\nlr: 2e-4", "learning_rate", None),
        ("INFO - appended projector AdamW (lr=0.001, fixed)", "learning_rate", None),
        ("gradient_checkpointing=False", "recompute", None),
        ("enable_activation_checkpointing: False", "recompute", "none"),
        ("Seed set to 7", "seed", 7),
        ("precision: 0.16", "precision", None),
        ("precision: bf16-mixed, fp8: true, fp8_params: true", "precision", "fp8"),
        ("precision: 16-mixed", "precision", "fp16"),
        ("torch_dtype=x, mixed_precision='torch.bfloat16'", "precision", "bf16"),
        ("Using bfloat16 Automatic Mixed Precision (AMP)", "precision", "bf16"),
        ("args: num_gpus=8, seq_len=2048", "num_gpus", 8),
        ("tuner_type='lora'", "peft", "lora"),
    ],
)
def test_an_argument_by_name_states_a_setting(read_text, text, field, value):
    assert getattr(read_text(f"{text}\n{rows(ROW)}").training_config, field) == value


VERL = """(TaskRunner pid=4711) {'actor_rollout_ref': {'actor': {'optim': {'lr': 1e-06, 'optimizer': 'AdamW'},
(TaskRunner pid=4711)                                  'megatron': {'tensor_model_parallel_size': 2},
(TaskRunner pid=4711)                                  'ppo_micro_batch_size_per_gpu': 4,
(TaskRunner pid=4711)                                  'use_dynamic_bsz': False},
(TaskRunner pid=4711)                        'model': {'enable_gradient_checkpointing': True},
(TaskRunner pid=4711)                        'rollout': {'engine_kwargs': {'vllm': {'seed': 0}},
(TaskRunner pid=4711)                                    'nnodes': 0,
(TaskRunner pid=4711)                                    'tensor_model_parallel_size': 4}},
(TaskRunner pid=4711)  'critic': {'optim': {'lr': 1e-05}, 'ppo_micro_batch_size_per_gpu': 8},
(TaskRunner pid=4711)  'trainer': {'nnodes': 2}}
"""
NEMO_RL = """Final config:
{'cluster': {'gpus_per_node': 8, 'num_nodes': 1},
 'policy': {'dtensor_cfg': {'activation_checkpointing': True,
                            'enabled': True,
                            'tensor_parallel_size': 2},
            'generation': {'vllm_cfg': {'precision': 'float16', 'tensor_parallel_size': 4}},
            'megatron_cfg': {'enabled': False, 'optimizer': {'lr': 1e-5}, 'tensor_model_parallel_size': 8},
            'optimizer': {'kwargs': {'lr': 5e-06}, 'name': 'torch.optim.AdamW'},
            'precision': 'bfloat16'}}
"""
SLIME = """  bf16 ............................................ True
  lr .............................................. 1e-06
  micro_batch_size ................................ 1
  recompute_granularity ........................... full
  seq_length ...................................... 4096
  sglang_tp_size .................................. 4
  tensor_model_parallel_size ...................... 2
  use_dynamic_batch_size .......................... True
"""
PADDLE = """[2026-01-05 08:00:01,006] [   DEBUG] - bf16                          :True
[2026-01-05 08:00:01,006] [   DEBUG] - learning_rate                 :3e-05
[2026-01-05 08:00:01,006] [   DEBUG] - per_device_eval_batch_size    :8
[2026-01-05 08:00:01,006] [   DEBUG] - recompute                     :False
[2026-01-05 08:00:01,006] [   DEBUG] - recompute_granularity         :full
[2026-01-05 08:00:01,006] [   DEBUG] - sharding                      :stage1
[2026-01-05 08:00:01,006] [   DEBUG] - tensor_parallel_degree        :4
"""
INTERNEVO = "".join(
    f"2026-01-05T08:00:02.225+08:00 INFO [launch.py, line 205] - pid=6794 : {text}\n"
    for text in (
        "seq_len: 4096", "micro_num: 4", "micro_bsz: 2", "valid_micro_num: 9",
        "Model: {'checkpoint': True, 'hidden_size': 4096, 'dtype': 'torch.bfloat16', 'use_flash_attn': True}",
        "Distributed environment is initialized, data parallel size: 4, pipeline parallel size: 1, "
        "tensor parallel size: 2",
    )
)  # fmt: skip
FAIRSEQ = """2026-01-05 08:00:01 | INFO | fairseq_cli.train | {'common': {'fp16': True, 'seed': 1}, 'optimization': \
{'max_update': 50000, 'update_freq': [16]}, 'model': {'decoder_embed_dim': 768, 'decoder_ffn_embed_dim': 3072, \
'decoder_layers': 12, 'decoder_attention_heads': 12, 'checkpoint_activations': False}, 'optimizer': {'_name': 'adam'}}
2026-01-05 08:00:02 | INFO | fairseq.tasks.language_modeling | dictionary: 49992 types
2026-01-05 08:00:02 | INFO | fairseq_cli.train | num. shared model params: 123,449,856 (num. trained: 123,449,856)
"""
MINDFORMERS = """ - INFO - {'model': {'model_config': {'batch_size': 1, 'seq_length': 4096}}, 'optimizer': {'type': \
'AdamW'}, 'recompute_config': {'recompute': True}, 'runner_config': {'epochs': 2, 'batch_size': 2}}
"""
NEURONX = "Namespace(batch_size=1, max_steps=100, lr=0.00015, grad_accum_usteps=32, tensor_parallel_size=8, \
pipeline_parallel_size=1, seq_len=8192, selective_checkpoint_enabled=True, use_zero_1=True)\n"
T5X = """gin_utils.py:87] train/utils.DatasetConfig.batch_size = 32
gin_utils.py:87] train_eval/utils.DatasetConfig.batch_size = 64
gin_utils.py:87] network.T5Config.dtype = 'bfloat16'
"""
COLOSSALAI = "Namespace(lr=0.0003, tp=4, pp=2, max_length=4096, mixed_precision='bf16', grad_checkpoint=True)\n"


@in_each(
    ("name", "dump", "stated"),
    [
        ("verl", VERL, {"learning_rate": 1e-6, "tensor_model_parallel_size": 2, "micro_batch_size": 4, "num_nodes": 2,
                        "recompute": "full", "optimizer": "adamw", "seed": None}),
        ("verl", VERL.replace("dynamic_bsz': False", "dynamic_bsz': True"), {"micro_batch_size": None}),
        ("nemo_rl", NEMO_RL, {"learning_rate": 5e-6, "tensor_model_parallel_size": 2, "precision": "bf16",
                              "recompute": "full", "optimizer": "adamw"}),
        ("slime", SLIME, {"learning_rate": 1e-6, "tensor_model_parallel_size": 2, "precision": "bf16",
                          "recompute": "full", "micro_batch_size": None, "sequence_length": None}),
        ("paddle", PADDLE, {"learning_rate": 3e-5, "tensor_model_parallel_size": 4, "precision": "bf16",
                            "strategy": "zero-1", "recompute": "none", "micro_batch_size": None}),
        ("internevo", INTERNEVO, {"global_batch_size": 32, "micro_batch_size": 2, "gradient_accumulation_steps": 4,
                                  "sequence_length": 4096, "precision": "bf16", "recompute": "full"}),
        ("fairseq", FAIRSEQ, {"max_steps": 50000, "gradient_accumulation_steps": 16, "optimizer": "adam",
                              "precision": "fp16", "recompute": "none"}),
        ("mindformers", MINDFORMERS, {"micro_batch_size": 2, "sequence_length": 4096, "recompute": "full"}),
        ("neuronx", NEURONX, {"micro_batch_size": 1, "gradient_accumulation_steps": 32, "strategy": "zero-1",
                              "tensor_model_parallel_size": 8, "learning_rate": 0.00015, "recompute": "selective"}),
        ("t5x", T5X, {"global_batch_size": 32, "precision": "bf16"}),
        ("colossalai", COLOSSALAI, {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2,
                                    "learning_rate": 0.0003, "recompute": "full"}),
    ],
)  # fmt: skip
def test_what_a_framework_prints_about_its_own_training_is_read(read_text, name, dump, stated):
    config = read_text(log(name, before=dump)).training_config
    assert {field: getattr(config, field) for field in stated} == stated


def test_a_language_model_of_fairseq_states_its_shape(read_text):
    shape = read_text(log("fairseq", before=FAIRSEQ)).model.shape
    assert (shape.num_layers, shape.ffn_hidden_size, shape.vocab_size, shape.tied_embeddings) == (12, 3072, 49992, True)
    assert read_text(log("fairseq", before=FAIRSEQ.replace("123,449,856", "162,643,968"))).model.shape is None


@in_each(
    "text",
    [
        "{'eval': {'seed': 7}, 'teacher': {'seed': 7}, 'ref_model': {'seed': 7, 'a': [1, (2)]}}",
        "rollout:\n  n: 4\n  vllm:\n    a: 1\n\n  seed: 7",
        "fp8_cfg:\n  seed: 7\n  enabled: false\n  b: 1",
        "cfg={'a': {'seed': 7}, 'note': 'a ) b }', 'enabled': False}",
        "Initializing a V1 LLM engine (v0.8.5) with config: model='x', seed=7",
        "server_args=ServerArgs(model_path='x', seed=7, more=More(a=(1, 2)))",
        '"vision_config": {\n  "seed": 7\n}',
        "note :( don't {'rollout': {'s': '}{', 'seed': 7}}",
        "{'rollout': {'seed': 7,",
        "#seed: 7\n  # seed: 7\nlr: 1 # seed: 7",
        "seed: 7\nseed: 8",
        "actor_rollout_ref.rollout.seed=7",
        "[INFO] [config.py:1003:print]   seed .......... 7",
    ],
)
def test_what_is_of_other_work_or_is_not_enabled_states_nothing(read_text, text):
    assert read_text(f"{text}\n{rows(ROW)}").training_config.seed is None
    expected = None if "seed: 8" in text else 5
    assert read_text(f"seed: 5\n{text}\n{rows(ROW)}").training_config.seed == expected


def test_a_number_of_parameters_is_wholly_a_number(read_text):
    told = {
        "1,100,048,384": 1_100_048_384, "1 100 048 384": None, "1.1e9": None, "2**30": None, "12": None, "1.1B": None,
    }  # fmt: skip
    for text, count in told.items():
        assert read_text(f"Total parameters: {text}\n{rows(ROW)}").model.parameters == count
        assert read_text(f"Model params   : {text}\n{rows(ROW)}").model.parameters == count


def test_the_program_that_a_log_contains_states_nothing(read_text):
    program = "import torch\nseed = 9\noptimizer = torch.optim.Adam\n"
    for text, seed in ((program, None), (program + "=" * 100 + "\nseed: 7\n", 7)):
        config = read_text(text + rows(ROW)).training_config
        assert (config.seed, config.optimizer) == (seed, None)


def test_the_release_of_cuda_and_rocm_is_that_of_pytorch(read_text):
    for version, release in (("2.9.0+cu129", "12.9"), ("2.8.0+rocm6.4", "6.4"), ("2.8.0+cpu", None), ("2.8.0", None)):
        assert read_text(f"PyTorch version: {version}\n{rows(ROW)}").gpu_info.software_version == release
        assert read_text(f"Torch: {version}. CUDA: 8.0\n{rows(ROW)}").gpu_info.pytorch_version == version


def test_an_argument_has_the_line_that_states_it(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(f"PyTorch version: 2.9.1\nstarting\noptimizer: AdamW\nseed: 7\n{rows(ROW)}", encoding="utf-8")
    cited = logs.read(path, cited=True).provenance.citations
    assert [cited[name] for name in ("pytorch_version", "optimizer", "seed")] == [f"train.log:{n}" for n in (1, 3, 4)]


def test_columns_that_never_change_state_settings_device_and_shape(read_text):
    stated = {
        "gpu_name": "NVIDIA H100 80GB HBM3", "precision": "bf16", "optimizer": "AdamW", "lr": "0.0003",
        "num_hidden_layers": "32", "hidden_size": "4096", "intermediate_size": "14336", "num_attention_heads": "32",
        "num_key_value_heads": "8", "vocab_size": "128256", "n_params": "8030261248",
    }  # fmt: skip
    table = "".join(f"{n},{9 - n / 100},1.5{n},{','.join(stated.values())}\n" for n in range(1, 30))
    result = read_text(f"step,loss,step_time_s,{','.join(stated)}\n{table}")
    assert (result.training_config.precision, result.training_config.learning_rate) == ("bf16", 0.0003)
    assert result.gpu_info.device_name == "NVIDIA H100 80GB HBM3"
    assert result.model.shape == presets.find_preset("llama").shape
    other = table.replace("bf16", "fp32", 1)
    assert read_text(f"step,loss,step_time_s,{','.join(stated)}\n{other}").training_config.precision is None


@in_each(
    ("name", "text", "beside", "content"),
    [
        (
            "metrics.csv",
            "step,train/time,train_loss\n" + "".join(f"{n},{1.5 * n},9.{n}\n" for n in range(10, 40)),
            "hparams.yaml",
            "optimizer: {name: AdamW, lr: 0.0003}\nmodel: {model_type: llama, " + json.dumps(LLAMA)[1:],
        ),
        (
            "trainer_state.json",
            json.dumps({
                "max_steps": 40,
                "log_history": [{"step": n, "loss": 2.5, "epoch": n / 40, "learning_rate": 1e-4} for n in range(40)]
                + [{"step": 40, "train_runtime": 80.0, "train_steps_per_second": 0.5, "train_samples_per_second": 8.0}],
            }),
            "config.json",
            json.dumps({**LLAMA, "model_type": "llama"}),
        ),
        (
            "wandb-summary.json",
            json.dumps({"_step": 99, "_runtime": 500.5, "throughput/tokens_per_sec": 999.5}),
            "config.yaml",
            "".join(f"{key}:\n  desc: null\n  value: {json.dumps(one)}\n" for key, one in LLAMA.items())
            + "model_type:\n  value: llama\n",
        ),
    ],
)  # fmt: skip
def test_the_settings_beside_a_log_are_read(tmp_path, name, text, beside, content):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert logs.read(tmp_path / name).model.shape is None
    (tmp_path / beside).write_text(content, encoding="utf-8")
    result = logs.read(tmp_path / name)
    assert result.model.shape == presets.find_preset("llama").shape
    assert (result.training_config.learning_rate == 0.0003) == (beside == "hparams.yaml")
    (tmp_path / beside).write_text("{", encoding="utf-8")
    assert logs.read(tmp_path / name).model.shape is None
