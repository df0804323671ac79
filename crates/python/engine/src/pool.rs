//! The engine's own threads.
//!
//! A thread belongs to one run at a time: a run recruits threads while tasks are ready and fewer
//! than its limit are at work, and a thread that finds nothing to start goes back to the pool. Two
//! runs never wait for each other's threads, and nothing is left behind but some idle threads,
//! which end after [`LIFETIME`].

use crate::team::{Exit, Team};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};
use treadle_interpreter::{fork, lock};

/// How long an idle thread is kept.
const LIFETIME: Duration = Duration::from_secs(10);

/// How long a thread that has nothing to do polls for work before it sleeps. Waking a sleeping
/// thread takes longer than this, and costs its waker a system call.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// Where an idle thread is found.
struct ThreadSlot {
    /// A team to join, from `Arc::into_raw`.
    team: AtomicPtr<Team>,
    thread: OnceLock<Thread>,
    /// Its thread has begun, or nobody waits for it to begin any more: whichever is first.
    settled: AtomicBool,
}

impl ThreadSlot {
    /// Whether the caller is the first one: the thread that begins, or who does without it.
    fn settle(&self) -> bool {
        !self.settled.swap(true, Ordering::AcqRel)
    }

    fn take(&self) -> Option<Arc<Team>> {
        if self.team.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let team = self.team.swap(std::ptr::null_mut(), Ordering::Acquire);
        // SAFETY: a pointer that is not null came from `Arc::into_raw`, and was taken out once.
        (!team.is_null()).then(|| unsafe { Arc::from_raw(team) })
    }

    fn give(&self, team: Arc<Team>) {
        self.team
            .store(Arc::into_raw(team).cast_mut(), Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

#[derive(Default)]
struct PoolState {
    /// Idle threads, the latest on top: its caches are warm, and it may still be polling.
    idle: Vec<Arc<ThreadSlot>>,
    /// Threads that were sent to runs that are over, and will be idle as soon as they get the
    /// interpreter: a new thread would not be faster. Below zero while they overtake the thread
    /// that ended the run.
    returning: isize,
    /// Teams that returning threads go to next; never more teams than threads.
    queued: Vec<Arc<Team>>,
}

/// The threads of a process.
pub(crate) struct Pool {
    generation: u64,
    state: Mutex<PoolState>,
    threads: AtomicUsize,
    started: AtomicUsize,
    closing: AtomicBool,
}

/// The pool of this process. A child gets a new one, and the parent's is left as it is.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

impl Pool {
    /// The pool of this process.
    pub(crate) fn get() -> &'static Pool {
        loop {
            let current = POOL.load(Ordering::Acquire);
            // SAFETY: pools are leaked, so the pointer stays valid.
            if let Some(pool) = unsafe { current.as_ref() }
                && pool.generation == fork::generation()
            {
                return pool;
            }
            let fresh = Box::into_raw(Box::new(Pool {
                generation: fork::generation(),
                state: Mutex::default(),
                threads: AtomicUsize::new(0),
                started: AtomicUsize::new(0),
                closing: AtomicBool::new(false),
            }));
            if POOL
                .compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
            {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }

    /// Sends a thread to the team that is idle or will be in a moment, if there is one.
    pub(crate) fn send(&self, team: &Arc<Team>) -> bool {
        let mut state = self.state();
        if let Some(slot) = state.idle.pop() {
            drop(state);
            slot.give(team.clone());
            return true;
        }
        let free = state.returning > state.queued.len() as isize;
        if free {
            state.queued.push(team.clone());
        }
        free
    }

    /// Sends a new thread to the team. It may have been sent although starting it raises: a signal
    /// handler may, while the thread begins. The answer is what was raised then.
    ///
    /// # Errors
    /// `RuntimeError`: the system gives no further thread, or the interpreter is ending. What a signal
    /// handler raises, if the thread has not begun by then.
    pub(crate) fn send_new(
        &'static self,
        py: Python<'_>,
        team: Arc<Team>,
    ) -> PyResult<Option<PyErr>> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err(
                "the interpreter is ending: no tasks can be started",
            ));
        }
        let slot = Arc::new(ThreadSlot {
            team: AtomicPtr::default(),
            thread: OnceLock::new(),
            settled: AtomicBool::new(false),
        });
        slot.give(team);
        let name = format!("treadle-{}", self.started.fetch_add(1, Ordering::Relaxed));
        let body = {
            let slot = slot.clone();
            move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
                self.serve(args.py(), &slot);
            }
        };
        self.threads.fetch_add(1, Ordering::Relaxed);
        let start = || -> PyResult<()> {
            let kwargs = PyDict::new(py);
            kwargs.set_item("target", PyCFunction::new_closure(py, None, None, body)?)?;
            kwargs.set_item("name", name)?;
            kwargs.set_item("daemon", true)?;
            let thread = py
                .import("threading")?
                .getattr("Thread")?
                .call((), Some(&kwargs))?;
            thread.call_method0("start")?;
            Ok(())
        };
        match start() {
            Ok(()) => Ok(None),
            Err(error) if slot.settle() => {
                self.threads.fetch_sub(1, Ordering::Relaxed);
                slot.take();
                Err(error)
            }
            Err(error) => Ok(Some(error)),
        }
    }

