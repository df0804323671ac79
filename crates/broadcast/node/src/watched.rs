//! When casts came to a worker, and when it had done what they ask for: for who records what workers do.

use std::collections::HashMap;

use treadle_broadcast::CastId;
use treadle_reactor::clock;
use treadle_types::ClientId;

use super::payload::Kind;

/// What a worker is to do with a cast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// Its engine runs it.
    Engine,
    /// Its memory keeps values.
    Memory,
    /// Its Python side is asked something.
    Python,
}

impl From<Kind> for For {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Run => Self::Engine,
            Kind::Keep => Self::Memory,
            Kind::Call => Self::Python,
        }
    }
}

/// A cast at a worker that has its payload. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Had {
    /// The cast.
    pub cast: CastId,
    /// What for.
    pub what: For,
    /// When the first of it came.
    pub came: u64,
    /// When it was there, and its turn.
    pub given: u64,
    /// When it was done; `None`: it is not.
    pub done: Option<u64>,
    /// Bytes of the payload.
    pub bytes: u64,
}

/// The casts that come, and those that are given and not done.
#[derive(Debug, Default)]
pub(super) struct Watched {
    coming: HashMap<CastId, u64>,
    open: HashMap<CastId, Had>,
}

impl Watched {
    /// Its payload begins to come.
    pub(super) fn comes(&mut self, cast: CastId) {
        self.coming.entry(cast).or_insert_with(clock::monotonic);
    }

    /// Its payload is handed on.
    pub(super) fn given(&mut self, cast: CastId, what: For, bytes: u64) {
        let given = clock::monotonic();
        let had = Had {
            cast,
            what,
            came: self.coming.remove(&cast).unwrap_or(given),
            given,
            done: None,
            bytes,
        };
        self.open.insert(cast, had);
    }

    /// It is done. `None`: it was not given.
    pub(super) fn done(&mut self, cast: CastId) -> Option<Had> {
        let had = self.open.remove(&cast)?;
        let done = Some(clock::monotonic());
        Some(Had { done, ..had })
    }

    /// Nobody needs it any more, whatever became of it.
    pub(super) fn forget(&mut self, cast: CastId) {
        self.coming.remove(&cast);
        self.open.remove(&cast);
    }

    pub(super) fn drop_session(&mut self, session: ClientId) {
        self.coming.retain(|cast, _| cast.session != session);
        self.open.retain(|cast, _| cast.session != session);
    }

    /// Those that are given and not done.
    pub(super) fn open(&self) -> Vec<Had> {
        self.open.values().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast(session: u32, number: u64) -> CastId {
        CastId {
            session: ClientId(session),
            number,
        }
    }

    #[test]
    fn nothing_is_kept_of_what_is_done_or_dropped() {
        let mut watched = Watched::default();
        for number in 1..=4 {
            watched.comes(cast(1, number));
        }
        watched.comes(cast(2, 1));
        for number in 1..=3 {
            watched.given(cast(1, number), For::Engine, 7);
        }
        let done = watched.done(cast(1, 1)).unwrap();
        assert!(done.came <= done.given && Some(done.given) <= done.done);
        assert_eq!((done.bytes, watched.done(cast(1, 1))), (7, None));
        watched.forget(cast(1, 2));
        assert_eq!(watched.open().len(), 1);
        watched.drop_session(ClientId(1));
        watched.forget(cast(2, 1));
        assert!(watched.coming.is_empty() && watched.open.is_empty());
    }
}
