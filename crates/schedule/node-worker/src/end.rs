//! Why a worker ends.

use std::time::{Duration, Instant};

use treadle_messages::{FromWorker, Leave};
use treadle_net::Wait;
use treadle_reactor::thread::lock;
use treadle_types::Cause;

use super::{FAREWELL, Inner, recording};

/// How long a worker that ends waits before it looks whether the scheduler has all that was said.
const SLICE: Duration = Duration::from_millis(20);

/// What has ended a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndCause {
    /// The scheduler told it to end.
    Told(Leave),
    /// There is no connection to the scheduler any more.
    Lost,
    /// Something in the worker has failed.
    Failed,
    /// Its process closed it.
    Closed,
    /// Its process closed it, and another shall replace it.
    Restarted,
    /// Its tasks took more memory than its limit.
    Overflowed,
}

impl EndCause {
    /// Its name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Told(Leave::Drained) => "drained",
            Self::Told(Leave::Asked) => "asked",
            Self::Told(Leave::Over) => "over",
            Self::Told(Leave::Dismissed) => "dismissed",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::Closed => "closed",
            Self::Restarted => "restarted",
            Self::Overflowed => "overflowed",
        }
    }
}

/// Why a worker has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    /// What has ended it.
    pub cause: EndCause,
    /// The same in words.
    pub reason: String,
}

impl End {
    pub fn new(cause: EndCause, reason: &str) -> Self {
        Self {
            cause,
            reason: reason.to_owned(),
        }
    }
}

impl Inner {
    /// Ends, after telling the scheduler why.
    pub(super) fn close(&self, end: End, cause: Cause, log: String) {
        if !self.is_over() {
            let _ = self.leaving.set(end.clone());
            recording::send(self, true);
            self.say(FromWorker::Leaving { cause, log });
            let deadline = Instant::now() + FAREWELL;
            // Closing stops large messages that are under way, and what follows them.
            while self.is_sending() && Instant::now() < deadline {
                self.flush();
                let brief = Instant::now() + SLICE;
                self.wait_until(brief, || !self.is_sending());
            }
            self.scheduler.start_close();
            self.wait_until(deadline, || self.scheduler.is_closed());
        }
        self.end(end);
    }

    /// Whether the scheduler does not have all that was said.
    fn is_sending(&self) -> bool {
        self.scheduler.ended().is_none() && lock(&self.sender).link.kept() > 0
    }

    fn wait_until(&self, deadline: Instant, mut done: impl FnMut() -> bool) {
        let mut wait = Wait {
            deadline: Some(deadline),
            interrupted: None,
        };
        let _ = self.control_lane.wait(&mut done, &mut wait);
    }
}
