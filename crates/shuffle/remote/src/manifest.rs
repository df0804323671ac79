//! What a process says of its directory: a small text, which it writes anew each time.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The first line, without the version.
const FORMAT: &str = "treadle-remote";
/// The version.
const VERSION: u64 = 1;
/// Seconds of leases that count. Others are taken for the next one of these.
const LEASES: RangeInclusive<u64> = 1..=24 * 3600;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Manifest {
    pub(crate) lease: Duration,
    /// How often it was renewed.
    pub(crate) renewal: u64,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let lease = counted(self.lease.as_secs());
        // All have one length: a client takes a file that another process writes meanwhile for cut off otherwise.
        let renewal = format!("{:020}", self.renewal);
        format!("{FORMAT} {VERSION}\nlease {lease}\nrenewal {renewal}\n").into_bytes()
    }

    /// `None`: it is no manifest.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = str::from_utf8(bytes).ok()?.lines();
        let mut number = |name: &str| {
            let (found, value) = lines.next()?.split_once(' ')?;
            value.parse::<u64>().ok().filter(|_| found == name)
        };
        number(FORMAT).filter(|&version| version == VERSION)?;
        Some(Self {
            lease: Duration::from_secs(counted(number("lease")?)),
            renewal: number("renewal")?,
        })
    }
}

fn counted(lease: u64) -> u64 {
    lease.clamp(*LEASES.start(), *LEASES.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_does_not_count_is_taken_for_one_that_does() {
        let decoded = |lease: u64| {
            let text = format!("treadle-remote 1\nlease {lease}\nrenewal 1\n");
            Manifest::decode(text.as_bytes()).map(|manifest| manifest.lease.as_secs())
        };
        let found = [0, 60, u64::MAX].map(decoded);
        assert_eq!(found, [Some(1), Some(60), Some(86_400)]);
    }

    #[test]
    fn what_is_no_manifest_is_none() {
        for text in [
            "",
            "treadle-remote 2\nlease 1\nrenewal 1\n",
            "treadle-remote 1\nlease x\nrenewal 1\n",
            "treadle-remote 1\nlease 1\n",
        ] {
            assert_eq!(Manifest::decode(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Manifest::decode(&[0xff]), None);
    }
}
