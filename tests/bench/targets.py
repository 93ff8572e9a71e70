"""Every figure that the bench measures, with its target: one table, the order of the report."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Target(NamedTuple):
    """``limit``: the target; None for a figure that only explains others."""

    label: str
    unit: str
    limit: float | None = None
    better: Literal["lower", "higher"] = "lower"

    def met(self, value: float) -> bool | None:
        if self.limit is None:
            return None
        return value <= self.limit if self.better == "lower" else value >= self.limit

    def wanted(self) -> str:
        if self.limit is None:
            return ""
        return f"{'≤' if self.better == 'lower' else '≥'} {self.limit:g}"


TARGETS: dict[str, Target] = {
    "cpu_32": Target("CPU a run at 32, Python and nats-server", "ms", 0.9),
    "runs_32": Target("runs/s at 32", "runs/s", 1500, "higher"),
    "runs_128": Target("runs/s at 128", "runs/s", 1500, "higher"),
    "p50_1": Target("p50 at 1", "ms", 1.5),
    "p99_32": Target("p99 at 32", "ms", 50),
    "p99_128": Target("p99 at 128", "ms", 150),
    "memory_runs_32": Target("runs/s at 32, log on a memory disk", "runs/s"),
    "memory_cpu_32": Target("CPU a run at 32, log on a memory disk", "ms"),
    "flush_runs_32": Target("runs/s at 32, 1 ms added to each flush", "runs/s", 800, "higher"),
    "postgres_runs_32": Target("runs/s at 32, PostgreSQL views", "runs/s", 1000, "higher"),
    "postgres_cpu_32": Target("CPU a run at 32, PostgreSQL views (without PostgreSQL)", "ms"),
    "workers_ratio": Target("CPU a run with 2 workers against 1", "×", 1.15),
    "workers_share": Target("share of runs on the less busy of 2 workers", "%", 10, "higher"),
    "workers_runs_32": Target("runs/s at 32, 2 workers", "runs/s"),
    "rss_20k": Target("memory of a Python process after 20 000 runs", "MB", 110),
    "rss_100k": Target("memory of a Python process after 100 000 runs", "MB", 110),
    "rss_growth": Target("memory from 20 000 to 100 000 runs", "×", 1.1),
    "rss_nats": Target("memory of nats-server at the end of that", "MB"),
    "start_healthy": Target("start to first /healthz", "s", 1.0),
    "start_run": Target("start to first run answered", "s", 1.5),
    "idle": Target("idle, Python and nats-server", "%", 1.0),
    "fold": Target("fold of a journal (chain checked, bodies decoded)", "events/s", 2e5, "higher"),
    "rebuild": Target("rebuild of the SQLite views", "events/s", 5e4, "higher"),
    "long_bytes": Target("log bytes a turn, turns 9 000-10 000 against 100-1 000", "×", 1.1),
    "long_cost": Target("CPU a turn, turns 9 000-10 000 against 100-1 000", "×", 1.15),
    "long_turn": Target("CPU a turn of that run", "ms"),
    "long_resume": Target("cold resume at 10 000 calls, first /healthz to next commit", "s", 1.0),
    "long_load": Target("reading it back: read, decode, check, fold", "s"),
    "code_total": Target("code-js run of 1 000 calls", "s", 8),
    "code_call": Target("a call of it", "ms", 3),
    "code_long_first": Target("code-js run of 5 000 calls: CPU a call, first thousand", "ms"),
    "code_long_last": Target("code-js run of 5 000 calls: CPU a call, last thousand", "ms"),
    "code_long_cost": Target("CPU a call, last thousand against first", "×", 1.15),
    "code_long_time": Target("time a call, last thousand against first", "×"),
    "parked_log_bytes": Target("a parked run: bytes in the log", "bytes"),
    "parked_view_rows": Target("a parked run: rows in the views", "rows"),
    "parked_view_bytes": Target("a parked run: bytes of the views", "bytes"),
    "parked_memory": Target("a parked run: memory of a Python process", "bytes"),
    "parked_nats_memory": Target("a parked run: memory of nats-server", "bytes"),
    "parked_healthy_ratio": Target("10 000 parked runs: /healthz against that without", "×", 1.2),
    "parked_start": Target("10 000 parked runs: start to first run answered", "s", 1.5),
    "parked_start_ratio": Target("10 000 parked runs: that start against one without", "×", 1.1),
    "parked_rss_ratio": Target("10 000 parked runs: memory against that without", "×", 1.05),
    "parked_idle": Target("10 000 parked runs: what they add to the idle cost", "%", 0.3),
    "steer_p50": Target("10 000 parked runs: answer to an input until its frame, p50", "ms"),
    "steer_p99": Target("10 000 parked runs: answer to an input until its frame, p99", "ms", 20),
    "fan_out": Target("32 children of 50 ms side by side against in turn", "×", 5, "higher"),
    "fan_out_together": Target("32 children of 50 ms side by side", "s"),
    "fan_out_in_turn": Target("32 children of 50 ms in turn", "s"),
    "inputs_others": Target("processor time of other processes during the next six", "%"),
    "wake_p50": Target("input to a parked run until the model is asked, p50", "ms"),
    "wake_p99": Target("input to a parked run until the model is asked, p99", "ms", 20),
    "steer_parked_p50": Target("input to a parked run until its frame, p50", "ms"),
    "steer_parked_p99": Target("input to a parked run until its frame, p99", "ms", 20),
    "steer_at_work_p50": Target("input to a run with calls of 5 ms until its frame, p50", "ms"),
    "steer_at_work_p99": Target("input to a run with calls of 5 ms until its frame, p99", "ms", 20),
    "cancel_ack_p50": Target("cancel on another replica, acknowledged, p50", "ms"),
    "cancel_ack_p99": Target("cancel on another replica, acknowledged, p99", "ms", 50),
    "cancel_end_p50": Target("cancel on another replica, stream ended, p50", "ms"),
    "cancel_end_p99": Target("cancel on another replica, stream ended, p99", "ms"),
    "cancel_worker_ack_p50": Target("cancel on another worker, acknowledged, p50", "ms"),
    "cancel_worker_ack_p99": Target("cancel on another worker, acknowledged, p99", "ms", 50),
    "cancel_worker_end_p50": Target("cancel on another worker, stream ended, p50", "ms"),
    "cancel_worker_end_p99": Target("cancel on another worker, stream ended, p99", "ms"),
    "fair_idle_p99": Target("another user's wait, nobody else there, p99", "ms"),
    "fair_busy_p50": Target("another user's wait, slots taken, no queue, p50", "ms"),
    "fair_busy_p99": Target("another user's wait, slots taken, no queue, p99", "ms"),
    "fair_queued_p50": Target("another user's wait, 10 000 starts of one user queued, p50", "ms"),
    "fair_queued_p99": Target("another user's wait, 10 000 starts of one user queued, p99", "ms"),
    "fair_ratio": Target("that wait, p99, against the one without a queue", "×", 2),
    "fair_left": Target("starts still queued at the end of that", "starts"),
    "budget_spent": Target("budget drawn on by 90 children, 3 replicas, kills: spent", "%", 100),
    "budget_drift": Target("that spend against the sum of usage events", "tokens", 0),
    "budget_reserved": Target("reserved after the end of that tree", "tokens", 0),
    "budget_refused": Target("model calls refused in that tree", "calls"),
    "budget_kills": Target("replicas killed while its calls were under way", "kills", 1, "higher"),
    "budget_writers": Target("processes that advanced that tree", "processes"),
    "recovery": Target("100 runs after kill -9 of everything: last one goes on", "s", 1.5),
}
