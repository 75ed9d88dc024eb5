//! A global allocator that counts the allocations of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static COUNTED: Counted = Counted;

struct Counted;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    COUNT.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing, for
// the cell is initialised at compile time and has no destructor.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

/// How often `call` asks for memory.
pub fn allocations(call: impl FnOnce()) -> usize {
    let before = COUNT.with(Cell::get);
    call();
    COUNT.with(Cell::get) - before
}
