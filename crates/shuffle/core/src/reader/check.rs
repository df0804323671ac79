//! What is always true of a reader.

use crate::Broken;
use crate::config::Guard;
use crate::reader::{Reader, Step};

impl Reader {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`Broken`]: one does not hold.
    pub fn check(&self) -> Result<(), Broken> {
        for read in self.reads.values() {
            let (Step::Fetching(group) | Step::Retrying(group, _) | Step::Waiting(group, _)) =
                read.step
            else {
                continue;
            };
            let plan = self.plans.get(&read.shuffle);
            let is_planned = plan.is_some_and(|plan| plan.group_of_copy(group).is_some());
            if Guard::Generation.holds() && !is_planned {
                return Err(Broken::Group {
                    shuffle: read.shuffle,
                    group,
                    what: "it is read from, and not in the plan",
                });
            }
        }
        Ok(())
    }
}
