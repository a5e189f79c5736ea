"""Parameter counts that frameworks print before training: LoRA and frozen layers are other work than full training."""

from each import in_each
from test_nemo_log import log, row

from tensorprimat import logs
from tensorprimat.models import flops, shapes

LITGPT = [
    "{'micro_batch_size': 1, 'global_batch_size': 8, 'max_seq_length': 512}",
    "Number of trainable parameters: 20,277,248",
    "Number of non-trainable parameters: 8,030,261,248",
    *(
        f"Epoch 1 | iter {n} step {n} | loss train: 1.{n}, val: n/a | iter time: {400 + n}.00 ms (step)"
        for n in range(1, 30)
    ),
]
BARS = [f"Epoch {n}: 100%|█| 100/100 [00:50<00:00,  2.00it/s, v_num=0]" for n in range(3)]


def summary(trained, frozen):
    return [f"{trained:<10}Trainable params", f"{frozen:<10}Non-trainable params", "8.0 B     Total params"]


def rich(trained, frozen):
    return [f"Trainable params: {trained}", f"Non-trainable params: {frozen}", "Total params: 8.0 B"]


def read(folder, lines):
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return logs.read(path)


def test_litgpt_states_both_counts_and_adapters_cost_four_flops_a_weight(tmp_path):
    result = read(tmp_path, LITGPT)
    assert result.model.trainable_parameters == 20_277_248
    assert result.model.parameters == 8_050_538_496
    assert flops.frozen_parameters(result)
    every = read(tmp_path, [line.replace("8,030,261,248", "0") for line in LITGPT])
    assert (flops.frozen_parameters(every), every.training_config.peft) == (False, "none")


@in_each("printed", [summary, rich])
@in_each(
    ("trained", "frozen", "peft"),
    [("8.0 B", "0", "none"), ("20.3 M", "8.0 B", "frozen"), ("0", "0", None), ("1,024", "16", "frozen")],
)
@in_each("framework", ["lightning", "nemo"])
def test_lightnings_summary_states_whether_every_parameter_trains(tmp_path, framework, printed, trained, frozen, peft):
    rows = BARS if framework == "lightning" else log(*(row(n) for n in range(20))).splitlines()
    assert read(tmp_path, [*printed(trained, frozen), *rows]).training_config.peft == peft


def test_the_cost_of_freezing_is_unknown_and_full_training_costs_six_flops_a_weight(tmp_path):
    shape = shapes.of_name("llama3.1-8b").shape
    rows = log(*(row(n) for n in range(20))).splitlines()

    def charged(lines):
        result = read(tmp_path, lines)
        config = result.training_config.model_copy(update={"sequence_length": 8192})
        model = result.model.model_copy(update={"shape": shape})
        return flops.charged_per_token(result.model_copy(update={"training_config": config, "model": model}))

    assert charged([*summary("8.0 B", "0"), *rows]) == flops.per_token(shape, 8192)
    assert charged([*summary("20.3 M", "8.0 B"), *rows]) is None
