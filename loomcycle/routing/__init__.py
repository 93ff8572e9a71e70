"""Which provider and model serve a run: availability, recovery after failed calls.

What must not break here: availability is a process' own memory and never enters a journal; what
was decided from it does, as an event, before it has consequences.
"""
