-- name: create_memory_by_scope
-- Finds the scope ids of a scope over all tenants.
CREATE INDEX memory_by_scope ON memory (scope, scope_id);
