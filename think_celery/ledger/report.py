"""What the ledger's server says about itself, for `doctor`."""

from think_celery.ledger.database import Database


def server_version(database: Database) -> str:
    """Return the version of PostgreSQL in its own words, such as `18.1`.

    Raises:
        LedgerUnavailable: PostgreSQL did not answer.
    """
    return str(
        database.run(lambda connection: connection.exec_driver_sql("SHOW server_version").scalar_one())
    )
