//! A master that follows the news.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use treadle_shuffle_registry::{Entry, List, News, Registry, Watch};

/// A test that waits so long has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

pub(crate) struct Watcher {
    watch: Box<dyn Watch>,
    /// By name.
    pub(crate) list: BTreeMap<String, Arc<Entry>>,
    /// All news since the last `wait`.
    pub(crate) news: Vec<News>,
}

impl Watcher {
    pub(crate) fn new(registry: &dyn Registry) -> Self {
        Self {
            watch: registry.watch().expect("there is a thread"),
            list: BTreeMap::new(),
            news: Vec::new(),
        }
    }

    /// Follows the news until a condition holds.
    pub(crate) fn wait(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        self.news.clear();
        while !is_so(self) {
            assert!(
                Instant::now() < end,
                "{what} is not so: {:?}; {:?}",
                self.list,
                self.news
            );
            self.follow(Duration::from_millis(50));
        }
    }

    pub(crate) fn follow(&mut self, timeout: Duration) {
        let news = self.watch.next(timeout);
        for news in &news {
            let is_right = match news {
                News::Joined(entry) => self
                    .list
                    .insert(entry.name.clone(), entry.clone())
                    .is_none(),
                News::Updated(entry) => self
                    .list
                    .insert(entry.name.clone(), entry.clone())
                    .is_some(),
                News::Left(key) => self
                    .list
                    .remove(&key.name)
                    .is_some_and(|entry| entry.key() == *key),
                _ => true,
            };
            assert!(
                is_right,
                "the news do not follow from those before: {news:?}"
            );
        }
        self.news.extend(news);
    }

    pub(crate) fn now(&self) -> List {
        self.watch.list()
    }

    pub(crate) fn has(&self, names: &[&str]) -> bool {
        self.list
            .keys()
            .map(String::as_str)
            .eq(names.iter().copied())
    }

    /// Waits for a current list of servers with these names.
    pub(crate) fn wait_for(&mut self, names: &[&str]) {
        self.wait(&format!("a current list of {names:?}"), |watcher| {
            watcher.has(names) && watcher.now().age.is_none()
        });
    }

    /// Whether a node was skipped since the last `wait`.
    pub(crate) fn has_skipped(&self) -> bool {
        self.news
            .iter()
            .any(|news| matches!(news, News::Skipped { .. }))
    }

    /// Whether a server left since the last `wait`.
    pub(crate) fn has_left(&self) -> bool {
        self.news.iter().any(|news| matches!(news, News::Left(_)))
    }
}
