//! The decisions of a registry's clients, as pure machines: no IO, clock, threads or randomness.
//!
//! Each takes what happened (`handle`), and appends what is to be done. `now` is a time since any fixed moment.
//! Whoever drives one calls it with a `Tick` at `deadline()`.
//!
//! | module | concept |
//! | --- | --- |
//! | `attempts` | pauses between attempts to reach a registry |
//! | `claiming` | a master's side: of one application there is one master |
//! | `flapping` | servers that leave again and again |
//! | `inbox` | news that a master has not read yet |
//! | `registering` | a server's side: register, refresh, withdraw |
//! | `watching` | a master's side: which servers there are, and whether that is current |

mod attempts;
mod check;
mod claiming;
mod config;
mod flapping;
mod inbox;
mod registering;
#[cfg(test)]
mod tests;

mod watching;

pub use claiming::{ClaimStanding, Claiming, ClaimingEffect, ClaimingEvent};
pub use config::{Config, Guard};
pub use inbox::Inbox;
pub use registering::{Registering, RegisteringEffect, RegisteringEvent, Rival, Standing};
pub use watching::{List, News, Watching, WatchingEffect, WatchingEvent};

/// Why something that was asked of a registry failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// For people: what failed, and what the registry said.
    pub why: String,
    /// The registry is there and refuses: credentials, rights. It is asked again less often.
    pub is_refusal: bool,
}
