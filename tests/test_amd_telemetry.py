"""AMD's telemetry from a stand-in for its package; no GPU needed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from each import in_each

from tensorprimat.machine import amd
from tensorprimat.machine.device import Process


@pytest.mark.parametrize("error", [KeyError("ROCM_PATH"), OSError("libamd_smi.so: no such file")])
def test_without_an_importable_amdsmi_no_device_is_found(monkeypatch, tmp_path, capsys, error):
    (tmp_path / "amdsmi.py").write_text(f"print('cannot find it'); raise {error!r}")
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert amd.devices() == []
    assert capsys.readouterr().out == ""


def stand_in(**changes):
    """Return a stand-in for amdsmi with one MI300X."""
    smi = ModuleType("amdsmi")
    smi.AmdSmiException = type("AmdSmiException", (Exception,), {})
    smi.AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    smi.AmdSmiMemoryType = SimpleNamespace(VRAM="vram")
    smi.AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    smi.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def unsupported(*_):
        raise smi.AmdSmiException

    answers = {
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["handle"],
        "amdsmi_get_gpu_asic_info": lambda _: {
            "asic_serial": "0x5F8BC1D4E7A2A9B0",
            "market_name": "AMD Instinct MI300X",
        },
        "amdsmi_get_gpu_driver_info": lambda _: {"driver_name": "amdgpu", "driver_version": "6.12.12"},
        "amdsmi_get_power_info": lambda _: {"current_socket_power": "N/A", "average_socket_power": 731},
        "amdsmi_get_power_cap_info": lambda _: {"power_cap": 650_000_000, "default_power_cap": 750_000_000},
        "amdsmi_get_energy_count": lambda _: {"energy_accumulator": 1_000_000, "counter_resolution": 15.3},
        "amdsmi_get_clock_info": lambda _, which: {"clk": 2_100 if which == "gfx" else 1_300, "max_clk": 2_100},
        "amdsmi_get_gpu_activity": lambda _: {"gfx_activity": 88},
        "amdsmi_get_gpu_memory_usage": lambda *_: 10**9,
        "amdsmi_get_gpu_memory_total": unsupported,
        "amdsmi_get_temp_metric": lambda *_: 61,
        "amdsmi_get_gpu_process_list": lambda _: [{"pid": 5, "mem": 10**8}, "opaque handle"],
    }
    for name, answer in {**answers, **changes}.items():
        setattr(smi, name, answer)
    return smi


def test_a_process_whose_name_ends_within_a_character_leaves_only_the_processes_unknown(monkeypatch):
    cut = "学習プロセス".encode()[:14]
    smi = stand_in(amdsmi_get_gpu_process_list=lambda _: [{"pid": 5, "name": cut.decode()}])
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    (device,) = amd.devices()
    reading = device.read()
    assert (reading.processes, reading.power_watts) == ((), 731)


def test_amd_smi_is_read_in_si_units_and_na_is_none(monkeypatch):
    counts = {"ppt_residency_acc": 100, "socket_thm_residency_acc": 7, "hbm_thm_residency_acc": "N/A"}
    metrics = iter([counts, counts, {**counts, "ppt_residency_acc": 130}, {"throttle_status": 1}, {}])
    smi = stand_in(amdsmi_get_gpu_metrics_info=lambda _: next(metrics))
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    (device,) = amd.devices()
    assert (device.id, device.driver) == ("5f8bc1d4e7a2a9b0", "amdgpu 6.12.12")
    reading = device.read()
    assert reading.power_watts == 731.0
    assert (reading.power_limit_watts, reading.default_power_limit_watts) == pytest.approx((650.0, 750.0))
    assert reading.energy_joules == pytest.approx(15.3)
    assert reading.clock_hertz == 2.1e9
    assert reading.temperature_celsius == 61.0
    assert reading.processes == (Process(pid=5, memory_bytes=1e8),)
    limits = [reading.throttled_by, *(device.read().throttled_by for _ in range(4))]
    assert limits == [(), (), ("the power cap",), ("a limit that the driver does not name",), ()]
    del smi.amdsmi_get_gpu_metrics_info  # a question that an older package does not know
    assert device.read().throttled_by == ()


@in_each(
    ("flags", "reasons"),
    [(0b11, ("the power cap",)), (1 << 16, ("the current limit",)), (1 << 34 | 1, ("the power cap", "heat"))],
)
def test_an_mi200_names_its_limits_by_flags(monkeypatch, flags, reasons):
    metrics = {"throttle_status": 1, "indep_throttle_status": flags}
    monkeypatch.setitem(sys.modules, "amdsmi", stand_in(amdsmi_get_gpu_metrics_info=lambda _: metrics))
    (device,) = amd.devices()
    assert device.glance().throttled_by == reasons


@in_each("absent", [2**16 - 1, 2**32 - 1, 2**64 - 1, "N/A"])
def test_the_number_that_means_not_supported_is_read_as_none(monkeypatch, absent):
    smi = stand_in(
        amdsmi_get_power_info=lambda _: {"current_socket_power": absent, "average_socket_power": 310},
        amdsmi_get_energy_count=lambda _: {"energy_accumulator": absent, "counter_resolution": 15.3},
        amdsmi_get_clock_info=lambda *_: {"clk": absent, "max_clk": 1700},
        amdsmi_get_temp_metric=lambda *_: absent,
        amdsmi_get_gpu_metrics_info=lambda _: {"throttle_status": absent},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    (device,) = amd.devices()
    reading = device.glance()
    assert reading.power_watts == 310.0
    assert (reading.energy_joules, reading.clock_hertz, reading.temperature_celsius) == (None, None, None)
    assert reading.throttled_by == ()


def test_the_amdsmi_that_rocm_brings_is_found_in_its_folder(tmp_path, monkeypatch):
    package = tmp_path / "share" / "amd_smi" / "amdsmi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "class AmdSmiException(Exception): pass\ndef amdsmi_init(): raise AmdSmiException\n"
    )
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    assert amd.devices() == []
    assert sys.modules.pop("amdsmi").__file__ == str(package / "__init__.py")
