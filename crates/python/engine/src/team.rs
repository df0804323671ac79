//! Running a job on several threads.

use crate::held::{Held, Look};
use crate::job::{Job, Turn};
use crate::pool::{Pool, spin_until};
use crate::run::{InTask, run_task, take_turn};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};
use treadle_interpreter::{Context, PeriodicSwitch, fork, lock, panicked};

/// How often the thread that called `get` looks whether a signal came.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(25);

/// How long a thread of somebody else's executor works for one run before it queues up behind what
/// else was submitted: the executor may be shared.
const SLICE: Duration = Duration::from_millis(50);

/// Where a team's threads come from.
pub(crate) enum Source {
    /// The engine's own pool.
    Pool,
    /// A Python callable that makes some thread call [`Team::work`] with the team that it is given.
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

/// How a thread left a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Nothing was ready; the run goes on.
    Early,
    /// It ended the run with a failure.
    Ended,
    /// It finished the last task. So many threads had not left then, this one included.
    Finished(usize),
    /// All tasks were finished already.
    Late,
}

impl Exit {
    /// Whether the run ended in the hands of this thread, which then has to announce it when it is
    /// detached.
    pub(crate) fn has_to_announce(self) -> bool {
        matches!(self, Exit::Ended | Exit::Finished(_))
    }
}

/// The threads that run a job.
pub(crate) struct Team {
    pub(crate) job: Job,
    context: Context,
    source: Source,
    pub(crate) end: Arc<End>,
    failure: Mutex<Option<PyErr>>,
    generation: u64,
}

impl Team {
    /// A team of at most `limit` threads; nobody works yet.
    pub(crate) fn new(
        py: Python<'_>,
        job: Job,
        limit: usize,
        source: Source,
    ) -> PyResult<Arc<Self>> {
        fork::watch();
        job.expect_threads(limit.max(1));
        Ok(Arc::new(Team {
            job,
            context: Context::of_caller(py)?,
            source,
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
        match lock(&self.failure).take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn start_and_wait(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        if !self.send_idle(py)
            && let Some(raised) = self.send_new(py)?
        {
            return Err(raised);
        }
        self.wait(py)
    }

    /// Sends an idle thread of the pool to this run, and polls for the end of the shortest runs.
    /// Detached meanwhile: the thread has to attach.
    fn send_idle(self: &Arc<Self>, py: Python<'_>) -> bool {
        let Source::Pool = self.source else {
            return false;
        };
        let pool = Pool::get();
        py.detach(|| {
            let sent = pool.send(self);
            let _ = sent && spin_until(|| self.end.is_over());
            sent
        })
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let mut held = None;
        loop {
            let look = py.detach(|| {
                if spin_until(|| self.end.is_over()) {
                    return None;
                }
                std::thread::park_timeout(SIGNAL_INTERVAL);
                (!self.end.is_over()).then(Look::begin)
            });
            let Some(look) = look else { return Ok(()) };
            let held = held.get_or_insert_with(|| Held::new(&self.job));
            held.end(py, &look, &self.job)?;
            py.check_signals()?;
        }
    }

    /// Sends for a new thread; what was raised if one was sent and something was raised, too.
    fn send_new(self: &Arc<Self>, py: Python<'_>) -> PyResult<Option<PyErr>> {
        match &self.source {
            Source::Pool => Pool::get().send_new(py, self.clone()),
            Source::Python(call) => {
                let team = crate::get::PyTeam::new(self.clone());
                call.call1(py, (team,)).map(|_| None)
            }
        }
    }

    /// Sends for a new thread in place of this one, or beside it. Whether one comes.
    fn send_another(self: &Arc<Self>, py: Python<'_>) -> bool {
        match self.send_new(py) {
            Ok(raised) => {
                raised
                    .into_iter()
                    .for_each(|raised| self.note_failure(raised));
                true
            }
            Err(_) => false,
        }
    }

    /// Sends for threads that were counted as working. Those that cannot be had are no error:
    /// this one works.
    fn recruit(self: &Arc<Self>, py: Python<'_>, threads: usize) {
        let pool = matches!(self.source, Source::Pool).then(Pool::get);
        for _ in 0..threads {
            let sent = pool.is_some_and(|pool| pool.send(self)) || self.send_another(py);
            if !sent {
                self.job.leave();
            }
        }
    }

    /// Works on the job until nothing is ready. Called on a thread that was recruited.
    pub(crate) fn work(self: &Arc<Self>, py: Python<'_>) -> Exit {
        let _inside = InTask::enter();
        // A panic ends here: who waits for the run would wait for ever. What it left behind, the job
        // above all, is of no use to anybody, as the run has failed.
        let work = AssertUnwindSafe(|| self.work_until_idle(py));
        let left = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(&*panic)));
        if fork::generation() != self.generation && matches!(self.source, Source::Pool) {
            // A task forked, and this is the child: it has come to the end of all it has to do, and
            // the engine of its parent is not its own.
            fork::end_returned(py, "a task", left.err());
        }
        left.unwrap_or_else(|failure| {
            self.note_failure(failure);
            Exit::Ended
        })
    }

    fn work_until_idle(self: &Arc<Self>, py: Python<'_>) -> PyResult<Exit> {
        let is_ours = matches!(self.source, Source::Pool);
        let began = Instant::now();
        let mut switch = PeriodicSwitch::from_now();
        let mut turn = Turn::default();
        let mut finished = None;
        loop {
            take_turn(&self.job, finished.take(), &mut turn)?;
            if turn.returning > 0 {
                return Ok(Exit::Finished(turn.returning));
            }
            if turn.recruits > 0 {
                self.recruit(py, turn.recruits);
            }
            let Some(started) = turn.next.take() else {
                return Ok(if turn.over { Exit::Late } else { Exit::Early });
            };
            let value = run_task(py, &self.job, &started, Some(&self.context))?;
            if fork::generation() != self.generation {
                // A task forked, and this is the child: the parent's run is not ours.
                return Ok(Exit::Early);
            }
            finished = Some((started.task, value));
            if switch.switch_if_due(py)? && !is_ours && began.elapsed() > SLICE {
                self.job.turn(finished.take(), false, &mut turn)?;
                turn.drop_garbage();
                if turn.over {
                    return Ok(Exit::Finished(turn.returning));
                }
                // Whoever comes takes the place of this thread. If nobody can, it stays.
                if self.send_another(py) {
                    return Ok(Exit::Early);
                }
            }
        }
    }

    fn note_failure(&self, failure: PyErr) {
        self.job.stop();
        let mut first = lock(&self.failure);
        // To drop an exception may run Python, so it comes after the lock.
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
        self.note_failure(failure);
        self.end.announce();
    }
}
