//! What other threads want of the scheduler's.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use treadle_net::Signal;

use super::http::Page;
use crate::lock;

/// Letters that may lie there.
const MOST: usize = 64;

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

    pub(super) fn take(&self) -> Option<Letter> {
        lock(&self.letters).pop_front()
    }

    /// The scheduler shall end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.signal.set();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Somebody knocked.
    pub(super) fn knock(&self) {
        self.signal.set();
    }
}
