"""The ledger in PostgreSQL: the queue and its record, and the only home of SQLAlchemy and psycopg."""
