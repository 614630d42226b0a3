"""The benchmark runs and writes what it promises; how fast anything is, is not looked at."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(output: Path, *arguments: str) -> dict[str, Any]:
    subprocess.run(
        [sys.executable, "-m", "bench", "--output", str(output), *arguments],
        cwd=ROOT,
        check=True,
        timeout=150,
    )
    results: dict[str, Any] = json.loads(output.read_text())
    return results


@pytest.mark.timeout(180)
def test_a_quick_run_writes_an_object_per_workload(tmp_path: Path) -> None:
    results = run(tmp_path / "results.json", "--quick", "--only", "w1,w3")
    assert set(results) == {"about", "w1", "w3"}
    for workload in (results["w1"], results["w3"]):
        for name in ("ours", "floor", "ratio", "spread"):
            assert isinstance(workload[name], int | float)
        assert workload["ratio"] == pytest.approx(workload["ours"] / workload["floor"], abs=0.01)
        assert {contender["role"] for contender in workload["contenders"].values()} == {"ours", "floor"}
        assert all(len(contender["rounds"]) == 1 for contender in workload["contenders"].values())
        assert all(isinstance(goal["met"], bool) for goal in workload["goals"])
    assert results["w1"]["jobs"] == 300
    assert next(iter(results["w3"]["contenders"].values()))["fresh_jobs"] == 12
    assert results["about"]["postgres"]["fsync"] == "on"
    assert results["about"]["valkey"]["appendfsync"] == "everysec"


def test_an_unknown_workload_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "w9"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "known are w1, w2, w2b, w3" in refused.stderr
