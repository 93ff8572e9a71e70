"""Parts of the end-to-end tests: scripted vendors, replicas as processes, proofs over a log.

What must not break here: nothing of the runtime is replaced; only vendors are played, at the wire.
"""
