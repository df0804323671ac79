//! The sessions of a listener: pairs, and those that a client may know of before their pair is there.
//!
//! Who gets the last bytes of its handshake connects again at once, for descriptors or a stripe. The
//! session is known from before these bytes are written; what comes for it waits for the pair.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use treadle_security::secret::Secret;

/// Further connections that wait for one pair.
const MAX_EARLY: usize = 64;

/// Sessions by number: of pairs `P`, and with further connections `C`.
pub(crate) struct Sessions<P, C>(HashMap<u64, Session<P, C>>);

enum Session<P, C> {
    Opening { secret: Secret, early: Vec<C> },
    Open { secret: Secret, pair: Weak<P> },
}

/// Whose a further connection is.
pub(crate) enum Joined<P, C> {
    Pair(Arc<P>, C),
    /// It is kept until [`Sessions::open`].
    Waits,
    Nobody(C),
}

impl<P, C> Sessions<P, C> {
    pub(crate) fn new() -> Self {
        Self(HashMap::new())
    }

    /// A client has proved what it had to.
    pub(crate) fn begin(&mut self, session: u64, secret: Secret) {
        let early = Vec::new();
        self.0.insert(session, Session::Opening { secret, early });
    }

    /// What further connections of a session prove.
    pub(crate) fn secret(&self, session: u64) -> Option<Secret> {
        match self.0.get(&session)? {
            Session::Opening { secret, .. } => Some(secret.clone()),
            Session::Open { secret, pair } => (pair.strong_count() > 0).then(|| secret.clone()),
        }
    }

    /// A further connection has come.
    pub(crate) fn join(&mut self, session: u64, connection: C) -> Joined<P, C> {
        match self.0.get_mut(&session) {
            Some(Session::Opening { early, .. }) if early.len() < MAX_EARLY => {
                early.push(connection);
                Joined::Waits
            }
            Some(Session::Open { pair, .. }) => match pair.upgrade() {
                Some(pair) => Joined::Pair(pair, connection),
                None => Joined::Nobody(connection),
            },
            _ => Joined::Nobody(connection),
        }
    }

    /// The pair is there. Returns the connections that have waited for it.
    pub(crate) fn open(&mut self, session: u64, secret: Secret, pair: &Arc<P>) -> Vec<C> {
        let pair = Arc::downgrade(pair);
        match self.0.insert(session, Session::Open { secret, pair }) {
            Some(Session::Opening { early, .. }) => early,
            _ => Vec::new(),
        }
    }

    /// The pair does not come. Returns the connections that have waited for it.
    pub(crate) fn give_up(&mut self, session: u64) -> Vec<C> {
        match self.0.remove(&session) {
            Some(Session::Opening { early, .. }) => early,
            _ => Vec::new(),
        }
    }

    /// Forgets pairs that are gone; whether none is left.
    pub(crate) fn sweep(&mut self) -> bool {
        self.0.retain(|_, session| match session {
            Session::Opening { .. } => true,
            Session::Open { pair, .. } => pair.strong_count() > 0,
        });
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::new([7; 32]).unwrap()
    }

    #[test]
    fn what_comes_before_the_pair_waits_for_it() {
        let mut sessions = Sessions::<&str, u32>::new();
        assert!(sessions.secret(1).is_none());
        assert!(matches!(sessions.join(1, 10), Joined::Nobody(10)));
        sessions.begin(1, secret());
        assert!(sessions.secret(1).is_some());
        assert!(matches!(sessions.join(1, 11), Joined::Waits));
        assert!(matches!(sessions.join(1, 12), Joined::Waits));
        assert!(!sessions.sweep());
        let pair = Arc::new("pair");
        assert_eq!(sessions.open(1, secret(), &pair), [11, 12]);
        assert!(matches!(sessions.join(1, 13), Joined::Pair(_, 13)));
        assert!(sessions.secret(1).is_some());
        drop(pair);
        assert!(sessions.secret(1).is_none());
        assert!(matches!(sessions.join(1, 14), Joined::Nobody(14)));
        assert!(sessions.sweep());
    }

    #[test]
    fn without_a_pair_nothing_is_kept_and_never_much() {
        let mut sessions = Sessions::<&str, usize>::new();
        sessions.begin(1, secret());
        for number in 0..MAX_EARLY {
            assert!(matches!(sessions.join(1, number), Joined::Waits));
        }
        assert!(matches!(sessions.join(1, 99), Joined::Nobody(99)));
        assert_eq!(sessions.give_up(1).len(), MAX_EARLY);
        assert!(sessions.secret(1).is_none());
        assert!(sessions.sweep());
    }
}
