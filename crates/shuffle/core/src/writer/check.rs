//! What is always true of a writer.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::writer::Writer;
use crate::writer::part::Step;
use crate::writer::peer::Item;
use crate::{Broken, Plan, Tally};

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
            let is_planned = |plan: &Plan| {
                let parts = running.parts.keys().map(|&id| plan.group(id));
                let parts: Option<Vec<u64>> = parts.map(|group| Some(group?.section())).collect();
                let open = plan.groups.iter().filter(|group| group.is_open);
                let open: BTreeSet<u64> = open.map(|group| group.section()).collect();
                // One part for each section, and no other.
                parts.is_some_and(|parts| {
                    parts.len() == open.len() && parts.into_iter().collect::<BTreeSet<_>>() == open
                })
            };
            if is_begun && !plan.is_some_and(|plan| is_planned(plan)) {
                return Err(Broken::Plan {
                    shuffle: transfer.shuffle,
                    what: "a transfer has other parts than the plan",
                });
            }
            for (&group, part) in &running.parts {
                let tally: Tally = part.batches.iter().map(|(tally, _)| *tally).sum();
                let expects = |items: Vec<Item>| {
                    let mut items = items.into_iter();
                    items.all(|item| self.peers.is_expected(item))
                };
                let questions = part.questions(transfer, group);
                let what = if tally != part.tally {
                    "a part has other batches than are counted"
                } else if part.step == Step::Asking && (questions.is_empty() || !expects(questions))
                {
                    "a part waits for an answer to nothing"
                } else if part.step == Step::Pushing && !expects(part.pushes(transfer, group)) {
                    "a batch is not there and is not pushed"
                } else if part.step == Step::Pushing && part.is_pushed() {
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
