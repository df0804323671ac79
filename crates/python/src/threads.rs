//! Running a job on several threads.

use crate::fork;
use crate::job::{Job, Turn};
use crate::pool::{Pool, look_out};
use crate::worker::{Context, Inside, Pulse, run_task, take_turn};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// How often the thread that called `get` looks whether a signal came.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(25);

/// Where a crew's threads come from.
pub(crate) enum Source {
    /// The engine's own pool.
    Pool,
    /// A Python callable that makes some thread call [`Crew::work`] with the crew that it is given.
    Python(Py<PyAny>),
}

/// The end of a run, as the thread that called `get` waits for it.
///
/// It is announced by a thread that is detached from Python: the caller could not go on while the
/// other is attached, and would fall asleep on the interpreter's lock.
pub(crate) struct End {
    caller: Thread,
    over: AtomicBool,
}

impl End {
    pub(crate) fn announce(&self) {
        self.over.store(true, Ordering::Release);
        self.caller.unpark();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// The threads that run a job.
pub(crate) struct Crew {
    pub(crate) job: Job,
    context: Context,
    source: Source,
    /// At most so many threads work at once.
    limit: usize,
    /// Threads that work or were asked to come.
    working: AtomicUsize,
    pub(crate) end: Arc<End>,
    failure: Mutex<Option<PyErr>>,
    generation: u64,
}

impl Crew {
    /// A crew of at most `limit` threads; nobody works yet.
    pub(crate) fn new(
        py: Python<'_>,
        job: Job,
        limit: usize,
        source: Source,
    ) -> PyResult<Arc<Self>> {
        fork::watch();
        Ok(Arc::new(Crew {
            job,
            context: Context::of_caller(py)?,
            source,
            limit: limit.max(1),
            working: AtomicUsize::new(0),
            end: Arc::new(End {
                caller: std::thread::current(),
                over: AtomicBool::new(false),
            }),
            failure: Mutex::new(None),
            generation: fork::generation(),
        }))
    }

    /// Runs the job and waits for its end.
    ///
    /// # Errors
    /// What the first failing task raises. What a signal handler raises, at most
    /// [`SIGNAL_INTERVAL`] after the signal: tasks in flight then finish on their own, and their
    /// results are dropped.
    pub(crate) fn run(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        if self.job.unfinished() == 0 {
            return Ok(());
        }
        let result = self.start_and_wait(py);
        if result.is_err() {
            self.job.stop();
        }
        result?;
        match self
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn start_and_wait(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        self.working.fetch_add(1, Ordering::Relaxed);
        if !self.idle_comes(py) {
            self.send_new(py)?;
        }
        self.wait(py)
    }

    /// Sends for an idle thread of the pool, and looks out for the end of the shortest runs. Detached
    /// meanwhile: the thread has to attach.
    fn idle_comes(self: &Arc<Self>, py: Python<'_>) -> bool {
        if !matches!(self.source, Source::Pool) {
            return false;
        }
        let pool = Pool::get();
        py.detach(|| {
            let sent = || pool.send_idle(self);
            if !(sent() || pool.expects_one() && look_out(sent)) {
                return false;
            }
            look_out(|| self.end.is_over());
            true
        })
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        while !py.detach(|| {
            look_out(|| self.end.is_over()) || {
                std::thread::park_timeout(SIGNAL_INTERVAL);
                self.end.is_over()
            }
        }) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Sends for a thread that was counted as working.
    fn send_new(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        let sent = match &self.source {
            Source::Pool => Pool::get().send_new(py, self.clone()),
            Source::Python(call) => {
                let crew = crate::PyCrew::new(self.clone());
                call.call1(py, (crew,)).map(drop)
            }
        };
        sent.inspect_err(|_| {
            self.working.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Sends for threads, as long as there are fewer than the limit and than ready tasks. Threads
    /// that cannot be had are no error: this one works.
    fn recruit(self: &Arc<Self>, py: Python<'_>, ready: usize) {
        let pool = matches!(self.source, Source::Pool).then(Pool::get);
        for _ in 0..ready {
            if self.working.fetch_add(1, Ordering::Relaxed) >= self.limit {
                self.working.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            if pool.is_some_and(|pool| pool.send_idle(self)) {
                continue;
            }
            if pool.is_some_and(|pool| pool.expects_one()) {
                // Rather than starting a thread, wait for that one until the next turn.
                self.working.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            if self.send_new(py).is_err() {
                return;
            }
        }
    }

    /// Works on the job until nothing is ready. Called on a thread that was recruited.
    ///
    /// Returns whether the run has ended in the hands of this thread, which then has to announce
    /// it when it is detached.
    pub(crate) fn work(self: &Arc<Self>, py: Python<'_>) -> bool {
        let _inside = Inside::enter();
        let ended = self.work_until_idle(py).unwrap_or_else(|failure| {
            self.note_failure(failure);
            true
        });
        if fork::generation() == self.generation {
            self.working.fetch_sub(1, Ordering::AcqRel);
        }
        ended
    }

    fn work_until_idle(self: &Arc<Self>, py: Python<'_>) -> PyResult<bool> {
        let mut pulse = Pulse::new();
        let mut turn = Turn::default();
        let mut finished = None;
        loop {
            take_turn(&self.job, finished.take(), &mut turn)?;
            if turn.over {
                return Ok(true);
            }
            if turn.ready > 0 && self.working.load(Ordering::Relaxed) < self.limit {
                self.recruit(py, turn.ready);
            }
            let Some(started) = turn.next.take() else {
                return Ok(false);
            };
            let value = run_task(py, &self.job, &started, Some(&self.context))?;
            if fork::generation() != self.generation {
                // A task forked, and this is the child: the parent's run is not ours.
                return Ok(false);
            }
            finished = Some((started.task, value));
            pulse.beat(py)?;
        }
    }

    fn note_failure(&self, failure: PyErr) {
        self.job.stop();
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let late = if first.is_none() {
            first.replace(failure)
        } else {
            Some(failure)
        };
        drop(first);
        drop(late);
    }

    /// A thread that was asked for will not come: the run fails.
    pub(crate) fn lost(&self, failure: PyErr) {
        self.working.fetch_sub(1, Ordering::AcqRel);
        self.note_failure(failure);
        self.end.announce();
    }
}
