//! What was read of the segments around one record, kept for the next ones.
//!
//! Consumers that lag behind the tail take what was appended together at about the same time: one
//! read then serves many records, not each its own. A record far from all that was read of late is
//! read alone; one that follows it begins a run, each span of which is twice as long as the last.

use super::format::BLOCK;
use crate::base::buf::{IoBuf, align_down, align_up};
use crate::base::ids::LogPosition;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// So far behind the end of a span a read still counts as following it: consumers take
/// partitions in another order than they were written in.
const REACH_BYTES: u64 = 64 << 10;
/// Length of the second span of a run, and the longest.
const SPAN_BYTES_MIN: u64 = 16 << 10;
const SPAN_BYTES_MAX: u64 = 128 << 10;

/// A record that somebody wants to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub at: LogPosition,
    /// Header included.
    pub bytes: u32,
    /// What the reader calls it.
    pub key: u64,
}

impl Wanted {
    /// The first block that holds a part of it.
    pub fn from(&self) -> LogPosition {
        LogPosition::new(self.at.segment(), align_down(self.at.byte(), BLOCK))
    }

    /// The end of the last one in its segment.
    pub fn to(&self) -> u64 {
        align_up(self.at.byte() + u64::from(self.bytes), BLOCK)
    }
}

pub enum Look<B> {
    /// A buffer that holds it, and where the buffer begins.
    Here(B, LogPosition),
    /// It is being read, and will be among the [`ReadAhead::arrived`].
    Coming,
    /// To be read: this many bytes from [`Wanted::from`] on.
    Missing(u64),
    /// To be read for itself, without a span.
    Alone,
}

/// Those who wait for one read.
pub type Waiting = SmallVec<[Wanted; 1]>;

/// The spans of one log, by where they begin.
pub struct ReadAhead<B> {
    spans: BTreeMap<LogPosition, Span<B>>,
    /// Those that are here, the oldest first.
    order: VecDeque<LogPosition>,
    /// Memory of those that are here, and its bound.
    bytes: u64,
    bytes_max: u64,
}

struct Span<B> {
    /// End in its segment.
    to: u64,
    state: State<B>,
}

enum State<B> {
    Coming(Waiting),
    Here(B),
}

