"""The beat table of the ready-made deployment, for people who look for it here; it is made in `worker/beat.py`."""

from think_celery.settings import load_settings
from think_celery.worker.beat import beat_entries

beat_schedule = beat_entries(load_settings())
