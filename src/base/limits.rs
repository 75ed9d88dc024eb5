//! Every bound of the broker, each with its reason. Over a bound is an answer, never growth.

/// A request body: 64 MiB, as the published brokers take; over it 413.
pub const BODY_BYTES_MAX: usize = 64 << 20;
/// A request head (request line and headers): generous for tokens, small against slow loris.
pub const HEAD_BYTES_MAX: usize = 32 << 10;
/// Headers in one request.
pub const HEADERS_MAX: usize = 96;
/// A request target; over it 414. Names reach 1.3 KiB when every byte is percent-encoded.
pub const TARGET_BYTES_MAX: usize = 16 << 10;
/// Requests of one connection that are being worked on at once.
pub const PIPELINE_MAX: usize = 64;
/// What a request line holds beside its target: a method of any sane length, the version.
pub const REQUEST_LINE_SLACK: usize = 64;
/// Empty lines before a request line, in bytes: some clients end a body with a stray CRLF.
pub const BLANK_BYTES_MAX: usize = 16;
/// One chunk-size line with its extensions, which nobody sends and we do not read.
pub const CHUNK_LINE_BYTES_MAX: usize = 256;
/// Extensions of all chunks of a body: bytes that cost the sender but carry nothing.
pub const CHUNK_EXTENSION_BYTES_MAX: usize = 16 << 10;
/// All trailers of a chunked body; they are dropped.
pub const TRAILER_BYTES_MAX: usize = 4 << 10;
/// Segments of a path: four times the longest route.
pub const PATH_SEGMENTS_MAX: usize = 64;
/// Space offered between two requests, and the whole buffer of a quiet connection.
pub const RECV_SPACE_MIN: usize = 4 << 10;
/// Inside a request the buffer grows once less than this is free; it grows by at least
/// `RECV_SPACE_MIN`, so however small the receives, most of them move nothing.
pub const RECV_SPACE_LOW: usize = 512;
/// First space offered to a body; from there on it doubles as bytes really arrive.
pub const RECV_BODY_STEP: usize = 16 << 10;
/// A receive buffer over this goes away with its request instead of serving the next one.
pub const RECV_RETAIN_MAX: usize = 256 << 10;

/// A scratch buffer over this goes away with its use instead of serving the next one.
pub const SCRATCH_RETAIN_MAX: usize = 1 << 20;

/// Memory kept of one kind of thing that requests fill and leave, and of one such thing.
pub const SPARE_BYTES_MAX: usize = 1 << 20;
pub const SPARE_PIECE_MAX: usize = SPARE_BYTES_MAX / 16;

/// Default tenant of the name budget: its 36 bytes are counted though we keep no tenants, so
/// that a name legal here is legal on every broker of this wire.
pub const TENANT_NAME_BYTES: usize = 36;
/// bytes(tenant) + bytes(queue) + max(bytes(partition), bytes(group)).
pub const NAME_BUDGET_BYTES: usize = 447;
/// Queue plus its longest other name.
pub const NAMES_BYTES_MAX: usize = NAME_BUDGET_BYTES - TENANT_NAME_BYTES;
/// A transaction id has a u16 length in the stored frame.
pub const TRANSACTION_ID_BYTES_MAX: usize = 65_535;
/// All that one compressed push may inflate to, as much as a plain one may hold; over it 413.
pub const INFLATED_BYTES_MAX: usize = BODY_BYTES_MAX;
/// Messages of one binary push; over it 413. A message takes five bytes of a body and some two
/// hundred here.
pub const PUSH_MESSAGES_MAX: usize = 1 << 20;
/// Larger batches are not compressed by the broker: it would hold its core up.
pub const COMPRESS_BYTES_MAX: usize = 1 << 20;
/// Error text of a nack that a dead letter keeps; the rest is cut at a character boundary.
pub const ERROR_TEXT_BYTES_MAX: usize = 16 << 10;

