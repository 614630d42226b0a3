"""A team's Celery app with a time zone and a scheduler of its own, whose state stands in a file."""

import os

from celery import Celery

from think_celery import install

app = Celery("team", broker=os.environ["TEAM_BROKER"], set_as_current=False)
app.conf.update(
    timezone=os.environ["TEAM_ZONE"],
    beat_scheduler="celery.beat:PersistentScheduler",
    beat_schedule_filename=os.environ["TEAM_STATE"],
    beat_sync_every=1,
)
install(app)
