"""What can go wrong. There is a class for each error code of ``thread``: ``errors.UnknownConsumer`` for
``unknown_consumer``. SPEC.md says what they mean."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

CODES = """usage not_a_thread already_a_thread leftovers thread_moved foreign_database newer_schema wal_unsupported
path_too_long unknown_scheme location_invalid only_in_directory not_owner permission_denied unknown_consumer
already_subscribed not_running not_set no_response lease_lost event_invalid unknown_event unknown_schedule unknown_step
not_a_dead_letter claim_over idempotency_conflict key_reserved filter_invalid filter_slow filter_broken
subscription_broken timed_out not_answered dead_letter interrupted unhealthy locked disk_full disk_failed out_of_memory
too_many_files too_large file_not_found io spawn_failed database_damaged database_missing database_failed log_ahead
outcome_unknown unreachable tls_failed destination_invalid moved_to import_unfinished export_invalid unstorable failed
session_ended""".split()


class ThreadError(Exception):
    """An operation failed. ``suggestion`` says how to fix it; ``exit`` is the exit code of the command."""

    def __init__(self, message: str, suggestion: str = "", code: str = "failed", exit: int = 1) -> None:
        super().__init__(f"{message} - {suggestion}" if suggestion else message)
        self.suggestion, self.code, self.exit = suggestion, code, exit


globals().update({name: type(name, (ThreadError,), {"__module__": __name__})
                  for name in (code.title().replace("_", "") for code in CODES)})


if TYPE_CHECKING:
    def __getattr__(name: str) -> type[ThreadError]: ...


def error_of(answer: Any, exit: int = 1) -> ThreadError:
    """The error that an answer describes."""
    code = answer.get("code", "failed")
    kind = globals()[code.title().replace("_", "")] if code in CODES else ThreadError
    return kind(answer.get("error", f"exit code {exit}"), answer.get("suggestion", ""), code, exit)


class Asleep(Exception):
    """The event of a handler sleeps: raised by ``run.sleep`` and ``run.wait_for``. Let it pass."""


class NotNow(Exception):
    """Raised by a handler to get the event again after ``delay``. This is no failed attempt."""

    def __init__(self, reason: str = "", delay: str | float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class Reject(Exception):
    """Raised by a handler for an event that can never be handled: it becomes a dead letter."""
