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


CREATE FUNCTION {schema}.lock_lane(p_type text, p_name text) RETURNS {schema}.agents
LANGUAGE sql AS $$
    SELECT * FROM {schema}.agents WHERE agent_type = p_type AND agent_name = p_name FOR NO KEY UPDATE;
$$;

-- What callers may see of a row, plus what the engine needs: where its end is reported to stays here.
CREATE FUNCTION {schema}.seen(p_row {schema}.submissions) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT to_jsonb(p_row) - '{messages,body_hash,webhook_url}'::text[]
        || jsonb_build_object('has_webhook', p_row.webhook_url IS NOT NULL);
$$;


CREATE FUNCTION {schema}.is_hooked(p_type text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.classes WHERE agent_type = p_type AND hooked);
$$;


-- End a row that is pending or running: the only way out, whoever ends it. Tells the outbox in the same transaction.
-- NULL when the row had ended before.
CREATE FUNCTION {schema}.end_row(
    p_uid uuid, p_status text, p_error text, p_message_id text DEFAULT NULL, p_usage jsonb DEFAULT NULL,
    p_first_chunk interval DEFAULT NULL
) RETURNS {schema}.submissions
LANGUAGE plpgsql AS $$
DECLARE
    v_row {schema}.submissions;
BEGIN
    UPDATE {schema}.submissions s
    SET status = p_status, completed_at = clock_timestamp(), error = p_error, usage = coalesce(p_usage, s.usage),
        message_id = coalesce(p_message_id, s.message_id), first_chunk_at = s.started_at + p_first_chunk,
        hook_due = {schema}.is_hooked(s.agent_type)
    WHERE uid = p_uid AND status IN ('pending', 'running') RETURNING * INTO v_row;
    IF v_row.webhook_url IS NOT NULL THEN
        INSERT INTO {schema}.webhooks (submission_uid, url, payload)
        VALUES (v_row.uid, v_row.webhook_url, {schema}.seen(v_row));
    END IF;
    RETURN v_row;
END
$$;


