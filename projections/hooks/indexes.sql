-- name: create_hooks_by_position
-- Lists the chain in its order.
CREATE INDEX hooks_by_position ON hooks (position);
