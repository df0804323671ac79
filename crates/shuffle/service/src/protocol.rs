//! Which versions of the service's messages a process speaks, so that processes of two releases work side
//! by side. Pure, but for what a test says.
//!
//! The number rises when a process of the release before would not understand what it is sent: another kind
//! of object, another case of a message, another format of batches. A new field of a message needs no new
//! number, since who does not know it ignores it.

use std::fmt;

/// The newest version, and the one that processes announce.
const NEWEST: u32 = 3;
/// The first version in which each application may have a master. Releases before the first version with a
/// number say none, which reads as 0.
const FIRST: u32 = 2;

/// The first version in which a server takes several pushes in a message.
const TOGETHER: u32 = 3;

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

    /// Whether a server that speaks this version is told several pushes in a message by this process.
    pub(crate) fn tells_together(self, server: u32) -> bool {
        self.newest.min(server) >= TOGETHER
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
        for release in FIRST + 1..6 {
            let (now, next) = (Protocol::of(release), Protocol::of(release + 1));
            assert_eq!(now.common(next), Some(release));
            assert_eq!(next.common(now), Some(release));
            assert_eq!(now.common(now), Some(release));
            assert_eq!(now.common(Protocol::of(release + 2)), None);
        }
        // Those of before speak with themselves only.
        assert_eq!(Protocol::of(FIRST).common(Protocol::of(FIRST - 1)), None);
        assert_eq!(Protocol::of(1).common(Protocol::of(0)), None);
    }

    #[test]
    fn pushes_are_told_together_if_both_know_that() {
        let (before, now) = (Protocol::of(TOGETHER - 1), Protocol::of(TOGETHER));
        assert!(now.tells_together(TOGETHER) && now.tells_together(TOGETHER + 1));
        assert!(!now.tells_together(TOGETHER - 1) && !before.tells_together(TOGETHER));
        assert!(!now.tells_together(0), "the master does not say it");
    }

    #[test]
    fn who_is_refused_is_told_what_to_upgrade() {
        let there = Protocol::of(5);
        assert_eq!(there.admit(Protocol::of(4), "the master"), Ok(4));
        assert_eq!(
            there.admit(Protocol::of(3), "the master").unwrap_err(),
            "it speaks protocols 2 to 3 of the shuffle service, and the master speaks protocols 4 to 5: \
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
