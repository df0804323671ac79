//! What is always true of a writer.

use crate::writer::peer::Item;
use crate::writer::{Step, Writer};
use crate::{Broken, Tally};

impl Writer {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`Broken`]: one does not hold.
    pub fn check(&self) -> Result<(), Broken> {
        for (counted, found) in self.peers.sums() {
            Broken::unless_equal("bytes under way", counted, found)?;
        }
        let (mut all, mut pushes) = (0, 0);
        for (bytes, count) in self.peers.loads() {
            let excess = bytes.saturating_sub(self.config.server_window);
            Broken::unless_equal(
                "bytes beyond a server's window",
                0,
                if count > 1 { excess } else { 0 },
            )?;
            all += bytes;
            pushes += count;
        }
        let excess = all.saturating_sub(self.config.window);
        Broken::unless_equal(
            "bytes beyond the window",
            0,
            if pushes > 1 { excess } else { 0 },
        )?;
        for (&transfer, running) in &self.transfers {
            let plan = self.plans.get(&transfer.shuffle);
            let is_begun = running.began.is_some();
            if is_begun
                && !plan.is_some_and(|plan| {
                    plan.groups
                        .iter()
                        .map(|g| g.id)
                        .eq(running.parts.keys().copied())
                })
            {
                return Err(Broken::Plan {
                    shuffle: transfer.shuffle,
                    what: "a transfer has other parts than the plan",
                });
            }
            for (&group, part) in &running.parts {
                let tally: Tally = part.batches.iter().map(|(tally, _)| *tally).sum();
                let unacked = || part.unacked.iter();
                let expects = |item| self.peers.is_expected(item);
                let what = if tally != part.tally {
                    "a part has other batches than are counted"
                } else if part.step == Step::Asking && !expects(Item::Ask(transfer, group)) {
                    "a part waits for an answer to nothing"
                } else if part.step == Step::Pushing
                    && !unacked().all(|&number| expects(Item::Push(transfer, group, number)))
                {
                    "a batch is not there and is not pushed"
                } else if part.step == Step::Pushing && part.unacked.is_empty() {
                    "a part has been pushed, and goes on"
                } else {
                    continue;
                };
                return Err(Broken::Group {
                    shuffle: transfer.shuffle,
                    group,
                    what,
                });
            }
        }
        Ok(())
    }
}
