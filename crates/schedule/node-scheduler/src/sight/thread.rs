//! The thread that watches.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tracing::{error, warn};
use treadle_reactor::thread::{self, caught, lock};
use treadle_sight::{Event, Sight, about_error, about_traceback};

use super::answers::{Answer, answer};
use super::inbox::{Inbox, Item, What};
use super::submissions::Submissions;
use super::writer::Writer;
use super::{Options, errors};
use crate::mailbox::{Mailbox, PageRequest};
use crate::pages::Content;

/// What a history is of.
pub(crate) struct About {
    pub(crate) address: String,
    pub(crate) id: String,
    /// Microseconds since 1970.
    pub(crate) unix: u64,
}

/// The thread, which ends when it is closed.
#[derive(Debug)]
pub(crate) struct SightThread {
    inbox: Arc<Inbox>,
    /// That of the thread.
    process: u32,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl SightThread {
    /// Ends it, when it has taken in what was left.
    pub(crate) fn close(&self) {
        if self.process != std::process::id() {
            // A forked child has no such thread, and who had a lock may be none of its own either.
            return;
        }
        self.inbox.end();
        let Some(running) = lock(&self.running).take() else {
            return;
        };
        // A panic was printed by itself.
        let _ = running.join();
    }
}

impl Drop for SightThread {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.close();
        } else {
            let running = self.running.get_mut();
            std::mem::forget(running.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Starts it.
///
/// # Errors
/// When the history cannot be written, or the system has no more threads.
pub(crate) fn start(
    options: &Options,
    about: About,
    inbox: &Arc<Inbox>,
    mailbox: &Arc<Mailbox>,
) -> io::Result<SightThread> {
    let history = match &options.history {
        Some(path) => Some(Writer::create(path, &about, options.longest_history)?),
        None => None,
    };
    let mut watcher = Watcher {
        sight: Sight::new(options.memory),
        submissions: Submissions::default(),
        history,
        inbox: Arc::clone(inbox),
        mailbox: Arc::clone(mailbox),
    };
    watcher.take_event(
        &Event::Began {
            address: about.address,
            id: about.id,
            version: env!("CARGO_PKG_VERSION").into(),
            unix: about.unix,
            clock: watcher.inbox.epoch(),
        },
        0,
    );
    let body = move || {
        if let Err(reason) = caught(|| watcher.run()) {
            error!(target: treadle_log::SCHEDULER, "{reason}: nothing is recorded any more");
            watcher.inbox.fail(&reason.to_string());
            if let Some(history) = &mut watcher.history {
                history.close();
            }
        }
    };
    Ok(SightThread {
        inbox: Arc::clone(inbox),
        process: std::process::id(),
        running: Mutex::new(Some(thread::start("treadle-sight", body)?)),
    })
}

struct Watcher {
    sight: Sight,
    submissions: Submissions,
    history: Option<Writer>,
    inbox: Arc<Inbox>,
    mailbox: Arc<Mailbox>,
}

impl Watcher {
    fn run(&mut self) {
        while let Some((items, dropped)) = self.inbox.take() {
            for item in items {
                self.take(item);
            }
            if dropped > 0 {
                let now = self.inbox.now();
                self.take_event(&Event::Dropped(dropped), now);
            }
            if let Some(history) = &mut self.history {
                history.flush();
            }
        }
        if let Some(history) = &mut self.history {
            history.close();
        }
    }

    fn take(&mut self, Item { now, what }: Item) {
        match what {
            What::Batch(worker, bytes) => {
                let event = Event::Batch {
                    worker,
                    bytes: &bytes,
                };
                self.take_event(&event, now);
            }
            What::Event(event) => self.take_event(&event, now),
            What::Submitted(submitted) => {
                for event in self.submissions.take(&submitted) {
                    self.take_event(&event, now);
                }
            }
            What::Raised {
                worker,
                object,
                key,
                error,
            } => {
                let (text, traceback) = errors::texts(&error).unwrap_or(("(unknown)", ""));
                let key = treadle_types::Value::from_bytes(&key);
                let key = key.map(|key| treadle_types::keys::display(&key));
                let event = Event::Failed {
                    object: object.to_u64(),
                    key: about_error(key.as_deref().unwrap_or("(an unreadable key)")),
                    worker,
                    text: about_error(text),
                    traceback: about_traceback(traceback),
                };
                self.take_event(&event, now);
            }
            What::Ask(question, reply) => {
                if let Some(history) = &self.history {
                    let (bytes, limit, end) = history.state();
                    self.sight.writes(bytes, limit, end);
                }
                match answer(&self.sight, question, self.inbox.now(), true) {
                    Answer::Page(text) => reply(text),
                    Answer::AskKey(span) => self.mailbox.post(PageRequest {
                        content: Content::Span(span),
                        reply,
                    }),
                }
            }
        }
    }

    fn take_event(&mut self, event: &Event<'_>, now: u64) {
        if let Err(error) = self.sight.handle(event, now) {
            warn!(target: treadle_log::SCHEDULER, "what a worker recorded cannot be read: {error}");
            return;
        }
        if let Some(history) = &mut self.history {
            history.add(event, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_touches_no_lock() {
        let inbox = Arc::new(Inbox::new());
        let running = thread::start("treadle-test", || ()).unwrap();
        let sight = SightThread {
            inbox: Arc::clone(&inbox),
            process: std::process::id() + 1,
            running: Mutex::new(Some(running)),
        };
        let held = lock(&sight.running);
        sight.close();
        drop(held);
        drop(sight);
        assert!(!inbox.is_over());
    }
}
