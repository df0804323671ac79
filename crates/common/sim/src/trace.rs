//! The trace: what has happened, for people.

use std::collections::VecDeque;

/// What is said about what happens.
#[derive(Clone, Default, Debug)]
pub enum Trace {
    /// Nothing.
    #[default]
    Off,
    /// Everything, at once.
    Print,
    /// The last events, with the error: so many.
    Last(usize, VecDeque<String>),
}

impl Trace {
    /// Keeps the last `count` events.
    pub fn last(count: usize) -> Self {
        Self::Last(count, VecDeque::new())
    }

    /// Adds a line. The text is only made when somebody reads it.
    pub fn add(&mut self, line: impl FnOnce() -> String) {
        match self {
            Self::Off => {}
            Self::Print => println!("{}", line()),
            Self::Last(count, lines) => {
                if lines.len() == *count {
                    lines.pop_front();
                }
                lines.push_back(line());
            }
        }
    }

    /// The last events, one a line.
    pub fn lines(&self) -> String {
        match self {
            Self::Last(_, lines) => lines.iter().map(|line| format!("\n  {line}")).collect(),
            _ => String::new(),
        }
    }
}
