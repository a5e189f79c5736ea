"""Rounds over time by vendor: the fastest entry of each vendor's GPUs in each round."""

import json
from dataclasses import replace

from tensorprimat.cli import main
from tensorprimat.mlperf.library import bundled
from tensorprimat.mlperf.scaling import fastest_by_round


def rows(capsys, *arguments):
    assert main(["mlperf", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_row_shows_the_shortest_time_of_the_vendor_in_that_round(capsys):
    every = rows(capsys, "list", "--benchmark", "llama2_70b_lora", "--gpus", "8")
    shown = rows(capsys, "compare", "AMD", "nvidia", "--benchmark", "llama2_70b_lora", "--gpus", "8")
    least = {}
    for row in every:
        vendor = "AMD" if row["gpu"].startswith("MI") else "NVIDIA"
        if row["minutes"] is not None:
            least.setdefault((vendor, row["round"]), []).append(row["minutes"])
    assert {(row["vendor"], row["round"]): row["minutes"] for row in shown} == {
        key: min(minutes) for key, minutes in least.items()
    }
    assert len(shown) >= 5


def test_each_time_is_divided_by_the_vendors_time_in_the_previous_round(capsys):
    amd = rows(capsys, "compare", "AMD", "--benchmark", "llama2_70b_lora", "--gpus", "8")
    assert [row["over_before"] is None for row in amd] == [True, False, False]
    assert abs(amd[1]["over_before"] - amd[1]["minutes"] / amd[0]["minutes"]) < 1e-5


def test_an_entry_of_the_open_division_is_not_a_record():
    task = ("v5.1", "llama31_8b", 8)
    entries = [one for one in bundled().entries if (one.round, one.benchmark, one.num_gpus) == task]
    [before] = fastest_by_round(entries, ["AMD"])
    opened = [replace(one, division="open") if one.name == before.scored.entry.name else one for one in entries]
    [after] = fastest_by_round(opened, ["AMD"])
    assert after.minutes > before.minutes


def test_a_plot_of_vendors_is_refused(capsys, tmp_path):
    assert main(["mlperf", "compare", "AMD", "--plot", str(tmp_path / "x.png")]) == 2
    assert "--plot" in capsys.readouterr().err
