//! One life of a server.

use std::time::Duration;

use treadle_shuffle_registry::{Config, Entry, Load, Registering, Standing};

use crate::world::Link;

pub(crate) struct Server {
    pub(crate) machine: Registering,
    pub(crate) entry: Entry,
    pub(crate) link: Link,
    pub(crate) is_alive: bool,
    /// Nothing has happened to this life, but what has happened to the registry.
    pub(crate) is_healthy: bool,
    pub(crate) is_leaving: bool,
    pub(crate) registered_at: Option<Duration>,
}

impl Server {
    pub(crate) fn new(name: u64, incarnation: u64, config: &Config, seed: u64) -> Self {
        let entry = Entry {
            name: format!("s{name}"),
            incarnation,
            address: format!("treadle://h{name}:{}", 1_000 + incarnation),
            load: Some(Load::default()),
            ..Entry::default()
        };
        Self {
            machine: Registering::new(entry.clone(), config.clone(), seed),
            entry,
            link: Link::default(),
            is_alive: true,
            is_healthy: true,
            is_leaving: false,
            registered_at: None,
        }
    }

    /// Whether it should be in lists, unless there is a later life.
    pub(crate) fn should_be_listed(&self) -> bool {
        let is_superseded = matches!(self.machine.standing(), Standing::Superseded(_));
        self.is_alive && !self.is_leaving && !is_superseded
    }
}
