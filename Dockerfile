# Everything that think-celery's own processes need: worker, beat, Flower, the command line. No servers, no compiler.
FROM python:3.13-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv /opt/think && python -m venv /opt/build
COPY requirements/runtime.txt requirements/build.txt requirements/
RUN /opt/think/bin/pip install --no-deps --require-hashes -r requirements/runtime.txt \
    && /opt/build/bin/pip install --no-deps --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE beat_schedule.py ./
COPY workers/ workers/
COPY think_celery/ think_celery/
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/think/bin/pip install --no-deps --no-index /dist/*.whl \
    && /opt/think/bin/pip check

FROM python:3.13-slim
LABEL org.opencontainers.image.title="think-celery" org.opencontainers.image.licenses="MIT"
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin think
COPY --from=build /opt/think /opt/think
ENV PATH=/opt/think/bin:$PATH \
    PYTHONPATH=/srv/agents \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /srv
USER think
CMD ["celery", "-A", "workers", "worker"]
