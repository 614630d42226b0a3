CREATE FUNCTION {schema}.lock_lane(p_type text, p_name text) RETURNS {schema}.agents
LANGUAGE sql AS $$
    SELECT * FROM {schema}.agents WHERE agent_type = p_type AND agent_name = p_name FOR NO KEY UPDATE;
$$;


-- Lock a lane, and make it if need be. Some who use a sub-agent know its parent, which deletes it one day, and some do not.
CREATE FUNCTION {schema}.make_lane(p_type text, p_name text, p_parent text) RETURNS {schema}.agents
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.lock_lane(p_type, p_name);
BEGIN
    IF v_lane.agent_type IS NULL THEN
        INSERT INTO {schema}.agents (agent_type, agent_name, parent, wanted) VALUES (p_type, p_name, p_parent, false)
        ON CONFLICT DO NOTHING;
        v_lane := {schema}.lock_lane(p_type, p_name);
    END IF;
    IF v_lane.parent IS NULL AND p_parent IS NOT NULL THEN
        UPDATE {schema}.agents SET parent = p_parent WHERE agent_type = p_type AND agent_name = p_name;
    END IF;
    RETURN v_lane;
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


-- A lane is busy while a row runs or waits; a row that was cancelled and is still stopping does not count.
CREATE FUNCTION {schema}.is_busy(p_lane {schema}.agents) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.submissions
                   WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name
                       AND position >= p_lane.head_position AND status IN ('pending', 'running'));
$$;


CREATE FUNCTION {schema}.count_pending(p_lane {schema}.agents) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT count(*) FROM {schema}.submissions
    WHERE agent_type = p_lane.agent_type AND agent_name = p_lane.agent_name
        AND position >= p_lane.head_position AND status = 'pending';
$$;


-- Pause or resume one agent; true when that changed something.
CREATE FUNCTION {schema}.pause(p_type text, p_name text, p_parent text, p_paused boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_lane {schema}.agents := {schema}.make_lane(p_type, p_name, p_parent);
BEGIN
    UPDATE {schema}.agents SET paused = p_paused WHERE agent_type = p_type AND agent_name = p_name;
    RETURN v_lane.paused <> p_paused;
END
$$;


-- Bells to ring again: idle lanes whose head may run, and lanes with a hook that nobody calls; when their last
-- bell is older than p_after, doubled per repeat. A head that waited for its time is rung as soon as that has come.
CREATE FUNCTION {schema}.due_bells(p_after interval, p_limit integer, p_lease interval)
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
                    (SELECT coalesce(greatest(s.not_before, s.held_until) <= clock_timestamp(), true)
                     FROM {schema}.submissions s
                     WHERE s.agent_type = l.agent_type AND s.agent_name = l.agent_name
                         AND s.position >= l.head_position AND s.status = 'pending'
                     ORDER BY s.position LIMIT 1), false))
                OR (coalesce(l.hook_until < clock_timestamp(), true)
                    AND EXISTS (SELECT FROM {schema}.submissions h
                                WHERE h.agent_type = l.agent_type AND h.agent_name = l.agent_name AND h.hook_due))
                OR (NOT {schema}.lives(l.responder, p_lease)
                    AND EXISTS (SELECT FROM {schema}.submissions h
                                WHERE h.agent_type = l.agent_type AND h.agent_name = l.agent_name
                                    AND h.response_due)))
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
                                WHERE h.agent_type = l.agent_type AND h.agent_name = l.agent_name
                                    AND (h.hook_due OR h.response_due))
            ORDER BY l.agent_type, l.agent_name FOR NO KEY UPDATE SKIP LOCKED
        ) idle
        WHERE a.agent_type = idle.agent_type AND a.agent_name = idle.agent_name
        RETURNING 1
    )
    SELECT count(*) FROM dropped;
$$;


-- Delete a lane that stayed only because a deleted agent was still at work, unless the name is in use again.
CREATE FUNCTION {schema}.forget_lane(p_type text, p_name text) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM {schema}.agents
    WHERE agent_type = p_type AND agent_name = p_name AND active_uid IS NULL AND last_position = 0 AND NOT paused
        AND NOT EXISTS (SELECT FROM {schema}.messages WHERE agent_type = p_type AND agent_name = p_name);
$$;


-- True while a process gives signs of life.
CREATE FUNCTION {schema}.lives(p_worker uuid, p_lease interval) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.workers
                   WHERE worker_id = p_worker AND heartbeat_at >= clock_timestamp() - p_lease);
$$;


-- Note that a turn waits for another agent. Gives the circle that this wait closes, if it is the youngest of it: the
-- addresses from the turn's agent on, the last of which waits for the first. NULL when there is none. Tasks that an ended
-- turn has left behind keep nobody waiting.
CREATE FUNCTION {schema}.note_wait(
    p_wait uuid, p_uid uuid, p_type text, p_name text, p_for_type text, p_for_name text
) RETURNS jsonb
LANGUAGE sql AS $$
    INSERT INTO {schema}.waits (wait_id, uid, agent_type, agent_name, for_type, for_name)
    VALUES (p_wait, p_uid, p_type, p_name, p_for_type, p_for_name) ON CONFLICT DO NOTHING;
    WITH RECURSIVE way AS (
        SELECT w.wait_id, w.for_type, w.for_name, w.since, ARRAY[w.wait_id] AS ids,
            ARRAY[w.agent_type || '/' || w.agent_name] AS chain
        FROM {schema}.waits w
        JOIN {schema}.agents a ON a.agent_type = w.agent_type AND a.agent_name = w.agent_name AND a.active_uid = w.uid
        WHERE w.wait_id = p_wait
        UNION ALL
        SELECT w.wait_id, w.for_type, w.for_name, greatest(way.since, w.since), way.ids || w.wait_id,
            way.chain || (w.agent_type || '/' || w.agent_name)
        FROM way
        JOIN {schema}.waits w ON w.agent_type = way.for_type AND w.agent_name = way.for_name
            AND NOT w.wait_id = ANY (way.ids)
        JOIN {schema}.agents a ON a.agent_type = w.agent_type AND a.agent_name = w.agent_name AND a.active_uid = w.uid
    )
    SELECT to_jsonb(chain) FROM way
    WHERE for_type = p_type AND for_name = p_name
        AND p_wait = (SELECT y.wait_id FROM {schema}.waits y WHERE y.wait_id = ANY (way.ids)
                      ORDER BY y.since DESC, y.wait_id DESC LIMIT 1)
    LIMIT 1;
$$;


-- Forget a wait; without one, those of turns that have ended.
CREATE FUNCTION {schema}.end_wait(p_wait uuid) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM {schema}.waits w
    WHERE CASE WHEN p_wait IS NOT NULL THEN w.wait_id = p_wait
          ELSE NOT EXISTS (SELECT FROM {schema}.agents a WHERE a.agent_type = w.agent_type
                           AND a.agent_name = w.agent_name AND a.active_uid = w.uid) END;
$$;
