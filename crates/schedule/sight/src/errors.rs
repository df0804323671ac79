//! What tasks failed with: each text once for a group, with how often, and the latest traceback.

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use treadle_types::{fnv, keys};

use crate::event::{about_error, about_traceback};
use crate::overview::ErrorRow;

/// Errors that are kept.
pub(crate) const MOST: usize = 200;
/// The latest tasks of each of which it is known that they are its.
const MOST_TASKS: usize = 64;

/// A task failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure<'a> {
    pub(crate) key: &'a str,
    /// The value that it did not make; 0: not known.
    pub(crate) object: u64,
    pub(crate) text: &'a str,
    pub(crate) traceback: &'a str,
    /// Whether it raised; otherwise the scheduler gave it up.
    pub(crate) raised: bool,
}

#[derive(Debug)]
struct Kept {
    row: ErrorRow,
    /// Hashes of keys, and values.
    tasks: VecDeque<(u64, u64)>,
}

/// The latest of them.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    kept: VecDeque<Kept>,
}

impl Errors {
    pub(crate) fn add(
        &mut self,
        failure: Failure<'_>,
        (worker, worker_id): (String, Option<u32>),
        time: u64,
    ) {
        let group = keys::short(keys::prefix_of_text(failure.key)).to_string();
        let text = about_error(failure.text);
        let is_same = |one: &Kept| {
            one.row.raised == failure.raised && one.row.group == group && one.row.text == text
        };
        let known = self.kept.iter().position(is_same);
        let known = known.and_then(|place| self.kept.remove(place));
        let (count, mut tasks) =
            known.map_or_else(Default::default, |known| (known.row.count, known.tasks));
        if tasks.len() == MOST_TASKS {
            tasks.pop_front();
        }
        let key = about_error(failure.key);
        tasks.push_back((fnv::hash(&key), failure.object));
        let row = ErrorRow {
            key,
            group,
            worker,
            worker_id,
            time,
            text,
            traceback: about_traceback(failure.traceback),
            count: count + 1,
            raised: failure.raised,
        };
        self.kept.push_back(Kept { row, tasks });
        if self.kept.len() > MOST {
            self.kept.pop_front();
        }
    }

    /// The latest first.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &ErrorRow> {
        self.kept.iter().rev().map(|one| &one.row)
    }

    /// What the task of a key failed with at last, and the value that it did not make.
    pub(crate) fn of(&self, key: &str) -> Option<(&ErrorRow, Option<u64>)> {
        let hash = fnv::hash(&about_error(key));
        self.kept.iter().rev().find_map(|one| {
            let mut tasks = one.tasks.iter().rev();
            let (_, object) = tasks.find(|(own, _)| *own == hash)?;
            Some((&one.row, Some(*object).filter(|object| *object > 0)))
        })
    }

    pub(crate) fn check(&self) {
        assert!(self.kept.len() <= MOST);
        let bounded =
            |one: &Kept| one.tasks.len() <= MOST_TASKS && one.tasks.len() as u64 <= one.row.count;
        assert!(self.kept.iter().all(bounded));
    }
}

/// As many of them as are said with an overview, without their tracebacks.
pub(crate) fn shown(errors: &Errors, most: usize) -> Vec<ErrorRow> {
    let rows = errors.iter().take(most);
    let rows = rows.map(|row| ErrorRow {
        traceback: String::new(),
        ..row.clone()
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn failure<'a>(key: &'a str, text: &'a str) -> Failure<'a> {
        Failure {
            key,
            object: 7,
            text,
            traceback: "  File \"job.py\", line 3, in divide\n",
            raised: true,
        }
    }

    #[test]
    fn each_task_has_its_error_though_a_text_is_kept_once() {
        let mut errors = Errors::default();
        for number in 0..3 {
            let key = format!("divide-{number}");
            errors.add(
                failure(&key, "ZeroDivisionError"),
                ("w".into(), Some(1)),
                number,
            );
        }
        errors.add(failure("other-1", "OSError"), ("w".into(), Some(1)), 9);
        errors.check();
        assert_eq!(errors.iter().len(), 2);
        for number in 0..3 {
            let (row, object) = errors.of(&format!("divide-{number}")).unwrap();
            assert_eq!((row.count, row.key.as_str()), (3, "divide-2"));
            assert!(row.traceback.contains("in divide"));
            assert_eq!(object, Some(7));
        }
        assert!(errors.of("divide-9").is_none());
        assert!(
            shown(&errors, 50)
                .iter()
                .all(|row| row.traceback.is_empty())
        );
    }

    #[test]
    fn there_are_at_most_so_many_and_none_is_long() {
        let mut errors = Errors::default();
        let long = "ä".repeat(100_000);
        for number in 0..2 * MOST as u64 {
            let text = format!("{number} {long}");
            let one = Failure {
                traceback: &text,
                ..failure(&long, &text)
            };
            errors.add(one, (String::new(), None), number);
        }
        errors.check();
        assert_eq!(errors.iter().len(), MOST);
        let longest = errors.iter().map(|row| row.traceback.len()).max();
        assert!(longest <= Some(4_096), "{longest:?}");
        assert!(errors.iter().all(|row| row.text.chars().count() <= 2_000));
    }
}
