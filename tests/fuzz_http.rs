//! The HTTP decoder against a generator that knows what each stream means, against damaged
//! streams, and against the edges real servers were caught at.
//!
//! `SEED=… ITER=… cargo test --test fuzz_http` runs other or more streams; stream `i` of a run has
//! the seed `SEED + i`, and a failure prints the command that replays it alone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lanemq::base::limits::{HEADERS_MAX, RECV_RETAIN_MAX, RECV_SPACE_LOW, RECV_SPACE_MIN};
use lanemq::base::prng::Prng;
use lanemq::http::{Decoder, Finish, Limits, Method, Reject, Request, Step};

// ---- Feeding ------------------------------------------------------------------------------

/// All that came out of a stream. Interim answers are counted apart: they alone may depend on
/// how the bytes were cut.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    steps: Vec<Step>,
    finish: Finish,
}

struct Feed {
    decoder: Decoder,
    steps: Vec<Step>,
    continues: usize,
    received: usize,
}

impl Feed {
    fn new(limits: Limits) -> Self {
        Self { decoder: Decoder::new(limits), steps: Vec::new(), continues: 0, received: 0 }
    }

    fn send(&mut self, mut piece: &[u8]) -> &mut Self {
        while !piece.is_empty() {
            let (mid_request, in_body) = (self.decoder.is_mid_request(), self.decoder.is_in_body());
            let space = self.decoder.recv_space();
            let least = if mid_request { RECV_SPACE_LOW } else { RECV_SPACE_MIN };
            assert!(!space.is_empty() && (in_body || space.len() >= least));
            let count = space.len().min(piece.len());
            space[..count].copy_from_slice(&piece[..count]);
            piece = &piece[count..];
            self.decoder.received(count);
            self.received += count;
            // Memory follows what was received, whatever lengths were claimed.
            assert!(self.decoder.buffer_bytes() <= 4 * self.received + 8 * RECV_SPACE_MIN);
            self.drain();
        }
        self
    }

    fn drain(&mut self) {
        loop {
            match self.decoder.next() {
                Step::NeedMore => break,
                Step::Continue => self.continues += 1,
                step => self.steps.push(step),
            }
        }
        let refused = self.steps.iter().position(|s| matches!(s, Step::Reject(_)));
        assert!(refused.is_none_or(|at| at == self.steps.len() - 1), "a step after a refusal");
    }

    fn end(mut self) -> Outcome {
        let finish = self.decoder.finish();
        assert_eq!(self.decoder.next(), Step::NeedMore);
        Outcome { steps: self.steps, finish }
    }
}

fn run(limits: Limits, wire: &[u8], mut next_cut: impl FnMut() -> usize) -> Outcome {
    let mut feed = Feed::new(limits);
    let mut rest = wire;
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(next_cut().clamp(1, rest.len()));
        feed.send(piece);
        rest = tail;
    }
    feed.end()
}

fn whole(wire: &[u8]) -> Outcome {
    run(Limits::default(), wire, || usize::MAX)
}

/// The one refusal of a stream: nothing may come before or after it.
fn refusal(wire: &[u8]) -> Reject {
    let by_byte = run(Limits::default(), wire, || 1);
    let outcome = whole(wire);
    assert_eq!(outcome, by_byte);
    match outcome.steps.as_slice() {
        [Step::Reject(reject)] => reject.clone(),
        other => panic!("{other:?} for {:?}", String::from_utf8_lossy(wire)),
    }
}

fn requests(outcome: &Outcome) -> Vec<&Request> {
    outcome
        .steps
        .iter()
        .map(|step| match step {
            Step::Request(request) => request,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn one_request(wire: &[u8]) -> Request {
    let outcome = whole(wire);
    assert_eq!(outcome, run(Limits::default(), wire, || 1));
    match requests(&outcome).as_slice() {
        [request] => (*request).clone(),
        other => panic!("{other:?}"),
    }
}

/// A request that must not be run, to stand behind one that ends the connection.
const SECOND: &[u8] = b"GET /second HTTP/1.1\r\nHost: h\r\n\r\n";

fn before_second(first: &str) -> Vec<u8> {
    [first.as_bytes(), SECOND].concat()
}

// ---- Seeded streams -----------------------------------------------------------------------

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn for_seeds(test: &str, iterations: u64, body: impl Fn(&mut Prng)) {
    let base = from_env("SEED", 1);
    for seed in base..base + from_env("ITER", iterations) {
        let result = catch_unwind(AssertUnwindSafe(|| body(&mut Prng::new(seed))));
        if let Err(panic) = result {
            eprintln!("replay: SEED={seed} ITER=1 cargo test --test fuzz_http {test}");
            resume_unwind(panic);
        }
    }
}

/// What a generated request must be read as.
struct Expected {
    method: Method,
    target: String,
    body: Vec<u8>,
}

fn pick<'a, T: ?Sized>(prng: &mut Prng, from: &[&'a T]) -> &'a T {
    from[prng.below(from.len() as u64) as usize]
}

