//! Which versions of the service's messages a process speaks, so that processes of two releases work side
//! by side. Pure, but for what a test says.
//!
//! The number rises when a process of the release before would not understand what it is sent: another kind
//! of object, another case of a message, another format of batches. A new field of a message needs no new
//! number, since who does not know it ignores it.

use std::fmt;

/// The newest version, and the one that processes announce.
const NEWEST: u32 = 1;
/// The first version with a number. Releases before it say none, which reads as 0.
const FIRST: u32 = 1;

/// The versions that a process speaks: the newest one of its release, and the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Protocol {
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
}

impl Protocol {
    /// That of a release whose newest version is this one.
    pub(crate) fn of(newest: u32) -> Self {
        Self {
            oldest: newest.saturating_sub(1).max(FIRST).min(newest),
            newest,
        }
    }

    /// That of this process.
    pub(crate) fn ours() -> Self {
        Self::of(tested().unwrap_or(NEWEST))
    }

    /// The version that two processes use with each other: the newest that both speak.
    pub(crate) fn common(self, other: Self) -> Option<u32> {
        let common = self.newest.min(other.newest);
        (common >= self.oldest.max(other.oldest)).then_some(common)
    }

    /// Why a process cannot work with one that is there, and what to do. `there` says what that is.
    ///
    /// # Errors
    /// There is no version that both speak.
    pub(crate) fn admit(self, joining: Self, there: &str) -> Result<u32, String> {
        let first = match joining.newest < self.oldest {
            true => "upgrade this process",
            false => "upgrade that first",
        };
        let refused = || {
            format!(
                "it speaks {joining} of the shuffle service, and {there} speaks {self}: {first}"
            )
        };
        self.common(joining).ok_or_else(refused)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "protocol {}", self.newest),
            false => write!(f, "protocols {} to {}", self.oldest, self.newest),
        }
    }
}

/// What a test has this process announce.
fn tested() -> Option<u32> {
    if !cfg!(feature = "testing") {
        return None;
    }
    let said = std::env::var("TREADLE_TESTING_SHUFFLE_PROTOCOL").ok()?;
    said.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_that_follow_each_other_use_the_version_of_the_older_one() {
        for release in 2..6 {
            let (now, next) = (Protocol::of(release), Protocol::of(release + 1));
            assert_eq!(now.common(next), Some(release));
            assert_eq!(next.common(now), Some(release));
            assert_eq!(now.common(now), Some(release));
            assert_eq!(now.common(Protocol::of(release + 2)), None);
        }
        // Those without a number speak with themselves only.
        assert_eq!(Protocol::of(1).common(Protocol::of(0)), None);
    }

    #[test]
    fn who_is_refused_is_told_what_to_upgrade() {
        let there = Protocol::of(4);
        assert_eq!(there.admit(Protocol::of(3), "the master"), Ok(3));
        assert_eq!(
            there.admit(Protocol::of(2), "the master").unwrap_err(),
            "it speaks protocols 1 to 2 of the shuffle service, and the master speaks protocols 3 to 4: \
             upgrade this process"
        );
        assert_eq!(
            Protocol::of(1)
                .admit(Protocol::of(3), "server a")
                .unwrap_err(),
            "it speaks protocols 2 to 3 of the shuffle service, and server a speaks protocol 1: upgrade \
             that first"
        );
    }
}
