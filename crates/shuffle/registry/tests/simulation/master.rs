//! A master, with what it was told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use treadle_shuffle_registry::{Config, Entry, Inbox, News, Watching};

use crate::world::Link;

/// More often than this a name does not join within a minute.
const MOST_JOINS: usize = 7;

pub(crate) struct Master {
    pub(crate) machine: Watching,
    pub(crate) link: Link,
    inbox: Inbox,
    view: BTreeMap<String, Arc<Entry>>,
    joins: BTreeMap<String, Vec<Duration>>,
}

impl Master {
    pub(crate) fn new(config: &Config, seed: u64) -> Self {
        Self {
            machine: Watching::new(config.clone(), seed),
            link: Link::default(),
            inbox: Inbox::default(),
            view: BTreeMap::new(),
            joins: BTreeMap::new(),
        }
    }

    /// It is told something.
    pub(crate) fn hear(&mut self, news: News, now: Duration) -> Result<(), String> {
        if let News::Joined(entry) = &news {
            let joins = self.joins.entry(entry.name.clone()).or_default();
            joins.retain(|at| *at + Duration::from_secs(60) > now);
            joins.push(now);
            if joins.len() > MOST_JOINS {
                return Err(format!(
                    "{} has joined {} times within a minute",
                    entry.name,
                    joins.len()
                ));
            }
        }
        self.inbox.push(news);
        Ok(())
    }

    /// It reads what it was told.
    pub(crate) fn read(&mut self, now: Duration) -> Result<(), String> {
        for news in self.inbox.take() {
            let is_right = match &news {
                News::Joined(entry) => {
                    let before = self.view.insert(entry.name.clone(), entry.clone());
                    before.is_none()
                }
                News::Updated(entry) => {
                    let before = self.view.insert(entry.name.clone(), entry.clone());
                    before.is_some_and(|before| before.incarnation == entry.incarnation)
                }
                News::Left(key) => {
                    let before = self.view.remove(&key.name);
                    before.is_some_and(|before| before.key() == *key)
                }
                _ => true,
            };
            if !is_right {
                return Err(format!(
                    "the news do not follow from those before: {news:?}"
                ));
            }
        }
        let list = self.machine.list(now).entries;
        match self.view.values().eq(&list) {
            true => Ok(()),
            false => Err("who follows the news has another list".to_owned()),
        }
    }
}
