//! How much of the rows servers are to have by what they do: in proportion to the rate at which they take pushes,
//! compared with the server in the middle.
//!
//! It changes only when a rate has changed by much, so that what is measured anew all the time moves nothing.

use alloc::vec::Vec;

use crate::Intake;

/// The share of a server in the middle, and of one that is not known.
pub(super) const MIDDLE: u32 = 64;
/// The least and the most.
const LEAST: u32 = MIDDLE / 16;
const MOST: u32 = MIDDLE * 16;
/// A server may take so many times as long as its share says: what is typical for one writer is not the middle, and
/// no push takes what all take together.
const LONGER: u64 = 4;

/// What a server takes in the middle. Of two, the slower one. `None`: nothing is known of any.
pub(super) fn middle(rates: impl Iterator<Item = u64>) -> Option<u64> {
    let mut rates: Vec<u64> = rates.filter(|&rate| rate > 0).collect();
    let middle = rates.len().checked_sub(1)? / 2;
    Some(*rates.select_nth_unstable(middle).1)
}

/// The share of a server that had `before`.
pub(super) fn share(before: u32, intake: Intake, middle: Option<u64>) -> u32 {
    let Some(middle) = middle.filter(|_| intake.rate > 0) else {
        return MIDDLE;
    };
    let share = u128::from(intake.rate) * u128::from(MIDDLE) / u128::from(middle.max(1));
    let share = share.clamp(u128::from(LEAST), u128::from(MOST)) as u32;
    // One that got too little to be measured may have become faster.
    let share = match share < MIDDLE {
        true => (share << intake.age.min(16)).min(MIDDLE),
        false => share,
    };
    let is_between = |low: u32, high: u32| (low..=high).contains(&share);
    let is_alike = match before == MIDDLE {
        true => is_between(MIDDLE * 3 / 4, MIDDLE * 4 / 3),
        false => is_between(MIDDLE * 7 / 8, MIDDLE * 8 / 7),
    };
    match share.abs_diff(before) > before / 8 {
        _ if is_alike => MIDDLE,
        true => share,
        false => before,
    }
}

/// Whether a server that was given so much of a shuffle, and has such a share now, may take so many times as long as a
/// typical one (0: that is not known). What it measures says nothing while it does nothing, and little for some time
/// after it has become slower.
pub(super) fn is_fair(given: u32, share: Option<u32>, times: u32) -> bool {
    let share = share.unwrap_or(MIDDLE);
    let is_little = given < MIDDLE && given <= share + share / 2;
    is_little && u64::from(times) * u64::from(given) <= LONGER * u64::from(MIDDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(before: u32, rate: u64) -> u32 {
        share(before, Intake { rate, age: 0 }, Some(100))
    }

    #[test]
    fn shares_are_as_the_rates_are_and_those_that_are_not_known_are_in_the_middle() {
        assert_eq!(middle([0, 400, 0, 100, 200, 40].into_iter()), Some(100));
        assert_eq!(middle([0, 0].into_iter()), None);
        let shares = [400, 200, 100, 40, 1, 1 << 40].map(|rate| of(MIDDLE, rate));
        assert_eq!(shares, [256, 128, 64, 25, LEAST, MOST]);
        assert_eq!(share(7, Intake::default(), Some(100)), MIDDLE);
        assert_eq!(share(7, Intake { rate: 5, age: 0 }, None), MIDDLE);
    }

    #[test]
    fn what_changes_little_changes_nothing_to_and_fro() {
        for (low, high) in [(78, 130), (140, 155), (22, 24), (90, 120)] {
            let mut now = of(MIDDLE, low);
            let mut changes = 0;
            for round in 0..100 {
                let next = of(now, if round % 2 == 0 { high } else { low });
                changes += u32::from(next != now);
                now = next;
            }
            assert!(changes <= 1, "{low} {high}: {changes}");
        }
    }

    #[test]
    fn one_that_was_slow_long_ago_counts_as_others_again_and_a_fast_one_stays_so() {
        let aged = |age| share(4, Intake { rate: 6, age }, Some(100));
        assert_eq!([0, 1, 2, 3, 4, 9].map(aged), [4, 8, 16, 32, MIDDLE, MIDDLE]);
        let fast = Intake { rate: 400, age: 9 };
        assert_eq!(share(MIDDLE, fast, Some(100)), 256);
    }
}
