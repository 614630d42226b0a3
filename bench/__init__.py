"""Measures think-celery beside raw Celery and raw SQL: `python -m bench`, explained in README.md."""
