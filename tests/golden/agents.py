"""The configuration under which golden journals are recorded."""

from __future__ import annotations

import json

BLOCKS = """
interruption: {max_timeout_ms: 3600000}
hooks: {permit_host_widen: {owners: [app]}}
provider_priority: [anthropic, openai, deepseek]
tiers:
  middle: [{provider: anthropic, model: m-1}, {provider: deepseek, model: deepseek-reasoner}]
user_tiers:
  default: {}
  falling: {fallback_on_error: true}
  trying: {retry_attempts: 2}
"""

AGENTS = """
  plain: {provider: mock, model: mock-generic}
  prompted: {provider: mock, model: mock-generic, system_prompt: "You are brief."}
  stepper: {provider: mock, model: mock-steps-1, allowed_tools: [Memory], memory_scopes: [user]}
  counter:
    {provider: mock, model: mock-steps-9, max_iterations: 2, allowed_tools: [Memory],
     memory_scopes: [user]}
  asker: {provider: openai, model: gpt-golden, allowed_tools: [Memory], memory_scopes: [user]}
  thinker: {provider: anthropic, model: claude-golden, allowed_tools: [Memory],
            memory_scopes: [user]}
  program:
    provider: code-js
    model: program
    allowed_tools: [Memory]
    memory_scopes: [user]
    code: |
      function run(input) {
        var roll = Math.floor(Math.random() * 1000);
        Memory.set({scope: "user", key: "roll", value: {roll: roll, at: Date.now()}});
        var seen = Memory.incr({scope: "user", key: "seen", delta: 2});
        return "rolled " + roll + ", seen " + JSON.stringify(seen);
      }
  faulty:
    provider: code-js
    model: faulty
    allowed_tools: [Memory]
    memory_scopes: [user]
    code: |
      function run(input) {
        Memory.set({scope: "user", key: "tried", value: true});
        throw new Error("no answer to " + input.prompt);
      }
  questioner:
    provider: openai
    model: gpt-golden
    allowed_tools: [Interruption, Memory]
    memory_scopes: [user]
    interruption: {enabled: true, kinds: [question]}
  payer: {provider: openai, model: gpt-golden, allowed_tools: [Pay]}
  careful: {provider: openai, model: gpt-golden, allowed_tools: [Pay], require_approval: ["P*"]}
  boss: {provider: openai, model: gpt-golden, allowed_tools: [Agent], max_concurrent_children: 2}
  echo:
    provider: code-js
    code: |
      function run(input) { return "echo of " + input.prompt; }
  compact:
    provider: anthropic
    model: claude-golden
    allowed_tools: [Context, Memory]
    memory_scopes: [user]
    compaction: {enabled: true, keep_last_n: 2, autocompact_at_pct: 80, model: claude-small}
  forgetful:
    {provider: anthropic, model: claude-golden, allowed_tools: [Context],
     compaction: {keep_last_n: 0}}
  tiered: {tier: middle, effort: medium, max_tokens: 9000, allowed_tools: [Context]}
  limited: {provider: anthropic, model: claude-golden, max_tokens: 100, max_tokens_total: 5000,
            allowed_tools: [Memory], memory_scopes: [user]}
  frugal: {provider: anthropic, model: claude-golden, max_tokens_total: 4000,
           allowed_tools: [Context], compaction: {keep_last_n: 0}}
  strict:
    provider: openai
    model: gpt-golden
    output_schema: &named {type: object, required: [name], properties: {name: {type: string}}}
  once: {provider: openai, model: gpt-golden, max_iterations: 1}
  strict-once: {provider: openai, model: gpt-golden, allowed_tools: [Memory],
                memory_scopes: [user], max_iterations: 1, output_schema: *named}
"""


def configuration(**concurrency: int) -> str:
    """The text of a configuration file; ``concurrency`` changes its limits."""
    limits = {"max_concurrent_runs": 8, "queue_timeout_ms": 5000, **concurrency}
    return f"concurrency: {json.dumps(limits)}\n{BLOCKS}\nagents:{AGENTS}"
