//! What can go wrong, and what to do about it.

use std::fmt;
use std::sync::Arc;

use treadle_net::NetError;
use treadle_shuffle::{Generation, ReceiptError};
use treadle_shuffle_registry::RegistryError;
use treadle_shuffle_service::ServiceError;

/// What a call was about.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum At {
    /// The service, and what was done with it.
    Service(String),
    /// A shuffle.
    Shuffle {
        /// Its number in the service.
        number: u64,
        /// What it is called.
        name: Arc<str>,
        /// The part of it.
        part: Part,
    },
}

/// A part of a shuffle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Part {
    /// Its registration.
    Whole,
    /// Its commit.
    Commit,
    /// Its end.
    End,
    /// A map: an input.
    Map(u32),
    /// A partition: an output.
    Partition(u32),
}

impl At {
    /// The same without the part of a shuffle.
    fn whole(&self) -> Self {
        let mut whole = self.clone();
        if let Self::Shuffle { part, .. } = &mut whole {
            *part = Part::Whole;
        }
        whole
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(doing) => f.write_str(doing),
            Self::Shuffle { name, part, .. } => match part {
                Part::Whole => write!(f, "shuffle {name}"),
                Part::Commit => write!(f, "shuffle {name}, commit"),
                Part::End => write!(f, "shuffle {name}, end"),
                Part::Map(map) => write!(f, "shuffle {name}, map {map}"),
                Part::Partition(partition) => write!(f, "shuffle {name}, partition {partition}"),
            },
        }
    }
}

/// An error of the shuffle service. Its text names the shuffle, the map or the partition, and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection: an address, a secret or certificates are wrong, or nobody answers.
    #[error("{at}: {source}")]
    Unreachable {
        /// What was done.
        at: At,
        /// Why not.
        source: Box<NetError>,
    },
    /// A registry of servers does not answer, or refuses.
    #[error("{at}: {reason}")]
    Registry {
        /// What was done.
        at: At,
        /// Which registry, and why not.
        reason: String,
    },
    /// The master refuses what it was asked. It does so after the end of a shuffle, too.
    #[error("{at}: {reason}")]
    Refused {
        /// What was asked.
        at: At,
        /// Why not, and what to do.
        reason: String,
    },
    /// The master is gone, or this process has left it. Its shuffles are gone with it: connect again, and begin
    /// anew.
    #[error("{at}: {reason}")]
    Gone {
        /// What was done.
        at: At,
        /// Why.
        reason: String,
    },
    /// All copies of some rows are lost. Write `maps` again, and commit with their new receipts.
    #[error("{}: {reason}. Write maps {} again, and commit", .at.whole(), Numbers(.maps))]
    RowsLost {
        /// Where it was noticed.
        at: At,
        /// How.
        reason: String,
        /// The maps that must run again, in ascending order. Only rows that are lost are pushed then, if the
        /// writer is told that the map runs [again](crate::Writer::again).
        maps: Vec<u32>,
        /// A map has returned other rows than before. Whatever was read before must be read again.
        read_again: bool,
    },
    /// The shuffle was committed again after the generation that was read. Read in the later one.
    #[error("{at}: {}", superseded(*.generation, *.committed))]
    Superseded {
        /// What was read.
        at: At,
        /// The generation in which it was read.
        generation: Generation,
        /// The one that was committed last, if the master says it. The same one: maps have run again since, and
        /// nobody has committed.
        committed: Option<Generation>,
    },
    /// The shuffle was not committed in this generation.
    #[error("{}", uncommitted(.at, *.generation, *.committed))]
    NotCommitted {
        /// What was read.
        at: At,
        /// The generation in which it was to be read.
        generation: Generation,
        /// The one that was committed last; `None`: none.
        committed: Option<Generation>,
    },
    /// The shuffle was committed with other rows of a map. Those stay, and these are dropped.
    #[error("{at}: {reason}")]
    LateAttempt {
        /// The map, or the commit.
        at: At,
        /// Which, and what to do.
        reason: String,
    },
    /// A server has no room, neither in memory nor on its disks; or none of them has.
    #[error("{at}: {reason}")]
    NoRoom {
        /// The map.
        at: At,
        /// Which server, and what to do.
        reason: String,
    },
    /// Rows are not those that were written, at no copy of them.
    #[error("{at}: {reason}")]
    DamagedRows {
        /// What was compared.
        at: At,
        /// Which server has them.
        reason: String,
    },
    /// The receipts are not one for each map.
    #[error("{at}: {source}")]
    Receipts {
        /// The commit.
        at: At,
        /// What is wrong with them.
        source: ReceiptError,
    },
    /// An argument that cannot be. Nothing was done.
    #[error("{at}: {reason}")]
    Invalid {
        /// What it was for.
        at: At,
        /// What is wrong with it, and what can be.
        reason: String,
    },
    /// The deadline has passed. The same call may succeed later.
    #[error("{at}: {reason}")]
    TimedOut {
        /// What was not done in time.
        at: At,
        /// What it waited for.
        reason: String,
    },
    /// The caller has interrupted the call.
    #[error("{at}: it was interrupted")]
    Interrupted {
        /// What was done.
        at: At,
    },
    /// The [source](crate::source::Source) of rows has failed. It is its own error.
    #[error("{source}")]
    Source {
        /// The map.
        at: At,
        /// What the source has returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Anything else: the system has no thread or memory left, or this is a bug. The text says which.
    #[error("{at}: {reason}")]
    Failed {
        /// What was done.
        at: At,
        /// Why not.
        reason: String,
    },
}

