//! What a reader or a barrier is to do when rows are not there, by what the master says of the shuffle. Pure.

use treadle_shuffle::Generation;
use treadle_shuffle_service::About;

/// Maps whose rows are lost at all copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    /// In ascending order; one at least.
    pub(crate) maps: Vec<u32>,
    /// What was read before must be read again.
    pub(crate) read_again: bool,
}

/// The maps of a shuffle that must run again; `None`: there are none, and the same call may succeed in a moment.
/// `read`: the generation of who reads; `None`: somebody commits.
pub(crate) fn lost(about: &About, maps: u32, read: Option<Generation>) -> Option<Lost> {
    let ranges = about.again.ranges().iter();
    // A master may name maps that the shuffle does not have: they are nobody's.
    let maps = ranges.flat_map(|&(start, end)| start..end.min(maps.into()));
    let maps: Vec<u32> = maps.filter_map(|map| u32::try_from(map).ok()).collect();
    let read_again = match read {
        None => about.differs,
        Some(generation) => restarted(about) > generation,
    };
    (!maps.is_empty()).then_some(Lost { maps, read_again })
}

/// The generation in which all began anew: what was read of an earlier one is not valid.
pub(crate) fn restarted(about: &About) -> Generation {
    match about.restarted {
        // A master of the release before does not say in which.
        Generation(0) if about.differs => Generation(u32::MAX),
        restarted => restarted,
    }
}

/// Whether a generation can be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Readable {
    /// It was committed, or a later one; or the master is of a release that does not say it.
    Yes,
    /// Rows were lost before.
    Lost(Lost),
    /// It was not. The one that was committed last; `None`: none.
    No(Option<Generation>),
}

/// Whether this generation of a shuffle can be read.
pub(crate) fn readable(about: &About, maps: u32, generation: Generation) -> Readable {
    match about.committed {
        None => Readable::Yes,
        Some(committed) if generation <= committed => Readable::Yes,
        Some(committed) => match lost(about, maps, Some(generation)) {
            Some(lost) => Readable::Lost(lost),
            None => Readable::No(Some(committed).filter(|committed| committed.0 > 0)),
        },
    }
}

#[cfg(test)]
mod tests {
    use treadle_types::Runs;

    use super::*;

    fn about(again: Runs, committed: Option<u32>) -> About {
        About {
            name: "sales".into(),
            maps: 10,
            partitions: 4,
            copies: 2,
            expected: 0,
            note: Default::default(),
            outputs: Runs::new(),
            again,
            differs: false,
            restarted: Generation(0),
            committed: committed.map(Generation),
        }
    }

    #[test]
    fn maps_run_again_if_the_master_says_so_and_the_shuffle_has_them() {
        let two = Runs::from_ranges([(1, 2), (8, 1 << 40)]).unwrap();
        let found = lost(&about(two, Some(3)), 10, None).unwrap();
        assert_eq!((found.maps, found.read_again), (vec![1, 8, 9], false));
        assert_eq!(lost(&about(Runs::new(), Some(3)), 10, None), None);
    }

    #[test]
    fn what_was_read_counts_unless_all_began_anew_since() {
        let mut about = about(Runs::one(1), Some(3));
        let read_again = |about: &About, read| lost(about, 10, read).unwrap().read_again;
        about.restarted = Generation(3);
        assert!(read_again(&about, Some(Generation(2))));
        assert!(!read_again(&about, Some(Generation(3))));
        assert!(!read_again(&about, None));
        about.differs = true;
        assert!(read_again(&about, None));
        // A master that does not say when.
        about.restarted = Generation(0);
        assert!(read_again(&about, Some(Generation(3))));
    }

    #[test]
    fn a_generation_is_readable_once_it_or_a_later_one_was_committed() {
        let of = |again, committed, read| readable(&about(again, committed), 10, Generation(read));
        assert_eq!(of(Runs::new(), Some(2), 2), Readable::Yes);
        assert_eq!(of(Runs::one(4), Some(2), 1), Readable::Yes);
        assert_eq!(of(Runs::new(), None, 9), Readable::Yes);
        assert_eq!(of(Runs::new(), Some(0), 1), Readable::No(None));
        assert_eq!(
            of(Runs::new(), Some(2), 3),
            Readable::No(Some(Generation(2)))
        );
        assert!(matches!(of(Runs::one(4), Some(2), 3), Readable::Lost(_)));
    }
}
