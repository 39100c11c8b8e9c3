"""The service over HTTP: its paths, and who may use them."""

import asyncio
import hmac
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from ffcil import __version__
from ffcil.serving.guard import LEARN, Guard
from ffcil.serving.messages import Answers, ChangeStatus, Classes, Health, History, ImageAnswer, Problem
from ffcil.serving.metrics import Metrics
from ffcil.serving.refusal import Refusal
from ffcil.serving.service import MOST_GUESSES, Service
from ffcil.serving.uploads import read_uploads

PAGES = Path(__file__).parent
ABOUT = "Classes of images, from a classifier that keeps learning. Times, sizes and numbers are limited."
_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
PREDICT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "properties": {"images": _FILES}}},
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
LEARN_BODY = {
    "requestBody": {
        "required": True,
        "description": "A form whose fields are classes: each file of a field is an image of that class.",
        "content": {"multipart/form-data": {"schema": {"type": "object", "additionalProperties": _FILES}}},
    }
}
Responses = dict[int | str, dict[str, Any]]


def refusals(*statuses: int) -> Responses:
    """Statuses of refusals, for the description of a path."""
    return {status: {"model": Problem} for status in statuses}


def create_app(service: Service, token: str | None = None) -> FastAPI:
    """The application. Without a token, the classifier cannot be changed."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="ffcil", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )

    @app.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> JSONResponse:
        headers = {"connection": "close"}  # the rest of the request may not have been read
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        if refusal.status == 503:
            headers["retry-after"] = "1"
        return JSONResponse({"detail": refusal.sentence}, refusal.status, headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_values(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name, sentence = first["loc"][-1], first["msg"]
        return JSONResponse({"detail": f"Bad value for {name}: {sentence}, not {first['input']!r:.40}."}, 422)

    @app.exception_handler(404)
    async def refuse_path(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": "There is no such path: GET /docs lists all of them."}, 404)

    @app.exception_handler(405)
    async def refuse_verb(request: Request, error: HTTPException) -> JSONResponse:
        right = (error.headers or {}).get("Allow", "another method")
        return JSONResponse({"detail": f"{request.method} is not possible here: use {right}."}, 405, error.headers)

    for router in (
        _answers(service, metrics),
        _changes(service, token),
        _operation(service, metrics, token is not None),
    ):
        app.include_router(router)
    for path, file in (("/", "page.html"), ("/docs", "docs.html")):
        app.add_api_route(path, _page(PAGES / file), include_in_schema=False)

    paths = {"/", "/docs", "/openapi.json", *app.openapi()["paths"]}
    app.add_middleware(Guard, limits=service.limits, metrics=metrics, paths=paths)
    return app


def _answers(service: Service, metrics: Metrics) -> APIRouter:
    """Paths that everybody may use."""
    router = APIRouter(tags=["answers"])

    @router.post("/predict", openapi_extra=PREDICT_BODY, responses=refusals(400, 408, 413, 415, 422, 503, 504))
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=MOST_GUESSES)] = 3) -> Answers:
        """The most likely classes of an image or of many, and whether an image is of no known class."""
        uploads = await read_uploads(request, service.limits.images)
        if not service.snapshot.classes:
            raise Refusal(409, "The classifier knows no classes yet: teach it some first.")
        try:
            async with asyncio.timeout(service.limits.seconds):
                told = await service.answer(uploads)
        except TimeoutError:
            raise Refusal(504, "The answer took too long: send fewer images, or try again later.") from None
        metrics.answered(len(told))
        answers = [ImageAnswer.of(upload.name, one, top) for upload, one in zip(uploads, told, strict=True)]
        return Answers(version=told[0].version, answers=answers)

    @router.get("/classes")
    async def classes() -> Classes:
        """The known classes."""
        return Classes(version=service.snapshot.version, classes=list(service.snapshot.classes))

    return router


def _changes(service: Service, token: str | None) -> APIRouter:
    """Paths that show and make changes. Making one needs the token."""
    router = APIRouter(tags=["changes"])

    async def check_token(request: Request) -> None:
        if token is None:
            raise Refusal(403, "This service does not learn: start it with --token-file FILE.")
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(sent.strip().encode(), token.encode()):
            raise Refusal(401, "The token is missing or wrong: send the header `Authorization: Bearer TOKEN`.")

    @router.get("/history")
    async def history() -> History:
        """What the classifier learned when, and how well it knows it."""
        snapshot = service.snapshot
        return History(version=snapshot.version, versions=service.versions(), changes=list(snapshot.history))

    @router.post(
        LEARN,
        status_code=202,
        dependencies=[Depends(check_token)],
        openapi_extra=LEARN_BODY,
        responses=refusals(400, 401, 403, 408, 409, 413, 415, 422),
    )
    async def learn(request: Request) -> ChangeStatus:
        """Learn new classes, or more images of known ones, in the background. `GET /health` tells how far it is."""
        service.check_idle()  # before a large request is read
        return ChangeStatus.of(await service.learn(await read_uploads(request, service.limits.learn_images)))

    @router.post(
        "/undo",
        status_code=202,
        dependencies=[Depends(check_token)],
        responses=refusals(401, 403, 409, 422),
    )
    async def undo(to: Annotated[int | None, Query(ge=1)] = None) -> ChangeStatus:
        """Go back to the version before the current one, or to another one that is kept."""
        return ChangeStatus.of(service.undo(to))

    return router


def _operation(service: Service, metrics: Metrics, learns: bool) -> APIRouter:
    """Paths for operators of the service."""
    router = APIRouter(tags=["operation"])

    @router.get("/health")
    async def health() -> Health:
        """Whether the service works, which version answers, and how far a change is."""
        return Health.of(service, learns)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> PlainTextResponse:
        """Counters in the format of Prometheus."""
        gauges = {
            "model_version": (float(service.snapshot.version), "Version of the classifier that answers."),
            "classes": (float(len(service.snapshot.classes)), "Number of known classes."),
            "waiting_images": (float(service.waiting), "Number of images that wait for answers."),
            "changing": (float(service.changing), "1 while the classifier is being changed."),
            "degraded": (float(service.problem is not None), "1 if the current version cannot be loaded."),
        }
        return PlainTextResponse(metrics.text(gauges), media_type="text/plain; version=0.0.4")

    return router


def _page(path: Path) -> Any:
    """A function that returns a self-contained page. Its policy allows only its own content and this service."""
    text = path.read_text(encoding="utf-8")
    allowed = {kind: _hashes(kind, text) for kind in ("script", "style")}
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; img-src blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}

    async def page() -> HTMLResponse:
        return HTMLResponse(text, headers=headers)

    return page


def _hashes(kind: str, text: str) -> str:
    """The scripts or styles in a page, as its policy names them."""
    found = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(part.encode()).digest()).decode()}'" for part in found)
