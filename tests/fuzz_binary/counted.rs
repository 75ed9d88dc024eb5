//! A global allocator that counts, for each thread, how many bytes are allocated, and how many
//! ever were inside one measured call.
//!
//! Only Rust's own allocations pass here. A zstd context is the C library's own: it is made once,
//! before anything is measured, and inflating one frame into a given buffer asks for no more.

#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static COUNTED: Counted = Counted;

struct Counted;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    LIVE.with(|live| {
        live.set(live.get() + bytes);
        MOST.with(|most| most.set(most.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing, for
// the cells are initialised at compile time and have no destructor.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // As if it always moved: old and new are there at once.
        count(bytes as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

/// Runs `call`; the most bytes that it had allocated at once.
pub fn peak<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.with(Cell::get);
    MOST.with(|most| most.set(before));
    let out = call();
    (out, (MOST.with(Cell::get) - before).cast_unsigned())
}