impl<B: IoBuf> ReadAhead<B> {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            spans: BTreeMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            bytes_max: bytes_max as u64,
        }
    }

    /// Where to find a record. `end` is up to where its segment may be read. After
    /// [`Look::Missing`] the caller reads and says so to [`Self::arrived`] or [`Self::failed`].
    pub fn look(&mut self, wanted: Wanted, end: u64) -> Look<B> {
        let from = wanted.from();
        let before = self.spans.range_mut(..=from).next_back();
        let before = before.filter(|(at, _)| at.segment() == from.segment());
        let mut len = wanted.to() - from.byte();
        if let Some((at, span)) = before {
            if wanted.to() <= span.to {
                return match &mut span.state {
                    State::Here(buf) => Look::Here(buf.clone(), *at),
                    State::Coming(waiting) => {
                        waiting.push(wanted);
                        Look::Coming
                    }
                };
            }
            if from.byte() <= span.to + REACH_BYTES {
                let run = 2 * (span.to - at.byte());
                len = len.max(run.clamp(SPAN_BYTES_MIN, SPAN_BYTES_MAX).min(self.bytes_max));
            }
        }
        if wanted.to() - from.byte() > SPAN_BYTES_MAX {
            // It would drive out many that are wanted again.
            return Look::Alone;
        }
        // One that begins there is too short.
        match self.spans.get(&from) {
            Some(Span { state: State::Coming(_), .. }) => return Look::Alone,
            Some(Span { state: State::Here(_), .. }) => {
                self.order.retain(|at| *at != from);
                self.remove(from);
            }
            None => {}
        }
        let to = self.bound(wanted, from.byte() + align_down(len, BLOCK), end);
        let state = State::Coming(SmallVec::from_slice(&[wanted]));
        self.spans.insert(from, Span { to, state });
        Look::Missing(to - from.byte())
    }

    /// Takes out one that is here; its place in the order is the caller's.
    fn remove(&mut self, from: LogPosition) {
        let span = self.spans.remove(&from);
        self.bytes -= span.map_or(0, |span| span.to - from.byte());
    }

    /// `to`, but not beyond the end and not into the next span, unless the record itself does.
    fn bound(&self, wanted: Wanted, to: u64, end: u64) -> u64 {
        let from = wanted.from();
        let next = self.spans.range(from.advance(BLOCK)..).next();
        let next = next.filter(|(at, _)| at.segment() == from.segment());
        let bound = next.map_or(end, |(at, _)| at.byte().min(end));
        to.min(bound).max(wanted.to())
    }

    /// The span that begins there was read. Returns who waits for it.
    pub fn arrived(&mut self, from: LogPosition, buf: &B) -> Waiting {
        let span = self.spans.get_mut(&from);
        let span = span.unwrap_or_else(|| unreachable!("a span that nobody reads arrived"));
        let state = std::mem::replace(&mut span.state, State::Here(buf.clone()));
        self.bytes += span.to - from.byte();
        self.order.push_back(from);
        self.evict();
        match state {
            State::Coming(waiting) => waiting,
            State::Here(_) => unreachable!("a span was read twice"),
        }
    }

    /// It could not be read. Returns who waits for it.
    pub fn failed(&mut self, from: LogPosition) -> Waiting {
        match self.spans.remove(&from).map(|span| span.state) {
            Some(State::Coming(waiting)) => waiting,
            _ => unreachable!("a span failed that was not being read"),
        }
    }

    fn evict(&mut self) {
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::buf::HeapBuf;
    use crate::base::ids::SegmentId;

    const END: u64 = 1 << 20;

    fn at(byte: u64) -> LogPosition {
        LogPosition::new(SegmentId(3), byte)
    }

    fn wanted(byte: u64, bytes: u32) -> Wanted {
        Wanted { at: at(byte), bytes, key: byte }
    }

    fn missing(ahead: &mut ReadAhead<HeapBuf>, record: Wanted) -> u64 {
        match ahead.look(record, END) {
            Look::Missing(bytes) => bytes,
            _ => panic!("{record:?} need not be read"),
        }
    }

    fn arrive(ahead: &mut ReadAhead<HeapBuf>, from: u64, bytes: u64) -> Vec<u64> {
        let waiting = ahead.arrived(at(from), &HeapBuf::alloc(bytes as usize));
        waiting.iter().map(|wanted| wanted.key).collect()
    }

    #[test]
    fn a_lone_read_is_exact_and_a_run_doubles_up_to_its_bound() {
        let mut ahead = ReadAhead::new(1 << 20);
        assert_eq!(missing(&mut ahead, wanted(40_964, 100)), BLOCK);
        assert_eq!(missing(&mut ahead, wanted(600_000, 9_000)), 3 * BLOCK);
        arrive(&mut ahead, 40_960, BLOCK);
        let (mut from, mut lengths) = (45_056, Vec::new());
        for _ in 0..5 {
            let bytes = missing(&mut ahead, wanted(from, 50));
            arrive(&mut ahead, from, bytes);
            lengths.push(bytes >> 10);
            from += bytes;
        }
        assert_eq!(lengths, [16, 32, 64, 128, 128]);
        // Another segment's spans are no neighbours.
        let other = Wanted { at: LogPosition::new(SegmentId(4), 4_096), bytes: 40, key: 0 };
        assert!(matches!(ahead.look(other, END), Look::Missing(BLOCK)));
    }

    #[test]
    fn who_asks_while_a_span_comes_is_told_with_the_others() {
        let mut ahead = ReadAhead::new(1 << 20);
        assert_eq!(missing(&mut ahead, wanted(0, 6_000)), 2 * BLOCK);
        assert!(matches!(ahead.look(wanted(6_000, 2_192), END), Look::Coming));
        // It begins in the last block and goes beyond.
        assert_eq!(missing(&mut ahead, wanted(6_016, 4_096)), 4 * BLOCK);
        assert_eq!(arrive(&mut ahead, 0, 2 * BLOCK), [0, 6_000]);
        let Look::Here(buf, from) = ahead.look(wanted(64, 64), END) else { panic!("it is gone") };
        assert_eq!((buf.bytes().len() as u64, from), (2 * BLOCK, at(0)));
        assert_eq!(ahead.failed(at(4_096))[0].key, 6_016);
        assert_eq!(missing(&mut ahead, wanted(6_016, 4_096)), 4 * BLOCK);
    }

    #[test]
    fn a_longer_record_at_the_begin_of_a_span_takes_its_place_or_is_read_alone() {
        let mut ahead = ReadAhead::new(1 << 20);
        assert_eq!(missing(&mut ahead, wanted(0, 100)), BLOCK);
        assert!(matches!(ahead.look(wanted(104, 8_000), END), Look::Alone));
        assert_eq!(arrive(&mut ahead, 0, BLOCK), [0]);
        let bytes = missing(&mut ahead, wanted(104, 8_000));
        assert_eq!(arrive(&mut ahead, 0, bytes), [104]);
        assert_eq!((ahead.bytes, ahead.order.len()), (bytes, 1));
        assert!(matches!(ahead.look(wanted(0, 100), END), Look::Here(..)));
    }

    #[test]
    fn a_record_longer_than_any_span_leaves_the_others_here() {
        let mut ahead = ReadAhead::new(256 << 10);
        assert_eq!(missing(&mut ahead, wanted(0, 100)), BLOCK);
        arrive(&mut ahead, 0, BLOCK);
        assert!(matches!(ahead.look(wanted(64, 300 << 10), END), Look::Alone));
        assert!(matches!(ahead.look(wanted(0, 100), END), Look::Here(..)));
    }

    #[test]
    fn a_span_ends_where_the_next_begins_and_at_the_end_of_what_may_be_read() {
        let mut ahead = ReadAhead::new(1 << 20);
        assert_eq!(missing(&mut ahead, wanted(0, 10)), BLOCK);
        assert_eq!(missing(&mut ahead, wanted(3 * BLOCK, 10)), 4 * BLOCK);
        assert_eq!(missing(&mut ahead, wanted(BLOCK, 10)), 2 * BLOCK);
        let near = Wanted { at: at(8 * BLOCK), bytes: 10, key: 0 };
        assert!(matches!(ahead.look(near, 9 * BLOCK + 1), Look::Missing(4_097)));
    }

    #[test]
    fn what_was_read_first_goes_when_the_bound_is_reached() {
        let mut ahead = ReadAhead::new(3 * BLOCK as usize);
        for n in 0..5 {
            let far = 200_000 * n + 192;
            let bytes = missing(&mut ahead, wanted(far, 10));
            arrive(&mut ahead, align_down(far, BLOCK), bytes);
        }
        let here = |n: u64, ahead: &mut ReadAhead<HeapBuf>| {
            matches!(ahead.look(wanted(200_000 * n + 192, 10), END), Look::Here(..))
        };
        assert!(here(4, &mut ahead) && here(3, &mut ahead) && here(2, &mut ahead));
        assert!(!here(0, &mut ahead) && !here(1, &mut ahead));
        assert_eq!((ahead.bytes, ahead.order.len()), (3 * BLOCK, 3));
        // Without memory of its own everything is read each time.
        let mut none = ReadAhead::new(0);
        for _ in 0..2 {
            assert_eq!(missing(&mut none, wanted(0, 10)), BLOCK);
            assert_eq!(arrive(&mut none, 0, BLOCK), [0]);
        }
        assert!(none.spans.is_empty() && none.bytes == 0);
    }
}
