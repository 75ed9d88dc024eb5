//! Layer 3: the product. Synchronous, without I/O.

pub mod effect;
