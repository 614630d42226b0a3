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
    -- Most calls name nothing; such a call can only have been here before, and that the uid shows for less.
    IF NOT p_id_given AND p_key IS NULL AND NOT EXISTS (SELECT FROM {schema}.submissions WHERE uid = p_uid) THEN
        RETURN NULL;
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
-- `deleted`: the turn that asks is gone.
-- Of a new row only what the caller cannot know is returned: to build the JSON of all takes as long as to write it.
CREATE FUNCTION {schema}.accept(
    p_type text, p_name text, p_submission_id text, p_id_given boolean, p_uid uuid, p_key text, p_kind text,
    p_messages jsonb, p_hash bytea, p_metadata jsonb, p_traceparent text, p_announce interval,
    p_if_busy text, p_max_pending integer, p_not_before timestamptz, p_not_after timestamptz, p_run_timeout float8,
    p_webhook_url text, p_rerun_of text, p_tell boolean, p_body jsonb,
    p_parent text, p_parent_id uuid, p_root_id uuid, p_runner uuid, p_deferred boolean, p_hold interval DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane     {schema}.agents;
    v_known    jsonb;
    v_ended    jsonb := '[]';
    v_announce boolean;
    v_hook_due boolean;
    v_now      timestamptz;
    v_patience text;
BEGIN
    IF p_id_given OR p_key IS NOT NULL THEN
        v_patience := current_setting('lock_timeout');
        PERFORM set_config('lock_timeout', '100ms', true);
        PERFORM {schema}.lock_identity(p_type, p_name, CASE WHEN p_id_given THEN p_submission_id END, p_key);
        PERFORM set_config('lock_timeout', v_patience, true);
    END IF;
    IF p_parent_id IS NOT NULL THEN
        -- The turn that asks, of another lane, is deleted after this row, whose agent may have to go as well, or before.
        PERFORM FROM {schema}.submissions WHERE uid = p_parent_id FOR KEY SHARE;
        IF NOT FOUND THEN
            RETURN jsonb_build_object('outcome', 'deleted');
        END IF;
    END IF;
    IF p_messages IS NULL THEN
        v_lane := {schema}.lock_lane(p_type, p_name);
    ELSE
        v_lane := {schema}.make_lane(p_type, p_name, p_parent);
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
        position, generation, messages, body_hash, metadata, traceparent, created_at,
        not_before, not_after, run_timeout, webhook_url, rerun_of, hook_due,
        body, parent_id, root_id, runner, deferred, held_until)
    VALUES (p_type, p_name, p_submission_id, p_uid, p_key, p_submission_id, p_kind,
        v_lane.last_position + 1, v_lane.generation, p_messages, p_hash, p_metadata, p_traceparent, v_now,
        p_not_before, p_not_after, p_run_timeout, p_webhook_url, p_rerun_of, p_tell AND {schema}.is_hooked(p_type),
        p_body, p_parent_id, coalesce(p_root_id, p_uid), p_runner, p_deferred, v_now + p_hold)
    RETURNING hook_due INTO v_hook_due;
    RETURN jsonb_build_object('outcome', 'accepted', 'announce', v_announce, 'position', v_lane.last_position + 1,
                              'generation', v_lane.generation, 'hook_due', v_hook_due, 'created_at', v_now,
                              'ended', v_ended);
END
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


-- Write a row inside a caller's own transaction: without a place and without touching the lane, so that an open
-- transaction disturbs nobody. `place` gives it both after the commit.
CREATE FUNCTION {schema}.reserve(
    p_type text, p_name text, p_submission_id text, p_id_given boolean, p_uid uuid, p_key text, p_kind text,
    p_messages jsonb, p_hash bytea, p_metadata jsonb, p_traceparent text,
    p_not_before timestamptz, p_not_after timestamptz, p_run_timeout float8, p_webhook_url text, p_rerun_of text,
    p_tell boolean, p_body jsonb
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
        not_before, not_after, run_timeout, webhook_url, rerun_of, hook_due, body)
    VALUES (p_type, p_name, p_submission_id, p_uid, p_key, p_submission_id, p_kind,
        p_messages, p_hash, p_metadata, p_uid, p_traceparent, clock_timestamp(),
        p_not_before, p_not_after, p_run_timeout, p_webhook_url, p_rerun_of, p_tell AND {schema}.is_hooked(p_type),
        p_body)
    RETURNING * INTO v_row;
    RETURN jsonb_build_object('outcome', 'accepted', 'announce', true, 'submission', {schema}.seen(v_row));
END
$$;


-- Give a reserved row its place, once its transaction has committed. NULL: not visible, placed already, or ended.
-- With p_tell the caller does not call the status hook itself; a worker shall.
CREATE FUNCTION {schema}.place(
    p_type text, p_name text, p_parent text, p_uid uuid, p_tell boolean, p_hold interval
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents;
    v_row  {schema}.submissions;
    v_now  timestamptz;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.submissions WHERE uid = p_uid AND position IS NULL) THEN
        RETURN NULL;
    END IF;
    v_lane := {schema}.make_lane(p_type, p_name, p_parent);
    v_now := greatest(clock_timestamp(), v_lane.used_at);
    UPDATE {schema}.submissions
    SET position = v_lane.last_position + 1, generation = v_lane.generation, held_until = v_now + p_hold,
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
