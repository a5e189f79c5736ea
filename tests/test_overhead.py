"""`tprimat overhead` measures what the measurement adds to a step, in one training with and without it."""

import json
import time
from statistics import median

import pytest
from plausible import result

from tensorprimat.cli import main
from tensorprimat.machine import platform
from tensorprimat.storage import store

SMALL = ("--sequence-length", "16", "--global-batch-size", "1", "--micro-batch-size", "1", "--steps", "260")


@pytest.fixture
def one_thread():
    torch = pytest.importorskip("torch")
    pytest.importorskip("lightning")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_slow_callback_shows_and_the_figure_can_stand_in_a_result_of_the_same_benchmark(
    tmp_path, capsys, monkeypatch
):
    from tensorprimat.engines.callback import BenchmarkCallback

    fast, naps = BenchmarkCallback.on_train_batch_end, []

    def slow(self, *arguments):
        begun = time.perf_counter()
        time.sleep(0.03)
        naps.append(time.perf_counter() - begun)  # longer where other programs run
        fast(self, *arguments)

    monkeypatch.setattr(BenchmarkCallback, "on_train_batch_end", slow)
    path = tmp_path / "cpu.json"
    device = platform.detect_platform().gpu_info.device_name
    store.write(result("cpu", preset="tiny", device_name=device), path)
    code = main(["overhead", *SMALL, "--half-width", "10000%", "--add-to", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["pairs"]) == (0, 10)
    assert found["low"] <= found["share"] <= found["high"]
    assert found["share"] * found["step_seconds"] == pytest.approx(median(naps), rel=0.6)
    stated = store.load(path).provenance
    assert stated.overhead == pytest.approx(found["share"], rel=1e-3)
    assert stated.overhead_half_width == pytest.approx((found["high"] - found["low"]) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("flags", "says"),
    [(["--steps", "50"], "--steps 50: must be 260 or more"), (["--model", "none"], "--model none: no such model"),
     (["--half-width", "wide"], "--half-width wide: not a number")],
)  # fmt: skip
def test_wrong_use_is_refused_in_one_line(capsys, flags, says):
    assert main(["overhead", *flags]) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), says in error) == (1, True)


def test_a_result_of_another_device_is_refused():
    from tensorprimat.core.errors import UsageError
    from tensorprimat.session.overhead import Overhead, with_overhead

    measured = Overhead(share=0.01, low=0.0, high=0.02, step_seconds=1.0, pairs=10, device_name="CPU", model="llama",
                        preset="full")  # fmt: skip
    with pytest.raises(UsageError, match="the result is of device NVIDIA H100"):
        with_overhead(result("h100"), measured)
