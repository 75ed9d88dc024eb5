//! Requests being answered, in memory that serves one after the other.
//!
//! What answers a request is a future of some kilobytes, and every request needs one.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::answer::Answer;
use super::node::Node;
use super::operate;
use super::shard::ShardHandle;
use crate::http::Request;

/// Room for one request being answered. Dropped before the answer: the client is gone.
pub trait Operation {
    /// Takes a request up. To be called once the last one has its answer.
    fn begin(&mut self, node: Rc<Node>, shard: Rc<ShardHandle>, request: Request);

    /// To be called until there is an answer, and not again.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answer>;
}

/// A new one, for any request.
pub fn new() -> Box<dyn Operation> {
    Box::new(Slot { answer: operate::answer, running: Box::pin(None) })
}

/// Of the one type of future that `answer` makes, which has no name.
struct Slot<A, F> {
    answer: A,
    running: Pin<Box<Option<F>>>,
}

impl<A, F> Operation for Slot<A, F>
where
    A: Fn(Rc<Node>, Rc<ShardHandle>, Request) -> F,
    F: Future<Output = Answer>,
{
    fn begin(&mut self, node: Rc<Node>, shard: Rc<ShardHandle>, request: Request) {
        assert!(self.running.is_none(), "a request was begun before the last one's answer");
        self.running.set(Some((self.answer)(node, shard, request)));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        let running = self.running.as_mut().as_pin_mut();
        let answer = ready!(running.expect("polled before its end").poll(cx));
        // What it held of the request goes now, not with the next one.
        self.running.set(None);
        Poll::Ready(answer)
    }
}
