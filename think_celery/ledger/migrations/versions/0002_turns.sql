-- Turns of every kind: who runs them, what came with them, who waits for whom, and the response hook.

ALTER TABLE {schema}.agents
    DROP COLUMN waits_for,                                  -- a turn may wait for several agents: see `waits`
    ADD COLUMN body jsonb,                                  -- what came with the last request that brought something
    ADD COLUMN responder uuid;                              -- the process that works off the response hooks

-- An agent's children, for its deletion.
CREATE INDEX agents_parent ON {schema}.agents (parent) WHERE parent IS NOT NULL;

ALTER TABLE {schema}.submissions
    ADD COLUMN body jsonb,
    ADD COLUMN held_until timestamptz,                      -- not started before its status hook heard of the acceptance
    ADD COLUMN output jsonb,                                -- the structured answer, where the class asks for one
    ADD COLUMN deferred boolean NOT NULL DEFAULT false,     -- its runner supplies the messages when it starts
    ADD COLUMN response_due boolean NOT NULL DEFAULT false; -- the response hook has not heard of the end yet

CREATE INDEX submissions_response_due ON {schema}.submissions (agent_type, agent_name, position) WHERE response_due;

-- Turns that have waited for another agent for a while; a circle of them would never end.
CREATE TABLE {schema}.waits (
    wait_id    uuid PRIMARY KEY,
    uid        uuid NOT NULL,                               -- the turn that waits
    agent_type text COLLATE "C" NOT NULL,                   -- and its agent
    agent_name text COLLATE "C" NOT NULL,
    for_type   text COLLATE "C" NOT NULL,                   -- the agent that it waits for
    for_name   text COLLATE "C" NOT NULL,
    since      timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX waits_agent ON {schema}.waits (agent_type, agent_name);
