//! What other threads want of the scheduler's.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use treadle_net::Signal;

use super::http::Page;
use crate::lock;

/// Letters that may lie there.
const MOST: usize = 8;

/// A wish.
#[derive(Debug)]
pub(super) enum Letter {
    /// A page, sent back as text.
    Page(Page, SyncSender<String>),
}

/// Where wishes are left.
#[derive(Debug)]
pub(super) struct Mailbox {
    letters: Mutex<VecDeque<Letter>>,
    is_over: AtomicBool,
    signal: Signal,
}

impl Mailbox {
    pub(super) fn new(signal: Signal) -> Self {
        Self {
            letters: Mutex::default(),
            is_over: AtomicBool::new(false),
            signal,
        }
    }

    /// Leaves a letter; one too many is dropped, which its sender notices.
    pub(super) fn post(&self, letter: Letter) {
        let mut letters = lock(&self.letters);
        if letters.len() < MOST {
            letters.push_back(letter);
            drop(letters);
            self.signal.set();
        }
    }

    /// The first letter, and whether it was the last.
    pub(super) fn take(&self) -> Option<(Letter, bool)> {
        let mut letters = lock(&self.letters);
        let letter = letters.pop_front()?;
        Some((letter, letters.is_empty()))
    }

    /// The scheduler shall end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.signal.set();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The scheduler's thread gets another turn for what lies there.
    pub(super) fn look_again(&self) {
        self.signal.set();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, sync_channel};

    use treadle_net::{Lane, Poller};

    use super::*;

    #[test]
    fn who_comes_when_many_wait_is_turned_away() {
        let mailbox = Mailbox::new(Poller::on(&Lane::new().unwrap()).signal(0));
        let answers: Vec<_> = (0..MOST + 3)
            .map(|_| {
                let (reply, answer) = sync_channel(1);
                mailbox.post(Letter::Page(Page::State, reply));
                answer
            })
            .collect();
        for (number, answer) in answers.iter().enumerate() {
            let is_waiting = answer.try_recv() == Err(TryRecvError::Empty);
            assert_eq!(is_waiting, number < MOST, "{number}");
        }
        for number in 1..=MOST {
            let (_, is_last) = mailbox.take().unwrap();
            assert_eq!(is_last, number == MOST);
        }
        assert!(mailbox.take().is_none());
    }
}