/// The `sub` of a token as it is stamped into messages: what OpenID Connect allows.
pub const PRODUCER_BYTES_MAX: usize = 255;
/// What all stamps of one push may add to it; over it 413.
pub const STAMPS_BYTES_MAX: usize = BODY_BYTES_MAX;
/// A key set and its keys: a provider has two or three.
pub const JWKS_BYTES_MAX: usize = 1 << 20;
pub const JWKS_KEYS_MAX: usize = 256;
/// Verified tokens that one executor remembers, some 400 bytes each.
pub const TOKENS_CACHED_MAX: usize = 2_048;

/// One batch (one partition of one push) with its record's overhead.
pub const APPEND_BYTES_MAX: usize = 96 << 20;
/// Smallest segment: a few hundred chunks.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 20;
pub const SEGMENT_BYTES_DEFAULT: u64 = 256 << 20;
/// Largest segment a position can address, with room to spare.
pub const SEGMENT_BYTES_MAX: u64 = 16 << 30;

pub const POP_BATCH_DEFAULT: u32 = 200;
pub const POP_BATCH_MAX: u32 = 10_000;
pub const POP_PARTITIONS_MAX: u32 = 64;
/// Batches that autopilot chooses.
pub const AUTOPILOT_BATCH_MIN: u32 = 100;
pub const AUTOPILOT_BATCH_MAX: u32 = 1_000;
/// A pop claims no further records once its answer holds this much payload.
pub const POP_BYTES_MAX: usize = 32 << 20;
pub const POP_TIMEOUT_MS_DEFAULT: u64 = 30_000;
pub const POP_TIMEOUT_MS_MAX: u64 = 60_000;
/// A waiter this close to its deadline is not handed a claim it could no longer deliver.
pub const POP_LATE_MS: u64 = 50;
/// Ready partitions announced to a queue's owner in one message.
pub const READY_COUNT_MAX: u32 = 16;

pub const LEASE_SECONDS_IMPLICIT: u32 = 60;
pub const LEASE_SECONDS_DEFAULT: u32 = 300;
/// Ten years: far beyond any handler, far from overflow in microseconds.
pub const LEASE_SECONDS_MAX: u32 = 315_360_000;
/// How long a repeated ack of a released lease is still recognised.
pub const RELEASED_LEASE_MS: u64 = 15 * 60 * 1_000;

/// Queues whose owners a change of a group on all its queues asks at once.
pub const GROUP_QUEUES_AT_ONCE: usize = 64;
/// Partitions or cursors looked at in one slice of a sweep: a few hundred microseconds.
pub const SWEEP_SLICE: usize = 1_000;

/// Partitions whose pinned waiters look again in one slice: each may claim.
pub const PINNED_SLICE: usize = 64;

pub const DLQ_LIMIT_DEFAULT: usize = 100;
pub const DLQ_LIMIT_MAX: usize = 1_000;
/// Minutes that counts are kept for, in memory: a day.
pub const HISTORY_MINUTES: u64 = 24 * 60;
/// Queues with a row of their own in one minute of one shard; the rest share one.
pub const HISTORY_QUEUES_MAX: usize = 1_000;
/// Rows of queues over all minutes of one shard: 12 MiB. Beyond, the oldest minutes keep their
/// totals only.
pub const HISTORY_ROWS_MAX: usize = 65_536;
/// Queues with a series of their own in one analytics answer, the busiest ones.
pub const SERIES_QUEUES_MAX: usize = 200;
/// Queues with samples of their own in `/metrics/prometheus`, unless set otherwise.
pub const METRICS_QUEUES_DEFAULT: u32 = 2_000;
pub const METRICS_QUEUES_MAX: u32 = 10_000;
/// What one step of a walk looks at, so that it stays below a millisecond.
pub const WALK_STEP_ROWS: usize = 1_000;
/// Partitions that one request looks at on each shard, and dead letters: beyond, the answer says
/// that it is cut.
pub const WALK_PARTITIONS_MAX: usize = 200_000;
pub const WALK_DEAD_LETTERS_MAX: usize = 10_000;
/// Characters of a dead letter's error that tell causes apart.
pub const SIGNATURE_CHARS_MAX: usize = 120;

