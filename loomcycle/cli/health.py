"""``loomcycle health``: one request, one line, the body."""

from __future__ import annotations

import click

from loomcycle.cli.command import Command, seconds, server_of, server_options
from loomcycle.cli.errors import CommandFailed, Quiet

BODY_LIMIT = 4096


@click.command(
    cls=Command,
    examples=["loomcycle health", "loomcycle health --target http://10.0.0.5:8787 --timeout 2s"],
)
@server_options
@click.option("--timeout", type=seconds, default="5s", show_default=True, metavar="D")
def health(target: str | None, token: str | None, timeout: float) -> None:
    """GET /healthz of a running server. Exit code 0 when it answers 200, else 1."""
    import httpx

    server = server_of(target, token)
    url = f"{server.url}/healthz"
    headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
    try:
        response = httpx.get(url, headers=headers, timeout=timeout, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandFailed(f"{url}: {str(error) or type(error).__name__}") from None
    click.echo(f"GET {url} -> {response.status_code}")
    click.echo(response.content[:BODY_LIMIT].decode(errors="replace"))
    if response.status_code != 200:
        raise Quiet(1)
