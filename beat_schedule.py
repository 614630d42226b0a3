"""The beat table of the ready-made deployment; it is made in `think_celery/worker/beat.py`."""

from think_celery.settings import load_settings
from think_celery.worker.beat import beat_entries

beat_schedule = beat_entries(load_settings())
