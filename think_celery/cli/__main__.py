"""`python -m think_celery.cli`, for where the command is not on the path."""

from think_celery.cli.main import main

main()
