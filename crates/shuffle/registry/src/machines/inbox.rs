//! News that a master has not read yet. Of each server there is one at most, so they are as many as servers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::News;
use crate::entry::Entry;

/// So many of the news that are not about one listed server are kept: the latest.
const MOST_REMARKS: usize = 1_000;

/// News between a watch and who reads it.
#[derive(Debug, Default)]
pub struct Inbox {
    /// What the reader was told last.
    told: BTreeMap<String, Arc<Entry>>,
    /// The list now.
    listed: BTreeMap<String, Arc<Entry>>,
    changed: BTreeSet<String>,
    remarks: VecDeque<News>,
    /// Whether the list is current, if that has changed.
    state: Option<News>,
}

impl Inbox {
    /// Takes what the machine tells.
    pub fn push(&mut self, news: News) {
        match news {
            News::Joined(entry) | News::Updated(entry) => {
                self.changed.insert(entry.name.clone());
                self.listed.insert(entry.name.clone(), entry);
            }
            News::Left(key) => {
                self.listed.remove(&key.name);
                self.changed.insert(key.name);
            }
            News::Current | News::Stale(_) => self.state = Some(news),
            News::HeldBack { .. } | News::Duplicate { .. } | News::Skipped { .. } => {
                if self.remarks.len() == MOST_REMARKS {
                    self.remarks.pop_front();
                }
                self.remarks.push_back(news);
            }
        }
    }

    /// Whether [`Inbox::take`] returns nothing.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.remarks.is_empty() && self.state.is_none()
    }

    /// What the reader has to know since it was last here.
    pub fn take(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        for name in std::mem::take(&mut self.changed) {
            let now = self.listed.get(&name).cloned();
            let before = match &now {
                Some(now) => self.told.insert(name, now.clone()),
                None => self.told.remove(&name),
            };
            match (before, now) {
                (Some(before), Some(now)) if before.incarnation == now.incarnation => {
                    if before != now {
                        news.push(News::Updated(now));
                    }
                }
                (before, now) => {
                    news.extend(before.map(|before| News::Left(before.key())));
                    news.extend(now.map(News::Joined));
                }
            }
        }
        news.extend(self.remarks.drain(..));
        news.extend(self.state.take());
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(incarnation: u64, weight: u32) -> Arc<Entry> {
        Arc::new(Entry {
            name: "a".into(),
            incarnation,
            weight,
            ..Entry::default()
        })
    }

    #[test]
    fn who_reads_late_is_told_what_differs() {
        let mut inbox = Inbox::default();
        for incarnation in 0..100 {
            inbox.push(News::Joined(entry(incarnation, 1)));
            inbox.push(News::Left(entry(incarnation, 1).key()));
        }
        assert_eq!(inbox.take(), []);
        inbox.push(News::Joined(entry(100, 1)));
        inbox.push(News::Updated(entry(100, 2)));
        inbox.push(News::Current);
        assert_eq!(inbox.take(), [News::Joined(entry(100, 2)), News::Current]);
        inbox.push(News::Left(entry(100, 2).key()));
        inbox.push(News::Joined(entry(100, 3)));
        assert_eq!(inbox.take(), [News::Updated(entry(100, 3))]);
        inbox.push(News::Left(entry(100, 3).key()));
        inbox.push(News::Joined(entry(101, 3)));
        assert_eq!(
            inbox.take(),
            [News::Left(entry(100, 3).key()), News::Joined(entry(101, 3))]
        );
        assert!(inbox.is_empty());
    }

    #[test]
    fn remarks_are_bounded() {
        let mut inbox = Inbox::default();
        for number in 0..2 * MOST_REMARKS {
            inbox.push(News::Skipped {
                node: number.to_string(),
                why: String::new(),
            });
        }
        let news = inbox.take();
        assert_eq!(news.len(), MOST_REMARKS);
        assert!(
            matches!(&news[0], News::Skipped { node, .. } if *node == MOST_REMARKS.to_string())
        );
    }
}
