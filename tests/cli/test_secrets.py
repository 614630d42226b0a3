"""No secret is ever shown."""

import pytest
from pydantic import SecretStr

from think_celery.cli.output import without_password


@pytest.mark.parametrize("secret", ["s3cret-key-value", "postgresql://me:s3cret-key-value@db/x"])
def test_a_secret_is_not_shown(secret: str) -> None:
    assert "s3cret" not in without_password(SecretStr(secret))
