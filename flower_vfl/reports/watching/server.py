"""The page of a run under way, served to the browsers of this host and user.

The page shows losses and leaks, which depend on labels. So the server listens on loopback only, its address has a
random token, and a request that names another host or comes from another site is refused.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from flower_vfl.errors import SetupError
from flower_vfl.loopback import LOOPBACK, NAMES, LoopbackServer
from flower_vfl.reports.page import TEMPLATES, fill
from flower_vfl.reports.run import PAGE
from flower_vfl.reports.watching.follower import Follower
from flower_vfl.reports.watching.view import RunPage

_log = logging.getLogger(__name__)

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the token is in the address
    "X-Content-Type-Options": "nosniff",
}
_REFUSALS = {
    HTTPStatus.FORBIDDEN: (
        "This page is not shown here",
        "It opens only at the address that flower-vfl watch printed, typed or pasted into the browser. A link on "
        "another site does not open it.",
        "If you forward a port, use the same number at both ends: ssh -L 8765:127.0.0.1:8765.",
    ),
    HTTPStatus.NOT_FOUND: (
        "There is no page at this address",
        "The address has a token, and flower-vfl watch prints it in full. Copy all of it, up to its last slash.",
        "The token changes each time flower-vfl watch starts: an older address no longer works.",
    ),
}
"""Title and sentences of the page for a wrong address, without information about the run."""

_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"


@cache
def refusal(status: HTTPStatus) -> str:
    """Return the page of a refusal, HTML: the same one for every run."""
    title, *sentences = _REFUSALS[status]
    return fill("refused.html.j2", title=title, sentences=sentences)


class WatchServer(LoopbackServer):
    """HTTP server of one run's page at `url`.

    Parameters
    ----------
    folder : Path
        The run's folder.
    port : int
        Port on loopback; 0 for a free one.

    Raises
    ------
    InputError
        When the folder does not belong to a run.
    SetupError
        When the port is in use, or not this user's.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.view = RunPage(Follower(folder))
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__(port, _Handler)
        except OSError as error:
            raise SetupError(
                f"the page cannot be served at {LOOPBACK}:{port}: {error.strerror}; name a free port with --port, or "
                "leave it out"
            ) from None

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version, sys_version = "flower-vfl", ""

    def do_GET(self) -> None:
        if not self._trusted():
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        token, slash, name = self.path.removeprefix("/").partition("/")
        pages: dict[str, tuple[str, Callable[[], str]]] = {
            "": ("text/html", self.server.view.page),
            "part": ("text/html", self.server.view.part),
            "watch.js": ("text/javascript", (TEMPLATES / "watch.js").read_text),
            PAGE: ("text/html", self._report),
        }
        known = hmac.compare_digest(token.encode(), self.server.token.encode()) and bool(slash)
        if not known or name not in pages:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        kind, make = pages[name]
        try:
            text = make()
        except OSError:  # there is no report yet
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        except Exception:  # noqa: BLE001 - the browser gets an answer whatever another process wrote
            _log.exception("the page of %s cannot be made", self.server.view.follower.folder)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        policy = {"Content-Security-Policy": _REPORT_POLICY} if name == PAGE else {}
        self._send(HTTPStatus.OK, kind, text, policy)

    def _report(self) -> str:
        return (self.server.view.follower.folder / PAGE).read_text(encoding="utf8", errors="replace")

    def _trusted(self) -> bool:
        """Return True if a request is of this page or of a user, not of another site, even one with DNS rebinding."""
        hosts = [f"{name}:{self.server.server_port}" for name in NAMES]
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        known = origin is None or origin in [f"http://{host}" for host in hosts]
        return self.headers.get("Host") in hosts and known and site in ("none", "same-origin")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that http.server refuses, without its explanation."""
        status = HTTPStatus(code)
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED if status is HTTPStatus.NOT_IMPLEMENTED else status)

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        kind, text = "text/plain", f"{status.value} {status.phrase}\n"
        if status in _REFUSALS:
            kind, text = "text/html", refusal(status)
        self._send(status, kind, text, {"Allow": "GET"})

    def _send(self, status: HTTPStatus, kind: str, text: str, more: dict[str, str]) -> None:
        body = text.encode("utf8", errors="replace")
        self.send_response(status)
        for name, value in {**_HEADERS, **more}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Discard a log message: paths contain the token."""


def serve(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve the page of a run until Ctrl-C.

    Parameters
    ----------
    folder : Path
        The run's folder.
    port : int
        Port on loopback; 0 for a free one.
    say : Callable
        Function that shows the address.

    Raises
    ------
    InputError
        As `WatchServer`.
    """
    with WatchServer(folder, port) as server:
        say(server.url)
        server.serve_forever()
