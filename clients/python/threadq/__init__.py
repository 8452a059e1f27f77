"""Durable event queues in a directory or in PostgreSQL, with no daemon: a client of the program ``thread``."""

from . import errors
from .calls import Batch, Event
from .client import AsyncThread, Run, Thread
from .errors import Asleep, NotNow, Reject, ThreadError

__all__ = ["AsyncThread", "Asleep", "Batch", "Event", "NotNow", "Reject", "Run", "Thread", "ThreadError", "errors"]
