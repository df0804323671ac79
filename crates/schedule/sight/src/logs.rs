//! The latest lines of the logs of workers and of the scheduler.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Bytes of lines that are kept, with what each takes beside.
const MOST: usize = 8 << 20;
const LINE: usize = 40;
/// Bytes of the longest line; what is longer is cut.
const LONGEST: usize = 4_000;

/// A line.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) time: u64,
    pub(crate) level: u8,
    /// The row of the worker; `None`: the scheduler.
    pub(crate) worker: Option<u16>,
    pub(crate) text: Box<str>,
}

/// The latest of them.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    lines: VecDeque<Line>,
    bytes: usize,
    /// Lines that are not there, for lack of room here or at workers.
    lost: u64,
}

impl Logs {
    pub(crate) fn add(&mut self, time: u64, level: u8, worker: Option<u16>, text: &str) {
        let end = text.len().min(LONGEST);
        let end = (0..=end).rev().find(|end| text.is_char_boundary(*end));
        let text: Box<str> = text[..end.unwrap_or(0)].into();
        self.bytes += LINE + text.len();
        self.lines.push_back(Line {
            time,
            level,
            worker,
            text,
        });
        while self.bytes > MOST
            && let Some(line) = self.lines.pop_front()
        {
            self.bytes -= LINE + line.text.len();
            self.lose(1);
        }
    }

    pub(crate) fn lose(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The latest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().rev()
    }

    pub(crate) fn check(&self) {
        let bytes = self.lines.iter().map(|line| LINE + line.text.len());
        assert_eq!(bytes.sum::<usize>(), self.bytes);
        assert!(self.bytes <= MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept() {
        let mut logs = Logs::default();
        let text = "ä".repeat(LONGEST);
        for time in 0..3_000 {
            logs.add(time, 30, None, &text);
        }
        logs.check();
        assert_eq!(logs.iter().next().map(|line| line.time), Some(2_999));
        assert_eq!(logs.iter().count() as u64 + logs.lost(), 3_000);
        assert!(logs.iter().all(|line| line.text.len() == LONGEST));
        assert!(logs.lost() > 0);
    }
}
