"""The HTTP gateway (specification: http-runs.md, auth.md, operations.md section 1).

What must not break here: nothing reaches a command unauthenticated, every error body is what
published clients classify by, and a slow or vanished client costs bounded memory.
"""
