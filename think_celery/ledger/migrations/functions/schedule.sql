-- Close the occurrences of a locked task whose submission has ended, and count what is open still.
CREATE FUNCTION {schema}.count_open(p_type text, p_name text, p_task text) RETURNS bigint
LANGUAGE sql AS $$
    UPDATE {schema}.occurrences o SET state = 'done', finished_at = clock_timestamp()
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND state = 'submitted'
        AND NOT EXISTS (SELECT FROM {schema}.submissions s WHERE s.uid = o.submission_uid AND s.completed_at IS NULL);
    SELECT count(*) FROM {schema}.occurrences
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND state IN ('due', 'running', 'submitted');
$$;


-- Accept the submission of an occurrence. A key that is known gives the row that has it.
CREATE FUNCTION {schema}.accept_occurrence(p_type text, p_name text, p_request jsonb) RETURNS jsonb
LANGUAGE sql AS $$
    SELECT {schema}.accept(
        p_type => p_type, p_name => p_name, p_submission_id => p_request ->> 'submission_id', p_id_given => false,
        p_uid => (p_request ->> 'uid')::uuid, p_key => p_request ->> 'key', p_kind => 'schedule',
        p_messages => p_request -> 'messages', p_hash => decode(p_request ->> 'hash', 'hex'),
        p_metadata => p_request -> 'metadata', p_traceparent => NULL,
        p_announce => (p_request ->> 'announce')::interval, p_if_busy => 'enqueue',
        p_max_pending => (p_request ->> 'max_pending')::integer, p_not_before => NULL, p_not_after => NULL,
        p_run_timeout => NULL, p_webhook_url => p_request ->> 'webhook_url', p_rerun_of => NULL, p_tell => true,
        p_body => NULL, p_parent => NULL, p_parent_id => NULL, p_root_id => NULL, p_runner => NULL,
        p_deferred => false);
$$;


