"""The local stack of `think-celery up`: real servers from wheels, and a supervisor for the rest."""
