"""`python -m bench [--only w1,w2,…] [--rounds N] [--quick] [--output FILE]`."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import report, w1_accept, w2_order, w3_latency, w4_lookup, w5_schedules, w6_sub_agents
from bench.figure import Figures
from bench.process import ROOT
from bench.site import fresh
from bench.workload import Result, Role, Workload
from think_celery.dev.servers import Addresses, embedded_servers

WORKLOADS = {
    workload.key: workload
    for workload in (
        w1_accept.WORKLOAD,
        w2_order.WORKLOAD,
        w2_order.HOT,
        w3_latency.WORKLOAD,
        w4_lookup.WORKLOAD,
        w5_schedules.WORKLOAD,
        w6_sub_agents.WORKLOAD,
    )
}
RESULTS = ROOT / "bench" / "results" / "latest.json"
_ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write; missed goals are marked and are no failure."""
    options = _options(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tc-bench-") as name,
        embedded_servers(Path(name) / "data") as servers,
    ):
        about = report.machine(servers) | {"quick": options.quick}
        runner = Runner(console, servers, Path(name), rounds=options.rounds, quick=options.quick)
        results = [runner.run(WORKLOADS[key]) for key in options.only]
    for result in results:
        report.show(console, result)
    about["seconds"] = round(time.monotonic() - began)
    report.write(options.output, about, results)
    console.print(f"{about['seconds']} s; written to {options.output}", soft_wrap=True)


class Runner:
    """Measures workloads on servers that all of them share.

    Args:
        folder: For logs and records.
        rounds: How often each contender is measured; the rounds interleave them.
        quick: Fewer jobs, and nothing that is shown for information only.
    """

    def __init__(
        self, console: Console, servers: Addresses, folder: Path, *, rounds: int, quick: bool
    ) -> None:
        self._console = console
        self._servers = servers
        self._folder = folder
        self._rounds = rounds
        self._quick = quick

    def run(self, workload: Workload) -> Result:
        """Measure all contenders in every round, in turn from first to last and from last to first."""
        jobs = workload.jobs[self._quick]
        rounds: dict[str, list[Figures]] = {}
        for number in range(min(self._rounds, workload.rounds or self._rounds)):
            order = workload.contenders if number % 2 == 0 else workload.contenders[::-1]
            for contender in order:
                if contender.role is Role.INFO and (self._quick or number > 0):
                    continue
                began = time.monotonic()
                site = fresh(self._servers, self._folder, pool=contender.pool)
                figures = contender.measure(site, jobs)
                rounds.setdefault(contender.name, []).append(figures)
                turn = f"round {number + 1}/{min(self._rounds, workload.rounds or self._rounds)}"
                line = report.progress(workload, contender, turn, figures, time.monotonic() - began)
                self._console.print(line, soft_wrap=True)
        return Result(workload, jobs, rounds)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", type=_keys, default=list(WORKLOADS), help="comma separated: w1,w2,w2b,w3,w4,w5"
    )
    parser.add_argument("--rounds", type=int, help=f"default {_ROUNDS}, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="fewer jobs: does it run, not how fast")
    parser.add_argument("--output", type=Path, default=RESULTS, help="default bench/results/latest.json")
    options = parser.parse_args(arguments)
    options.rounds = max(1, options.rounds or (1 if options.quick else _ROUNDS))
    return options


def _keys(text: str) -> list[str]:
    keys = text.lower().split(",")
    unknown = [key for key in keys if key not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; known are {', '.join(WORKLOADS)}")
    return keys


if __name__ == "__main__":
    main()
