//! How fast servers answer pushes, and which one has fallen far behind the others.
//!
//! A push is served from the answer to the one before, or from when it was sent if that was later, until it
//! is answered. A server falls behind by what that takes beyond [`SLOWER`] times what a typical server takes
//! for as many bytes, and catches up by what it takes less (a cumulative sum; Page, 1954). One late answer
//! is so forgotten, and a server that is slow all the time is noticed after [`Config::lag`](crate::Config::lag)
//! of waiting. With that goes how many times as long as a typical server it takes: the master knows how much longer it
//! may.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ServerId;

/// How much longer than the typical server one may take.
const SLOWER: u64 = 3;
/// The times of answers are smoothed over so many.
const MEMORY: u64 = 8;
/// Pushes of fewer bytes count as so many: what they take is not the bytes.
const LEAST: u64 = 64 << 10;
/// For how long what is typical is remembered.
const REMEMBERED: Duration = Duration::from_millis(10);

/// The servers that have answered pushes.
#[derive(Debug, Default)]
pub(super) struct Paces {
    servers: BTreeMap<ServerId, Pace>,
    /// Nanoseconds that a server in the middle takes for so many bytes, and when that was found.
    typical: Option<(u64, u64, Duration)>,
}

/// Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// What an answer takes, and the bytes that it is for, smoothed. 0: none has come.
    time: u64,
    length: u64,
    lag: u64,
    /// When the last answer came, or that it has fallen behind was said.
    last: Duration,
    /// When the last answer came.
    heard: Duration,
    /// What answers took since it began to fall behind, and what a typical server takes for them.
    behind: (u64, u64),
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Pace {
    /// For comparison: nanoseconds for a MiB.
    fn cost(&self) -> u64 {
        (u128::from(self.time) * (1 << 20) / u128::from(self.length.max(LEAST))) as u64
    }

    /// With one more that took so long, of which a typical server takes a part.
    fn behind_with(&self, took: u64, allowed: u64) -> (u64, u64) {
        let (all, typical) = self.behind;
        let typical = typical.saturating_add(allowed / SLOWER);
        (all.saturating_add(took), typical)
    }
}

/// How many times as long it took. At least 1.
fn times((took, typical): (u64, u64)) -> u32 {
    u32::try_from(took / typical.max(1)).map_or(u32::MAX, |times| times.max(1))
}

impl Paces {
    /// A server has answered a push. If it has fallen behind by `most`: how many [times](Self::times) as long as others
    /// it takes. Then it begins anew.
    pub(super) fn answered(
        &mut self,
        server: ServerId,
        (length, sent_at): (u64, Duration),
        now: Duration,
        most: Duration,
    ) -> Option<u32> {
        let allowed = self.allowed(server, length, now);
        let pace = self.servers.entry(server).or_default();
        let took = nanos(now.saturating_sub(sent_at.max(pace.last)));
        let all = nanos(now.saturating_sub(sent_at.max(pace.heard)));
        (pace.last, pace.heard) = (now, now);
        let smooth = |old: u64, new: u64| match old {
            0 => new,
            _ => old - old / MEMORY + new / MEMORY,
        };
        (pace.time, pace.length) = (
            smooth(pace.time, took).max(1),
            smooth(pace.length, length).max(1),
        );
        let allowed = allowed?;
        pace.lag = pace.lag.saturating_add(took).saturating_sub(allowed);
        pace.behind = pace.behind_with(all, allowed);
        let slow = (pace.lag > nanos(most)).then(|| times(pace.behind));
        if slow.is_some() || pace.lag == 0 {
            (pace.lag, pace.behind) = (0, (0, 0));
        }
        slow
    }

    /// A server has refused a push: what it has not answered waits for something else than its speed.
    pub(super) fn refused(&mut self, server: ServerId, now: Duration) {
        if let Some(pace) = self.servers.get_mut(&server) {
            (pace.last, pace.heard) = (now, now);
        }
    }

    /// When a server that does not answer this push has fallen behind by `most`.
    pub(super) fn deadline(
        &mut self,
        server: ServerId,
        (length, sent_at): (u64, Duration),
        now: Duration,
        most: Duration,
    ) -> Option<Duration> {
        let allowed = self.allowed(server, length, now)?;
        let pace = self.servers.get(&server).copied().unwrap_or_default();
        let left = (nanos(most) + 1).saturating_sub(pace.lag);
        let more = Duration::from_nanos(allowed.saturating_add(left));
        Some(sent_at.max(pace.last).saturating_add(more))
    }

    /// How many times as long as a typical server one takes that does not answer this push: since its last answer, not
    /// only since it began anew. 0: that is not known.
    pub(super) fn times(
        &mut self,
        server: ServerId,
        (length, sent_at): (u64, Duration),
        now: Duration,
    ) -> u32 {
        let Some(allowed) = self.allowed(server, length, now) else {
            return 0;
        };
        let pace = self.servers.get(&server).copied().unwrap_or_default();
        let waits = nanos(now.saturating_sub(sent_at.max(pace.heard)));
        times(pace.behind_with(waits, allowed))
    }

    /// That was said of a server: it begins anew.
    pub(super) fn begin_anew(&mut self, server: ServerId, now: Duration) {
        let pace = self.servers.entry(server).or_default();
        (pace.lag, pace.last, pace.behind) = (0, now, (0, 0));
    }

