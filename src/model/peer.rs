//! What shards tell each other. Owned and `Send`: it crosses cores.

/// One message of the mesh.
#[derive(Debug)]
pub enum PeerMsg {}