fn random_body(prng: &mut Prng) -> Vec<u8> {
    let max = if prng.chance(5) { 40_000 } else { 300 };
    let len = prng.below(max);
    // Bodies that look like requests, so that a byte of drift shows.
    let mut body: Vec<u8> =
        SECOND.iter().chain(b"0\r\n\r\n").copied().cycle().take(len as usize).collect();
    if prng.chance(50) {
        body.iter_mut().for_each(|b| *b = prng.next_u64() as u8);
    }
    body
}

fn write_chunked(prng: &mut Prng, body: &[u8], wire: &mut Vec<u8>) {
    let mut rest = body;
    let chunk_max = if prng.chance(30) { 3 } else { 5_000 };
    while !rest.is_empty() {
        let len = 1 + prng.below(chunk_max.min(rest.len() as u64)) as usize;
        let zeros = pick(prng, &["", "0", "000"]);
        let extension = if len > 3 { pick(prng, &["", ";a", ";a=\"b c\""]) } else { "" };
        wire.extend_from_slice(format!("{zeros}{len:X}{extension}\r\n").as_bytes());
        wire.extend_from_slice(&rest[..len]);
        wire.extend_from_slice(b"\r\n");
        rest = &rest[len..];
    }
    wire.extend_from_slice(b"0\r\n");
    if prng.chance(20) {
        wire.extend_from_slice(b"X-Checksum: 1\r\nX: \r\n");
    }
    wire.extend_from_slice(b"\r\n");
}

