-- Give the lane, which the caller has locked, to its oldest pending row; without one that may run, release the lane.
-- Rows that may not start any more end here: too late, started too often without reaching the conversation, or in want of
-- messages that only a process could supply that is gone. A living process' own row waits for it (`reserved`).
CREATE FUNCTION {schema}.claim_head(
    p_lane {schema}.agents, p_worker uuid, p_claim uuid, p_max_starts integer, p_lease interval
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row   {schema}.submissions;
    v_end   text;
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
        IF v_row.uid IS NULL OR greatest(v_row.not_before, v_row.held_until) > clock_timestamp() THEN
            PERFORM {schema}.release(p_lane, v_row.uid IS NULL, greatest(v_row.not_before, v_row.held_until));
            RETURN jsonb_build_object('outcome', CASE WHEN v_row.uid IS NULL THEN 'idle' ELSE 'early' END,
                                      'ended', v_ended);
        END IF;
        IF v_row.runner <> p_worker AND {schema}.lives(v_row.runner, p_lease) THEN
            PERFORM {schema}.release(p_lane, false, NULL);
            RETURN jsonb_build_object('outcome', 'reserved', 'ended', v_ended);
        END IF;
        v_end := CASE
            WHEN v_row.attempt >= p_max_starts
            THEN format('given up after %s starts, none of which reached the conversation', v_row.attempt)
            WHEN v_row.not_after < clock_timestamp() THEN {schema}.too_late(v_row)
            WHEN v_row.deferred AND v_row.runner <> p_worker AND v_row.messages_applied_at IS NULL
            THEN 'the process that was to supply the messages has ended' END;
        IF v_end IS NULL THEN
            -- A cancel that came with the lane's first row has found no lane to lock, and may end it just now.
            UPDATE {schema}.submissions SET status = 'running', started_at = clock_timestamp(), attempt = attempt + 1
            WHERE uid = v_row.uid AND status = 'pending' RETURNING * INTO v_row;
            EXIT WHEN v_row.uid IS NOT NULL;
        ELSE
            v_row := {schema}.end_row(v_row.uid, 'error', v_end);
            v_ended := v_ended || {schema}.ending(v_row, 'pending');
        END IF;
    END LOOP;
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
    p_type text, p_name text, p_worker uuid, p_claim uuid, p_max_starts integer, p_lease interval, p_rang uuid
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane   {schema}.agents;
    v_answer jsonb := jsonb_build_object('outcome', 'idle');
BEGIN
    -- A bell for a lane that is held waits for nobody: its row was placed under the lane's lock, so whoever holds the lane
    -- now sees it when settling.
    SELECT * INTO v_lane FROM {schema}.agents WHERE agent_type = p_type AND agent_name = p_name;
    IF v_lane.active_uid IS NULL THEN
        v_lane := {schema}.lock_lane(p_type, p_name);
    END IF;
    IF v_lane.active_uid IS NOT NULL THEN
        v_answer := coalesce({schema}.claim_again(v_lane, p_claim),
                             jsonb_build_object('outcome', 'busy', 'worker', v_lane.active_worker));
    ELSIF v_lane.agent_type IS NOT NULL THEN
        v_answer := {schema}.claim_head(v_lane, p_worker, p_claim, p_max_starts, p_lease);
    END IF;
    IF p_rang IS NOT NULL AND v_answer ->> 'outcome' <> 'claimed' THEN
        v_answer := v_answer || jsonb_build_object('rang', (
            SELECT jsonb_build_object('submission_id', submission_id, 'status', status, 'error', error)
            FROM {schema}.submissions WHERE uid = p_rang AND completed_at IS NOT NULL));
    END IF;
    RETURN v_answer || jsonb_build_object('hooks_due', EXISTS (SELECT FROM {schema}.submissions
        WHERE agent_type = p_type AND agent_name = p_name AND hook_due), 'responses_due', EXISTS (
        SELECT FROM {schema}.submissions WHERE agent_type = p_type AND agent_name = p_name AND response_due),
        'armed', v_lane.armed);
END
$$;


-- Append the row's messages to the transcript, once, and give the transcript: what is new since p_after, or all when
-- messages were taken out since p_rewrites. `lost`: another claim holds the lane. `ended`: the row is no longer
-- running. `unreadable`: the stored payload is not a list of messages. `nothing`: a continuation of no answer.
-- `deferred`: the runner shall supply the messages (p_messages) in view of this transcript; nothing is written yet.
CREATE FUNCTION {schema}.apply(
    p_type text, p_name text, p_uid uuid, p_fence bigint, p_after bigint, p_rewrites bigint, p_messages jsonb
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
    v_row  {schema}.submissions;
    v_last bigint;
    v_from bigint := CASE WHEN v_lane.rewrites = p_rewrites THEN p_after ELSE 0 END;
    v_done text := 'applied';
BEGIN
    IF v_lane.fence IS DISTINCT FROM p_fence OR v_lane.active_uid IS DISTINCT FROM p_uid THEN
        RETURN jsonb_build_object('outcome', 'lost');
    END IF;
    SELECT * INTO v_row FROM {schema}.submissions WHERE uid = p_uid;
    IF v_row.status IS DISTINCT FROM 'running' THEN
        RETURN jsonb_build_object('outcome', 'ended');
    END IF;
    IF v_row.kind = 'continue' AND coalesce((SELECT content ->> 'role' <> 'assistant' FROM {schema}.messages
            WHERE agent_type = p_type AND agent_name = p_name ORDER BY seq DESC LIMIT 1), true) THEN
        RETURN jsonb_build_object('outcome', 'nothing');
    END IF;
    IF v_row.deferred AND v_row.messages_applied_at IS NULL AND p_messages IS NOT NULL THEN
        UPDATE {schema}.submissions SET messages = p_messages WHERE uid = p_uid RETURNING * INTO v_row;
    ELSIF v_row.deferred AND v_row.messages_applied_at IS NULL THEN
        v_done := 'deferred';
    END IF;
    IF v_row.messages_applied_at IS NULL AND v_done = 'applied' THEN
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
        IF v_row.body IS NOT NULL AND v_row.kind <> 'continue' THEN
            UPDATE {schema}.agents SET body = v_row.body WHERE agent_type = p_type AND agent_name = p_name;
        END IF;
    END IF;
    RETURN (
        SELECT jsonb_build_object('outcome', v_done, 'new', v_row.messages, 'whole', v_from = 0,
                                  'body', CASE WHEN v_row.kind = 'continue' THEN coalesce(v_row.body, v_lane.body)
                                          ELSE v_row.body END,
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


-- Write the end of a turn and pass the lane on: to the next row when p_next_claim is given, else to nobody. With p_after the
-- next row's messages are applied in the same transaction, which saves a long lane every second one.
-- Only a running row is ended; a row that ended meanwhile keeps its end. Repeating the call changes nothing.
CREATE FUNCTION {schema}.settle(
    p_type text, p_name text, p_uid uuid, p_fence bigint, p_worker uuid, p_status text, p_error text,
    p_message jsonb, p_output jsonb, p_usage jsonb, p_first_chunk interval, p_respond boolean, p_next_claim uuid,
    p_max_starts integer, p_lease interval, p_after bigint, p_rewrites bigint
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
        v_row := {schema}.end_row(p_uid, p_status, p_error, v_id, p_usage, p_first_chunk, p_output);
        IF p_respond THEN
            UPDATE {schema}.submissions SET response_due = true WHERE uid = p_uid RETURNING * INTO v_row;
        END IF;
    ELSE
        -- Cancelled while it ran: what was said so far stays in the conversation, unless the lane was reset.
        IF p_message IS NOT NULL AND v_row.generation = v_lane.generation THEN
            v_id := {schema}.store_message(p_type, p_name, p_uid, p_message);
        END IF;
        UPDATE {schema}.submissions
        SET message_id = coalesce(v_id, message_id), usage = coalesce(p_usage, usage),
            first_chunk_at = coalesce(first_chunk_at, started_at + p_first_chunk),
            response_due = p_respond AND generation = v_lane.generation
        WHERE uid = p_uid RETURNING * INTO v_row;
    END IF;
    IF p_next_claim IS NOT NULL THEN
        v_next := {schema}.claim_head(v_lane, p_worker, p_next_claim, p_max_starts, p_lease);
        IF p_after IS NOT NULL AND v_next ->> 'outcome' = 'claimed' THEN
            v_next := v_next || jsonb_build_object('application', {schema}.apply(p_type, p_name,
                (v_next -> 'submission' ->> 'uid')::uuid, (v_next ->> 'fence')::bigint, p_after, p_rewrites, NULL));
        END IF;
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
        SET status = 'pending', started_at = NULL,
            hook_due = kind IN ('submit', 'schedule') AND {schema}.is_hooked(p_type)
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


-- Append messages at once, without a turn; safe while one runs. With p_upsert a message with a known id is replaced.
CREATE FUNCTION {schema}.add_messages(
    p_type text, p_name text, p_messages jsonb, p_upsert boolean, p_parent text
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_lane  {schema}.agents := {schema}.make_lane(p_type, p_name, p_parent);
    v_last  bigint;
    v_count bigint;
BEGIN
    IF p_upsert THEN
        UPDATE {schema}.messages m SET content = n.value FROM jsonb_array_elements(p_messages) n
        WHERE m.agent_type = p_type AND m.agent_name = p_name AND m.message_id = n.value ->> 'id';
        UPDATE {schema}.agents SET rewrites = rewrites + 1 WHERE agent_type = p_type AND agent_name = p_name;
    END IF;
    SELECT coalesce(max(seq), 0) INTO v_last FROM {schema}.messages WHERE agent_type = p_type AND agent_name = p_name;
    INSERT INTO {schema}.messages (agent_type, agent_name, message_id, seq, content)
    SELECT p_type, p_name, m.value ->> 'id', v_last + m.ordinality, m.value
    FROM jsonb_array_elements(p_messages) WITH ORDINALITY m
    ON CONFLICT (agent_type, agent_name, message_id) DO NOTHING;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$$;
