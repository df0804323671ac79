//! The part of the servers where the shuffles of an application are to be, so that large ones are not beside each other.

use std::str::FromStr;

use treadle_types::fnv;

/// The most parts.
const MOST: u32 = 64;

/// One of some parts of the servers with about as many servers each. It holds as long as servers of it take partitions, and
/// for the copies of a group only if its servers are in enough failure domains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    part: u32,
    parts: u32,
}

impl Place {
    /// The servers of all other parts, of those with these names. Masters that know the same servers find the same.
    pub(crate) fn others<'a, K>(self, servers: impl Iterator<Item = (K, &'a str)>) -> Vec<K> {
        // Names that are alike are far from each other.
        let all = servers.map(|(key, name)| (fnv::hash(name), name, key));
        let mut all: Vec<_> = all.collect();
        all.sort_by(|one, other| (one.0, one.1).cmp(&(other.0, other.1)));
        let count = all.len() as u64;
        let of = |index: usize| index as u64 * u64::from(self.parts) / count.max(1) + 1;
        let others = all.into_iter().enumerate();
        let others = others.filter(|(index, _)| of(*index) != u64::from(self.part));
        others.map(|(_, (_, _, key))| key).collect()
    }
}

impl FromStr for Place {
    type Err = String;

    /// `1/2` is the first of two parts.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/');
        let numbers =
            numbers.and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
        match numbers {
            Some((part, parts)) if 0 < part && part <= parts && parts <= MOST => {
                Ok(Self { part, parts })
            }
            _ => Err(format!("{text:?} is no part of the servers, such as 1/2")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parts_are_disjoint_of_about_one_size_and_all_servers_together() {
        let names: Vec<String> = (0..37).map(|number| format!("server-{number}")).collect();
        for parts in [1, 2, 3, 4, 37, 64] {
            let mut seen = BTreeSet::new();
            for part in 1..=parts {
                let place: Place = format!("{part}/{parts}").parse().unwrap();
                // The order in which a master knows them does not matter.
                let others = place.others(names.iter().rev().map(|name| (name, &**name)));
                assert_eq!(others.len(), BTreeSet::from_iter(&others).len());
                let own: Vec<_> = names.iter().filter(|name| !others.contains(name)).collect();
                assert!(own.len() <= names.len().div_ceil(parts), "{parts}: {own:?}");
                assert!(own.iter().all(|name| seen.insert(*name)));
            }
            assert_eq!(seen.len(), names.len());
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for text in ["", "1", "0/2", "3/2", "1/65", "a/b", "1/2/3", "-1/2", "1/"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
        assert!("64/64".parse::<Place>().is_ok());
    }
}
