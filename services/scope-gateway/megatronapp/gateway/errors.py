"""Errors as answers: one JSON shape, a status and a hint for each class of the error tree."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from megatronapp.core.errors import (
    AuthError,
    ForbiddenError,
    MegatronAppError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from megatronapp.core.logging import get_logger
from megatronapp.gateway.models import ErrorBody, ErrorResponse

log = get_logger(__name__)


class ConflictError(MegatronAppError):
    """The thing is in a state that does not allow this."""


class TooManyError(MegatronAppError):
    """As much of this as is served at a time goes on already."""


class GoneError(MegatronAppError):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    code: str
    hint: str
    retry_seconds: int = 0
    """When to try again; 0: not said."""


SEE_DOCUMENT = "/api/v1/openapi.json lists what is served and accepted."

# The first class that fits wins.
ANSWERS: tuple[tuple[type[Exception], Answer], ...] = (
    (ForbiddenError, Answer(403, "forbidden", "")),
    (AuthError, Answer(401, "unauthenticated", "Sign in with POST /api/v1/session, or send a bearer token.")),
    (NotFoundError, Answer(404, "not_found", "GET /api/v1/jobs and GET /api/v1/findings list what there is.")),
    (ConflictError, Answer(409, "conflict", "")),
    (UsageError, Answer(422, "invalid_request", SEE_DOCUMENT)),
    (TooManyError, Answer(429, "too_many", "Try again in a few seconds, with fewer steps or ranks.", retry_seconds=5)),
    (GoneError, Answer(499, "gone", "")),
    (UnavailableError, Answer(503, "unavailable", "Try again in a moment; training goes on meanwhile.")),
)
INTERNAL = Answer(500, "internal", "The gateway's log has the details.")


def respond(answer: Answer, message: str) -> JSONResponse:
    body = ErrorResponse(error=ErrorBody(code=answer.code, message=message, hint=answer.hint))
    headers = {"WWW-Authenticate": "Bearer"} if answer.status == HTTPStatus.UNAUTHORIZED else {}
    if answer.retry_seconds:
        headers["Retry-After"] = str(answer.retry_seconds)
    return JSONResponse(body.model_dump(), answer.status, headers)


def respond_to(error: Exception) -> JSONResponse:
    """The answer to an expected error; for any other a 500 that gives nothing away."""
    for kind, answer in ANSWERS:
        if isinstance(error, kind):
            return respond(answer, str(error))
    return respond(INTERNAL, "something went wrong inside the gateway")


def install(app: FastAPI) -> None:
    """Give every error of the app the one shape."""
    app.add_exception_handler(MegatronAppError, _expected)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)


async def _expected(_: Request, error: Exception) -> JSONResponse:
    return respond_to(error)


async def _http(request: Request, error: Exception) -> JSONResponse:
    """What the router itself refuses: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)  # noqa: S101  registered for this class alone
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    response = respond(Answer(error.status_code, code, SEE_DOCUMENT), f"{phrase}: {request.method} {request.url.path}")
    response.headers.update(error.headers or {})
    return response


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    """A parameter or body that does not fit; its value is not repeated, it may be a secret."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  registered for this class alone
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return respond_to(UsageError(f"{where}: {first['msg']}"))


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
    return respond_to(error)