-- The row that has this identity, or that id and key disagree; NULL when it is unknown. Called under the lane's lock
-- or under the locks of lock_identity, so what it does not find nobody is about to commit.
CREATE FUNCTION {schema}.identify(
    p_type text, p_name text, p_submission_id text, p_id_given boolean, p_uid uuid, p_key text
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row    {schema}.submissions;
    v_by_key {schema}.submissions;
BEGIN
    SELECT * INTO v_row FROM {schema}.submissions
    WHERE agent_type = p_type AND agent_name = p_name AND submission_id = p_submission_id;
    IF p_key IS NOT NULL THEN
        SELECT * INTO v_by_key FROM {schema}.submissions
        WHERE agent_type = p_type AND agent_name = p_name AND idempotency_key = p_key;
    END IF;
    IF (v_by_key.uid IS NOT NULL AND p_id_given AND v_by_key.submission_id <> p_submission_id)
        OR (v_row.uid IS NOT NULL AND v_row.uid <> p_uid AND v_row.idempotency_key <> p_key)
    THEN
        RETURN jsonb_build_object('outcome', 'conflict', 'key_of_id', v_row.idempotency_key,
                                  'id_of_key', v_by_key.submission_id);
    END IF;
    IF v_row.uid IS NULL THEN
        v_row := v_by_key;
    END IF;
    IF v_row.uid IS NULL THEN
        RETURN NULL;
    END IF;
    IF v_row.status = 'pending' THEN
        UPDATE {schema}.submissions SET nudges = nudges + 1 WHERE uid = v_row.uid RETURNING * INTO v_row;
    END IF;
    RETURN jsonb_build_object('outcome', CASE WHEN v_row.uid = p_uid THEN 'accepted' ELSE 'known' END,
                              'announce', true, 'submission', {schema}.seen(v_row),
                              'body_hash', encode(v_row.body_hash, 'hex'));
END
$$;


-- Wait for a caller's open transaction that has the same id or key, before any lane is locked: whoever waits for a
-- foreign transaction must not keep an agent's other callers waiting. Nor keep a connection of its process' pool for
-- long: `accept` gives up soon (55P03), and the whole call is repeated after a pause.
CREATE FUNCTION {schema}.lock_identity(p_type text, p_name text, p_id text, p_key text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_lock bigint;
BEGIN
    FOR v_lock IN
        SELECT DISTINCT hashtextextended(concat_ws(E'\x1f', p_type, p_name, kind, named), 7479)
        FROM (VALUES ('id', p_id), ('key', p_key)) AS identity (kind, named) WHERE named IS NOT NULL ORDER BY 1
    LOOP
        BEGIN
            PERFORM pg_advisory_xact_lock(v_lock);
        EXCEPTION WHEN lock_not_available THEN
            RAISE EXCEPTION 'an open transaction has a submission with the same id or key'
                USING ERRCODE = 'lock_not_available';
        END;
    END LOOP;
END
$$;


-- Accept (one lane, one row, one commit). A known identity gives the existing row (`known`, nothing compared, nothing
-- changed but its bell), unless id and key disagree (`conflict`). A repeated call after a lost reply recognises its
-- own row by the uid. Without messages the step only looks the identity up. A busy lane may refuse (`busy`), or its
-- rows may have to make way (`interrupt` keeps what they wrote, `rollback` does not). `full`: too many rows wait.
CREATE FUNCTION {schema}.accept(
    p_type text, p_name text, p_submission_id text, p_id_given boolean, p_uid uuid, p_key text, p_kind text,
    p_messages jsonb, p_hash bytea, p_metadata jsonb, p_traceparent text, p_announce interval,
    p_if_busy text, p_max_pending integer, p_not_before timestamptz, p_not_after timestamptz, p_run_timeout float8,
    p_webhook_url text, p_rerun_of text, p_tell boolean
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane     {schema}.agents;
    v_row      {schema}.submissions;
    v_known    jsonb;
    v_ended    jsonb := '[]';
    v_announce boolean;
    v_now      timestamptz;
    v_patience text;
BEGIN
    IF p_id_given OR p_key IS NOT NULL THEN
        v_patience := current_setting('lock_timeout');
        PERFORM set_config('lock_timeout', '100ms', true);
        PERFORM {schema}.lock_identity(p_type, p_name, CASE WHEN p_id_given THEN p_submission_id END, p_key);
        PERFORM set_config('lock_timeout', v_patience, true);
    END IF;
    v_lane := {schema}.lock_lane(p_type, p_name);
    IF v_lane.agent_type IS NULL AND p_messages IS NOT NULL THEN
        INSERT INTO {schema}.agents (agent_type, agent_name, wanted) VALUES (p_type, p_name, false)
        ON CONFLICT DO NOTHING;
        v_lane := {schema}.lock_lane(p_type, p_name);
    END IF;
    v_known := {schema}.identify(p_type, p_name, p_submission_id, p_id_given, p_uid, p_key);
    IF v_known IS NOT NULL OR p_messages IS NULL THEN
        RETURN coalesce(v_known, jsonb_build_object('outcome', 'unknown'));
    END IF;
    IF p_if_busy = 'reject' AND {schema}.is_busy(v_lane) THEN
        RETURN jsonb_build_object('outcome', 'busy');
    END IF;
    IF p_if_busy IN ('interrupt', 'rollback') THEN
        v_ended := {schema}.make_way(v_lane, p_if_busy);
    END IF;
    IF v_lane.last_position - v_lane.head_position + 1 >= p_max_pending
        AND {schema}.count_pending(v_lane) >= p_max_pending THEN
        RETURN jsonb_build_object('outcome', 'full');
    END IF;
    v_now := greatest(clock_timestamp(), v_lane.used_at);
    v_announce := NOT v_lane.wanted OR v_lane.used_at < v_now - p_announce;
    UPDATE {schema}.agents
    SET last_position = last_position + 1, wanted = true, used_at = v_now, nudged_at = v_now
    WHERE agent_type = p_type AND agent_name = p_name;
    INSERT INTO {schema}.submissions (agent_type, agent_name, submission_id, uid, idempotency_key, request_id, kind,
        position, generation, messages, body_hash, metadata, root_id, traceparent, created_at,
        not_before, not_after, run_timeout, webhook_url, rerun_of, hook_due)
    VALUES (p_type, p_name, p_submission_id, p_uid, p_key, p_submission_id, p_kind,
        v_lane.last_position + 1, v_lane.generation, p_messages, p_hash, p_metadata, p_uid, p_traceparent, v_now,
        p_not_before, p_not_after, p_run_timeout, p_webhook_url, p_rerun_of, p_tell AND {schema}.is_hooked(p_type))
    RETURNING * INTO v_row;
    RETURN jsonb_build_object('outcome', 'accepted', 'announce', v_announce, 'submission', {schema}.seen(v_row),
                              'ended', v_ended);
END
$$;


CREATE FUNCTION {schema}.count_pending(p_lane {schema}.agents) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT count(*) FROM {schema}.submissions
    WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name
        AND position >= p_lane.head_position AND status = 'pending';
$$;


-- A lane is busy while a row runs or waits; a row that was cancelled and is still stopping does not count.
CREATE FUNCTION {schema}.is_busy(p_lane {schema}.agents) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.submissions
                   WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name
                       AND position >= p_lane.head_position AND status IN ('pending', 'running'));
$$;


-- Abort every row of a locked lane that runs or waits. `rollback` also takes back what the running one wrote, now and
-- later: a row of another generation links no late message.
CREATE FUNCTION {schema}.make_way(p_lane {schema}.agents, p_how text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row   {schema}.submissions;
    v_ended jsonb := '[]';
    v_was   text;
BEGIN
    FOR v_row IN
        SELECT * FROM {schema}.submissions
        WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name
            AND position >= p_lane.head_position AND status IN ('pending', 'running') ORDER BY position
    LOOP
        v_was := v_row.status;
        IF p_how = 'rollback' AND v_was = 'running' THEN
            DELETE FROM {schema}.messages WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name
                AND submission_uid = v_row.uid;
            UPDATE {schema}.submissions SET generation = -1, message_id = NULL WHERE uid = v_row.uid;
            UPDATE {schema}.agents SET rewrites = rewrites + 1
            WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name;
        END IF;
        v_row := {schema}.end_row(v_row.uid, 'aborted', 'a newer submission took its place');
        v_ended := v_ended || {schema}.ending(v_row, v_was);
    END LOOP;
    RETURN v_ended;
END
$$;


-- An ended row with what it was before.
CREATE FUNCTION {schema}.ending(p_row {schema}.submissions, p_was text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('submission', {schema}.seen(p_row), 'was', p_was);
$$;


-- Write a row inside a caller's own transaction: without a place and without touching the lane, so that an open
-- transaction disturbs nobody. `place` gives it both after the commit.
CREATE FUNCTION {schema}.reserve(
    p_type text, p_name text, p_submission_id text, p_id_given boolean, p_uid uuid, p_key text, p_kind text,
    p_messages jsonb, p_hash bytea, p_metadata jsonb, p_traceparent text,
    p_not_before timestamptz, p_not_after timestamptz, p_run_timeout float8, p_webhook_url text, p_rerun_of text,
    p_tell boolean
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row   {schema}.submissions;
    v_known jsonb;
BEGIN
    PERFORM {schema}.lock_identity(p_type, p_name, CASE WHEN p_id_given THEN p_submission_id END, p_key);
    v_known := {schema}.identify(p_type, p_name, p_submission_id, p_id_given, p_uid, p_key);
    IF v_known IS NOT NULL OR p_messages IS NULL THEN
        RETURN coalesce(v_known, jsonb_build_object('outcome', 'unknown'));
    END IF;
    INSERT INTO {schema}.submissions (agent_type, agent_name, submission_id, uid, idempotency_key, request_id, kind,
        messages, body_hash, metadata, root_id, traceparent, created_at,
        not_before, not_after, run_timeout, webhook_url, rerun_of, hook_due)
    VALUES (p_type, p_name, p_submission_id, p_uid, p_key, p_submission_id, p_kind,
        p_messages, p_hash, p_metadata, p_uid, p_traceparent, clock_timestamp(),
        p_not_before, p_not_after, p_run_timeout, p_webhook_url, p_rerun_of, p_tell AND {schema}.is_hooked(p_type))
    RETURNING * INTO v_row;
    RETURN jsonb_build_object('outcome', 'accepted', 'announce', true, 'submission', {schema}.seen(v_row));
END
$$;


-- Give a reserved row its place, once its transaction has committed. NULL: not visible, placed already, or ended.
-- With p_tell the caller does not call the status hook itself; a worker shall.
CREATE FUNCTION {schema}.place(p_type text, p_name text, p_uid uuid, p_tell boolean) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents;
    v_row  {schema}.submissions;
    v_now  timestamptz;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.submissions WHERE uid = p_uid AND position IS NULL) THEN
        RETURN NULL;
    END IF;
    INSERT INTO {schema}.agents (agent_type, agent_name, wanted) VALUES (p_type, p_name, false)
    ON CONFLICT DO NOTHING;
    v_lane := {schema}.lock_lane(p_type, p_name);
    v_now := greatest(clock_timestamp(), v_lane.used_at);
    UPDATE {schema}.submissions
    SET position = v_lane.last_position + 1, generation = v_lane.generation,
        hook_due = hook_due OR (p_tell AND {schema}.is_hooked(p_type))
    WHERE uid = p_uid AND position IS NULL AND status = 'pending' RETURNING * INTO v_row;
    IF v_row.uid IS NULL THEN
        -- Cancelled before it had a place: it gets one all the same, so that it is not looked at for ever.
        UPDATE {schema}.submissions SET position = v_lane.last_position + 1 WHERE uid = p_uid AND position IS NULL;
    END IF;
    UPDATE {schema}.agents
    SET last_position = last_position + 1, wanted = true, used_at = v_now, nudged_at = v_now
    WHERE agent_type = p_type AND agent_name = p_name;
    RETURN CASE WHEN v_row.uid IS NOT NULL THEN {schema}.seen(v_row) END;
END
$$;


-- Release a locked lane. The head moves behind the last row when nothing waits; a head that waits for its time says so.
CREATE FUNCTION {schema}.release(p_lane {schema}.agents, p_empty boolean, p_due_at timestamptz) RETURNS void
LANGUAGE sql AS $$
    UPDATE {schema}.agents
    SET active_uid = NULL, active_worker = NULL, claim_id = NULL, due_at = p_due_at,
        head_position = CASE WHEN p_empty THEN last_position + 1 ELSE head_position END,
        used_at = greatest(used_at, clock_timestamp())
    WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name;
$$;


CREATE FUNCTION {schema}.too_late(p_row {schema}.submissions) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT 'not started in time: it was not to start after '
        || to_char(p_row.not_after AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
$$;


-- End an agent's rows that may not start any more, wherever they wait: a lane may stand still for hours.
CREATE FUNCTION {schema}.expire(p_type text, p_name text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane  {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row   {schema}.submissions;
    v_ended jsonb := '[]';
BEGIN
    FOR v_row IN
        SELECT * FROM {schema}.submissions
        WHERE agent_type = p_type AND agent_name = p_name AND status = 'pending'
            AND position >= v_lane.head_position AND not_after < clock_timestamp()
        ORDER BY position
    LOOP
        v_ended := v_ended || {schema}.ending({schema}.end_row(v_row.uid, 'error', {schema}.too_late(v_row)), 'pending');
    END LOOP;
    RETURN jsonb_build_object('ended', v_ended);
END
$$;


-- Give the lane, which the caller has locked, to its oldest pending row; without one that may run, release the lane.
-- Rows that may not start any more end here: too late, or started too often without reaching the conversation.
CREATE FUNCTION {schema}.claim_head(p_lane {schema}.agents, p_worker uuid, p_claim uuid, p_max_starts integer)
RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row   {schema}.submissions;
    v_ended jsonb := '[]';
BEGIN
    IF p_lane.paused OR EXISTS (SELECT FROM {schema}.classes WHERE agent_type = p_lane.agent_type AND paused) THEN
        PERFORM {schema}.release(p_lane, false, NULL);
        RETURN jsonb_build_object('outcome', 'paused');
    END IF;
    LOOP
        SELECT * INTO v_row FROM {schema}.submissions
        WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name
            AND position >= p_lane.head_position AND status = 'pending'
        ORDER BY position LIMIT 1;
        IF v_row.uid IS NULL OR v_row.not_before > clock_timestamp() THEN
            PERFORM {schema}.release(p_lane, v_row.uid IS NULL, v_row.not_before);
            RETURN jsonb_build_object('outcome', CASE WHEN v_row.uid IS NULL THEN 'idle' ELSE 'early' END,
                                      'ended', v_ended);
        END IF;
        EXIT WHEN v_row.attempt < p_max_starts AND coalesce(v_row.not_after >= clock_timestamp(), true);
        v_row := {schema}.end_row(v_row.uid, 'error', CASE
            WHEN v_row.attempt >= p_max_starts
            THEN format('given up after %s starts, none of which reached the conversation', v_row.attempt)
            ELSE {schema}.too_late(v_row) END);
        v_ended := v_ended || {schema}.ending(v_row, 'pending');
    END LOOP;
    UPDATE {schema}.submissions SET status = 'running', started_at = clock_timestamp(), attempt = attempt + 1
    WHERE uid = v_row.uid RETURNING * INTO v_row;
    UPDATE {schema}.agents
    SET fence = fence + 1, active_uid = v_row.uid, active_worker = p_worker, claim_id = p_claim, due_at = NULL,
        head_position = v_row.position, rings = 0, used_at = greatest(used_at, clock_timestamp())
    WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name;
    RETURN jsonb_build_object('outcome', 'claimed', 'fence', p_lane.fence + 1, 'claim', p_claim,
                              'submission', {schema}.seen(v_row), 'ended', v_ended);
END
$$;


-- The claim that a repeated call made before its reply was lost, NULL when there is none.
CREATE FUNCTION {schema}.claim_again(p_lane {schema}.agents, p_claim uuid) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('outcome', 'claimed', 'fence', p_lane.fence, 'claim', p_claim,
                              'submission', {schema}.seen(s))
    FROM {schema}.submissions s WHERE s.uid = p_lane.active_uid AND p_lane.claim_id = p_claim;
$$;


-- Answer a bell: take the lane if it is free. When nothing can run, tell how the row ended that rang (p_rang).
CREATE FUNCTION {schema}.claim(
    p_type text, p_name text, p_worker uuid, p_claim uuid, p_max_starts integer, p_rang uuid
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane   {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_answer jsonb := jsonb_build_object('outcome', 'idle');
BEGIN
    IF v_lane.active_uid IS NOT NULL THEN
        v_answer := coalesce({schema}.claim_again(v_lane, p_claim),
                             jsonb_build_object('outcome', 'busy', 'worker', v_lane.active_worker));
    ELSIF v_lane.agent_type IS NOT NULL THEN
        v_answer := {schema}.claim_head(v_lane, p_worker, p_claim, p_max_starts);
    END IF;
    IF p_rang IS NOT NULL AND v_answer ->> 'outcome' <> 'claimed' THEN
        v_answer := v_answer || jsonb_build_object('rang', (
            SELECT jsonb_build_object('submission_id', submission_id, 'status', status, 'error', error)
            FROM {schema}.submissions WHERE uid = p_rang AND completed_at IS NOT NULL));
    END IF;
    RETURN v_answer || jsonb_build_object('hooks_due', EXISTS (SELECT FROM {schema}.submissions
        WHERE agent_type = p_type AND agent_name = p_name AND hook_due));
END
$$;


-- Append the row's messages to the transcript, once, and give the transcript: what is new since p_after, or all when
-- messages were taken out since p_rewrites. `lost`: another claim holds the lane. `ended`: the row is no longer
-- running. `unreadable`: the stored payload is not a list of messages.
CREATE FUNCTION {schema}.apply(
    p_type text, p_name text, p_uid uuid, p_fence bigint, p_after bigint, p_rewrites bigint
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row  {schema}.submissions;
    v_last bigint;
    v_from bigint := CASE WHEN v_lane.rewrites = p_rewrites THEN p_after ELSE 0 END;
BEGIN
    IF v_lane.fence IS DISTINCT FROM p_fence OR v_lane.active_uid IS DISTINCT FROM p_uid THEN
        RETURN jsonb_build_object('outcome', 'lost');
    END IF;
    SELECT * INTO v_row FROM {schema}.submissions WHERE uid = p_uid;
    IF v_row.status IS DISTINCT FROM 'running' THEN
        RETURN jsonb_build_object('outcome', 'ended');
    END IF;
    IF v_row.messages_applied_at IS NULL THEN
        IF jsonb_typeof(v_row.messages) <> 'array'
            OR EXISTS (SELECT FROM jsonb_array_elements(v_row.messages) m WHERE m ->> 'id' IS NULL) THEN
            RETURN jsonb_build_object('outcome', 'unreadable');
        END IF;
        SELECT coalesce(max(seq), 0) INTO v_last FROM {schema}.messages
        WHERE agent_type = p_type AND agent_name = p_name;
        INSERT INTO {schema}.messages (agent_type, agent_name, message_id, seq, submission_uid, content)
        SELECT p_type, p_name, m.value ->> 'id', v_last + m.ordinality, p_uid, m.value
        FROM jsonb_array_elements(v_row.messages) WITH ORDINALITY m
        ON CONFLICT (agent_type, agent_name, message_id) DO NOTHING;
        UPDATE {schema}.submissions SET messages_applied_at = clock_timestamp() WHERE uid = p_uid;
    END IF;
    RETURN (
        SELECT jsonb_build_object('outcome', 'applied', 'new', v_row.messages, 'whole', v_from = 0,
                                  'transcript', jsonb_agg(content ORDER BY seq), 'rewrites', v_lane.rewrites,
                                  'last', coalesce(max(seq), v_from))
        FROM {schema}.messages WHERE agent_type = p_type AND agent_name = p_name AND seq > v_from
    );
END
$$;


-- Store an assistant message under its id; an id that any other message already has gives way to a new one.
CREATE FUNCTION {schema}.store_message(p_type text, p_name text, p_uid uuid, p_message jsonb) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_id   text := p_message ->> 'id';
    v_last bigint;
BEGIN
    IF EXISTS (SELECT FROM {schema}.messages WHERE agent_type = p_type AND agent_name = p_name
               AND message_id = v_id
               AND (submission_uid IS DISTINCT FROM p_uid OR content ->> 'role' <> 'assistant')) THEN
        v_id := gen_random_uuid()::text;
    END IF;
    SELECT coalesce(max(seq), 0) INTO v_last FROM {schema}.messages WHERE agent_type = p_type AND agent_name = p_name;
    INSERT INTO {schema}.messages (agent_type, agent_name, message_id, seq, submission_uid, content)
    VALUES (p_type, p_name, v_id, v_last + 1, p_uid, jsonb_set(p_message, '{id}', to_jsonb(v_id)))
    ON CONFLICT (agent_type, agent_name, message_id) DO UPDATE SET content = excluded.content;
    RETURN v_id;
END
$$;


-- Delete a lane that stayed only because a deleted agent was still at work.
CREATE FUNCTION {schema}.forget_lane(p_type text, p_name text) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM {schema}.agents
    WHERE agent_type = p_type AND agent_name = p_name AND active_uid IS NULL AND last_position = 0;
$$;


-- Write the end of a turn and pass the lane on: to the next row when p_next_claim is given, else to nobody.
-- Only a running row is ended; a row that ended meanwhile keeps its end. Repeating the call changes nothing.
CREATE FUNCTION {schema}.settle(
    p_type text, p_name text, p_uid uuid, p_fence bigint, p_worker uuid, p_status text, p_error text,
    p_message jsonb, p_usage jsonb, p_first_chunk interval, p_next_claim uuid, p_max_starts integer
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane  {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row   {schema}.submissions;
    v_id    text;
    v_next  jsonb;
    v_more  boolean := false;
BEGIN
    SELECT * INTO v_row FROM {schema}.submissions WHERE uid = p_uid;
    IF v_lane.fence IS DISTINCT FROM p_fence OR v_lane.active_uid IS DISTINCT FROM p_uid THEN
        RETURN jsonb_build_object('outcome', 'lost', 'submission', {schema}.seen(v_row),
                                  'next', {schema}.claim_again(v_lane, p_next_claim));
    END IF;
    IF v_row.status = 'running' THEN
        IF p_message IS NOT NULL THEN
            v_id := {schema}.store_message(p_type, p_name, p_uid, p_message);
        END IF;
        v_row := {schema}.end_row(p_uid, p_status, p_error, v_id, p_usage, p_first_chunk);
    ELSIF v_row.generation = v_lane.generation THEN
        -- Cancelled while it ran: what was said so far stays in the conversation, unless that was cleared.
        IF p_message IS NOT NULL THEN
            v_id := {schema}.store_message(p_type, p_name, p_uid, p_message);
        END IF;
        UPDATE {schema}.submissions
        SET message_id = coalesce(v_id, message_id), usage = coalesce(p_usage, usage),
            first_chunk_at = coalesce(first_chunk_at, started_at + p_first_chunk)
        WHERE uid = p_uid RETURNING * INTO v_row;
    END IF;
    IF p_next_claim IS NOT NULL THEN
        v_next := {schema}.claim_head(v_lane, p_worker, p_next_claim, p_max_starts);
    ELSE
        PERFORM {schema}.release(v_lane, false, NULL);
        v_more := EXISTS (SELECT FROM {schema}.submissions WHERE agent_type = p_type AND agent_name = p_name
                          AND position >= v_lane.head_position AND status = 'pending');
    END IF;
    IF v_row.uid IS NULL THEN
        PERFORM {schema}.forget_lane(p_type, p_name);
    END IF;
    RETURN jsonb_build_object('outcome', 'settled', 'submission', {schema}.seen(v_row), 'next', v_next,
                              'more', v_more);
END
$$;


-- Take the lane from a dead runner. `requeue` puts the row back to its place, `fail` ends it.
-- The caller names the fence it judged by; whoever claimed since keeps the lane.
CREATE FUNCTION {schema}.rescue(
    p_type text, p_name text, p_fence bigint, p_lease interval, p_action text, p_error text
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row  {schema}.submissions;
BEGIN
    IF v_lane.fence IS DISTINCT FROM p_fence OR v_lane.active_uid IS NULL
        OR EXISTS (SELECT FROM {schema}.workers WHERE worker_id = v_lane.active_worker
                   AND heartbeat_at >= clock_timestamp() - p_lease) THEN
        RETURN jsonb_build_object('outcome', 'lost');
    END IF;
    SELECT * INTO v_row FROM {schema}.submissions WHERE uid = v_lane.active_uid;
    IF p_action = 'requeue' AND v_row.messages_applied_at IS NOT NULL THEN
        RETURN jsonb_build_object('outcome', 'lost');
    END IF;
    IF v_row.status = 'running' AND p_action = 'requeue' THEN
        -- Its hook hears of the second wait, too; from whoever claims it next.
        UPDATE {schema}.submissions
        SET status = 'pending', started_at = NULL, hook_due = {schema}.is_hooked(p_type)
        WHERE uid = v_row.uid RETURNING * INTO v_row;
    ELSIF v_row.status = 'running' THEN
        v_row := {schema}.end_row(v_row.uid, 'error', p_error);
    END IF;
    UPDATE {schema}.agents
    SET active_uid = NULL, active_worker = NULL, claim_id = NULL, fence = fence + 1,
        nudged_at = clock_timestamp(), rings = 0
    WHERE agent_type = p_type AND agent_name = p_name;
    IF v_row.uid IS NULL THEN
        PERFORM {schema}.forget_lane(p_type, p_name);
    END IF;
    RETURN jsonb_build_object('outcome', 'rescued', 'submission', {schema}.seen(v_row));
END
$$;


-- Cancel a row that waits or runs; the answer comes out of the write itself. The lane of a running row stays with its
-- runner until that has stopped.
CREATE FUNCTION {schema}.cancel(
    p_type text, p_name text, p_submission_id text, p_reason text, p_call uuid
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row  {schema}.submissions;
    v_end  {schema}.submissions;
BEGIN
    SELECT * INTO v_row FROM {schema}.submissions
    WHERE agent_type = p_type AND agent_name = p_name AND submission_id = p_submission_id FOR UPDATE;
    IF v_row.uid IS NULL THEN
        RETURN jsonb_build_object('outcome', 'not_found');
    END IF;
    v_end := {schema}.end_row(v_row.uid, 'aborted', p_reason);
    IF v_end.uid IS NULL AND v_row.cancel_call = p_call THEN
        -- The same call again, after its first answer was lost.
        RETURN {schema}.ending(v_row, v_row.cancel_was) || '{"outcome": "cancelled"}';
    END IF;
    IF v_end.uid IS NULL THEN
        RETURN jsonb_build_object('outcome', 'already_terminal', 'submission', {schema}.seen(v_row));
    END IF;
    UPDATE {schema}.submissions SET cancel_call = p_call, cancel_was = v_row.status WHERE uid = v_end.uid;
    RETURN {schema}.ending(v_end, v_row.status) || '{"outcome": "cancelled"}';
END
$$;


-- Cancel every row of an agent that waits or runs and whose metadata contains p_metadata (NULL: every one).
CREATE FUNCTION {schema}.cancel_all(p_type text, p_name text, p_metadata jsonb, p_reason text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row  {schema}.submissions;
    v_ended jsonb := '[]';
BEGIN
    FOR v_row IN
        SELECT * FROM {schema}.submissions
        WHERE agent_type = p_type AND agent_name = p_name AND status IN ('pending', 'running')
            AND coalesce(position >= v_lane.head_position, true)
            AND (p_metadata IS NULL OR metadata @> p_metadata)
        ORDER BY position
    LOOP
        v_ended := v_ended || ({schema}.ending({schema}.end_row(v_row.uid, 'aborted', p_reason), v_row.status)
                               || '{"outcome": "cancelled"}');
    END LOOP;
    RETURN jsonb_build_object('ended', v_ended);
END
$$;


-- Reset a lane: what waits is skipped, what runs is skipped or, once its messages are in the conversation, aborted; the
-- new generation makes late messages of the old one count for nothing. With p_messages the conversation goes as well.
CREATE FUNCTION {schema}.reset(p_type text, p_name text, p_note text, p_messages boolean) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane  {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row   {schema}.submissions;
    v_ended jsonb := '[]';
BEGIN
    UPDATE {schema}.agents SET generation = generation + 1, rewrites = rewrites + 1, due_at = NULL
    WHERE agent_type = p_type AND agent_name = p_name;
    FOR v_row IN
        SELECT * FROM {schema}.submissions
        WHERE agent_type = p_type AND agent_name = p_name AND status IN ('pending', 'running')
            AND coalesce(position >= v_lane.head_position, true)
        ORDER BY position
    LOOP
        v_ended := v_ended || {schema}.ending({schema}.end_row(v_row.uid,
            CASE WHEN v_row.messages_applied_at IS NULL THEN 'skipped' ELSE 'aborted' END, p_note), v_row.status);
    END LOOP;
    IF p_messages THEN
        DELETE FROM {schema}.messages WHERE agent_type = p_type AND agent_name = p_name;
    END IF;
    RETURN jsonb_build_object('ended', v_ended);
END
$$;


-- Delete terminal rows: one by id, or the oldest by status and age. Rows that wait or run never go.
CREATE FUNCTION {schema}.delete_ended(
    p_type text, p_name text, p_submission_id text, p_statuses text[], p_before timestamptz, p_limit integer
) RETURNS jsonb
LANGUAGE sql AS $$
    WITH chosen AS (
        SELECT uid FROM {schema}.submissions
        WHERE agent_type = p_type AND agent_name = p_name AND completed_at IS NOT NULL
            AND (p_submission_id IS NULL OR submission_id = p_submission_id)
            AND status = ANY (p_statuses)
            AND (p_before IS NULL OR completed_at < p_before)
        ORDER BY completed_at, created_at LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), deleted AS (
        DELETE FROM {schema}.submissions s USING chosen
        WHERE s.uid = chosen.uid AND s.completed_at IS NOT NULL RETURNING s.*
    )
    SELECT jsonb_build_object('deleted', coalesce(jsonb_agg({schema}.seen(deleted::{schema}.submissions)), '[]'))
    FROM deleted;
$$;


-- Delete everything about one agent. A lane that is at work stays, empty, until its runner lets go of it: the runner
-- writes nothing more, and whoever uses the name again waits for it.
CREATE FUNCTION {schema}.delete_agent(p_type text, p_name text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane  {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_rows  jsonb;
    v_count bigint;
BEGIN
    SELECT coalesce(jsonb_agg({schema}.seen(s)), '[]') INTO v_rows FROM {schema}.submissions s
    WHERE agent_type = p_type AND agent_name = p_name AND status IN ('pending', 'running');
    DELETE FROM {schema}.webhooks w USING {schema}.submissions s
    WHERE w.submission_uid = s.uid AND s.agent_type = p_type AND s.agent_name = p_name;
    DELETE FROM {schema}.submissions WHERE agent_type = p_type AND agent_name = p_name;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM {schema}.messages WHERE agent_type = p_type AND agent_name = p_name;
    UPDATE {schema}.agents
    SET parent = NULL, last_position = 0, head_position = 1, generation = generation + 1, rewrites = rewrites + 1,
        waits_for = NULL, hook_holder = NULL, hook_until = NULL, paused = false, due_at = NULL
    WHERE agent_type = p_type AND agent_name = p_name AND active_uid IS NOT NULL;
    DELETE FROM {schema}.agents WHERE agent_type = p_type AND agent_name = p_name AND active_uid IS NULL;
    -- Rows that a caller's transaction has committed may have no lane yet.
    RETURN jsonb_build_object('existed', v_lane.agent_type IS NOT NULL OR v_count > 0, 'active', v_rows);
END
$$;


-- Pause or resume one agent; true when that changed something.
CREATE FUNCTION {schema}.pause(p_type text, p_name text, p_paused boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents;
BEGIN
    INSERT INTO {schema}.agents (agent_type, agent_name, wanted) VALUES (p_type, p_name, false)
    ON CONFLICT DO NOTHING;
    v_lane := {schema}.lock_lane(p_type, p_name);
    UPDATE {schema}.agents SET paused = p_paused WHERE agent_type = p_type AND agent_name = p_name;
    RETURN v_lane.paused <> p_paused;
END
$$;


-- Take the right to call status hooks of an agent's ended rows, in their order, for a while; gives the first such row.
-- `busy`: somebody else has it. `none`: no row is due, and the right is given back. A claimed row whose messages are
-- not applied yet is its runner's to tell: that is telling of the start, and settles next if it was cancelled.
CREATE FUNCTION {schema}.take_hook(
    p_type text, p_name text, p_holder uuid, p_for interval, p_done uuid, p_done_ended boolean
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row  {schema}.submissions;
BEGIN
    IF p_done IS NOT NULL THEN
        -- A row that ended while its hook heard of the acceptance is due again.
        UPDATE {schema}.submissions SET hook_due = false
        WHERE uid = p_done AND hook_due AND (p_done_ended OR completed_at IS NULL);
    END IF;
    IF v_lane.hook_holder <> p_holder AND v_lane.hook_until > clock_timestamp() THEN
        RETURN jsonb_build_object('outcome', 'busy');
    END IF;
    SELECT * INTO v_row FROM {schema}.submissions
    WHERE agent_type = p_type AND agent_name = p_name AND hook_due
        AND NOT coalesce(uid = v_lane.active_uid AND messages_applied_at IS NULL, false)
    ORDER BY position NULLS LAST LIMIT 1;
    UPDATE {schema}.agents
    SET hook_holder = CASE WHEN v_row.uid IS NOT NULL THEN p_holder END,
        hook_until = CASE WHEN v_row.uid IS NOT NULL THEN clock_timestamp() + p_for END
    WHERE agent_type = p_type AND agent_name = p_name;
    RETURN jsonb_build_object('outcome', CASE WHEN v_row.uid IS NULL THEN 'none' ELSE 'due' END,
                              'submission', {schema}.seen(v_row));
END
$$;


-- Bells to ring again: idle lanes whose head may run, and lanes with a status hook that nobody calls; when their last
-- bell is older than p_after, doubled per repeat. A head that waited for its time is rung as soon as that has come.
CREATE FUNCTION {schema}.due_bells(p_after interval, p_limit integer)
RETURNS TABLE (agent_type text, agent_name text)
LANGUAGE sql AS $$
    UPDATE {schema}.agents a SET nudged_at = clock_timestamp(), rings = least(a.rings + 1, 20), due_at = NULL
    FROM (
        SELECT l.agent_type, l.agent_name FROM {schema}.agents l
        WHERE (l.wanted OR l.due_at <= clock_timestamp())
            AND (l.due_at <= clock_timestamp() OR l.nudged_at
                < clock_timestamp() - least(p_after * power(2, l.rings), interval '5 minutes'))
            AND ((l.active_uid IS NULL AND l.head_position <= l.last_position AND NOT l.paused
                    AND NOT EXISTS (SELECT FROM {schema}.classes c WHERE c.agent_type = l.agent_type AND c.paused)
                    AND coalesce(
                    (SELECT coalesce(s.not_before <= clock_timestamp(), true) FROM {schema}.submissions s
                     WHERE s.agent_type = l.agent_type AND s.agent_name = l.agent_name
                         AND s.position >= l.head_position AND s.status = 'pending'
                     ORDER BY s.position LIMIT 1), false))
                OR (coalesce(l.hook_until < clock_timestamp(), true)
                    AND EXISTS (SELECT FROM {schema}.submissions h
                                WHERE h.agent_type = l.agent_type AND h.agent_name = l.agent_name AND h.hook_due)))
        ORDER BY l.agent_type, l.agent_name LIMIT p_limit
        FOR NO KEY UPDATE SKIP LOCKED
    ) due
    WHERE a.agent_type = due.agent_type AND a.agent_name = due.agent_name
    RETURNING a.agent_type, a.agent_name;
$$;


-- Lanes without work for longer than p_idle: workers may stop consuming their queues.
CREATE FUNCTION {schema}.drop_idle(p_idle interval) RETURNS bigint
LANGUAGE sql AS $$
    WITH dropped AS (
        UPDATE {schema}.agents a SET wanted = false
        FROM (
            SELECT l.agent_type, l.agent_name FROM {schema}.agents l
            WHERE l.wanted AND l.active_uid IS NULL AND l.used_at < clock_timestamp() - p_idle
                AND (l.due_at > clock_timestamp() + p_idle
                    OR NOT EXISTS (SELECT FROM {schema}.submissions s
                                   WHERE s.agent_type = l.agent_type AND s.agent_name = l.agent_name
                                       AND s.position >= l.head_position AND s.status = 'pending'))
                AND NOT EXISTS (SELECT FROM {schema}.submissions h
                                WHERE h.agent_type = l.agent_type AND h.agent_name = l.agent_name AND h.hook_due)
            ORDER BY l.agent_type, l.agent_name FOR NO KEY UPDATE SKIP LOCKED
        ) idle
        WHERE a.agent_type = idle.agent_type AND a.agent_name = idle.agent_name
        RETURNING 1
    )
    SELECT count(*) FROM dropped;
$$;