    pub(super) fn forget(&mut self, server: ServerId) {
        self.servers.remove(&server);
    }

    /// What a push of so many bytes may take. `None`: there is no other server to compare with.
    fn allowed(&mut self, server: ServerId, length: u64, now: Duration) -> Option<u64> {
        let mut others = self.servers.iter();
        if !others.any(|(&other, pace)| other != server && pace.time > 0) {
            return None;
        }
        let (time, for_length) = self.typical(now)?;
        let times = u128::from(length.max(LEAST)) * u128::from(SLOWER);
        let allowed = u128::from(time) * times / u128::from(for_length.max(LEAST));
        let least = u128::from(time) * u128::from(SLOWER);
        u64::try_from(allowed.max(least)).ok()
    }

    /// What the server in the middle takes, the faster one of two: nanoseconds, and for how many bytes.
    fn typical(&mut self, now: Duration) -> Option<(u64, u64)> {
        if let Some((time, length, at)) = self.typical
            && now <= at + REMEMBERED
        {
            return Some((time, length));
        }
        let measured = self.servers.values().filter(|pace| pace.time > 0);
        let mut measured: Vec<Pace> = measured.copied().collect();
        let middle = measured.len().checked_sub(1)? / 2;
        let (_, pace, _) = measured.select_nth_unstable_by_key(middle, Pace::cost);
        self.typical = Some((pace.time, pace.length, now));
        Some((pace.time, pace.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(200);
    const LENGTH: u64 = 1 << 20;

    fn server(node: u32) -> ServerId {
        ServerId {
            node,
            incarnation: 1,
        }
    }

    /// Servers answer one push after another, each in so many milliseconds. The first one that is found slow
    /// until `end`, and when.
    fn first_slow(times: &[u64], end: u64) -> Option<(u32, u64)> {
        let mut paces = Paces::default();
        let mut sent = alloc::vec![0; times.len()];
        for now in 1..=end {
            for (node, &time) in times.iter().enumerate() {
                if now - sent[node] < time {
                    continue;
                }
                let sent_at = Duration::from_millis(core::mem::replace(&mut sent[node], now));
                let at = Duration::from_millis(now);
                let slow = paces.answered(server(node as u32), (LENGTH, sent_at), at, MOST);
                if let Some(found) = slow {
                    // As many times as long as the one in the middle.
                    let mut sorted = times.to_vec();
                    sorted.sort_unstable();
                    let expected = time / sorted[(sorted.len() - 1) / 2];
                    assert!(
                        u64::from(found).abs_diff(expected) <= 1,
                        "{found} {expected}"
                    );
                    return Some((node as u32, now));
                }
            }
        }
        None
    }

    #[test]
    fn one_that_takes_ten_times_as_long_is_noticed_soon_and_those_that_are_alike_are_not() {
        let (node, at) = first_slow(&[5, 5, 50, 5], 10_000).unwrap();
        assert_eq!(node, 2);
        assert!((200..400).contains(&at), "{at}");
        assert_eq!(first_slow(&[5, 5, 14, 5], 10_000), None);
        assert_eq!(first_slow(&[50, 50, 40, 60], 10_000), None);
        // There is no typical one.
        assert_eq!(first_slow(&[50], 10_000), None);
        assert_eq!(first_slow(&[5, 500], 10_000).unwrap().0, 1);
    }

    #[test]
    fn a_pause_now_and_then_is_forgotten_and_one_that_never_answers_is_noticed() {
        let mut paces = Paces::default();
        let at = Duration::from_millis;
        let mut clock = 0;
        for round in 0..1_000 {
            let took = if round % 20 == 0 { 150 } else { 5 };
            let sent_at = at(clock);
            clock += took;
            for node in 0..3 {
                let sent_at = if node == 0 { sent_at } else { at(clock - 5) };
                let answered = paces.answered(server(node), (LENGTH, sent_at), at(clock), MOST);
                assert_eq!(answered, None);
            }
        }
        let due = paces.deadline(server(3), (LENGTH, at(clock)), at(clock), MOST);
        let due = due.unwrap();
        assert!(due > at(clock + 200) && due < at(clock + 240), "{due:?}");
        let sent = (LENGTH, at(clock));
        let first = paces.times(server(3), sent, due);
        assert!(first >= 30, "{first}");
        // It is not said again at once.
        paces.begin_anew(server(3), due);
        let next = paces.deadline(server(3), (LENGTH, at(clock)), due, MOST);
        assert!(next.unwrap() > due + MOST);
        // The whole time counts.
        let second = paces.times(server(3), sent, due + MOST);
        assert!(second >= first + 30, "{first} {second}");
    }

    #[test]
    fn many_bytes_may_take_longer_and_few_bytes_as_long_as_a_push_does() {
        let mut paces = Paces::default();
        let at = Duration::from_millis;
        for node in 0..3 {
            assert_eq!(
                paces.answered(server(node), (LENGTH, at(0)), at(5), MOST),
                None
            );
        }
        let lag = |paces: &Paces, node| paces.servers[&server(node)].lag;
        paces.answered(server(0), (10 * LENGTH, at(5)), at(155), MOST);
        paces.answered(server(1), (1, at(5)), at(20), MOST);
        assert_eq!((lag(&paces, 0), lag(&paces, 1)), (0, 0));
        paces.answered(server(2), (LENGTH, at(5)), at(155), MOST);
        assert!(lag(&paces, 2) > 100_000_000);
    }
}
