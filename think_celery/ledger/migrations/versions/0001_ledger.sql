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
    active_uid    uuid,                                     -- the row that holds the lane
    active_worker uuid,                                     -- the process that runs it
    claim_id      uuid,                                     -- names the claim, so that a repeated call is recognised
    waits_for     text COLLATE "C",                         -- address of the agent that the active turn waits for
    hook_holder   uuid,                                     -- process that works off the hooks of finished turns
    wanted        boolean NOT NULL DEFAULT true,            -- workers consume this agent's queue
    rings         integer NOT NULL DEFAULT 0,               -- bells of the sweeper since the last claim
    nudged_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    used_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (agent_type, agent_name),
    CHECK ((active_uid IS NULL) = (active_worker IS NULL))
) WITH (fillfactor = 60);

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

-- What callers may see of a row, plus the uid that stream and waiters use.
CREATE FUNCTION {schema}.seen(p_row {schema}.submissions) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT to_jsonb(p_row) - '{messages,body_hash}'::text[];
$$;


-- Accept (architecture: one lane, one row, one commit). A known identity gives the existing row (`accepted` false,
-- nothing compared, nothing changed but its bell), unless id and key disagree. A repeated call after a lost reply
-- recognises its own row by the uid. Without messages the step only looks the identity up.
CREATE FUNCTION {schema}.accept(
    p_type text, p_name text, p_submission_id text, p_id_given boolean, p_uid uuid, p_key text, p_kind text,
    p_messages jsonb, p_hash bytea, p_metadata jsonb, p_traceparent text, p_announce interval
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane     {schema}.agents;
    v_row      {schema}.submissions;
    v_by_key   {schema}.submissions;
    v_announce boolean;
    v_now      timestamptz;
BEGIN
    v_lane := {schema}.lock_lane(p_type, p_name);
    IF v_lane.agent_type IS NULL AND p_messages IS NOT NULL THEN
        INSERT INTO {schema}.agents (agent_type, agent_name, wanted) VALUES (p_type, p_name, false)
        ON CONFLICT DO NOTHING;
        v_lane := {schema}.lock_lane(p_type, p_name);
    END IF;
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
    IF v_row.uid IS NOT NULL THEN
        IF v_row.status = 'pending' THEN
            UPDATE {schema}.submissions SET nudges = nudges + 1 WHERE uid = v_row.uid RETURNING * INTO v_row;
        END IF;
        RETURN jsonb_build_object('outcome', CASE WHEN v_row.uid = p_uid THEN 'accepted' ELSE 'known' END,
                                  'announce', true, 'submission', {schema}.seen(v_row));
    END IF;
    IF p_messages IS NULL THEN
        RETURN jsonb_build_object('outcome', 'unknown');
    END IF;
    v_now := greatest(clock_timestamp(), v_lane.used_at);
    v_announce := NOT v_lane.wanted OR v_lane.used_at < v_now - p_announce;
    UPDATE {schema}.agents
    SET last_position = last_position + 1, wanted = true, used_at = v_now, nudged_at = v_now
    WHERE agent_type = p_type AND agent_name = p_name;
    INSERT INTO {schema}.submissions (agent_type, agent_name, submission_id, uid, idempotency_key, request_id, kind,
        position, generation, messages, body_hash, metadata, root_id, traceparent, created_at)
    VALUES (p_type, p_name, p_submission_id, p_uid, p_key, p_submission_id, p_kind,
        v_lane.last_position + 1, v_lane.generation, p_messages, p_hash, p_metadata, p_uid, p_traceparent, v_now)
    RETURNING * INTO v_row;
    RETURN jsonb_build_object('outcome', 'accepted', 'announce', v_announce, 'submission', {schema}.seen(v_row));
END
$$;


-- Give the lane, which the caller has locked, to its oldest pending row; without one, release the lane.
-- A row that was started too often without ever reaching the conversation ends in `error` here.
CREATE FUNCTION {schema}.claim_head(p_lane {schema}.agents, p_worker uuid, p_claim uuid, p_max_starts integer)
RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row {schema}.submissions;
BEGIN
    LOOP
        SELECT * INTO v_row FROM {schema}.submissions
        WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name
            AND position >= p_lane.head_position AND status = 'pending'
        ORDER BY position LIMIT 1;
        IF v_row.uid IS NULL THEN
            UPDATE {schema}.agents
            SET active_uid = NULL, active_worker = NULL, claim_id = NULL, head_position = last_position + 1,
                used_at = greatest(used_at, clock_timestamp())
            WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name;
            RETURN jsonb_build_object('outcome', 'idle');
        END IF;
        EXIT WHEN v_row.attempt < p_max_starts;
        UPDATE {schema}.submissions
        SET status = 'error', completed_at = clock_timestamp(),
            error = format('given up after %s starts, none of which reached the conversation', attempt)
        WHERE uid = v_row.uid;
    END LOOP;
    UPDATE {schema}.submissions SET status = 'running', started_at = clock_timestamp(), attempt = attempt + 1
    WHERE uid = v_row.uid RETURNING * INTO v_row;
    UPDATE {schema}.agents
    SET fence = fence + 1, active_uid = v_row.uid, active_worker = p_worker, claim_id = p_claim,
        head_position = v_row.position, rings = 0, used_at = greatest(used_at, clock_timestamp())
    WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name;
    RETURN jsonb_build_object('outcome', 'claimed', 'fence', p_lane.fence + 1, 'claim', p_claim,
                              'submission', {schema}.seen(v_row));
END
$$;


-- The claim that a repeated call made before its reply was lost, NULL when there is none.
CREATE FUNCTION {schema}.claim_again(p_lane {schema}.agents, p_claim uuid) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('outcome', 'claimed', 'fence', p_lane.fence, 'claim', p_claim,
                              'submission', {schema}.seen(s))
    FROM {schema}.submissions s WHERE s.uid = p_lane.active_uid AND p_lane.claim_id = p_claim;
$$;


CREATE FUNCTION {schema}.claim(p_type text, p_name text, p_worker uuid, p_claim uuid, p_max_starts integer)
RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
BEGIN
    IF v_lane.agent_type IS NULL THEN
        RETURN jsonb_build_object('outcome', 'idle');
    END IF;
    IF v_lane.active_uid IS NOT NULL THEN
        RETURN coalesce({schema}.claim_again(v_lane, p_claim),
                        jsonb_build_object('outcome', 'busy', 'worker', v_lane.active_worker));
    END IF;
    RETURN {schema}.claim_head(v_lane, p_worker, p_claim, p_max_starts);
END
$$;


-- Append the row's messages to the transcript, once, and give the transcript. `lost`: another claim holds the lane.
-- `ended`: the row is no longer running. `unreadable`: the stored payload is not a list of messages.
CREATE FUNCTION {schema}.apply(p_type text, p_name text, p_uid uuid, p_fence bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row  {schema}.submissions;
    v_last bigint;
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
    RETURN jsonb_build_object('outcome', 'applied', 'new', v_row.messages, 'transcript',
        (SELECT jsonb_agg(content ORDER BY seq) FROM {schema}.messages
         WHERE agent_type = p_type AND agent_name = p_name));
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
        UPDATE {schema}.submissions
        SET status = p_status, completed_at = clock_timestamp(), error = p_error, usage = p_usage,
            message_id = coalesce(v_id, message_id), first_chunk_at = started_at + p_first_chunk
        WHERE uid = p_uid RETURNING * INTO v_row;
    END IF;
    IF p_next_claim IS NOT NULL THEN
        v_next := {schema}.claim_head(v_lane, p_worker, p_next_claim, p_max_starts);
    ELSE
        UPDATE {schema}.agents
        SET active_uid = NULL, active_worker = NULL, claim_id = NULL, nudged_at = clock_timestamp(),
            used_at = greatest(used_at, clock_timestamp())
        WHERE agent_type = p_type AND agent_name = p_name;
        v_more := EXISTS (SELECT FROM {schema}.submissions WHERE agent_type = p_type AND agent_name = p_name
                          AND position >= v_lane.head_position AND status = 'pending');
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
        UPDATE {schema}.submissions SET status = 'pending', started_at = NULL WHERE uid = v_row.uid
        RETURNING * INTO v_row;
    ELSIF v_row.status = 'running' THEN
        UPDATE {schema}.submissions SET status = 'error', completed_at = clock_timestamp(), error = p_error
        WHERE uid = v_row.uid RETURNING * INTO v_row;
    END IF;
    UPDATE {schema}.agents
    SET active_uid = NULL, active_worker = NULL, claim_id = NULL, fence = fence + 1,
        nudged_at = clock_timestamp(), rings = 0
    WHERE agent_type = p_type AND agent_name = p_name;
    RETURN jsonb_build_object('outcome', 'rescued', 'submission', {schema}.seen(v_row));
END
$$;


-- Bells to ring again: idle lanes with a pending row whose last bell is older than p_after, doubled per repeat.
CREATE FUNCTION {schema}.due_bells(p_after interval, p_limit integer)
RETURNS TABLE (agent_type text, agent_name text)
LANGUAGE sql AS $$
    UPDATE {schema}.agents a SET nudged_at = clock_timestamp(), rings = least(a.rings + 1, 20)
    FROM (
        SELECT l.agent_type, l.agent_name FROM {schema}.agents l
        WHERE l.wanted AND l.active_uid IS NULL AND l.head_position <= l.last_position
            AND l.nudged_at < clock_timestamp() - least(p_after * power(2, l.rings), interval '5 minutes')
            AND EXISTS (SELECT FROM {schema}.submissions s
                        WHERE s.agent_type = l.agent_type AND s.agent_name = l.agent_name
                            AND s.position >= l.head_position AND s.status = 'pending')
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
            WHERE l.wanted AND l.active_uid IS NULL AND l.head_position > l.last_position
                AND l.used_at < clock_timestamp() - p_idle
            ORDER BY l.agent_type, l.agent_name FOR NO KEY UPDATE SKIP LOCKED
        ) idle
        WHERE a.agent_type = idle.agent_type AND a.agent_name = idle.agent_name
        RETURNING 1
    )
    SELECT count(*) FROM dropped;
$$;
