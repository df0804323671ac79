//! A server in a registry that is another server, or in a list. While that is away, the server goes on.

use std::time::{Duration, Instant};

use tracing::warn;
use treadle_shuffle_registry::{Load, Registration, Standing};

use crate::server::end::End;
use crate::server::links::Links;

/// How often it is looked whether the server ends, or leaves.
const LOOK: Duration = Duration::from_millis(200);
/// How long the end of a server waits until its entry is removed. Otherwise it goes with its session.
const LAST_WORDS: Duration = Duration::from_secs(2);

pub(in crate::server) struct InRegistry {
    location: String,
    registered: Box<dyn Registration>,
    /// For how long the server goes on without being registered. `None`: for ever.
    patience: Option<Duration>,
}

impl InRegistry {
    pub(super) fn new(
        location: String,
        registered: Box<dyn Registration>,
        patience: Option<Duration>,
    ) -> Self {
        Self {
            location,
            registered,
            patience,
        }
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) fn standing(&self) -> Standing {
        self.registered.standing()
    }

    pub(super) fn refresh(&self, load: Load) {
        self.registered.refresh(load);
    }

    /// Follows how it stands, until the server ends.
    pub(super) fn follow(&self, links: &Links, end: &End) {
        let mut known = Standing::Trying;
        let mut since = Some(Instant::now());
        let mut said = false;
        while !end.is_over() {
            let standing = self.registered.wait(&known, LOOK);
            match &standing {
                Standing::Registered => since = None,
                // Its rows are copied elsewhere. Masters take the later one meanwhile.
                Standing::Superseded(rival) if standing != known => {
                    warn!(target: treadle_log::SHUFFLE,
                        "a later server with the name of this one is registered in {}, at {}: this one leaves",
                        self.location, rival.address);
                    links.leave();
                }
                Standing::Superseded(_) | Standing::Withdrawn => {}
                Standing::Trying | Standing::Away(_) => {
                    let since = *since.get_or_insert_with(Instant::now);
                    if self.patience.is_some_and(|most| since.elapsed() >= most) {
                        let why = match &standing {
                            Standing::Away(failure) => &failure.why,
                            _ => "it does not answer",
                        };
                        end.end(&format!(
                            "{} does not have this server: {why}",
                            self.location
                        ));
                    }
                }
            }
            if links.is_leaving() && !said {
                said = true;
                self.registered.leave();
            }
            known = standing;
        }
    }

    /// Removes the entry.
    pub(super) fn withdraw(&self) {
        if let Err(error) = self.registered.withdraw(LAST_WORDS) {
            warn!(target: treadle_log::SHUFFLE, "{error}");
        }
    }
}
