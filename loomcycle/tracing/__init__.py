"""Traces of runs (secrets.md section 6): spans are a fold of a run's journal, made after its end.

What must not break: no span is made on a run's path, no failure here reaches a run, nothing is
imported from OpenTelemetry while tracing is off, and no attribute holds what people, models or
tools said. Only the status of a failed call repeats an error, as masked as its journal is.
"""
