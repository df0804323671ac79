//! What must always hold.

use std::collections::BTreeSet;

use treadle_guards::{InvariantError, ensure, ensure_eq};

use super::registering::{Registering, Standing, Step as Registration};
use super::watching::{Step, Watching};

impl Watching {
    /// Verifies the invariants. It visits every server.
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check(&self) -> Result<(), InvariantError> {
        ensure!(
            self.servers.len() <= self.config.most,
            "more servers than the limit"
        );
        let mut agenda = BTreeSet::new();
        for (name, server) in &self.servers {
            if let Some(entry) = &server.entry {
                ensure_eq!(&entry.name, name, "the name of an entry");
                ensure_eq!(
                    entry.incarnation,
                    server.latest,
                    "the incarnation of {name}"
                );
                ensure!(
                    server.is_listed != server.held_until.is_some(),
                    "{name} is there, and neither listed nor held back, or both"
                );
            } else {
                ensure!(!server.is_listed, "{name} is listed, and not there");
                ensure!(
                    server.due.is_some(),
                    "{name} has left, and is never forgotten"
                );
            }
            ensure!(
                server.missing_until.is_none() || server.is_listed,
                "{name} is missing, and not listed"
            );
            agenda.extend(server.due.map(|due| (due, name.clone())));
        }
        ensure!(
            agenda == self.agenda,
            "the agenda is not that of the servers"
        );
        ensure!(
            self.stale.is_none() || self.step != Step::Current,
            "the list is current and stale"
        );
        Ok(())
    }
}

impl Registering {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check(&self) -> Result<(), InvariantError> {
        let is_over = matches!(self.standing, Standing::Superseded(_) | Standing::Withdrawn);
        ensure_eq!(
            is_over,
            self.step == Registration::Over,
            "whether it is over"
        );
        ensure!(
            self.step != Registration::Registered || self.standing == Standing::Registered,
            "it is registered, and said to be {:?}",
            self.standing
        );
        ensure!(
            self.step != Registration::Registered || self.written.is_some(),
            "it is registered, and nothing was written"
        );
        Ok(())
    }
}
