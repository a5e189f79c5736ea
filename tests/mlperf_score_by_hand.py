"""Scores of an MLPerf round by its rules, in a few lines that share no code with the package.

python3 tests/mlperf_score_by_hand.py ROUND_FOLDER
"""

import json
import sys
from pathlib import Path

WANTED = {
    "gpt3": 3, "llama31_405b": 3, "llama2_70b_lora": 10, "llama31_8b": 10, "deepseekv3_671b": 3, "gpt_oss_20b": 10,
}  # fmt: skip


def minutes_of(path):
    start = None
    for line in path.read_text(errors="replace").splitlines():
        _, mark, text = line.partition(":::MLLOG")
        if mark and ('"run_start"' in text or '"run_stop"' in text):
            try:
                event = json.loads(text)
            except ValueError:
                continue
            if event["key"] == "run_start" and start is None:
                start = event["time_ms"]
            if event["key"] == "run_stop" and start is not None:
                return (event["time_ms"] - start) / 60000 if event["metadata"].get("status") == "success" else None
    return None


def scores(root):
    """Return {submitter/system/benchmark: (score in minutes or None, successes, files)}."""
    found = {}
    for folder in sorted(Path(root).glob("*/results/*/*")):
        times = [minutes_of(path) for path in folder.glob("result_*.txt")]
        if folder.name not in WANTED or not times:
            continue
        good = sorted(time for time in times if time is not None)
        failed = max(WANTED[folder.name], len(times)) - len(good)
        kept = [] if failed > 1 else good[1:] if failed else good[1:-1]
        factor = (
            json.loads((folder / "scaling.json").read_text())["scaling_factor"]
            if (folder / "scaling.json").exists()
            else 1
        )
        name = f"{folder.parents[2].name}/{folder.parent.name}/{folder.name}"
        found[name] = (sum(kept) / len(kept) * factor if kept else None, len(good), len(times))
    return found


if __name__ == "__main__":
    for name, (score, successes, files) in scores(sys.argv[1]).items():
        print(f"{'none' if score is None else f'{score:.3f}':>10} {successes}/{files} {name}")
