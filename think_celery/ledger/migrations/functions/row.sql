-- What callers may see of a row, plus what the engine needs: where its end is reported to stays here.
CREATE FUNCTION {schema}.seen(p_row {schema}.submissions) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT to_jsonb(p_row) - '{messages,body_hash,body,webhook_url}'::text[]
        || jsonb_build_object('has_webhook', p_row.webhook_url IS NOT NULL);
$$;


-- An ended row with what it was before.
CREATE FUNCTION {schema}.ending(p_row {schema}.submissions, p_was text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('submission', {schema}.seen(p_row), 'was', p_was);
$$;


CREATE FUNCTION {schema}.is_hooked(p_type text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.classes WHERE agent_type = p_type AND hooked);
$$;


-- End a row that is pending or running: the only way out, whoever ends it. Tells the outbox in the same transaction.
-- NULL when the row had ended before.
CREATE FUNCTION {schema}.end_row(
    p_uid uuid, p_status text, p_error text, p_message_id text DEFAULT NULL, p_usage jsonb DEFAULT NULL,
    p_first_chunk interval DEFAULT NULL, p_output jsonb DEFAULT NULL
) RETURNS {schema}.submissions
LANGUAGE plpgsql AS $$
DECLARE
    v_row {schema}.submissions;
BEGIN
    UPDATE {schema}.submissions s
    SET status = p_status, completed_at = clock_timestamp(), error = p_error, usage = coalesce(p_usage, s.usage),
        message_id = coalesce(p_message_id, s.message_id), output = p_output, first_chunk_at = s.started_at + p_first_chunk,
        hook_due = kind IN ('submit', 'schedule') AND {schema}.is_hooked(s.agent_type)
    WHERE uid = p_uid AND status IN ('pending', 'running') RETURNING * INTO v_row;
    IF v_row.webhook_url IS NOT NULL THEN
        INSERT INTO {schema}.webhooks (submission_uid, url, payload)
        VALUES (v_row.uid, v_row.webhook_url, {schema}.seen(v_row));
    END IF;
    RETURN v_row;
END
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


-- Take the right to call the response hooks of an agent's ended rows, in their order; gives the first such row and its
-- message. The right is a living process' until it finds nothing due: a hook may run for as long as its turns do.
CREATE FUNCTION {schema}.take_response(
    p_type text, p_name text, p_holder uuid, p_lease interval, p_done uuid
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row  {schema}.submissions;
BEGIN
    IF p_done IS NOT NULL THEN
        UPDATE {schema}.submissions SET response_due = false WHERE uid = p_done AND response_due;
    END IF;
    IF v_lane.responder <> p_holder AND {schema}.lives(v_lane.responder, p_lease) THEN
        RETURN jsonb_build_object('outcome', 'busy');
    END IF;
    SELECT * INTO v_row FROM {schema}.submissions
    WHERE agent_type = p_type AND agent_name = p_name AND response_due ORDER BY position LIMIT 1;
    UPDATE {schema}.agents SET responder = CASE WHEN v_row.uid IS NOT NULL THEN p_holder END
    WHERE agent_type = p_type AND agent_name = p_name;
    RETURN jsonb_build_object('outcome', CASE WHEN v_row.uid IS NULL THEN 'none' ELSE 'due' END,
        'submission', {schema}.seen(v_row),
        'message', (SELECT content FROM {schema}.messages
                    WHERE agent_type = p_type AND agent_name = p_name AND message_id = v_row.message_id));
END
$$;
