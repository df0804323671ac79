//! Lines of the log that wait to be sent.

use std::collections::VecDeque;

use treadle_sight::Line;

/// How many wait, bytes of all of them, and of one. A batch has no more, so that those of one worker leave room for
/// the others'.
pub(super) const MOST_LINES: usize = 1 << 10;
pub(super) const MOST_TEXT: usize = 1 << 16;
pub(super) const LONGEST_LINE: usize = 2_000;

#[derive(Debug)]
struct Said {
    time: u64,
    level: u8,
    text: Box<str>,
}

/// The latest lines. Older ones are lost, and counted.
#[derive(Debug, Default)]
pub(super) struct Lines {
    said: VecDeque<Said>,
    /// Bytes of their text.
    text: usize,
    pub(super) lost: u64,
}

impl Lines {
    pub(super) fn add(&mut self, time: u64, level: u8, text: &str) {
        let text: Box<str> = super::cut(text, LONGEST_LINE).into();
        self.text += text.len();
        self.said.push_back(Said { time, level, text });
        while (self.said.len() > MOST_LINES || self.text > MOST_TEXT)
            && let Some(oldest) = self.said.pop_front()
        {
            self.text -= oldest.text.len();
            self.lost += 1;
        }
    }

    /// What a batch has of them.
    pub(super) fn told(&self) -> impl Iterator<Item = Line<'_>> {
        self.said.iter().map(|line| Line {
            time: line.time,
            level: line.level,
            text: &line.text,
        })
    }
}
