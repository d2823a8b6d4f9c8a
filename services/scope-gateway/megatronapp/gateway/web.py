"""The web application: routes, middleware, errors, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from megatronapp.core.errors import NotFoundError
from megatronapp.gateway import errors, pages
from megatronapp.gateway.deps import caller
from megatronapp.gateway.middleware import LOOPBACK_NAMES, AnnouncedBodyLimit, SameSite, SecurityHeaders
from megatronapp.gateway.models import ErrorResponse, Event
from megatronapp.gateway.routes import (
    alerts,
    completions,
    events,
    experiments,
    findings,
    history,
    incidents,
    jobs,
    page,
    phases,
    rank_status,
    recordings,
    scope,
    session,
    timeline,
    traces,
)
from megatronapp.gateway.settings import GatewaySettings

API = "/api/v1"
VERSION = "1.0.0"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
SCHEMA = "#/components/schemas/{model}"


class Application(FastAPI):
    """FastAPI whose document also holds the events' schemas: OpenAPI knows no WebSockets, but the page's client is
    generated from it."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            schema = TypeAdapter(Event).json_schema(mode="serialization", ref_template=SCHEMA)
            schemas = {**schema.pop("$defs"), "Event": schema, **document["components"]["schemas"]}
            document["components"]["schemas"] = dict(sorted(schemas.items()))
            document["x-websockets"] = {f"{API}/events": {"sends": {"$ref": SCHEMA.format(model="Event")}}}
        return super().openapi()


def build(settings: GatewaySettings) -> Application:
    """The application; whoever serves it puts `Parts` into `app.state.parts` before."""
    app = Application(
        title="MegatronApp gateway",
        version=VERSION,
        description="Jobs, timelines and findings of training runs.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        responses={"default": {"model": ErrorResponse, "description": "what went wrong, and what to do"}},
    )
    app.add_middleware(
        AnnouncedBodyLimit,
        max_bytes=settings.max_request_bytes,
        larger={f"{API}/scope/recordings": settings.scope_max_recording_bytes},
    )
    app.add_middleware(SameSite, hosts=accepted_hosts(settings), origins=settings.allowed_origins)
    app.add_middleware(SecurityHeaders, origins=settings.allowed_origins)
    errors.install(app)
    app.include_router(
        recordings.upload_router,
        prefix=API,
        dependencies=[Depends(caller)],
        max_body_size=settings.scope_max_recording_bytes,
    )
    app.include_router(_api(), prefix=API, max_body_size=settings.max_request_bytes)
    app.include_router(completions.router, max_body_size=settings.max_request_bytes)
    app.add_api_route("/api/{rest:path}", _unknown, methods=METHODS, include_in_schema=False)
    app.include_router(page.router)
    _mount_pages(app, settings)
    return app


def accepted_hosts(settings: GatewaySettings) -> tuple[str, ...]:
    """Names a request may use for this server; empty: any, where it listens beyond loopback and none are listed."""
    if settings.host in LOOPBACK_NAMES or settings.allowed_hosts:
        return (*LOOPBACK_NAMES, settings.host, *settings.allowed_hosts)
    return ()


def _api() -> APIRouter:
    api = APIRouter()
    api.include_router(session.router)
    api.include_router(alerts.router)
    api.include_router(phases.router)
    for module in (jobs, rank_status, history, timeline, traces, findings, incidents, scope, experiments, recordings):
        api.include_router(module.router, dependencies=[Depends(caller)])
    api.include_router(events.router)
    api.include_router(scope.socket_router)
    return api


def _mount_pages(app: FastAPI, settings: GatewaySettings) -> None:
    folder = pages.perfetto_folder()
    if folder is not None:
        app.mount("/perfetto", pages.perfetto(folder))
    else:
        app.add_api_route("/perfetto/{rest:path}", pages.no_perfetto, include_in_schema=False)
    app.state.page = pages.page(settings.ui_folder)
    if app.state.page is not None:
        app.mount("/", app.state.page)
    else:
        app.add_api_route("/{rest:path}", pages.not_built, include_in_schema=False)


async def _unknown(request: Request) -> None:
    raise NotFoundError(f"{request.method} {request.url.path} is not served")


def _operation_id(route: APIRoute) -> str:
    return route.name
