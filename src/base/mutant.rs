//! Planted faults for the mutation check.
//!
//! Without the `mutants` feature every switch is the constant `false` and compiles to nothing.
//! With it (only `scripts/mutants.sh` builds so), `LANEMQ_MUTANT=<name>` turns one on: the
//! simulation must then go red, or it is blind to that fault.

/// A fault that can be planted. The name on the command line is the variant's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// The log takes a write for durable without its fdatasync.
    NoDataSync,
    /// A manifest slot is not synced before it is relied on.
    NoManifestSync,
    /// The directory is not synced after a create or a rename.
    NoDirectorySync,
    /// A reply leaves before the position it shows is durable.
    ReplyBeforeDurable,
    /// A duplicate is answered before its original is durable.
    DuplicateBeforeDurable,
    /// Recovery takes a record whose checksum does not match.
    NoChecksum,
    /// Recovery does not check that each record names its predecessor.
    NoChain,
    /// Recovery does not sync what it found before it relies on it.
    NoRecoverySync,
    /// A lease is answered without its record.
    LeaseNotDurable,
    /// A client's compressed group is stored as it came although it holds a repeat.
    KeepsRepeats,
    /// A share of a transaction is voted prepared before it is durable.
    PreparedBeforeDurable,
    /// A transaction is applied before its commit record is durable.
    CommitBeforeDurable,
    /// At a start a commit record counts without the prepared shares that it names.
    CommitCountsAlone,
    /// The coordinator applies a committed transaction, the other participants do not.
    CommitsOnOneShard,
    /// Settling upward from a spent message passes one that nobody named.
    SettleSkips,
    /// A seek's record does not say where the log stood.
    SeekForgetsCut,
}

impl Mutant {
    pub const ALL: [Self; 16] = [
        Self::NoDataSync,
        Self::NoManifestSync,
        Self::NoDirectorySync,
        Self::ReplyBeforeDurable,
        Self::DuplicateBeforeDurable,
        Self::NoChecksum,
        Self::NoChain,
        Self::NoRecoverySync,
        Self::LeaseNotDurable,
        Self::KeepsRepeats,
        Self::PreparedBeforeDurable,
        Self::CommitBeforeDurable,
        Self::CommitCountsAlone,
        Self::CommitsOnOneShard,
        Self::SettleSkips,
        Self::SeekForgetsCut,
    ];

    /// Whether this fault is planted in this process.
    #[cfg(feature = "mutants")]
    pub fn active(self) -> bool {
        static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let chosen = CHOSEN.get_or_init(|| std::env::var("LANEMQ_MUTANT").ok());
        chosen.as_deref().is_some_and(|name| name == format!("{self:?}"))
    }

    #[cfg(not(feature = "mutants"))]
    #[inline(always)]
    pub fn active(self) -> bool {
        false
    }
}
