"""The ready-made deployment: `celery -A workers worker`, and `beat` and `flower` in place of `worker`.

Settings come from the environment (`THINK_…`) or from a running local stack; what they make of Celery is in
`think_celery/worker/config.py`, each setting with its reason.
"""

from think_celery.errors import ThinkError
from think_celery.settings import load_settings
from think_celery.worker.app import build_app

try:
    app = build_app(load_settings())
except ThinkError as error:
    raise SystemExit(f"think-celery: {error}") from None
