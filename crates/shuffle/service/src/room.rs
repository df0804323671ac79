//! What servers announce ([`Room`]), and how much of a shuffle they are given for it. Pure.

use treadle_shuffle::Intake;

use crate::wire::Room;

/// Bytes that count as a weight of one.
const UNIT: u64 = 1 << 20;
/// So many requests that wait halve the weight.
const BUSY: u64 = 64;
/// The room of a server that has announced none.
const UNSAID: u64 = 1 << 30;
/// The weight of a slow server is divided by this, less what its share takes off.
const SLOW: u32 = 8;
/// What may change before it is announced at once: an eighth.
const MUCH: u64 = 8;
/// A disk is full when less than one part in so many of it is free, and has room again when a part in so
/// many is.
const FULL: u64 = 16;
const ROOMY: u64 = 8;

impl Room {
    /// Whether the master should know at once that it was `before`.
    pub(crate) fn has_changed(&self, before: &Self) -> bool {
        let differs =
            |now: u64, before: u64, least: u64| now.abs_diff(before) > (before / MUCH).max(least);
        self.is_full != before.is_full
            || differs(self.free, before.free, UNIT)
            || differs(self.waiting, before.waiting, BUSY)
            || (self.rate == 0) != (before.rate == 0)
            || differs(self.rate, before.rate, UNIT)
    }
}

impl From<&Room> for Intake {
    fn from(room: &Room) -> Self {
        Self {
            rate: room.rate,
            age: room.age,
        }
    }
}

/// The weight of a server: its free room in MiB, times the factor for the kind of its host, less the more
/// requests wait. With its share, in percent, one that is `slow` has an eighth of that at most: it does not get less for
/// the same reason twice. 0: it gets nothing.
pub(crate) fn weight(factor: u32, room: Option<&Room>, slow: Option<u32>) -> u32 {
    let (free, waiting) = room.map_or((UNSAID, 0), |room| (room.free, room.waiting));
    if room.is_some_and(|room| room.is_full) {
        return 0;
    }
    let wanted = u128::from(free / UNIT) * u128::from(factor.max(1)) * u128::from(BUSY);
    let weight = wanted / u128::from(BUSY.saturating_add(waiting));
    let slower = slow.map_or(100, |share| (share.min(100) * SLOW).max(100));
    let weight = weight * 100 / u128::from(slower);
    u32::try_from(weight).unwrap_or(u32::MAX).max(1)
}

/// Whether a disk with so many bytes free and so many in files here counts as full. Between the two limits
/// it stays what it was.
pub(crate) fn is_full(was_full: bool, free: u64, used: u64) -> bool {
    let parts = if was_full { ROOMY } else { FULL };
    free < used.saturating_add(free) / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(free: u64) -> Room {
        Room {
            free,
            ..Room::default()
        }
    }

    #[test]
    fn three_times_the_room_is_three_times_the_weight_and_so_is_a_factor_of_three() {
        let one = weight(1, Some(&room(10 * GIB)), None);
        assert_eq!(weight(1, Some(&room(30 * GIB)), None), 3 * one);
        assert_eq!(weight(3, Some(&room(10 * GIB)), None), 3 * one);
        assert_eq!(weight(0, Some(&room(10 * GIB)), None), one);
        let with_share = |share| weight(8, Some(&room(10 * GIB)), Some(share)) * share / 100;
        assert_eq!([100, 50, 25].map(with_share), [one; 3]);
        // That is less than an eighth.
        assert_eq!(weight(8, Some(&room(10 * GIB)), Some(10)), 8 * one);
        assert_eq!(weight(8, Some(&room(10 * GIB)), Some(400)), one);
        assert_eq!(weight(2, None, None), weight(2, Some(&room(GIB)), None));
    }

    #[test]
    fn who_is_full_has_no_weight_and_who_is_busy_has_less_but_some() {
        let busy = Room {
            waiting: BUSY,
            ..room(10 * GIB)
        };
        assert_eq!(
            2 * weight(1, Some(&busy), None),
            weight(1, Some(&room(10 * GIB)), None)
        );
        let full = Room {
            is_full: true,
            ..busy
        };
        assert_eq!(weight(u32::MAX, Some(&full), None), 0);
        assert_eq!(weight(1, Some(&room(0)), None), 1);
        let most = Room {
            waiting: u64::MAX,
            ..room(u64::MAX)
        };
        assert_eq!(weight(1, Some(&most), None), 1);
        assert_eq!(weight(u32::MAX, Some(&room(u64::MAX)), None), u32::MAX);
    }

    #[test]
    fn a_disk_that_is_full_stays_so_until_there_is_room_again() {
        let is_full_at = |was_full, used| is_full(was_full, 1_600 - used, used);
        assert!(!is_full_at(false, 0) && !is_full_at(false, 1_500));
        assert!(is_full_at(false, 1_501));
        assert!(is_full_at(true, 1_401) && !is_full_at(true, 1_400));
        // A disk that may not be used is not full.
        assert!(!is_full(false, 0, 0) && !is_full(true, 0, 0));
    }

    #[test]
    fn what_changes_much_is_said_at_once() {
        let before = room(8 * GIB);
        assert!(!room(9 * GIB).has_changed(&before));
        assert!(room(9 * GIB + 1).has_changed(&before));
        assert!(room(7 * GIB - 1).has_changed(&before));
        // Of little, little changes.
        assert!(!room(UNIT).has_changed(&room(0)));
        for other in [
            Room {
                is_full: true,
                ..before
            },
            Room {
                waiting: BUSY + 1,
                ..before
            },
            Room { rate: 1, ..before },
        ] {
            assert!(other.has_changed(&before));
        }
    }
}
