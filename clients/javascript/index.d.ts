/** "1h30m", or a number of milliseconds. */
export type Duration = string | number;

/** An event, as it is stored. `claim` is set by `pop` with a claim. */
export interface ThreadEvent {
  id: number;
  created_at: string;
  source: string;
  type: "message" | "record";
  subtype: string | null;
  content: string;
  metadata?: any;
  claim?: string;
}

/** What an event has besides its content. `key`, an idempotency key: it is stored once under it. */
export interface EventOptions {
  source?: string;
  type?: "message" | "record";
  subtype?: string;
  meta?: Record<string, unknown>;
  key?: string;
  expires?: Duration;
}

/** Which events. `meta` compares fields of the metadata; `filter` is an SQL condition. */
export interface Narrow {
  type?: "message" | "record";
  subtype?: string;
  source?: string;
  meta?: Record<string, string>;
  filter?: string;
}

/** Options of `thread subscribe`; see its help. `start` is its --from. */
export interface HandlerOptions {
  filter?: string;
  key?: string;
  concurrency?: number;
  batchSize?: number;
  maxAttempts?: number | "never";
  backoff?: string;
  timeout?: Duration;
  idle?: Duration;
  probe?: Duration;
  stallAfter?: number | "never";
  ahead?: number;
  start?: number | string;
  env?: Record<string, string>;
  clearEnv?: boolean;
  cwd?: string;
}

/** What `pushMany` has stored; the ids are null if nothing new was. */
export interface Batch {
  count: number;
  first_id: number | null;
  last_id: number | null;
}

/** An event on which a handler failed until no attempts were left, or that it rejected. */
export interface DeadLetter {
  consumer_id: string;
  event_id: number;
  attempts: number;
  last_exit: number | null;
  last_error: string;
  parked_at: string;
  retry: boolean;
}

/** One event at a handler, and what is stored for it. */
export interface Run {
  readonly thread: Thread;
  readonly consumer: string;
  readonly event: ThreadEvent;
  /**
   * Does the work once for this event, however often the handler runs, and returns what it has returned, which must be
   * JSON. The work gets a key, the same each time, for what it calls in turn.
   */
  step<T>(name: string, work: (key: string) => T | Promise<T>): Promise<T>;
  /** Ends this run; the next one continues here after that time. */
  sleep(name: string, length: Duration): Promise<void>;
  /** Ends this run, unless such an event has come; the next one continues here. Null after the timeout. */
  waitFor(name: string, which: Narrow & { timeout?: Duration }): Promise<ThreadEvent | null>;
}

export type Handler = (event: ThreadEvent, run: Run) => unknown;

