//! How the scheduler's clock differs from ours.

/// The scheduler's clock less ours.
#[derive(Debug, Default)]
pub(super) struct Offset {
    /// In nanoseconds, once it is known.
    pub(super) offset: Option<i64>,
    /// By how much it may be wrong.
    error: u64,
}

impl Offset {
    /// Somebody who was asked, and whose answer came, looked at the clock in between.
    pub(super) fn measured(&mut self, asked: u64, theirs: u64, came: u64) {
        let error = came.saturating_sub(asked) / 2;
        // An old measurement is worth less: clocks drift.
        self.error = self.error.saturating_add(self.error / 16 + 1);
        if self.offset.is_some() && error > self.error {
            return;
        }
        self.error = error;
        // The processes of one machine have one clock.
        let is_same = asked <= theirs && theirs <= came;
        let middle = asked + error;
        self.offset = Some(match is_same {
            true => 0,
            false => theirs.wrapping_sub(middle) as i64,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_measurement_counts_and_one_machine_has_one_clock() {
        let mut clock = Offset::default();
        clock.measured(1_000, 1_040, 1_100);
        assert_eq!(clock.offset, Some(0));
        let mut clock = Offset::default();
        clock.measured(1_000, 5_000, 1_200);
        assert_eq!(clock.offset, Some(3_900));
        // A worse one says nothing, a better one does.
        clock.measured(2_000, 9_000, 4_000);
        assert_eq!(clock.offset, Some(3_900));
        clock.measured(3_000, 6_930, 3_020);
        assert_eq!(clock.offset, Some(3_920));
    }
}
