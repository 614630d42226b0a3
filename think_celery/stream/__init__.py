"""The live side of a turn: everything that talks to Redis or Valkey. Losing all of it loses no turn."""
