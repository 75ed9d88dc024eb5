//! Which request waits for which reply: one cell for each open [`Token`] of a shard.

use std::task::Waker;

use super::dma::DmaBuf;
use crate::base::ids::Token;
use crate::model::reply::Reply;

/// A token is the cell's index below, and above it how often that cell was used, so that a
/// reply can never reach a later request.
const INDEX_BITS: u32 = 32;

#[derive(Default)]
pub struct Replies {
    cells: Vec<Cell>,
    free: Vec<u32>,
}

struct Cell {
    used: u32,
    state: State,
}

enum State {
    Free,
    Waiting(Option<Waker>),
    Ready(Reply<DmaBuf>),
    /// Nobody waits any more; the reply still comes.
    Abandoned,
}

/// What became of a reply that was filled in.
pub enum Filled {
    Kept,
    /// Its client is gone.
    Unwanted(Reply<DmaBuf>),
}

/// What a request finds when it looks.
pub enum Look {
    Waiting,
    Ready(Reply<DmaBuf>),
}

impl Replies {
    pub fn open(&mut self) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.cells.len()).unwrap_or(u32::MAX);
            assert!(index < u32::MAX, "open requests beyond any limit");
            self.cells.push(Cell { used: 0, state: State::Free });
            index
        });
        let cell = &mut self.cells[index as usize];
        assert!(matches!(cell.state, State::Free), "a free cell is in use");
        cell.used = cell.used.wrapping_add(1);
        cell.state = State::Waiting(None);
        Token(u64::from(cell.used) << INDEX_BITS | u64::from(index))
    }

    /// The shard's one reply to this token.
    pub fn fill(&mut self, token: Token, reply: Reply<DmaBuf>) -> Filled {
        let cell = self.cell(token);
        match std::mem::replace(&mut cell.state, State::Free) {
            State::Waiting(waker) => {
                cell.state = State::Ready(reply);
                if let Some(waker) = waker {
                    waker.wake();
                }
                Filled::Kept
            }
            State::Abandoned => {
                self.free.push(index_of(token));
                Filled::Unwanted(reply)
            }
            State::Free | State::Ready(_) => panic!("a second reply to {token:?}"),
        }
    }

    /// Takes the reply if it is there, which closes the token; else remembers whom to wake.
    pub fn look(&mut self, token: Token, waker: &Waker) -> Look {
        let cell = self.cell(token);
        match &mut cell.state {
            State::Waiting(known) => {
                if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
                    *known = Some(waker.clone());
                }
                Look::Waiting
            }
            State::Ready(_) => match std::mem::replace(&mut cell.state, State::Free) {
                State::Ready(reply) => {
                    self.free.push(index_of(token));
                    Look::Ready(reply)
                }
                _ => unreachable!("the state was just seen"),
            },
            State::Free | State::Abandoned => panic!("nobody waits for {token:?}"),
        }
    }

    /// The client is gone. A reply that is here already is given back at once; if not, the
    /// shard is still to be told.
    pub fn abandon(&mut self, token: Token) -> Option<Reply<DmaBuf>> {
        let cell = self.cell(token);
        match std::mem::replace(&mut cell.state, State::Abandoned) {
            State::Waiting(_) => None,
            State::Ready(reply) => {
                cell.state = State::Free;
                self.free.push(index_of(token));
                Some(reply)
            }
            State::Free | State::Abandoned => panic!("{token:?} is abandoned twice"),
        }
    }

    /// Requests without a reply.
    pub fn open_count(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    fn cell(&mut self, token: Token) -> &mut Cell {
        let cell = &mut self.cells[index_of(token) as usize];
        assert!(u64::from(cell.used) == token.0 >> INDEX_BITS, "{token:?} was closed long ago");
        cell
    }
}

fn index_of(token: Token) -> u32 {
    (token.0 & ((1 << INDEX_BITS) - 1)) as u32
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    /// A waker that counts.
    pub(in crate::server) struct Count(pub AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn reply() -> Reply<DmaBuf> {
        Reply::Deleted { existed: true }
    }

    #[test]
    fn a_reply_wakes_its_request_and_cells_are_used_again_under_new_tokens() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut replies = Replies::default();
        let first = replies.open();
        assert!(matches!(replies.look(first, &waker), Look::Waiting));
        assert!(matches!(replies.fill(first, reply()), Filled::Kept));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(matches!(replies.look(first, &waker), Look::Ready(_)));
        assert_eq!(replies.open_count(), 0);
        let second = replies.open();
        assert_ne!(first, second);
        assert_eq!(index_of(first), index_of(second));
    }

    #[test]
    fn an_abandoned_request_gives_its_reply_back_whenever_it_comes() {
        let mut replies = Replies::default();
        let early = replies.open();
        replies.fill(early, reply());
        assert!(replies.abandon(early).is_some());
        let late = replies.open();
        assert!(replies.abandon(late).is_none());
        assert!(matches!(replies.fill(late, reply()), Filled::Unwanted(_)));
        assert_eq!(replies.open_count(), 0);
    }
}
