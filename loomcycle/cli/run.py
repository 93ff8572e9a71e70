"""``loomcycle run``: one agent run against a running server, shown as it happens."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loomcycle.cli.command import Command, config_option, server_of, server_options
from loomcycle.cli.errors import BadInvocation, Quiet

if TYPE_CHECKING:
    from loomcycle.cli.client import Request
    from loomcycle.cli.transcript import Transcript, View


@click.command(
    cls=Command,
    examples=[
        'loomcycle run triage --prompt "The printer is on fire"',
        "git diff | loomcycle run reviewer",
        'loomcycle run --session s_0123456789abcdef --prompt "And now shorter"',
        "loomcycle run triage --prompt hello --json | jq -c .event",
    ],
)
@click.argument("agent", required=False, default="")
@click.option("--prompt", metavar="P", help="What to say; without it, stdin is read.")
@click.option("--session", metavar="ID", default="", help="Continue this session's conversation.")
@click.option("--user", metavar="ID", default="", help="User id of the run (open servers only).")
@config_option
@server_options
@click.option("--json", "as_json", is_flag=True, help="One frame per line: {event, id, data}.")
def run(
    agent: str,
    prompt: str | None,
    session: str,
    user: str,
    configs: tuple[Path, ...],
    target: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Run AGENT once and show its work until it ends.

    The answer goes to stdout and, without a terminal, everything else to stderr. A broken
    stream is picked up where it stopped. Ctrl-C cancels the run.

    With --session, AGENT may be left out: the session's own agent answers.

    With --config, address and token are those that a server with this configuration uses.

    Exit codes: 0 completed, 1 failed, cancelled or unreachable, 2 refused by the server.
    """
    if not agent and not session:
        raise click.UsageError("name an agent, or a session with --session")
    if configs:
        target, token = _from_config(configs, target, token)
    from loomcycle.cli.client import start_request

    request = start_request(agent, _prompt(prompt), session=session, user_id=user)
    server = server_of(target, token)
    shown = asyncio.run(perform(server.url, server.token, request, as_json=as_json))
    if not shown.completed:
        raise Quiet(1)


def _prompt(given: str | None) -> str:
    if given is not None:
        return given
    if sys.stdin.isatty():
        print("(type the prompt, end with Ctrl-D)", file=sys.stderr)
    text = sys.stdin.read()
    if not text.strip():
        raise BadInvocation("no prompt: give --prompt or write it to stdin")
    return text


def _from_config(
    configs: tuple[Path, ...], target: str | None, token: str | None
) -> tuple[str, str | None]:
    from loomcycle.address import parse_address
    from loomcycle.cli.settings import load_if_any

    environment = load_if_any(configs).environment
    try:
        listening = parse_address(environment.listen_addr).url
    except ValueError as error:
        raise BadInvocation(str(error)) from None
    return target or listening, token or environment.auth_token


async def perform(
    target: str,
    token: str,
    request: Request,
    *,
    as_json: bool = False,
    view: View | None = None,
) -> Transcript:
    """Make the run and show it, by default on stdout and stderr.

    Raises BadInvocation when it is refused, CommandFailed when the server is lost.
    """
    from loomcycle.cli.client import RunClient
    from loomcycle.cli.transcript import Transcript, standard_view

    view = view or standard_view()
    transcript = Transcript(view)
    client = RunClient(target, token)
    try:
        async with aclosing(client.follow(request)) as frames:
            async for frame in frames:
                if as_json:
                    line = {"event": frame.event, "id": frame.id, "data": frame.body}
                    print(json.dumps(line, ensure_ascii=False), flush=True)
                    transcript.note(frame)
                else:
                    transcript.show(frame)
        if not transcript.completed and not transcript.error:
            status = await client.status(transcript.agent_id)
            transcript.completed = status == "completed"
            view.note(f"the run is {status}")
    finally:
        await client.close()
    return transcript
