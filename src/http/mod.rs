//! Placeholder until its first file lands.