impl Error {
    /// What the call was about.
    pub fn at(&self) -> &At {
        match self {
            Self::Unreachable { at, .. }
            | Self::Registry { at, .. }
            | Self::Refused { at, .. }
            | Self::Gone { at, .. }
            | Self::RowsLost { at, .. }
            | Self::Superseded { at, .. }
            | Self::NotCommitted { at, .. }
            | Self::LateAttempt { at, .. }
            | Self::NoRoom { at, .. }
            | Self::DamagedRows { at, .. }
            | Self::Receipts { at, .. }
            | Self::Invalid { at, .. }
            | Self::TimedOut { at, .. }
            | Self::Interrupted { at }
            | Self::Source { at, .. }
            | Self::Failed { at, .. } => at,
        }
    }

    /// The same of another part, of what ends the wait for all.
    pub(crate) fn of(&self, at: At) -> Self {
        match self {
            Self::TimedOut { reason, .. } => {
                let reason = reason.clone();
                Self::TimedOut { at, reason }
            }
            Self::NoRoom { reason, .. } => {
                let reason = reason.clone();
                Self::NoRoom { at, reason }
            }
            _ => Self::Interrupted { at },
        }
    }

    pub(crate) fn invalid(at: &At, reason: impl fmt::Display) -> Self {
        Self::Invalid {
            at: at.clone(),
            reason: reason.to_string(),
        }
    }

    /// What an error of a registry means.
    pub(crate) fn of_registry(error: &RegistryError, at: &At) -> Self {
        let reason = error.to_string();
        let at = at.clone();
        match error {
            RegistryError::Unanswered { .. } | RegistryError::Late { .. } => {
                Self::Registry { at, reason }
            }
            RegistryError::System { .. } => Self::Failed { at, reason },
            _ => Self::Invalid { at, reason },
        }
    }

    /// What an error of the service means. `stopped`: what has ended the wait, if it was that.
    pub(crate) fn of_service(error: ServiceError, at: &At, stopped: Option<Self>) -> Self {
        if let ServiceError::Unusable(error) = &error {
            return Self::of_registry(error, at);
        }
        let at = at.clone();
        match error {
            // A registry that does not answer in time says why.
            ServiceError::Registry(reason) => match stopped {
                Some(interrupted @ Self::Interrupted { .. }) => interrupted,
                _ => Self::Registry { at, reason },
            },
            ServiceError::Net(NetError::Timeout | NetError::Interrupted) | ServiceError::Late => {
                stopped.unwrap_or(Self::Interrupted { at })
            }
            ServiceError::Net(source) => Self::Unreachable {
                at,
                source: Box::new(source),
            },
            ServiceError::Refused(reason) => Self::Refused { at, reason },
            ServiceError::Over(reason) => Self::Gone { at, reason },
            other => Self::Failed {
                at,
                reason: other.to_string(),
            },
        }
    }
}

fn superseded(generation: Generation, committed: Option<Generation>) -> String {
    let generation = generation.0;
    match committed {
        Some(Generation(last)) if last == generation => format!(
            "rows of generation {generation} were lost, and their maps have run again since: commit, and take a new \
             reader, with the generation that it returns"
        ),
        last => {
            let later = last.map_or_else(String::new, |Generation(last)| {
                format!(", in generation {last}")
            });
            format!(
                "it was committed again{later}, after generation {generation}: take a new reader, with the generation \
                 that the later commit returned"
            )
        }
    }
}

fn uncommitted(at: &At, generation: Generation, committed: Option<Generation>) -> String {
    match (committed, at) {
        (Some(last), _) => format!(
            "{at}: it was not committed in generation {}: the last commit returned {}",
            generation.0, last.0
        ),
        (None, At::Shuffle { name, .. }) => {
            format!("shuffle {name} is not committed: commit the receipts first")
        }
        (None, At::Service(_)) => format!("{at}: it is not committed: commit the receipts first"),
    }
}

/// Numbers in ascending order for people, such as `0-3, 7`.
struct Numbers<'a>(&'a [u32]);

/// So many ranges are written out.
const MOST_RANGES: usize = 8;

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self
            .0
            .chunk_by(|one, next| one.checked_add(1) == Some(*next));
        let mut separator = "";
        for (at, range) in ranges.enumerate() {
            if at == MOST_RANGES {
                return f.write_str(" and more");
            }
            match range {
                [one] => write!(f, "{separator}{one}")?,
                [first, .., last] => write!(f, "{separator}{first}-{last}")?,
                [] => {}
            }
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(part: Part) -> At {
        At::Shuffle {
            number: 7,
            name: "sales".into(),
            part,
        }
    }

    #[test]
    fn maps_that_are_lost_are_ranges_and_there_are_not_too_many_of_them() {
        let lost = |maps: Vec<u32>| {
            let error = Error::RowsLost {
                at: at(Part::Commit),
                reason: "rows were lost".into(),
                maps,
                read_again: false,
            };
            error.to_string()
        };
        assert_eq!(
            lost(vec![0, 1, 2, 7, u32::MAX]),
            "shuffle sales: rows were lost. Write maps 0-2, 7, 4294967295 again, and commit"
        );
        let many = lost((0..100).map(|at| 2 * at).collect());
        assert!(many.contains("maps 0, 2, 4, 6, 8, 10, 12, 14 and more again"));
    }

    #[test]
    fn a_generation_that_cannot_be_read_is_named_with_the_one_that_can() {
        let read = |committed: Option<u32>| {
            let error = Error::Superseded {
                at: at(Part::Partition(3)),
                generation: Generation(2),
                committed: committed.map(Generation),
            };
            error.to_string()
        };
        assert!(
            read(Some(4)).contains(
                "partition 3: it was committed again, in generation 4, after generation 2"
            )
        );
        assert!(read(None).contains("it was committed again, after generation 2"));
        assert!(read(Some(2)).contains("their maps have run again since: commit"));
    }
}
