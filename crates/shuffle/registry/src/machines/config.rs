//! Settings of the machines, and their guards.

use std::time::Duration;

/// Times and limits of the machines.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The pause after a first failed attempt, and the longest: with an answer that is late it must be shorter than a
    /// session, so that a server is back before the registry drops it. Each is twice the one before, and between half of
    /// that and all of it, so that not all come back at once.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// After so long without a sign of life, a registry drops a server.
    pub session: Duration,
    /// How long a registry may take to answer; reading the whole list, ten times as long.
    pub answer: Duration,
    /// How long a session that was interrupted is waited for.
    pub interruption: Duration,
    /// How long a server that has gone stays in the list: it may be about to come back with another session.
    pub linger: Duration,
    /// How long a server that is missing after an interruption stays in the list. It must be able to register again
    /// within that: longer than the session's timeout and the longest pause together.
    pub grace: Duration,
    /// A server that has left so often within the window is held back ...
    pub flaps: u32,
    pub window: Duration,
    /// ... for so long after it has left, twice as long each time, up to the longest.
    pub hold: Duration,
    pub longest_hold: Duration,
    /// Writes of one entry are so far apart at least,
    pub shortest_refresh: Duration,
    /// and so far at most, if its load has changed at all. Then a server also looks for another with its name.
    pub longest_refresh: Duration,
    /// The most servers in a list. Others are skipped, and named.
    pub most: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(8),
            session: Duration::from_secs(15),
            answer: Duration::from_secs(5),
            interruption: Duration::from_secs(30),
            linger: Duration::from_secs(3),
            grace: Duration::from_secs(60),
            flaps: 5,
            window: Duration::from_secs(600),
            hold: Duration::from_secs(30),
            longest_hold: Duration::from_secs(300),
            shortest_refresh: Duration::from_secs(1),
            longest_refresh: Duration::from_secs(30),
            most: 100_000,
        }
    }
}

treadle_guards::guards! {
    /// Checks that keep lists correct.
    pub enum Guard {
        /// Of two servers with one name, that of the later incarnation counts.
        Incarnation,
        /// A server that is missing after an interruption may be registering again.
        Grace,
        /// A server that has gone may have another session already.
        Linger,
        /// A server that leaves again and again is held back.
        Flapping,
        /// A list that may be old is not called current.
        Stale,
        /// After an interruption the whole list is read again.
        Reread,
        /// A server does not register beside a later incarnation of its name.
        Rivals,
        /// A server whose session has ended registers again.
        Renewal,
    }
}
