"""The command `think-celery`: Rich tables for people, `--json` for machines, one table of exit codes."""
