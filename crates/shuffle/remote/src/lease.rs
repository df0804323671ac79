//! Whose objects are removed by others: those of processes that have died.
//!
//! Each process has a directory of its own, with a manifest that it renews. A directory whose manifest does not
//! change for two leases is removed by whoever looks. Each looks with its own clock, so the clocks of machines need
//! not agree. A process that was only paused finds its objects gone: its rows are made again.

use std::collections::HashMap;
use std::time::Duration;

use crate::manifest::Manifest;

/// How directories of processes begin. Others are never touched.
const PREFIX: &str = "treadle-";
/// A directory is removed after so many leases without a change.
const LEASES: u32 = 2;

/// The name of a new directory, which ends in a slash.
pub(crate) fn name(pid: u32, random: u64) -> String {
    format!("{PREFIX}{pid}-{random:016x}/")
}

/// The directory of an object, if it is one of a process.
pub(crate) fn directory_of(object: &str) -> Option<&str> {
    let end = object.find('/')? + 1;
    let (directory, name) = object.split_at(end);
    let number = name.strip_suffix(".shuffle")?;
    (is_name(directory) && number.parse::<u64>().is_ok()).then_some(directory)
}

/// Whether it is the directory of a process.
pub(crate) fn is_name(directory: &str) -> bool {
    let parts = directory
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_suffix('/'))
        .and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(pid, random)| {
        pid.parse::<u32>().is_ok() && random.len() == 16 && u64::from_str_radix(random, 16).is_ok()
    })
}

/// The directory of another process, with its manifest, if it has one.
pub(crate) type Found = (String, Option<Manifest>);

/// The directories of others, and since when their manifests have not changed.
#[derive(Default, Debug)]
pub(crate) struct Sweep {
    seen: HashMap<String, (Option<Manifest>, Duration)>,
}

impl Sweep {
    /// Takes in what is there, and was read between two times. Returns what is to be removed, if it is the same
    /// still. `lease` counts where there is no manifest.
    pub(crate) fn look(
        &mut self,
        found: Vec<Found>,
        lease: Duration,
        (began, ended): (Duration, Duration),
    ) -> Vec<Found> {
        let mut before = std::mem::take(&mut self.seen);
        let mut dead = Vec::new();
        for (directory, manifest) in found {
            let since = match before.remove(&directory) {
                Some((same, since)) if same == manifest => since,
                _ => ended,
            };
            let lease = manifest.map_or(lease, |manifest| manifest.lease);
            if began.saturating_sub(since) > lease * LEASES {
                dead.push((directory.clone(), manifest));
            }
            self.seen.insert(directory, (manifest, since));
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn manifest(renewal: u64) -> Option<Manifest> {
        Some(Manifest {
            lease: LEASE,
            renewal,
        })
    }

    #[test]
    fn only_names_of_the_form_are_taken_for_directories_of_processes() {
        assert!(is_name(&name(17, 5)));
        for other in [
            "treadle-17/",
            "treadle-x-0000000000000005/",
            "rows/",
            "treadle-17-5/",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }

    fn names(found: Vec<Found>) -> Vec<String> {
        found.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn who_renews_stays_and_who_does_not_goes_after_two_leases() {
        let mut sweep = Sweep::default();
        let at = |seconds| Duration::from_secs(seconds);
        let mut look = |renewal, seconds| {
            let found = vec![
                ("alive".into(), manifest(renewal)),
                ("dead".into(), manifest(3)),
                ("unnamed".into(), None),
            ];
            names(sweep.look(found, LEASE, (at(seconds), at(seconds))))
        };
        assert!(
            look(1, 1_000).is_empty(),
            "nobody is dead at the first look"
        );
        assert!(look(2, 1_120).is_empty());
        assert_eq!(look(3, 1_121), ["dead", "unnamed"]);
        assert_eq!(look(4, 1_300), ["dead", "unnamed"], "removing failed");
    }

    #[test]
    fn a_directory_that_was_away_is_a_new_one() {
        let mut sweep = Sweep::default();
        let found = || vec![("one".into(), manifest(1))];
        let mut look = |found, at| names(sweep.look(found, LEASE, (at, at)));
        assert!(look(found(), Duration::ZERO).is_empty());
        assert!(look(Vec::new(), LEASE).is_empty());
        assert!(look(found(), 3 * LEASE).is_empty());
        assert_eq!(look(found(), 6 * LEASE), ["one"]);
    }

    #[test]
    fn what_a_look_itself_takes_makes_nobody_older() {
        let mut sweep = Sweep::default();
        let mut look = |began, ended| {
            let found = vec![("one".into(), manifest(1))];
            names(sweep.look(found, LEASE, (began, ended)))
        };
        assert!(look(Duration::ZERO, 10 * LEASE).is_empty());
        // It may have been read at the end of the first look, and is read at the beginning of the next one.
        assert!(look(11 * LEASE, 30 * LEASE).is_empty());
        assert_eq!(look(31 * LEASE, 31 * LEASE), ["one"]);
    }
}
