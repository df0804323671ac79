//! Applications that say that they are there, and what is left of those that are gone.

use std::time::Duration;

use treadle_shuffle::{ApplicationId, MasterEvent};

use crate::world::{Item, World};

/// An application that says nothing for so long is gone.
pub(super) const LEASE: Duration = Duration::from_millis(30);

impl World {
    /// A lease was granted or renewed: it is to be renewed, or looked at when it ends.
    pub(super) fn await_heartbeat(&mut self, index: usize) {
        self.kernel.schedule(LEASE / 3, Item::Heartbeat(index));
        self.kernel.schedule(LEASE, Item::Expire);
        self.heads[self.at].looks += 1;
    }

    /// An application says that it is there, as long as it is.
    pub(super) fn heartbeat(&mut self, index: usize) -> Result<(), String> {
        if !self.jobs[index].is_open() {
            return Ok(());
        }
        let now = self.kernel.now();
        if !self.heads[self.at]
            .leases
            .renew(ApplicationId(index as u64), now)
        {
            return Err(format!(
                "the lease of job {index} has ended, and it is there"
            ));
        }
        self.await_heartbeat(index);
        Ok(())
    }

    /// What applications that are gone have left behind ends.
    pub(super) fn expire(&mut self) -> Result<(), String> {
        let now = self.kernel.now();
        for shuffle in self.heads[self.at].leases.expire(now) {
            self.master(MasterEvent::End(shuffle))?;
        }
        self.heads[self.at].looks -= 1;
        let due = self.heads[self.at]
            .leases
            .next_deadline()
            .filter(|due| *due > now);
        // One look that makes another each time would be thousands after a while.
        if let Some(due) = due.filter(|_| self.heads[self.at].looks == 0) {
            self.kernel.schedule_at(due, Item::Expire);
            self.heads[self.at].looks += 1;
        }
        Ok(())
    }
}
