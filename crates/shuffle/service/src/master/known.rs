//! A shuffle that has not ended, as the master's process knows it beside its machine.

use std::sync::Arc;

use treadle_shuffle::{Generation, Plan, Tenant};
use treadle_types::Runs;

use crate::wire::{self, Answer, Register};

pub(super) struct Known {
    pub(super) tenant: Tenant,
    pub(super) is: Register,
    /// Maps whose rows are lost, and that have not run again since.
    pub(super) lost: Runs,
    /// Where its partitions are, as its members were told last.
    pub(super) plan: Option<Arc<Plan>>,
    /// The generation in which all began anew, since a map had returned other rows. What was read of an
    /// earlier one must be read again. 0: none.
    restarted: Generation,
    /// The generation that was committed last. 0: none.
    committed: Generation,
}

impl Known {
    pub(super) fn new(tenant: Tenant, is: Register) -> Self {
        Self {
            tenant,
            is,
            lost: Runs::new(),
            plan: None,
            restarted: Generation(0),
            committed: Generation(0),
        }
    }

    pub(super) fn committed(&mut self, generation: Generation) {
        self.committed = generation;
    }

    pub(super) fn restarted(&mut self, generation: Generation) {
        self.restarted = generation;
    }

    /// Answers who asks about it.
    pub(super) fn tell(&self, answer: &mut Answer) {
        answer.about = Some(self.is.clone());
        answer.again = wire::flat(&self.lost);
        answer.restarted = self.restarted.0;
        answer.last_committed = Some(self.committed.0);
        // Who has committed since has run all maps again, and was told why.
        answer.differs = self.committed < self.restarted;
    }
}
