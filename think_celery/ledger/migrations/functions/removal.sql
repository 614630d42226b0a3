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
-- new generation makes late messages of the old one count for nothing. Response hooks that are due are not called any
-- more. With p_messages the conversation goes as well.
CREATE FUNCTION {schema}.reset(p_type text, p_name text, p_note text, p_messages boolean) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane  {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row   {schema}.submissions;
    v_ended jsonb := '[]';
BEGIN
    UPDATE {schema}.agents
    SET generation = generation + 1, rewrites = rewrites + 1, due_at = NULL,
        body = CASE WHEN NOT p_messages THEN body END
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
    UPDATE {schema}.submissions SET response_due = false
    WHERE agent_type = p_type AND agent_name = p_name AND response_due;
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
-- writes nothing more, and whoever uses the name again waits for it. Schedules go first: whoever fires one locks it
-- before the lane.
CREATE FUNCTION {schema}.delete_agent(p_type text, p_name text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane  {schema}.agents;
    v_rows  jsonb;
    v_count bigint;
BEGIN
    PERFORM {schema}.lock_schedules(p_type, p_name);
    DELETE FROM {schema}.schedules WHERE agent_type = p_type AND agent_name = p_name;
    DELETE FROM {schema}.occurrences WHERE agent_type = p_type AND agent_name = p_name;
    v_lane := {schema}.lock_lane(p_type, p_name);
    SELECT coalesce(jsonb_agg({schema}.seen(s)), '[]') INTO v_rows FROM {schema}.submissions s
    WHERE agent_type = p_type AND agent_name = p_name AND status IN ('pending', 'running');
    DELETE FROM {schema}.webhooks w USING {schema}.submissions s
    WHERE w.submission_uid = s.uid AND s.agent_type = p_type AND s.agent_name = p_name;
    DELETE FROM {schema}.submissions WHERE agent_type = p_type AND agent_name = p_name;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM {schema}.messages WHERE agent_type = p_type AND agent_name = p_name;
    UPDATE {schema}.agents
    SET parent = NULL, last_position = 0, head_position = 1, generation = generation + 1, rewrites = rewrites + 1,
        hook_holder = NULL, hook_until = NULL, responder = NULL, paused = false, due_at = NULL, body = NULL,
        armed = NULL, armed_by = 0, degraded = NULL
    WHERE agent_type = p_type AND agent_name = p_name AND active_uid IS NOT NULL;
    DELETE FROM {schema}.agents WHERE agent_type = p_type AND agent_name = p_name AND active_uid IS NULL;
    -- Rows that a caller's transaction has committed may have no lane yet.
    RETURN jsonb_build_object('existed', v_lane.agent_type IS NOT NULL OR v_count > 0, 'active', v_rows);
END
$$;
