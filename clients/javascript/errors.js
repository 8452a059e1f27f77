// What can go wrong: a class for each error code of thread, UnknownConsumer for unknown_consumer. SPEC.md says what they mean.

const CODES = `usage not_a_thread already_a_thread leftovers thread_moved foreign_database newer_schema wal_unsupported
path_too_long unknown_scheme location_invalid only_in_directory not_owner permission_denied unknown_consumer
already_subscribed not_running not_set no_response lease_lost event_invalid unknown_event unknown_schedule unknown_step
not_a_dead_letter claim_over idempotency_conflict key_reserved filter_invalid filter_slow filter_broken
subscription_broken timed_out not_answered dead_letter interrupted unhealthy locked disk_full disk_failed out_of_memory
too_many_files too_large file_not_found io spawn_failed database_damaged database_missing database_failed log_ahead
outcome_unknown unreachable tls_failed destination_invalid moved_to import_unfinished export_invalid unstorable failed
session_ended`.split(/\s+/);

/** An operation failed. `suggestion` says how to fix it; `exit` is the exit code of the command. */
export class ThreadError extends Error {
  constructor(message, suggestion = "", code = "failed", exit = 1) {
    super(suggestion ? `${message} - ${suggestion}` : message);
    Object.assign(this, { name: new.target.name, suggestion, code, exit });
  }
}

const named = (code) => code.replace(/(^|_)([a-z])/g, (_, __, letter) => letter.toUpperCase());

/** The classes, by their names. */
export const errors = Object.fromEntries(
  CODES.map((code) => [named(code), { [named(code)]: class extends ThreadError {} }[named(code)]]),
);

/** The error that an answer describes. */
export function errorOf({ error, suggestion, code = "failed" }, exit = 1) {
  const Kind = errors[named(code)] ?? ThreadError;
  return new Kind(error ?? `exit code ${exit}`, suggestion, code, exit);
}

/** The event of a handler sleeps: thrown by run.sleep and run.waitFor. Let it pass. */
export class Asleep extends Error {}

/** Thrown by a handler to get the event again after `delay`. This is no failed attempt. */
export class NotNow extends Error {
  constructor(reason = "", { delay } = {}) {
    super(reason);
    this.delay = delay;
  }
}

/** Thrown by a handler for an event that can never be handled: it becomes a dead letter. */
export class Reject extends Error {}
