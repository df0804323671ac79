//! What other threads leave for the one that watches.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use treadle_host::pages::Reply;
use treadle_reactor::clock;
use treadle_reactor::thread::lock;
use treadle_sight::Event;
use treadle_types::{ObjectId, WorkerId};

use super::answers::page_of;
use super::questions::{Question, refused};
use super::submissions::Submitted;

/// Bytes that may wait; then batches are dropped.
const MOST: usize = 64 << 20;
/// Things that may wait; then all but questions and who comes and goes are dropped.
const MOST_ITEMS: usize = 1 << 14;
/// Questions that may wait.
const MOST_QUESTIONS: usize = 16;
/// Errors that may wait: the latest 200 are kept.
const MOST_ERRORS: usize = 200;
/// Bytes that are not waited for.
const MANY: usize = 4 << 20;
/// How long what was left may wait.
const PAUSE: Duration = Duration::from_millis(250);

/// Something to take in.
pub(in crate::sight) enum What {
    Batch(WorkerId, Bytes),
    Event(Event<'static>),
    Submitted(Submitted),
    /// A task raised: its key, and what.
    Raised {
        worker: WorkerId,
        object: ObjectId,
        key: Bytes,
        error: Bytes,
    },
    Ask(Question, Reply),
}

/// Something to take in, and when it was left: nanoseconds since the start.
pub(crate) struct Item {
    pub(in crate::sight) now: u64,
    pub(in crate::sight) what: What,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    questions: usize,
    errors: usize,
    dropped: u64,
    /// Nothing more is taken in: why, for who asks.
    over: Option<String>,
}

/// Where things are left.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// When the scheduler started, by the clock of spans.
    epoch: u64,
    state: Mutex<State>,
    woken: Condvar,
    is_over: AtomicBool,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            epoch: clock::monotonic(),
            state: Mutex::default(),
            woken: Condvar::new(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Nanoseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        clock::monotonic().saturating_sub(self.epoch)
    }

    /// What a worker's clock shows when this inbox began to count.
    pub(in crate::sight) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether there was room for it.
    fn leave(&self, bytes: usize, what: What) -> bool {
        let now = self.now();
        let mut state = lock(&self.state);
        if let Some(reason) = &state.over {
            let refusal = refused(503, reason);
            drop(state);
            if let What::Ask(_, reply) = what {
                reply(page_of(refusal));
            }
            return false;
        }
        let (is_question, is_error) = (
            matches!(what, What::Ask(..)),
            matches!(what, What::Raised { .. }),
        );
        let has_room = match what {
            What::Ask(..) => state.questions < MOST_QUESTIONS,
            What::Raised { .. } => state.errors < MOST_ERRORS,
            // Who is there, nothing else says; and there are no more of these than workers come and go.
            What::Event(Event::Joined { .. } | Event::Lost { .. }) => true,
            _ => state.bytes + bytes <= MOST && state.items.len() < MOST_ITEMS,
        };
        if !has_room {
            state.dropped += u64::from(!is_question && !is_error);
            return false;
        }
        state.bytes += bytes;
        state.questions += usize::from(is_question);
        state.errors += usize::from(is_error);
        state.items.push_back(Item { now, what });
        if is_question || state.bytes >= MANY {
            self.woken.notify_one();
        }
        true
    }

    /// What a worker recorded; returns whether there was room for it.
    pub(crate) fn batch(&self, worker: WorkerId, bytes: Bytes) -> bool {
        self.leave(bytes.len(), What::Batch(worker, bytes))
    }

    /// Something happened; returns whether there was room for it.
    pub(crate) fn event(&self, event: Event<'static>) -> bool {
        let bytes = match &event {
            Event::Line { text, .. } => text.len(),
            _ => 0,
        };
        self.leave(bytes, What::Event(event))
    }

    /// Tasks were submitted.
    pub(crate) fn submitted(&self, submitted: Submitted) {
        self.leave(submitted.bytes(), What::Submitted(submitted));
    }

    /// A task raised.
    pub(crate) fn raised(&self, worker: WorkerId, object: ObjectId, key: &[u8], error: &Bytes) {
        let what = What::Raised {
            worker,
            object,
            key: Bytes::copy_from_slice(key),
            error: error.clone(),
        };
        self.leave(error.len(), what);
    }

    /// Somebody asks. One too many is dropped, which its sender notices.
    pub(crate) fn ask(&self, question: Question, reply: Reply) {
        self.leave(0, What::Ask(question, reply));
    }

