"""`celery -A bench.floor_app worker`: raw Celery's worker."""

import os

from bench.floor import build

app = build(os.environ["BENCH_BROKER"], os.environ["BENCH_BACKEND"])
