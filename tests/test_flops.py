"""FLOPs per token by the field's conventions."""

import plausible
import pytest
from architectures import network_of
from each import in_each

from tensorprimat.core.errors import UsageError
from tensorprimat.models import flops, presets
from tensorprimat.reports.efficiency import SYMBOLS

PINNED = {  # full causal attention; T = 2048, 8192
    ("llama", "6n"): (48_181_567_488, 48_181_567_488),
    ("llama", "palm"): (51_402_792_960, 61_066_469_376),
    ("llama", "torchtitan"): (48_250_773_504, 57_914_449_920),
    ("llama", "full_attention"): (48_249_176_064, 57_912_852_480),
    ("llama", "megatron"): (46_638_563_328, 51_470_401_536),
    ("llama", "nemo_transformer"): (36_974_886_912, 46_638_563_328),
    ("qwen", "6n"): (45_693_699_072, 45_693_699_072),
    ("qwen", "palm"): (48_159_949_824, 55_558_702_080),
    ("qwen", "torchtitan"): (44_889_965_568, 52_288_717_824),
    ("qwen", "full_attention"): (44_887_965_696, 52_286_717_952),
    ("qwen", "megatron"): (43_654_840_320, 47_354_216_448),
    ("qwen", "nemo_transformer"): (33_481_555_968, 40_880_308_224),
    ("mistral", "6n"): (43_450_392_576, 43_450_392_576),
    ("mistral", "palm"): (46_671_618_048, 56_335_294_464),
    ("mistral", "torchtitan"): (45_885_186_048, 55_548_862_464),
    ("mistral", "full_attention"): (45_883_588_608, 55_547_265_024),
    ("mistral", "megatron"): (44_272_975_872, 49_104_814_080),
    ("mistral", "nemo_transformer"): (34_609_299_456, 44_272_975_872),
}


def without_window(shape):
    return shape.model_copy(update={"sliding_window": None})


@in_each(("name", "counts"), PINNED.items())
def test_each_convention_gives_the_pinned_integers(name, counts):
    model, convention = name
    shape = without_window(presets.find_preset(model).shape)
    assert tuple(flops.per_token(shape, length, convention) for length in (2048, 8192)) == counts


def test_every_convention_is_pinned():
    assert {convention for _, convention in PINNED} == set(flops.CONVENTIONS)


def test_the_default_convention_is_megatron():
    shape = presets.find_preset("llama").shape
    assert flops.per_token(shape, 8192) == flops.per_token(shape, 8192, "megatron")


@in_each(("tokens", "tflops"), [(14451, 744), (30624, 1576), (37556, 1933)])
def test_megatron_bridges_published_rates_imply_the_megatron_convention(tokens, tflops):
    counted = flops.per_token(presets.find_preset("llama").shape, 8192, "megatron")
    assert tflops * 1e12 / tokens == pytest.approx(counted, rel=1e-3)


def test_a_sliding_window_costs_only_the_pairs_that_it_lets_through():
    shape = presets.find_preset("mistral").shape
    in_matrices = 6 * presets.matrix_parameters(shape)
    windowed = flops.per_token(shape, 8192) - in_matrices
    full = flops.per_token(without_window(shape), 8192) - in_matrices
    assert windowed == 0.75 * full  # T = 2·W: (2·W² − W²/2) of 2·W² pairs


def test_a_window_as_long_as_the_sequence_changes_nothing():
    shape = presets.find_preset("mistral").shape
    for length in (2048, 4096):
        assert flops.per_token(shape, length) == flops.per_token(without_window(shape), length)


@in_each("convention", sorted(set(flops.CONVENTIONS) - {"megatron"}))
def test_conventions_that_charge_every_pair_ignore_a_window(convention):
    shape = presets.find_preset("mistral").shape
    assert flops.per_token(shape, 8192, convention) == flops.per_token(without_window(shape), 8192, convention)


def test_an_unknown_convention_lists_all():
    with pytest.raises(
        UsageError, match="no FLOPs convention 'chinchilla'; conventions: megatron, palm, 6n, torchtitan"
    ):
        flops.per_token(presets.find_preset("llama").shape, 8192, "chinchilla")


@in_each("model", ["llama", "qwen", "mistral"])
def test_torchs_own_counter_agrees_by_construction(model):
    """Forward and backward of the tiny model on the meta device, counted by torch.

    torch counts matrix products of every pair of query and key, whatever the mask hides, and nothing for look-ups,
    norms, biases, RoPE, softmax and loss: exactly `full_attention`. `megatron` charges half of the pairs, fewer within
    a window; `6n` and `palm` charge norms, biases and the input embedding as if they were matrix products.
    """
    preset = presets.find_preset(model, "tiny")
    shape, length, batch = preset.shape, preset.sequence_length, 2
    network = network_of(preset, attn_implementation="eager", use_cache=False)
    assert counted(network, batch, length) == flops.per_token(shape, length, "full_attention")


def counted(network, batch, length):
    """Return FLOPs per token of forward and backward, by torch's own counter on the meta device."""
    torch = pytest.importorskip("torch")
    flop_counter = pytest.importorskip("torch.utils.flop_counter")
    with torch.device("meta"):
        tokens = torch.zeros((batch, length), dtype=torch.long)
        mask = torch.zeros((batch, 1, length, length))  # made here: transformers looks at values to make its own
    with flop_counter.FlopCounterMode(display=False) as counter:
        network(input_ids=tokens, attention_mask=mask, labels=tokens).loss.backward()
    return counter.get_total_flops() / (batch * length)


def test_frozen_weights_with_adapters_cost_what_torchs_counter_says():
    """Adapters of rank 8 on every matrix of Llama 3.1 8B themselves cost another 0.25 %, which is not charged."""
    nn = pytest.importorskip("torch.nn")

    class Adapted(nn.Module):
        def __init__(self, frozen):
            super().__init__()
            self.frozen = frozen
            self.down = nn.Linear(frozen.in_features, 8, bias=False, device="meta")
            self.up = nn.Linear(8, frozen.out_features, bias=False, device="meta")

        def forward(self, hidden):
            return self.frozen(hidden) + self.up(self.down(hidden))

    network = network_of(presets.find_preset("llama"), attn_implementation="eager", use_cache=False)
    network.requires_grad_(False)
    for module in list(network.model.layers.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Adapted(child))
    lora = plausible.result("h100", sequence_length=64)
    lora = lora.changed(training_config=lora.training_config.changed(peft="lora"))
    assert flops.charged_per_token(lora, "full_attention") == pytest.approx(counted(network, 1, 64), rel=0.005)


def test_every_symbol_of_a_formula_is_named_with_it():
    for convention in flops.CONVENTIONS.values():
        assert list(convention.symbols) == [symbol for symbol in SYMBOLS if symbol in convention.formula]


def test_a_framework_that_counts_recomputation_is_recognised():
    """Megatron-DeepSpeed's count of Qwen2.5-7B at 2,048; grouped keys and values cost nothing there."""
    width, layers, length = 3584, 28, 2048
    forward = layers * (2 * width**2 + 2 * width * length + 3 * 18_944 * width) + 151_643 * width
    result = plausible.result("h100", model="qwen", sequence_length=length)
    recomputed = result.changed(training_config=result.training_config.changed(recompute="full"))
    for one, agrees in ((result, False), (recomputed, True)):
        counts = flops.countings(one).values()
        assert any(abs(count / (2 * 4 * forward) - 1) < 0.02 for count in counts) == agrees
