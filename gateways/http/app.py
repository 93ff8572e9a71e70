"""The application: every endpoint behind its guard, the hot ones first.

No middleware beyond Starlette's two; routing errors come before authentication.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route

from gateways.http.authentication import Guard
from gateways.http.clients import Clients
from gateways.http.endpoint import Endpoint
from gateways.http.errors import exception_handlers
from gateways.http.routes import (
    agents,
    batch,
    compact,
    hooks,
    inputs,
    interrupts,
    pause,
    resolver,
    run_states,
    runs,
    sessions,
    system,
)
from loomcycle.runtime import Runtime


def build_app(runtime: Runtime) -> Starlette:
    """The HTTP surface of ``runtime``; ``app.state.clients`` is who it serves now."""
    clients = Clients()
    endpoints = [
        *runs.endpoints(runtime, clients),
        *batch.endpoints(runtime, clients),
        *agents.endpoints(runtime),
        *sessions.endpoints(runtime),
        *inputs.endpoints(runtime),
        *interrupts.endpoints(runtime),
        *compact.endpoints(runtime),
        *hooks.endpoints(runtime),
        *resolver.endpoints(runtime),
        *pause.endpoints(runtime, clients),
        *run_states.endpoints(runtime, clients),
        *system.endpoints(runtime),
    ]
    app = Starlette(
        routes=[_route(runtime, endpoint) for endpoint in endpoints],
        exception_handlers=exception_handlers(),
    )
    app.router.redirect_slashes = False
    app.state.clients = clients
    return app


def _route(runtime: Runtime, endpoint: Endpoint) -> Route:
    app = endpoint.app
    if endpoint.scope is not None:
        verbose = runtime.config.environment.auth_verbose
        app = Guard(app, runtime.auth, endpoint.scope, verbose=verbose)
    return Route(endpoint.path, app, methods=endpoint.methods or None, name=endpoint.path)
