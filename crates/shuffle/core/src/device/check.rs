//! What is always true of a device.

use crate::Broken;
use crate::device::queue::Queue;
use crate::device::{Access, Device};

impl Device {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`Broken`]: one does not hold.
    pub fn check(&self) -> Result<(), Broken> {
        let waiting: usize = self.queues.values().map(Queue::len).sum();
        Broken::unless_equal("requests that wait", self.waiting as u64, waiting as u64)?;
        let most = self.options.most.max(1);
        let beyond = self.waiting.saturating_sub(most) as u64;
        Broken::unless_equal("requests beyond the bound", 0, beyond)?;
        let empty = self.queues.values().filter(|queue| queue.is_empty());
        Broken::unless_equal("empty queues", 0, empty.count() as u64)?;
        let broken = self.queues.values().filter(|queue| !queue.is_consistent());
        Broken::unless_equal(
            "queues with other places than reads",
            0,
            broken.count() as u64,
        )?;
        let depth = self.options.depth.max(1);
        let beyond = self.turns.len().saturating_sub(depth) as u64;
        Broken::unless_equal("turns beyond the depth", 0, beyond)?;
        let is_idle = self.waiting > 0 && self.turns.len() < depth;
        Broken::unless_equal("requests that could begin", 0, is_idle.into())?;
        for turn in self.turns.values() {
            let requests = turn.requests.iter().map(|one| one.request);
            let first = requests.clone().next();
            let is_one = |access| first.is_some_and(|first| first.access == access);
            let alone = is_one(Access::Read) || turn.requests.len() == 1;
            let one_file = requests.clone().all(|one| {
                first.is_some_and(|first| (first.file, first.access) == (one.file, one.access))
            });
            let is_whole = alone && one_file && !turn.requests.is_empty();
            Broken::unless_equal("turns of several files", 1, is_whole.into())?;
        }
        Ok(())
    }
}