/** A thread: a durable queue of events. An open one does not keep the program alive while no call is under way. */
export class Thread {
  private constructor();
  /** Where it is, as an absolute path or location. */
  readonly location: string;
  /** Opens a thread by its directory or location (`postgres://…`); by default, as `thread` finds it. */
  static open(location?: string): Promise<Thread>;
  /** Makes a thread and opens it. With `ifMissing`, one that is there is opened. */
  static init(location: string, options?: { ifMissing?: boolean }): Promise<Thread>;
  /** Stores an event and returns its id; it is on disk then. What is no text is stored as JSON. */
  push(content: unknown, options?: EventOptions & { replyTo?: number }): Promise<number>;
  /** Stores all or nothing. Each is a content, or an object with `content` and what else the event has. */
  pushMany(contents: Iterable<unknown>): Promise<Batch>;
  /** Stores an event that comes later, and returns its number, such as `s17`. */
  schedule(content: unknown, when: EventOptions & ({ delay: Duration } | { at: string })): Promise<string>;
  /** Makes a schedule, which stores an event each time, and returns its name. */
  repeat(
    name: string,
    content: unknown,
    when: EventOptions & { replace?: boolean; catchUp?: "one" | "all" | "none" } & ({ cron: string; tz?: string } | { every: Duration }),
  ): Promise<string>;
  /** Events after an id, the oldest first: at most `limit` (100), or all of them since a time, or the last `tail`. */
  read(which?: Narrow & { after?: number; since?: string; tail?: number; limit?: number }): Promise<ThreadEvent[]>;
  /** Events as they come, without end: those after an id, or only new ones. */
  follow(which?: Narrow & { after?: number; signal?: AbortSignal }): AsyncGenerator<ThreadEvent, never, void>;
  /**
   * Registers a consumer with a handler, a command for sh; without one, the consumer pops for itself. `replace` changes one
   * that is there: options that are not given stay, or with `defaults` return to theirs.
   */
  subscribe(
    consumer: string,
    handler?: string,
    options?: HandlerOptions & { deliver?: "wake" | "stdin" | "ndjson"; replace?: boolean; defaults?: boolean },
  ): Promise<string>;
  unsubscribe(consumer: string): Promise<void>;
  /** A consumer's next events. With `claim`, they are this caller's for so long; see `thread pop`. */
  pop(
    consumer: string,
    options?: { claim?: Duration; limit?: number; wait?: Duration; signal?: AbortSignal },
  ): Promise<ThreadEvent[]>;
  /** Acknowledges events and returns the cursor. */
  ack(consumer: string, ids: number | number[], options?: { claim?: string | undefined }): Promise<number>;
  /** Puts an event off. */
  nack(
    consumer: string,
    id: number,
    options?: { delay?: Duration; error?: string; attempt?: boolean; claim?: string | undefined },
  ): Promise<number>;
  /** Makes an event a dead letter. */
  reject(consumer: string, id: number, options?: { error?: string; claim?: string | undefined }): Promise<number>;
  /** Prolongs a claim: it ends so long from now. */
  claim(consumer: string, id: number, length: Duration, options?: { claim?: string | undefined }): Promise<void>;
  /** A consumer's dead letters. */
  deadLetters(consumer: string): Promise<DeadLetter[]>;
  /** Delivers a dead letter, or all of them, once more. Returns how many. */
  retry(consumer: string, id?: number): Promise<number>;
  /** Forgets a dead letter, or all of them; the events stay. Returns how many. */
  discard(consumer: string, id?: number): Promise<number>;
  /** Pushes a question and waits for its answer. */
  ask(content: unknown, options?: EventOptions & { timeout?: Duration; signal?: AbortSignal }): Promise<ThreadEvent>;
  /** Answers an event. */
  reply(to: number, content: unknown, options?: EventOptions): Promise<number>;
  /** Any other command that a session runs, and what it prints with --json: `command("dead", "list")`. */
  command(...words: string[]): Promise<any[]>;
  /**
   * Makes a function the handler of a consumer. The event is done when it returns. What it throws is a failed attempt, except
   * NotNow and Reject. It gets up to `batchSize` (100) events at a time; with 1, one after the other. With `concurrency: N`,
   * N processes of the program share the events.
   */
  handler(consumer: string, options: HandlerOptions, handle: Handler): void;
  handler(consumer: string, handle: Handler): void;
  /**
   * Subscribes the handlers: from then on, `thread` starts this program, with the same arguments, for their events. A program
   * that was started so handles events here until there are no more, and ends: it never gets further. If the program's file
   * has changed since, handlers that are running are restarted.
   */
  run(): Promise<void>;
  /** Ends the process, once all calls are answered. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** An operation failed. `suggestion` says how to fix it; `exit` is the exit code of the command. */
export class ThreadError extends Error {
  readonly code: string;
  readonly suggestion: string;
  readonly exit: number;
}

/** A class for each error code: `errors.UnknownConsumer` for `unknown_consumer`. */
export const errors: { readonly [name in ErrorName]: typeof ThreadError };

export type ErrorName =
  | "Usage" | "NotAThread" | "AlreadyAThread" | "Leftovers" | "ThreadMoved" | "ForeignDatabase" | "NewerSchema"
  | "WalUnsupported" | "PathTooLong" | "UnknownScheme" | "LocationInvalid" | "OnlyInDirectory" | "NotOwner"
  | "PermissionDenied" | "UnknownConsumer" | "AlreadySubscribed" | "NotRunning" | "NotSet" | "NoResponse"
  | "LeaseLost" | "EventInvalid" | "UnknownEvent" | "UnknownSchedule" | "UnknownStep" | "NotADeadLetter"
  | "ClaimOver" | "IdempotencyConflict" | "KeyReserved" | "FilterInvalid" | "FilterSlow" | "FilterBroken"
  | "SubscriptionBroken" | "TimedOut" | "NotAnswered" | "DeadLetter" | "Interrupted" | "Unhealthy" | "Locked"
  | "DiskFull" | "DiskFailed" | "OutOfMemory" | "TooManyFiles" | "TooLarge" | "FileNotFound" | "Io" | "SpawnFailed"
  | "DatabaseDamaged" | "DatabaseMissing" | "DatabaseFailed" | "LogAhead" | "OutcomeUnknown" | "Unreachable"
  | "TlsFailed" | "DestinationInvalid" | "MovedTo" | "ImportUnfinished" | "ExportInvalid" | "Unstorable" | "Failed"
  | "SessionEnded";

/** The event of a handler sleeps: thrown by `run.sleep` and `run.waitFor`. Let it pass. */
export class Asleep extends Error {}

/** Thrown by a handler to get the event again after `delay`. This is no failed attempt. */
export class NotNow extends Error {
  constructor(reason?: string, options?: { delay?: Duration });
}

/** Thrown by a handler for an event that can never be handled: it becomes a dead letter. */
export class Reject extends Error {}
