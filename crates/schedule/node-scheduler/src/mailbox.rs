//! What other threads want of the scheduler's.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use treadle_host::pages::Reply;
use treadle_net::Signal;
use treadle_reactor::thread::lock;

use super::pages::Content;

/// Requests that may wait.
const MOST: usize = 8;

/// Somebody wants a page.
pub(super) struct PageRequest {
    pub(super) content: Content,
    pub(super) reply: Reply,
}

impl std::fmt::Debug for PageRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PageRequest").field(&self.content).finish()
    }
}

/// Where requests wait for the scheduler's thread.
#[derive(Debug)]
pub(super) struct Mailbox {
    requests: Mutex<VecDeque<PageRequest>>,
    is_over: AtomicBool,
    signal: Signal,
}

impl Mailbox {
    pub(super) fn new(signal: Signal) -> Self {
        Self {
            requests: Mutex::default(),
            is_over: AtomicBool::new(false),
            signal,
        }
    }

    /// Leaves a request; one too many is dropped, which its sender notices.
    pub(super) fn post(&self, request: PageRequest) {
        let mut requests = lock(&self.requests);
        if requests.len() < MOST {
            requests.push_back(request);
            drop(requests);
            self.signal.set();
        }
    }

    /// The first request, and whether it was the last.
    pub(super) fn take(&self) -> Option<(PageRequest, bool)> {
        let mut requests = lock(&self.requests);
        let request = requests.pop_front()?;
        Some((request, requests.is_empty()))
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
    use std::sync::Arc;

    use treadle_net::{Lane, Poller};

    use super::*;

    #[test]
    fn who_comes_when_many_wait_is_turned_away() {
        let mailbox = Mailbox::new(Poller::on(&Lane::new().unwrap()).signal(0));
        let waiting = (0..MOST + 3).map(|_| {
            let asked = Arc::new(());
            let waiting = Arc::downgrade(&asked);
            let content = Content::Metrics;
            let reply: Reply = Box::new(move |_| drop(asked));
            mailbox.post(PageRequest { content, reply });
            waiting
        });
        let waiting: Vec<_> = waiting.collect();
        for (number, waiting) in waiting.iter().enumerate() {
            assert_eq!(waiting.upgrade().is_some(), number < MOST, "{number}");
        }
        for number in 1..=MOST {
            let (_, is_last) = mailbox.take().unwrap();
            assert_eq!(is_last, number == MOST);
        }
        assert!(mailbox.take().is_none());
    }
}