    /// The life of a thread.
    fn serve(&'static self, py: Python<'_>, slot: &Arc<ThreadSlot>) {
        if !slot.settle() {
            return;
        }
        // Nothing else initialises it: every slot has one thread.
        let _ = slot.thread.set(std::thread::current());
        loop {
            let mut end = None;
            while let Some(team) = slot.take() {
                let left = team.work(py);
                if left.has_to_announce() {
                    end = Some(team.end.clone());
                }
                // Dropping a team may run Python, so the thread returns after it.
                drop(team);
                if self.return_thread(slot, left) {
                    break;
                }
                if let Some(end) = end.take() {
                    py.detach(|| end.announce());
                }
            }
            py.detach(|| {
                end.inspect(|end| end.announce());
                self.wait(slot);
            });
            if slot.team.load(Ordering::Relaxed).is_null() && self.retire(slot) {
                return;
            }
        }
    }

    /// The thread has left a run. Whether it is idle; otherwise it has another team.
    fn return_thread(&self, slot: &Arc<ThreadSlot>, exit: Exit) -> bool {
        let mut state = self.state();
        match exit {
            Exit::Finished(threads) => state.returning += threads as isize - 1,
            Exit::Late => state.returning -= 1,
            Exit::Early | Exit::Ended => {}
        }
        match state.queued.pop() {
            Some(team) => slot.give(team),
            None => state.idle.push(slot.clone()),
        }
        slot.team.load(Ordering::Relaxed).is_null()
    }

    /// Nobody came for a long time. Whether the thread may end.
    fn retire(&self, slot: &Arc<ThreadSlot>) -> bool {
        let mut state = self.state();
        let Some(position) = state.idle.iter().position(|other| Arc::ptr_eq(other, slot)) else {
            // Whoever has just taken the slot off the list is about to give it a team.
            drop(state);
            while slot.team.load(Ordering::Relaxed).is_null() {
                std::hint::spin_loop();
            }
            return false;
        };
        state.idle.remove(position);
        drop(state);
        self.threads.fetch_sub(1, Ordering::Release);
        true
    }

    /// Waits for a team, the end of the idle thread's life or that of the pool.
    fn wait(&self, slot: &ThreadSlot) {
        let came = || !slot.team.load(Ordering::Relaxed).is_null();
        if spin_until(came) {
            return;
        }
        let until = Instant::now() + LIFETIME;
        while !came() && !self.closing.load(Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Ends all threads and waits until they are gone, or a signal handler raises.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.closing.store(true, Ordering::Release);
        while self.threads.load(Ordering::Acquire) > 0 {
            for slot in &self.state().idle {
                if let Some(thread) = slot.thread.get() {
                    thread.unpark();
                }
            }
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
        }
        Ok(())
    }
}

/// Looks out for a while until `seen`; whether it was.
pub(crate) fn spin_until(seen: impl Fn() -> bool) -> bool {
    let until = Instant::now() + SPIN;
    loop {
        for _ in 0..20 {
            if seen() {
                return true;
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= until {
            return false;
        }
        // Whoever is to make it true may be waiting for this very core.
        std::thread::yield_now();
    }
}
