-- Schedules of agents, their occurrences, and signs of life of the beat.
--
-- One submission per occurrence can be read off this file:
--   one occurrence per due instant      →  primary key of occurrences
--   one dispatcher per due instant      →  fire locks the schedule's row and moves next_run_at on in the same commit
--   one submission per occurrence       →  written in that commit, or under the occurrence's lease, with the unique key
--
-- Locking rule: schedule, then occurrence, then lane. Whoever holds a lane never asks for a schedule.

ALTER TABLE {schema}.agents
    ADD COLUMN armed text COLLATE "C",                      -- the declarations of its class that it was last compared with
    ADD COLUMN armed_by bigint NOT NULL DEFAULT 0,          -- number of the build that did it
    ADD COLUMN degraded text;                               -- why its declarations could not be read

ALTER TABLE {schema}.classes
    ADD COLUMN declared text COLLATE "C",                   -- the declarations that all its agents are compared with
    ADD COLUMN armed_at timestamptz;                        -- when somebody last began to compare all of them

CREATE TABLE {schema}.schedules (
    agent_type     text COLLATE "C" NOT NULL,
    agent_name     text COLLATE "C" NOT NULL,
    task_id        text COLLATE "C" NOT NULL,
    kind           text COLLATE "C",                        -- interval, wall-clock, cron
    schedule       text,                                    -- as normalised
    timezone       text,
    action         text COLLATE "C",                        -- prompt, function, handler
    overlap        text COLLATE "C",
    missed         text COLLATE "C",
    grace_seconds  double precision,
    schedule_hash  text COLLATE "C",
    task_hash      text COLLATE "C",
    tzdata_version text,
    generation     bigint NOT NULL DEFAULT 1,               -- grows when its times change
    paused         boolean NOT NULL DEFAULT false,          -- by people
    invalid        text,                                    -- why the present declaration cannot be used
    next_run_at    timestamptz,                             -- the next due instant
    due_at         timestamptz,                             -- when to look at it
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (agent_type, agent_name, task_id),
    CONSTRAINT schedules_armed CHECK (next_run_at IS NOT NULL AND due_at IS NOT NULL OR invalid IS NOT NULL)
) WITH (fillfactor = 80);

CREATE INDEX schedules_due ON {schema}.schedules (agent_type, due_at) WHERE NOT paused AND invalid IS NULL;

CREATE TABLE {schema}.occurrences (
    agent_type        text COLLATE "C" NOT NULL,
    agent_name        text COLLATE "C" NOT NULL,
    task_id           text COLLATE "C" NOT NULL,
    scheduled_for     timestamptz NOT NULL,
    manual_id         uuid,                                 -- asked for by somebody, beside the timetable
    generation        bigint NOT NULL,
    overlap           text COLLATE "C" NOT NULL,
    state             text COLLATE "C" NOT NULL,
    lease_token       uuid,                                 -- who runs it
    due_at            timestamptz,                          -- due: ring again; running: end of the lease
    rings             integer NOT NULL DEFAULT 0,
    attempts          integer NOT NULL DEFAULT 0,           -- starts
    strikes           integer NOT NULL DEFAULT 0,           -- starts whose process was lost
    late_ms           bigint NOT NULL DEFAULT 0,
    missed_count      integer NOT NULL DEFAULT 0,           -- due instants that it stands for, beside its own
    latest_missed_for timestamptz,                          -- the youngest of them
    submission_id     text COLLATE "C",
    submission_uid    uuid,
    error             text,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at        timestamptz,
    finished_at       timestamptz,
    PRIMARY KEY (agent_type, agent_name, task_id, scheduled_for),
    CONSTRAINT occurrences_state CHECK (state IN
        ('due', 'running', 'submitted', 'done', 'handled', 'error', 'missed', 'skipped', 'superseded')),
    CONSTRAINT occurrences_open CHECK ((state IN ('due', 'running', 'submitted')) = (finished_at IS NULL))
) WITH (fillfactor = 80);

-- What is open of a task; at most one, unless its policy is to let them queue.
CREATE UNIQUE INDEX occurrences_one_open ON {schema}.occurrences (agent_type, agent_name, task_id,
    (CASE WHEN overlap = 'queue' THEN scheduled_for ELSE '-infinity'::timestamptz END))
    WHERE state IN ('due', 'running', 'submitted');
CREATE INDEX occurrences_due ON {schema}.occurrences (agent_type, due_at) WHERE state IN ('due', 'running');
CREATE INDEX occurrences_age ON {schema}.occurrences USING brin (finished_at);

-- Last sign of life of what has to come again and again.
CREATE TABLE {schema}.ticks (
    name      text COLLATE "C" PRIMARY KEY,
    ticked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
