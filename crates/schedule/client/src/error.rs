//! What can go wrong for a client.

/// Local ids are not used twice, and there are no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this client has named four billion keys: make another one")]
pub struct Exhausted;