-- Give one due instant its occurrence and move the schedule on, in one commit; with p_request its submission as well.
-- `taken`: somebody else has it, or it is gone. `moved`: it is no longer as the caller saw it (p_slot, p_generation).
-- `held`: p_most earlier occurrences are open, or too many submissions wait; looked at again after p_pause.
CREATE FUNCTION {schema}.fire(
    p_type text, p_name text, p_task text, p_slot timestamptz, p_generation bigint, p_overlap text, p_most integer,
    p_pause interval, p_scheduled_for timestamptz, p_state text, p_late_ms bigint, p_missed_count integer,
    p_latest_missed timestamptz, p_next timestamptz, p_ring interval, p_request jsonb
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row    {schema}.schedules;
    v_state  text := p_state;
    v_new    boolean;
    v_answer jsonb;
BEGIN
    SELECT * INTO v_row FROM {schema}.schedules
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task FOR NO KEY UPDATE SKIP LOCKED;
    IF v_row.task_id IS NULL THEN
        RETURN '{"outcome": "taken"}';
    END IF;
    IF v_row.next_run_at <> p_slot OR v_row.generation <> p_generation OR v_row.paused OR v_row.invalid IS NOT NULL THEN
        RETURN '{"outcome": "moved"}';
    END IF;
    IF v_state = 'due' AND {schema}.count_open(p_type, p_name, p_task) >= p_most THEN
        IF p_overlap <> 'skip' THEN
            UPDATE {schema}.schedules SET due_at = clock_timestamp() + p_pause
            WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task;
            RETURN '{"outcome": "held"}';
        END IF;
        v_state := 'skipped';
    END IF;
    INSERT INTO {schema}.occurrences (agent_type, agent_name, task_id, scheduled_for, generation, overlap, state,
        due_at, late_ms, missed_count, latest_missed_for, finished_at)
    VALUES (p_type, p_name, p_task, p_scheduled_for, p_generation, p_overlap, v_state,
        CASE WHEN v_state = 'due' THEN clock_timestamp() + p_ring END, p_late_ms, p_missed_count, p_latest_missed,
        CASE WHEN v_state <> 'due' THEN clock_timestamp() END)
    ON CONFLICT (agent_type, agent_name, task_id, scheduled_for) DO NOTHING;
    v_new := FOUND;
    IF v_new AND v_state = 'due' AND p_request IS NOT NULL THEN
        v_answer := {schema}.accept_occurrence(p_type, p_name, p_request);
        IF v_answer ->> 'outcome' = 'full' THEN
            DELETE FROM {schema}.occurrences WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task
                AND scheduled_for = p_scheduled_for;
            UPDATE {schema}.schedules SET due_at = clock_timestamp() + p_pause
            WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task;
            RETURN '{"outcome": "held"}';
        END IF;
        PERFORM {schema}.mark_submitted(p_type, p_name, p_task, p_scheduled_for, p_request, v_answer);
        v_state := 'submitted';
    END IF;
    UPDATE {schema}.schedules SET next_run_at = p_next, due_at = p_next
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task;
    RETURN jsonb_build_object('outcome', CASE WHEN v_new THEN v_state ELSE 'known' END, 'accepted', v_answer);
END
$$;


CREATE FUNCTION {schema}.mark_submitted(
    p_type text, p_name text, p_task text, p_scheduled_for timestamptz, p_request jsonb, p_answer jsonb
) RETURNS void
LANGUAGE sql AS $$
    UPDATE {schema}.occurrences
    SET state = 'submitted', lease_token = NULL, due_at = NULL, error = NULL,
        started_at = coalesce(started_at, clock_timestamp()),
        submission_id = coalesce(p_answer -> 'submission' ->> 'submission_id', p_request ->> 'submission_id'),
        submission_uid = coalesce(p_answer -> 'submission' ->> 'uid', p_request ->> 'uid')::uuid
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND scheduled_for = p_scheduled_for;
$$;


-- Ask for an extra occurrence now, beside the timetable. `not_found`: no such task that could run. `open`: a handler
-- runs once at a time, and an occurrence of it is open.
CREATE FUNCTION {schema}.run_now(p_type text, p_name text, p_task text, p_manual uuid, p_ring interval) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row   {schema}.schedules;
    v_known {schema}.occurrences;
BEGIN
    SELECT * INTO v_row FROM {schema}.schedules
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task FOR NO KEY UPDATE;
    IF v_row.task_id IS NULL OR v_row.next_run_at IS NULL OR v_row.invalid IS NOT NULL THEN
        RETURN '{"outcome": "not_found"}';
    END IF;
    SELECT * INTO v_known FROM {schema}.occurrences
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND manual_id = p_manual;
    IF v_known.task_id IS NULL THEN
        IF {schema}.count_open(p_type, p_name, p_task) > 0 AND v_row.action = 'handler' THEN
            RETURN '{"outcome": "open"}';
        END IF;
        INSERT INTO {schema}.occurrences (agent_type, agent_name, task_id, scheduled_for, manual_id, generation,
            overlap, state, due_at)
        VALUES (p_type, p_name, p_task, clock_timestamp(), p_manual, v_row.generation,
            CASE WHEN v_row.action = 'handler' THEN 'hold' ELSE 'queue' END, 'due', clock_timestamp() + p_ring)
        RETURNING * INTO v_known;
    END IF;
    RETURN jsonb_build_object('outcome', 'due', 'occurrence', to_jsonb(v_known));
END
$$;


-- Take an occurrence that is due. NULL when there is nothing to take. `superseded`: its schedule has changed or gone.
CREATE FUNCTION {schema}.take_occurrence(
    p_type text, p_name text, p_task text, p_scheduled_for timestamptz, p_token uuid, p_lease interval
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row  {schema}.occurrences;
    v_live boolean;
BEGIN
    SELECT * INTO v_row FROM {schema}.occurrences
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND scheduled_for = p_scheduled_for
        AND (state = 'due' OR state = 'running' AND lease_token = p_token) FOR UPDATE;
    IF v_row.task_id IS NULL THEN
        RETURN NULL;
    END IF;
    v_live := EXISTS (SELECT FROM {schema}.schedules WHERE agent_type = p_type AND agent_name = p_name
                      AND task_id = p_task AND generation = v_row.generation);
    UPDATE {schema}.occurrences
    SET state = CASE WHEN v_live THEN 'running' ELSE 'superseded' END,
        lease_token = CASE WHEN v_live THEN p_token END,
        due_at = CASE WHEN v_live THEN clock_timestamp() + p_lease END,
        attempts = attempts + (v_live AND lease_token IS NULL)::integer,
        started_at = coalesce(started_at, clock_timestamp()),
        finished_at = CASE WHEN NOT v_live THEN clock_timestamp() END,
        error = CASE WHEN NOT v_live THEN 'its schedule has changed or gone since' END
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND scheduled_for = p_scheduled_for
    RETURNING * INTO v_row;
    RETURN to_jsonb(v_row);
END
$$;


-- Change a running occurrence, by who holds its lease only; false when that is somebody else or nobody.
-- Still `running` renews the lease; `due` gives it back, to be taken again after p_for.
CREATE FUNCTION {schema}.keep_occurrence(
    p_type text, p_name text, p_task text, p_scheduled_for timestamptz, p_token uuid, p_state text, p_error text,
    p_for interval
) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.occurrences
    SET state = p_state, error = p_error, due_at = clock_timestamp() + p_for,
        lease_token = CASE WHEN p_state = 'running' THEN lease_token END,
        finished_at = CASE WHEN p_state NOT IN ('due', 'running') THEN clock_timestamp() END
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND scheduled_for = p_scheduled_for
        AND state = 'running' AND lease_token = p_token;
    RETURN FOUND;
END
$$;


-- Accept the submission of a running occurrence, if the caller has its lease still; else `lost`.
CREATE FUNCTION {schema}.submit_occurrence(
    p_type text, p_name text, p_task text, p_scheduled_for timestamptz, p_token uuid, p_request jsonb
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_answer jsonb;
BEGIN
    PERFORM FROM {schema}.occurrences
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND scheduled_for = p_scheduled_for
        AND state = 'running' AND lease_token = p_token FOR UPDATE;
    IF NOT FOUND THEN
        RETURN '{"outcome": "lost"}';
    END IF;
    v_answer := {schema}.accept_occurrence(p_type, p_name, p_request);
    IF v_answer ->> 'outcome' <> 'full' THEN
        PERFORM {schema}.mark_submitted(p_type, p_name, p_task, p_scheduled_for, p_request, v_answer);
    END IF;
    RETURN v_answer;
END
$$;


-- Occurrences to ring for, later and later: those whose bell was lost, and those whose lease ran out. These have a
-- strike, and are due again; with the last strike they end.
CREATE FUNCTION {schema}.due_occurrences(p_types text[], p_ring interval, p_strikes integer, p_limit integer)
RETURNS TABLE (agent_type text, agent_name text, task_id text, scheduled_for timestamptz, given_up boolean)
LANGUAGE sql AS $$
    UPDATE {schema}.occurrences o
    SET state = CASE WHEN due.given_up THEN 'error' ELSE 'due' END, lease_token = NULL,
        strikes = o.strikes + due.lost::integer, rings = least(o.rings + 1, 20),
        due_at = clock_timestamp() + least(p_ring * power(2, o.rings), interval '5 minutes'),
        finished_at = CASE WHEN due.given_up THEN clock_timestamp() END,
        error = CASE WHEN due.given_up THEN format('given up: the process that ran it was lost %s times', p_strikes)
                     ELSE o.error END
    FROM (
        SELECT d.agent_type, d.agent_name, d.task_id, d.scheduled_for, d.state = 'running' AS lost,
            d.state = 'running' AND d.strikes + 1 >= p_strikes AS given_up
        FROM {schema}.occurrences d
        WHERE d.agent_type = ANY (p_types) AND d.state IN ('due', 'running') AND d.due_at <= now()
        ORDER BY d.due_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
    ) due
    WHERE o.agent_type = due.agent_type AND o.agent_name = due.agent_name AND o.task_id = due.task_id
        AND o.scheduled_for = due.scheduled_for
    RETURNING o.agent_type, o.agent_name, o.task_id, o.scheduled_for, due.given_up;
$$;


-- One agent at a time has its schedules changed by declarations, or deleted.
CREATE FUNCTION {schema}.lock_schedules(p_type text, p_name text) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(E'\x1f', p_type, p_name, 'schedules'), 7479));
$$;


-- What was due by an older declaration and has not begun will not.
CREATE FUNCTION {schema}.supersede(p_type text, p_name text, p_task text) RETURNS void
LANGUAGE sql AS $$
    UPDATE {schema}.occurrences
    SET state = 'superseded', finished_at = clock_timestamp(), due_at = NULL,
        error = 'its schedule has changed or gone since'
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task AND state = 'due';
$$;


-- Write what a reconcile decided for agents of one class: [{name, armed, degraded, changes: [{change, task_id,
-- generation, row}]}]. Nothing of an agent that a later build has reconciled (`newer`); nor once one of its changes finds
-- its row otherwise than the caller saw it (`raced`), except for what was changed before.
CREATE FUNCTION {schema}.arm(p_type text, p_build bigint, p_agents jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_agent  jsonb;
    v_change jsonb;
    v_name   text;
    v_newer  jsonb := '[]';
    v_raced  jsonb := '[]';
BEGIN
    FOR v_agent IN SELECT value FROM jsonb_array_elements(p_agents) ORDER BY value ->> 'name' COLLATE "C" LOOP
        v_name := v_agent ->> 'name';
        PERFORM {schema}.lock_schedules(p_type, v_name);
        IF EXISTS (SELECT FROM {schema}.agents WHERE agent_type = p_type AND agent_name = v_name AND armed_by > p_build) THEN
            v_newer := v_newer || to_jsonb(v_name);
            CONTINUE;
        END IF;
        FOR v_change IN SELECT value FROM jsonb_array_elements(v_agent -> 'changes') ORDER BY value ->> 'task_id' LOOP
            IF NOT {schema}.change_schedule(p_type, v_name, v_change) THEN
                v_raced := v_raced || to_jsonb(v_name);
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
    -- Lanes come last, and in order.
    FOR v_agent IN SELECT value FROM jsonb_array_elements(p_agents) ORDER BY value ->> 'name' COLLATE "C" LOOP
        CONTINUE WHEN v_newer || v_raced ? (v_agent ->> 'name');
        INSERT INTO {schema}.agents (agent_type, agent_name, wanted, armed, armed_by, degraded)
        VALUES (p_type, v_agent ->> 'name', false, v_agent ->> 'armed', p_build, v_agent ->> 'degraded')
        ON CONFLICT (agent_type, agent_name) DO UPDATE
            SET armed = coalesce(excluded.armed, agents.armed), armed_by = p_build, degraded = excluded.degraded;
    END LOOP;
    RETURN jsonb_build_object('newer', v_newer, 'raced', v_raced);
END
$$;


-- `put` writes a declaration: with next_run_at it is due then, and if `fresh` all begins anew. `drop` removes one. `bad`
-- keeps the last good one and fires no more. False when the row's generation (NULL: none) is not what the caller saw.
CREATE FUNCTION {schema}.change_schedule(p_type text, p_name text, p_change jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_task  text := p_change ->> 'task_id';
    v_seen  bigint := p_change ->> 'generation';
    v_new   jsonb := p_change -> 'row';
    v_fresh boolean := (p_change ->> 'fresh')::boolean AND v_seen IS NOT NULL;
    v_next  timestamptz := p_change ->> 'next_run_at';
    v_row   {schema}.schedules;
BEGIN
    SELECT * INTO v_row FROM {schema}.schedules
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = v_task FOR NO KEY UPDATE;
    IF v_row.generation IS DISTINCT FROM v_seen THEN
        RETURN false;
    END IF;
    IF p_change ->> 'change' = 'drop' THEN
        DELETE FROM {schema}.schedules WHERE agent_type = p_type AND agent_name = p_name AND task_id = v_task;
        PERFORM {schema}.supersede(p_type, p_name, v_task);
        RETURN true;
    END IF;
    IF v_row.task_id IS NULL THEN
        INSERT INTO {schema}.schedules (agent_type, agent_name, task_id, invalid, next_run_at, due_at)
        VALUES (p_type, p_name, v_task, p_change ->> 'reason', v_next, v_next);
    END IF;
    IF p_change ->> 'change' = 'bad' THEN
        UPDATE {schema}.schedules SET invalid = p_change ->> 'reason', updated_at = clock_timestamp()
        WHERE agent_type = p_type AND agent_name = p_name AND task_id = v_task;
        RETURN true;
    END IF;
    UPDATE {schema}.schedules
    SET kind = v_new ->> 'kind', schedule = v_new ->> 'schedule', timezone = v_new ->> 'timezone',
        action = v_new ->> 'action', overlap = v_new ->> 'overlap', missed = v_new ->> 'missed',
        grace_seconds = (v_new ->> 'grace_seconds')::float8, schedule_hash = v_new ->> 'schedule_hash',
        task_hash = v_new ->> 'task_hash', tzdata_version = v_new ->> 'tzdata_version',
        invalid = NULL, updated_at = clock_timestamp(), generation = generation + v_fresh::integer,
        next_run_at = coalesce(v_next, next_run_at), due_at = coalesce(v_next, due_at)
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = v_task;
    IF v_fresh THEN
        PERFORM {schema}.supersede(p_type, p_name, v_task);
    END IF;
    RETURN true;
END
$$;


-- Pause or resume a task. A resumed one goes on at p_next: what was due meanwhile is left out.
CREATE FUNCTION {schema}.switch_schedule(
    p_type text, p_name text, p_task text, p_paused boolean, p_slot timestamptz, p_next timestamptz
) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    v_row {schema}.schedules;
BEGIN
    SELECT * INTO v_row FROM {schema}.schedules
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task FOR NO KEY UPDATE;
    IF v_row.task_id IS NULL THEN
        RETURN '{"outcome": "not_found"}';
    END IF;
    IF v_row.paused = p_paused THEN
        RETURN '{"outcome": "unchanged"}';
    END IF;
    IF NOT p_paused AND v_row.next_run_at IS DISTINCT FROM p_slot THEN
        RETURN '{"outcome": "moved"}';
    END IF;
    UPDATE {schema}.schedules
    SET paused = p_paused, next_run_at = coalesce(p_next, next_run_at), due_at = coalesce(p_next, due_at)
    WHERE agent_type = p_type AND agent_name = p_name AND task_id = p_task;
    RETURN '{"outcome": "changed"}';
END
$$;


-- Forget occurrences that ended long ago and lie behind their schedule, so that none of them can come again.
CREATE FUNCTION {schema}.prune_occurrences(p_older interval, p_limit integer) RETURNS bigint
LANGUAGE sql AS $$
    WITH chosen AS (
        SELECT ctid FROM {schema}.occurrences o
        WHERE finished_at < clock_timestamp() - p_older
            AND scheduled_for < coalesce((SELECT next_run_at FROM {schema}.schedules s
                WHERE s.agent_type = o.agent_type AND s.agent_name = o.agent_name AND s.task_id = o.task_id), 'infinity')
        LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {schema}.occurrences USING chosen WHERE occurrences.ctid = chosen.ctid RETURNING 1
    )
    SELECT count(*) FROM gone;
$$;