fn write_request(prng: &mut Prng, wire: &mut Vec<u8>) -> Expected {
    const METHODS: [(&str, Method); 8] = [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("POST", Method::Post),
        ("PUT", Method::Put),
        ("DELETE", Method::Delete),
        ("OPTIONS", Method::Options),
        ("PATCH", Method::Other),
        ("get", Method::Other),
    ];
    let (name, method) = METHODS[prng.below(8) as usize];
    let path = pick(prng, &["/", "/api/v1/push", "/a%2Fb/c", "/%F0%9F%98%80", "//", "/a+b"]);
    let query = pick(prng, &["", "?", "?a=b&c=d+e", "?batch=10&wait=true"]);
    let prefix = pick(prng, &["", "", "", "http://h:1"]);
    if prng.chance(10) {
        wire.extend_from_slice(&b"\r\n".repeat(1 + prng.below(8) as usize));
    }
    let mut head = format!("{name} {prefix}{path}{query} HTTP/1.1\r\n");
    let host_first = prng.chance(50);
    if host_first {
        head.push_str("Host: localhost:6632\r\n");
    }
    for n in 0..prng.below(6) {
        let long = "v".repeat(prng.below(60) as usize);
        head.push_str(&format!("X-Filler-{n}:{}{long}\r\n", pick(prng, &["", " ", "\t "])));
    }
    if prng.chance(10) {
        head.push_str("expect: 100-continue\r\n");
    }
    let body = if prng.chance(60) { random_body(prng) } else { Vec::new() };
    let chunked = prng.chance(40);
    if chunked {
        head.push_str(pick(
            prng,
            &["Transfer-Encoding: chunked\r\n", "transfer-encoding:CHUNKED\r\n"],
        ));
    } else if !body.is_empty() || prng.chance(50) {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    if !host_first {
        head.push_str("HOST:h\r\n");
    }
    wire.extend_from_slice(head.as_bytes());
    wire.extend_from_slice(b"\r\n");
    if chunked {
        write_chunked(prng, &body, wire);
    } else {
        wire.extend_from_slice(&body);
    }
    Expected { method, target: format!("{path}{query}"), body }
}

fn random_stream(prng: &mut Prng) -> (Vec<u8>, Vec<Expected>) {
    let mut wire = Vec::new();
    let count = 1 + prng.below(8);
    let expected = (0..count).map(|_| write_request(prng, &mut wire)).collect();
    (wire, expected)
}

/// Cuts of one character for a whole stream: dribbling, packets, or a mixture.
fn random_cuts(prng: &mut Prng) -> impl FnMut() -> usize + use<> {
    let mut prng = prng.fork(1);
    let max = [1, 2, 7, 100, 1_460, 20_000][prng.below(6) as usize];
    move || 1 + prng.below(max) as usize
}

fn check(expected: &[Expected], outcome: &Outcome) {
    assert_eq!(outcome.finish, Finish::Clean);
    let requests = requests(outcome);
    assert_eq!(requests.len(), expected.len());
    for (request, expected) in requests.into_iter().zip(expected) {
        assert_eq!(request.method, expected.method);
        let mut target = String::from_utf8_lossy(request.target.path()).into_owned();
        if expected.target.contains('?') {
            target.push('?');
            target.push_str(&String::from_utf8_lossy(request.target.raw_query()));
        }
        assert_eq!(target, expected.target);
        assert_eq!(request.body, expected.body);
        assert!(request.keep_alive && !request.http10);
    }
}

#[test]
fn valid_streams_mean_the_same_however_they_are_cut() {
    for_seeds("valid_streams", 400, |prng| {
        let (wire, expected) = random_stream(prng);
        let at_once = run(Limits::default(), &wire, || usize::MAX);
        check(&expected, &at_once);
        for _ in 0..3 {
            let cut = run(Limits::default(), &wire, random_cuts(prng));
            assert_eq!(cut, at_once);
        }
        if wire.len() < 5_000 {
            assert_eq!(run(Limits::default(), &wire, || 1), at_once);
        }
    });
}

/// A stream cut short gives its whole requests and then tells that it was cut, not a refusal.
#[test]
fn every_prefix_of_a_valid_stream_is_unfinished() {
    for_seeds("every_prefix", 60, |prng| {
        let (wire, expected) = random_stream(prng);
        let cut = prng.below(wire.len() as u64) as usize;
        let outcome = run(Limits::default(), &wire[..cut], random_cuts(prng));
        let count = requests(&outcome).len();
        assert!(count < expected.len() && outcome.steps.len() == count);
    });
}

fn mutate(prng: &mut Prng, wire: &mut Vec<u8>) {
    const SPICE: [&[u8]; 16] = [
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b" ",
        b"\0",
        b":",
        b"\xff",
        b"Content-Length: 5\r\n",
        b"Content-Length: 99999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Host: x\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"ffffffffffffffff\r\n",
        b"HTTP/1.0",
    ];
    for _ in 0..1 + prng.below(4) {
        let at = prng.below(wire.len() as u64 + 1) as usize;
        match prng.below(6) {
            0 if at < wire.len() => wire[at] = prng.next_u64() as u8,
            1 if at < wire.len() => wire[at] ^= 1 << prng.below(8),
            2 if at < wire.len() => {
                let end = wire.len().min(at + 1 + prng.below(20) as usize);
                wire.drain(at..end);
            }
            3 => wire.truncate(at.max(1)),
            _ => {
                let spice = pick(prng, &SPICE);
                wire.splice(at..at, spice.iter().copied());
            }
        }
    }
}

#[test]
fn damaged_streams_end_in_order() {
    for_seeds("damaged_streams", 3_000, |prng| {
        let (mut wire, _) = random_stream(prng);
        // Damage in heads and chunk headers is what matters: keep long bodies rare.
        wire.truncate(4_000);
        mutate(prng, &mut wire);
        let limits = if prng.chance(50) {
            Limits::default()
        } else {
            Limits { body_bytes: 200, head_bytes: 250, target_bytes: 20 }
        };
        let at_once = run(limits, &wire, || usize::MAX);
        for request in at_once.steps.iter() {
            if let Step::Request(request) = request {
                assert!(request.body.len() <= limits.body_bytes);
                // Decoding may fail, but not panic.
                let _segments = request.target.segments();
                let _pairs = request.target.query().count();
            }
        }
        assert_eq!(run(limits, &wire, random_cuts(prng)), at_once);
        assert_eq!(run(limits, &wire, || 1), at_once);
    });
}

#[test]
fn noise_ends_in_order() {
    for_seeds("noise", 2_000, |prng| {
        let len = prng.below(600) as usize;
        let alphabet: &[u8] =
            pick(prng, &[b"GET / HTTP/1.1\r\n:".as_slice(), b"\r\n0a; ", b"a:\r\n"]);
        let mut wire =
            [b"POST / HTTP/1.1\r\nHost: h\r\n".as_slice(), b"Transfer-Encoding: chunked\r\n\r\n"]
                .concat();
        wire.truncate(prng.below(wire.len() as u64 + 1) as usize);
        for _ in 0..len {
            wire.push(alphabet[prng.below(alphabet.len() as u64) as usize]);
        }
        let at_once = run(Limits::default(), &wire, || usize::MAX);
        assert_eq!(run(Limits::default(), &wire, || 1), at_once);
    });
}

// ---- Edges seen in the field --------------------------------------------------------------

/// Smuggling shapes: the request behind them is never run.
#[test]
fn conflicting_lengths_are_refused_and_nothing_behind_them_runs() {
    for fields in [
        "Content-Length: 0\r\nContent-Length: 34\r\n",
        "Content-Length: 0\r\nContent-Length: 0\r\n",
        "Content-Length: 0, 0\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: +0\r\n",
        "Content-Length: 0\nX: y\r\n",
    ] {
        let wire = before_second(&format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n0\r\n\r\n"));
        assert_eq!(refusal(&wire).status, 400, "{fields:?}");
    }
    let old = before_second("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(refusal(&old).status, 400);
    let coded =
        before_second("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n");
    assert_eq!(refusal(&coded).status, 501);
}

#[test]
fn a_hundred_pushes_in_one_write_are_a_hundred_requests_in_order() {
    let mut wire = Vec::new();
    for n in 0..100 {
        let body = format!("{{\"n\":{n}}}");
        wire.extend_from_slice(
            format!(
                "POST /api/v1/push?n={n} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        );
    }
    let outcome = whole(&wire);
    let requests = requests(&outcome);
    assert_eq!(requests.len(), 100);
    for (n, request) in requests.iter().enumerate() {
        assert_eq!(request.target.raw_query(), format!("n={n}").as_bytes());
        assert_eq!(request.body, format!("{{\"n\":{n}}}"));
    }
}

#[test]
fn oversized_heads_are_told_and_not_read_to_their_end() {
    let header = |len: usize| {
        before_second(&format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(len)))
    };
    assert_eq!(refusal(&header(64 << 10)).status, 431);
    assert_eq!(requests(&whole(&header(30 << 10))).len(), 2);

    let many = |count: usize| {
        before_second(&format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "a: b\r\n".repeat(count)))
    };
    assert_eq!(refusal(&many(10_000)).status, 431);
    assert_eq!(refusal(&many(HEADERS_MAX)).status, 431);
    assert_eq!(requests(&whole(&many(HEADERS_MAX - 1))).len(), 2);

    let path = |len: usize| {
        before_second(&format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "p".repeat(len)))
    };
    assert_eq!(refusal(&path(1 << 20)).status, 414);
    assert_eq!(refusal(&path(16 << 10)).status, 414);
    assert_eq!(requests(&whole(&path((16 << 10) - 1))).len(), 2);

    // Without any line end, too: the verdict falls when the limit does.
    let mut feed = Feed::new(Limits::default());
    feed.send(&[b'A'; 17 << 10]);
    assert!(matches!(feed.steps.as_slice(), [Step::Reject(r)] if r.status == 414));
}

#[test]
fn a_body_over_the_limit_is_refused_unread_and_never_parsed() {
    let limits = Limits { body_bytes: 100, ..Limits::default() };
    let over = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n";
    let mut feed = Feed::new(limits);
    feed.send(over);
    assert!(matches!(feed.steps.as_slice(), [Step::Reject(r)] if r.status == 413));
    assert_eq!((feed.continues, feed.decoder.is_closed()), (0, true));
    // The driver may drain what the client still sends; none of it is kept or run.
    for _ in 0..1_000 {
        feed.send(SECOND);
    }
    assert_eq!(feed.steps.len(), 1);
    assert!(feed.decoder.buffer_bytes() <= RECV_RETAIN_MAX);
    assert_eq!(feed.end().finish, Finish::Clean);

    let chunked = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (chunks, status) in [
        (format!("65\r\n{}", "x".repeat(101)), 413),
        (format!("64\r\n{}\r\n1\r\nx\r\n0\r\n\r\n", "x".repeat(100)), 413),
        ("1\r\nx\r\n".repeat(101), 413),
        ("ffffffffffffffff\r\n".to_owned(), 413),
        ("10000000000000000\r\n".to_owned(), 400),
    ] {
        let wire = [chunked.as_slice(), chunks.as_bytes(), SECOND].concat();
        let outcome = run(limits, &wire, || usize::MAX);
        assert_eq!(outcome, run(limits, &wire, || 1));
        match outcome.steps.as_slice() {
            [Step::Reject(r)] => assert_eq!(r.status, status, "{chunks:.40}"),
            other => panic!("{other:?}"),
        }
    }
    let fits = format!("64\r\n{}\r\n0\r\n\r\n", "x".repeat(100));
    let wire = [chunked.as_slice(), fits.as_bytes()].concat();
    assert_eq!(requests(&run(limits, &wire, || 3))[0].body.len(), 100);
}

#[test]
fn requests_without_a_length_have_no_body() {
    for (line, method) in [
        ("OPTIONS *", Method::Options),
        ("OPTIONS /api/v1/push", Method::Options),
        ("POST /api/v1/push", Method::Post),
        ("TRACE /", Method::Other),
        ("BREW /pot", Method::Other),
        ("get /", Method::Other),
    ] {
        let request = one_request(format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        assert_eq!(request.method, method, "{line}");
        assert!(request.body.is_empty() && request.keep_alive);
        assert_eq!(request.target.is_asterisk(), line.ends_with('*'));
    }
    assert_eq!(refusal(&before_second("GET * HTTP/1.1\r\nHost: h\r\n\r\n")).status, 400);
    assert_eq!(refusal(&before_second("CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n")).status, 501);
}

#[test]
fn a_slow_client_can_be_seen_and_costs_little() {
    let mut feed = Feed::new(Limits::default());
    assert!(!feed.decoder.is_mid_request());
    // 30 KiB of head, a byte at a time: quadratic work would take minutes here.
    let head = format!("POST / HTTP/1.1\r\nHost: h\r\nX: {}\r\n", "x".repeat(30 << 10));
    for byte in head.as_bytes() {
        feed.send(&[*byte]);
        assert!(feed.decoder.is_in_head() && !feed.decoder.is_in_body());
    }
    feed.send(b"Content-Length: 67108864\r\n\r\n");
    assert!(feed.decoder.is_in_body() && feed.decoder.body_received() == 0);
    feed.send(b"abc");
    assert_eq!(feed.decoder.body_received(), 3);
    assert!(feed.decoder.buffer_bytes() < 256 << 10, "memory for a claimed length");
    let pending = feed.decoder.pending().expect("a pending request");
    assert_eq!((pending.method, pending.target.path()), (Method::Post, b"/".as_slice()));
    assert_eq!(feed.end().finish, Finish::Truncated);

    let mut feed = Feed::new(Limits::default());
    feed.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Chunks of one byte do not pile their headers up.
    for n in 1..=100_000 {
        feed.send(b"1\r\na\r\n");
        assert_eq!(feed.decoder.body_received(), n);
        assert!(feed.decoder.buffer_bytes() <= 2 * n + (40 << 10), "{n}");
    }
}

#[test]
fn odd_but_legal_starts_are_read() {
    let old = one_request(b"GET / HTTP/1.0\r\n\r\n");
    assert!(old.http10 && !old.keep_alive);
    let old = one_request(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert!(old.http10 && old.keep_alive);
    let absolute = one_request(b"GET http://other:99/api/v1/push?a=b HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(absolute.target.path(), b"/api/v1/push");
    let blank = one_request(b"\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n\r\n");
    assert_eq!(blank.method, Method::Get);
}

#[test]
fn other_protocols_and_bad_hosts_are_refused() {
    assert_eq!(refusal(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").status, 400);
    assert_eq!(refusal(b"GET / HTTP/2.0\r\nHost: h\r\n\r\n").status, 505);
    // The start of a ClientHello: refused at its first byte, though no line end ever comes.
    assert_eq!(refusal(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").status, 400);
    assert_eq!(refusal(b"\x16").status, 400);
    assert_eq!(refusal(b"\0\0\0\0").status, 400);
    assert_eq!(refusal(&b"\r\n".repeat(9)).status, 400);
    assert_eq!(refusal(b"\nGET / HTTP/1.1\r\nHost: h\r\n\r\n").status, 400);
    assert_eq!(refusal(&before_second("GET / HTTP/1.1\r\n\r\n")).status, 400);
    assert_eq!(refusal(&before_second("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n")).status, 400);
    assert_eq!(refusal(&before_second("GET /#x HTTP/1.1\r\nHost: h\r\n\r\n")).status, 400);
}

#[test]
fn a_half_closed_client_keeps_its_request() {
    let outcome = whole(SECOND);
    assert_eq!((requests(&outcome).len(), outcome.finish), (1, Finish::Clean));
    let outcome = whole(&SECOND[..SECOND.len() - 1]);
    assert_eq!((outcome.steps.len(), outcome.finish), (0, Finish::Truncated));
    assert_eq!(whole(b"").finish, Finish::Clean);
    assert_eq!(whole(b"\r\n").finish, Finish::Clean);
}

#[test]
fn nothing_runs_behind_the_last_request() {
    for head in [
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        assert!(!one_request(&before_second(head)).keep_alive, "{head:?}");
    }
}

#[test]
fn an_encoding_header_is_handed_on_as_it_came() {
    for value in ["gzip, zstd", "ZSTD", "br", "identity", ""] {
        let wire = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: {value}\r\n\r\n");
        let encoding = one_request(wire.as_bytes()).content_encoding;
        assert_eq!(encoding.as_deref(), Some(value.as_bytes()));
    }
    let twice =
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: zstd\r\nContent-Encoding: br\r\n\r\n";
    assert_eq!(refusal(&before_second(twice)).status, 400);
}

#[test]
fn a_client_that_waits_is_told_to_go_on_once() {
    for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
        let head =
            format!("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n{framing}\r\n\r\n");
        let body: &[u8] = if framing.contains('5') { b"hello" } else { b"5\r\nhello\r\n0\r\n\r\n" };
        let mut feed = Feed::new(Limits::default());
        feed.send(head.as_bytes());
        assert_eq!(feed.continues, 1);
        body.iter().for_each(|byte| {
            feed.send(&[*byte]);
        });
        assert_eq!(feed.continues, 1);
        assert_eq!(requests(&feed.end())[0].body, b"hello".as_slice());

        // Some of the body is there: the client is not waiting.
        let mut feed = Feed::new(Limits::default());
        feed.send(&[head.as_bytes(), &body[..1]].concat());
        assert_eq!(feed.continues, 0);
        feed.send(&body[1..]);
        assert_eq!((feed.continues, feed.steps.len()), (0, 1));
    }
    let none = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n";
    let mut feed = Feed::new(Limits::default());
    feed.send(none);
    assert_eq!((feed.continues, feed.steps.len()), (0, 1));
    let odd = "POST / HTTP/1.1\r\nHost: h\r\nExpect: a-cake\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(refusal(&before_second(odd)).status, 417);
}

#[test]
fn memory_of_a_large_request_leaves_with_it() {
    let len = 5 << 20;
    let mut wire =
        format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {len}\r\n\r\n").into_bytes();
    wire.resize(wire.len() + len, b'x');
    let mut feed = Feed::new(Limits::default());
    feed.send(&wire).send(SECOND);
    assert_eq!(feed.steps.len(), 2);
    assert!(feed.decoder.buffer_bytes() <= RECV_RETAIN_MAX);
    feed.decoder.release();
    assert_eq!(feed.decoder.buffer_bytes(), 0);
    feed.send(SECOND);
    assert_eq!(feed.steps.len(), 3);
}
