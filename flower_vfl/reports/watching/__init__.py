"""A page that follows a run: `follower` reads its folder, `view` draws the page, `server` serves it on loopback."""

from flower_vfl.reports.watching.server import WatchServer, serve

__all__ = ["WatchServer", "serve"]
