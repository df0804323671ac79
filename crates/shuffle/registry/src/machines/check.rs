//! What must always hold.

use std::collections::BTreeSet;

use treadle_guards::{InvariantError, ensure, ensure_eq};

use super::claiming::{ClaimStanding, Claiming, Step as Claim};
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
            ensure_eq!(
                server.counts,
                server.latest(),
                "which life of {name} counts"
            );
            for (incarnation, entry) in &server.lives {
                ensure_eq!(&entry.name, name, "the name of an entry");
                ensure_eq!(entry.incarnation, *incarnation, "the incarnation of {name}");
            }
            ensure!(
                server
                    .missing
                    .keys()
                    .all(|life| server.lives.contains_key(life)),
                "a life of {name} is missing, and was not there"
            );
            let (is_there, is_held) = (server.counts.is_some(), server.held_until.is_some());
            ensure!(
                is_there == (server.is_listed != is_held) && (is_there || !is_held),
                "{name} is neither listed nor held back, or both, or not there"
            );
            ensure!(
                is_there || server.due.is_some(),
                "{name} has left, and is never forgotten"
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

impl Claiming {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check(&self) -> Result<(), InvariantError> {
        let is_over = self.standing == ClaimStanding::Withdrawn;
        ensure_eq!(is_over, self.step == Claim::Over, "whether it is over");
        ensure!(
            self.step != Claim::Held || self.standing == ClaimStanding::Held,
            "it is held, and said to be {:?}",
            self.standing
        );
        Ok(())
    }
}
