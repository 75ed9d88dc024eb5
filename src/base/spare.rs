//! Memory that is used again: what one request is done with serves the next.
//!
//! A thing is put back wherever it was used up, also where another shard had sent it: shards send
//! each other about as much as they get. What is kept is bounded in bytes, so that neither a
//! burst nor one huge request pins memory. Nobody must put anything back; it costs speed only.

use std::rc::Rc;

use super::limits::{SPARE_BYTES_MAX, SPARE_PIECE_MAX};

/// What can be emptied and filled again.
pub trait Reuse: Default {
    /// Empties it, and says how many bytes of memory it holds beyond itself. None: it is not
    /// worth keeping, or somebody else still has it.
    fn empty(&mut self) -> usize;
}

/// Emptied things of one kind.
#[derive(Debug)]
pub struct Spare<T> {
    /// Each with the bytes it holds.
    kept: Vec<(T, usize)>,
    bytes: usize,
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), bytes: 0 }
    }
}

impl<T: Reuse> Spare<T> {
    /// An empty one; one that was used before if there is any.
    pub fn take(&mut self) -> T {
        let Some((thing, bytes)) = self.kept.pop() else { return T::default() };
        self.bytes -= bytes;
        thing
    }

    pub fn put(&mut self, mut thing: T) {
        let held = thing.empty();
        let bytes = held + size_of::<(T, usize)>();
        if held > 0 && held <= SPARE_PIECE_MAX && self.bytes + bytes <= SPARE_BYTES_MAX {
            self.kept.push((thing, bytes));
            self.bytes += bytes;
        }
    }
}

impl<T: Reuse> Reuse for Box<T> {
    fn empty(&mut self) -> usize {
        size_of::<T>() + (**self).empty()
    }
}

impl<T> Reuse for Vec<T> {
    fn empty(&mut self) -> usize {
        self.clear();
        self.capacity() * size_of::<T>()
    }
}

impl Reuse for String {
    fn empty(&mut self) -> usize {
        self.clear();
        self.capacity()
    }
}

/// Only the last holder can empty what is shared.
impl<T: Reuse> Reuse for Rc<T> {
    fn empty(&mut self) -> usize {
        Rc::get_mut(self).map_or(0, |thing| size_of::<T>() + thing.empty())
    }
}

impl Spare<String> {
    pub fn text(&mut self, of: &str) -> String {
        let mut text = self.take();
        text.push_str(of);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_comes_back_empty_with_its_memory() {
        let mut spare = Spare::default();
        spare.put(vec![1u64; 100]);
        let again = spare.take();
        assert!(again.is_empty() && again.capacity() >= 100);
        assert_eq!((spare.take().capacity(), spare.bytes), (0, 0));
    }

    #[test]
    fn neither_what_is_huge_nor_ever_more_is_kept() {
        let mut spare = Spare::default();
        spare.put(vec![0u8; SPARE_PIECE_MAX + 1]);
        spare.put(Vec::new());
        assert!(spare.kept.is_empty());
        for _ in 0..1_000 {
            spare.put(vec![0u8; SPARE_PIECE_MAX / 2]);
        }
        assert!(spare.bytes <= SPARE_BYTES_MAX && spare.bytes > SPARE_BYTES_MAX / 2);
    }

    #[test]
    fn what_is_shared_is_not_kept() {
        let mut spare: Spare<Rc<String>> = Spare::default();
        let shared = Rc::new("a".to_owned());
        spare.put(shared.clone());
        assert_eq!((shared.as_str(), spare.kept.len()), ("a", 0));
        spare.put(shared);
        assert_eq!((spare.take().as_str(), spare.kept.len()), ("", 0));
    }
}
