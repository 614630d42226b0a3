-- The ledger: agents (one lane each), submissions (the queue and its record), messages (the transcripts), workers.
--
-- Two promises can be read off this file:
--   one running turn per agent  →  agents.active_uid, and the unique index submissions_one_running
--   order within an agent       →  submissions.position, given under the lane's lock; claim_head takes the lowest
--
-- Locking rule: every step first locks the lane row in a statement of its own (lock_lane) and decides in later
-- statements, which then see everything that was committed before the lock was granted.

CREATE TABLE {schema}.agents (
    agent_type    text COLLATE "C" NOT NULL,
    agent_name    text COLLATE "C" NOT NULL,
    parent        text COLLATE "C",                         -- address of the parent agent, for children only
    last_position bigint NOT NULL DEFAULT 0,                -- place of the youngest accepted row
    head_position bigint NOT NULL DEFAULT 1,                -- nothing pending lies before it
    fence         bigint NOT NULL DEFAULT 0,                -- grows with every claim
    generation    bigint NOT NULL DEFAULT 0,                -- grows with every reset
    rewrites      bigint NOT NULL DEFAULT 0,                -- grows when messages are taken out of the conversation
    active_uid    uuid,                                     -- the row that holds the lane
    active_worker uuid,                                     -- the process that runs it
    claim_id      uuid,                                     -- names the claim, so that a repeated call is recognised
    waits_for     text COLLATE "C",                         -- address of the agent that the active turn waits for
    hook_holder   uuid,                                     -- who works off the status hooks of ended rows
    hook_until    timestamptz,                              -- for how long at most
    paused        boolean NOT NULL DEFAULT false,           -- nothing is claimed
    due_at        timestamptz,                              -- the head may not start before
    wanted        boolean NOT NULL DEFAULT true,            -- workers consume this agent's queue
    rings         integer NOT NULL DEFAULT 0,               -- bells of the sweeper since the last claim
    nudged_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    used_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (agent_type, agent_name),
    CHECK ((active_uid IS NULL) = (active_worker IS NULL))
) WITH (fillfactor = 60);

-- Heads that wait for their time, and for nothing else.
CREATE INDEX agents_due ON {schema}.agents (due_at) WHERE due_at IS NOT NULL;

-- Lanes that have work or had some lately. `wanted` changes rarely, so ordinary turns stay heap-only updates.
CREATE INDEX agents_wanted ON {schema}.agents (agent_type, agent_name) WHERE wanted;

CREATE TABLE {schema}.submissions (
    agent_type          text COLLATE "C" NOT NULL,
    agent_name          text COLLATE "C" NOT NULL,
    submission_id       text COLLATE "C" NOT NULL,
    uid                 uuid NOT NULL,                      -- this incarnation; a deleted id may be used again
    idempotency_key     text COLLATE "C",
    request_id          text COLLATE "C" NOT NULL,
    kind                text COLLATE "C" NOT NULL,
    status              text COLLATE "C" NOT NULL DEFAULT 'pending',
    position            bigint,
    generation          bigint NOT NULL DEFAULT 0,
    attempt             integer NOT NULL DEFAULT 0,
    nudges              integer NOT NULL DEFAULT 1,
    messages            jsonb NOT NULL,
    body_hash           bytea NOT NULL,
    metadata            jsonb,
    parent_id           uuid,
    root_id             uuid,
    runner              uuid,
    traceparent         text,
    error               text,
    message_id          text COLLATE "C",
    usage               jsonb,
    not_before          timestamptz,
    not_after           timestamptz,
    run_timeout         double precision,                   -- seconds of running
    rerun_of            text COLLATE "C",
    cancel_call         uuid,                               -- the call that cancelled it, so that it is recognised
    cancel_was          text COLLATE "C",                   -- what it cancelled: pending or running
    webhook_url         text,
    hook_due            boolean NOT NULL DEFAULT false,     -- the status hook has not heard of the end yet
    created_at          timestamptz NOT NULL,
    started_at          timestamptz,
    messages_applied_at timestamptz,
    first_chunk_at      timestamptz,
    completed_at        timestamptz,
    PRIMARY KEY (agent_type, agent_name, submission_id),
    CONSTRAINT submissions_kind CHECK (kind IN ('submit', 'schedule', 'chat', 'save', 'continue')),
    CONSTRAINT submissions_status
        CHECK (status IN ('pending', 'running', 'completed', 'aborted', 'skipped', 'error')),
    CONSTRAINT submissions_terminal
        CHECK ((status IN ('completed', 'aborted', 'skipped', 'error')) = (completed_at IS NOT NULL))
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX submissions_uid ON {schema}.submissions (uid);
CREATE UNIQUE INDEX submissions_key ON {schema}.submissions (agent_type, agent_name, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX submissions_order ON {schema}.submissions (agent_type, agent_name, position);
CREATE UNIQUE INDEX submissions_one_running ON {schema}.submissions (agent_type, agent_name)
    WHERE status = 'running';

-- Rows that came inside a caller's transaction and have no place yet.
CREATE INDEX submissions_unplaced ON {schema}.submissions (created_at) WHERE position IS NULL;
CREATE INDEX submissions_hook_due ON {schema}.submissions (agent_type, agent_name, position) WHERE hook_due;
CREATE INDEX submissions_not_after ON {schema}.submissions (not_after)
    WHERE not_after IS NOT NULL AND status = 'pending';
-- A listing by status reads only what it shows, also where a million rows have other statuses.
CREATE INDEX submissions_listed ON {schema}.submissions (agent_type, agent_name, status, position);
-- Deletion by age; rows lie on disk in about the order of their ends.
CREATE INDEX submissions_age ON {schema}.submissions USING brin (completed_at);

CREATE TABLE {schema}.messages (
    agent_type     text COLLATE "C" NOT NULL,
    agent_name     text COLLATE "C" NOT NULL,
    message_id     text COLLATE "C" NOT NULL,
    seq            bigint NOT NULL,                         -- place in the transcript
    submission_uid uuid,
    content        jsonb NOT NULL,                          -- the whole message in AI SDK form
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (agent_type, agent_name, message_id)
);

CREATE UNIQUE INDEX messages_order ON {schema}.messages (agent_type, agent_name, seq);

-- Agent classes as the processes that load them say; and whether people paused one.
CREATE TABLE {schema}.classes (
    agent_type text COLLATE "C" PRIMARY KEY,
    hooked     boolean NOT NULL DEFAULT false,              -- the class overrides on_submission_status
    paused     boolean NOT NULL DEFAULT false
);

-- Finish messages to the outside, written in the transaction that ends the row.
CREATE TABLE {schema}.webhooks (
    webhook_id      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    submission_uid  uuid NOT NULL,
    url             text NOT NULL,
    payload         jsonb NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    error           text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX webhooks_due ON {schema}.webhooks (due_at);

CREATE TABLE {schema}.workers (
    worker_id    uuid PRIMARY KEY,                          -- random for every start of a process
    host         text NOT NULL,
    pid          integer NOT NULL,
    pool         text NOT NULL,
    version      text NOT NULL,
    agent_types  text[] NOT NULL,
    draining     boolean NOT NULL DEFAULT false,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumed_at  timestamptz                                -- last bell that this process answered
) WITH (fillfactor = 60);