    /// What there is, and how many batches were dropped. Waits until there is much, a question, or for a
    /// while; `None`: it is over, and nothing is left.
    pub(in crate::sight) fn take(&self) -> Option<(VecDeque<Item>, u64)> {
        let state = lock(&self.state);
        let waited = self.woken.wait_timeout_while(state, PAUSE, |state| {
            state.questions == 0 && state.bytes < MANY && !self.is_over.load(Ordering::Acquire)
        });
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if self.is_over.load(Ordering::Acquire) && state.items.is_empty() {
            return None;
        }
        (state.bytes, state.questions, state.errors) = (0, 0, 0);
        let dropped = std::mem::take(&mut state.dropped);
        Some((std::mem::take(&mut state.items), dropped))
    }

    /// Nothing more will come.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        let over = || "recording ended: the scheduler ends".into();
        state.over.get_or_insert_with(over);
        self.is_over.store(true, Ordering::Release);
        self.woken.notify_all();
    }

    /// Nobody takes in anything any more, for a reason. What was left is dropped, and who asked hears why.
    pub(in crate::sight) fn fail(&self, reason: &str) {
        let reason = format!("recording ended: {reason}");
        let mut state = lock(&self.state);
        let items = std::mem::take(&mut state.items);
        *state = State {
            over: Some(reason.clone()),
            ..State::default()
        };
        self.is_over.store(true, Ordering::Release);
        drop(state);
        for item in items {
            if let What::Ask(_, reply) = item.what {
                reply(page_of(refused(503, &reason)));
            }
        }
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_dropped_and_counted() {
        let inbox = Inbox::new();
        let many = Bytes::from(vec![0; MOST / 4]);
        let taken = (0..6).map(|_| inbox.batch(WorkerId(1), many.clone()));
        let taken: Vec<bool> = taken.collect();
        assert_eq!(taken, [true, true, true, true, false, false]);
        for _ in 0..MOST_QUESTIONS + 2 {
            inbox.ask(Question::Overview, Box::new(|_| ()));
        }
        let (items, dropped) = inbox.take().unwrap();
        assert_eq!((items.len(), dropped), (4 + MOST_QUESTIONS, 2));
        for _ in 0..MOST_ITEMS + 1 {
            inbox.event(Event::Dropped(0));
        }
        inbox.end();
        let (items, dropped) = inbox.take().unwrap();
        assert_eq!((items.len(), dropped), (MOST_ITEMS, 1));
        assert!(inbox.take().is_none());
    }

    #[test]
    fn lines_count_with_their_text() {
        let inbox = Inbox::new();
        for _ in 0..6 {
            inbox.event(Event::Line {
                level: 30,
                text: "x".repeat(MOST / 4),
            });
        }
        let (items, dropped) = inbox.take().unwrap();
        assert_eq!((items.len(), dropped), (4, 2));
    }

    #[test]
    fn who_comes_and_goes_is_never_dropped() {
        let inbox = Inbox::new();
        for _ in 0..MOST_ITEMS {
            inbox.event(Event::Dropped(0));
        }
        inbox.event(Event::Lost {
            worker: WorkerId(1),
            cause: "it was killed".into(),
            drained: false,
        });
        let (items, dropped) = inbox.take().unwrap();
        assert_eq!((items.len(), dropped), (MOST_ITEMS + 1, 0));
    }

    #[test]
    fn who_asks_hears_that_it_ended_and_nothing_is_held() {
        let inbox = Inbox::new();
        let (sender, heard) = std::sync::mpsc::channel();
        let ask = || {
            let sender = sender.clone();
            let reply: Reply = Box::new(move |text| sender.send(text()).unwrap());
            inbox.ask(Question::Overview, reply);
        };
        inbox.event(Event::Dropped(0));
        ask();
        inbox.fail("it broke");
        ask();
        inbox.batch(WorkerId(1), Bytes::from_static(b"much"));
        let heard: Vec<_> = heard.try_iter().collect();
        assert_eq!(heard.len(), 2);
        for content in heard {
            assert_eq!(content.status, 503);
            let expected = r#"{"error":"recording ended: it broke"}"#;
            assert_eq!(&content.bytes[..], expected.as_bytes());
        }
        assert!(inbox.take().is_none());
        let state = lock(&inbox.state);
        assert_eq!((state.items.len(), state.bytes), (0, 0));
    }
}