/// Listings and purges under way on one shard; over it 429.
pub const INSPECTIONS_MAX: usize = 64;
/// Stored bytes that one page of messages, dead letters or traces reads, at least one row; a page
/// over it ends early and says so.
pub const INSPECT_PAGE_BYTES_MAX: usize = 8 << 20;
/// Bytes of one listing that shows no payloads; rows beyond are left out, which is said.
pub const LISTING_BYTES_MAX: usize = 1 << 20;
/// How far into a listing a page may begin: every shard offers this many rows.
pub const LISTING_OFFSET_MAX: usize = 10_000;
/// The same for listings whose rows carry names: with its limit it keeps one shard's part below
/// a mebibyte.
pub const NAMED_OFFSET_MAX: usize = 2_500;
/// Batches looked through for one message whose transaction id is in no index any more.
pub const FIND_BATCHES_MAX: usize = 10_000;
/// Groups of one shard that a listing shows.
pub const GROUP_ROWS_MAX: usize = 5_000;
pub const MESSAGES_LIMIT_DEFAULT: usize = 200;
pub const MESSAGES_LIMIT_MAX: usize = 1_000;
pub const PARTITIONS_LIMIT_DEFAULT: usize = 610;
pub const PARTITIONS_LIMIT_MAX: usize = 5_000;
pub const CURSORS_LIMIT_DEFAULT: usize = 1_000;
pub const LAG_SECONDS_DEFAULT: u64 = 3_600;
/// Ready partitions counted to tell one's place among them.
pub const READY_PLACE_MAX: usize = 10_000;

/// A trace's names, and the bytes of its name, event type, worker and group.
pub const TRACE_NAMES_MAX: usize = 16;
pub const TRACE_TEXT_BYTES_MAX: usize = 255;
/// A trace's data.
pub const TRACE_DATA_BYTES_MAX: usize = 64 << 10;
/// Traces of one shard that are kept, some 150 bytes of memory each with one name; the oldest
/// go first.
pub const TRACES_MAX: usize = 100_000;
/// Different names of one shard's traces; the one last seen longest ago goes first.
pub const TRACE_NAMES_KEPT_MAX: usize = 10_000;
pub const TRACE_RETENTION_SECONDS_DEFAULT: u64 = 604_800;
pub const TRACES_LIMIT_DEFAULT: usize = 200;
pub const TRACE_NAMES_LIMIT_DEFAULT: usize = 100;
pub const TRACES_LIMIT_MAX: usize = 1_000;
/// Shards of one directory: 13 bits of a partition id.
pub const SHARDS_MAX: u16 = 8_191;

const _: () = assert!(BODY_BYTES_MAX < APPEND_BYTES_MAX);
const _: () = assert!(TARGET_BYTES_MAX + REQUEST_LINE_SLACK <= HEAD_BYTES_MAX);
const _: () = assert!(HEAD_BYTES_MAX + RECV_BODY_STEP <= RECV_RETAIN_MAX);
const _: () = assert!(RECV_SPACE_LOW * 4 <= RECV_SPACE_MIN);
const _: () = assert!(SEGMENT_BYTES_MIN < SEGMENT_BYTES_DEFAULT);
const _: () = assert!(SEGMENT_BYTES_MAX < 1 << 36);
const _: () = assert!(HISTORY_QUEUES_MAX < HISTORY_ROWS_MAX);
const _: () = assert!(METRICS_QUEUES_DEFAULT <= METRICS_QUEUES_MAX);
const _: () = assert!(POP_BATCH_DEFAULT <= POP_BATCH_MAX);
