//! The engine's own threads.
//!
//! A thread belongs to one run at a time: a run recruits threads while tasks are ready and fewer
//! than its limit are at work, and a thread that finds nothing to start goes back to the pool. Two
//! runs never wait for each other's threads, and nothing is left behind but some idle threads,
//! which end after [`LIFETIME`].

use crate::fork;
use crate::threads::{Crew, Left};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long an idle thread is kept.
const LIFETIME: Duration = Duration::from_secs(10);

/// How long a thread that has nothing to do looks out for work before it sleeps. Waking a sleeping
/// thread takes longer than this, and costs its waker a system call.
pub(crate) const LOOKOUT: Duration = Duration::from_micros(50);

/// Where an idle thread is found.
struct Seat {
    /// A crew to join, from `Arc::into_raw`.
    crew: AtomicPtr<Crew>,
    thread: OnceLock<Thread>,
}

impl Seat {
    fn take(&self) -> Option<Arc<Crew>> {
        if self.crew.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let crew = self.crew.swap(std::ptr::null_mut(), Ordering::Acquire);
        // SAFETY: a pointer that is not null came from `Arc::into_raw`, and was taken out once.
        (!crew.is_null()).then(|| unsafe { Arc::from_raw(crew) })
    }

    fn give(&self, crew: Arc<Crew>) {
        self.crew
            .store(Arc::into_raw(crew).cast_mut(), Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

#[derive(Default)]
struct Roster {
    /// Idle threads, the latest on top: its caches are warm, and it may still be looking out.
    idle: Vec<Arc<Seat>>,
    /// Threads that were sent to runs that are over, and will be home as soon as they get the
    /// interpreter: a new thread would not be faster. Below zero while they overtake the thread
    /// that ended the run.
    returning: isize,
    /// Crews that returning threads are promised to; never more than these.
    promised: Vec<Arc<Crew>>,
}

/// The threads of a process.
pub(crate) struct Pool {
    generation: u64,
    roster: Mutex<Roster>,
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
                roster: Mutex::default(),
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

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a thread to the crew that is idle or will be in a moment, if there is one.
    pub(crate) fn send(&self, crew: &Arc<Crew>) -> bool {
        let mut roster = self.roster();
        if let Some(seat) = roster.idle.pop() {
            drop(roster);
            seat.give(crew.clone());
            return true;
        }
        let free = roster.returning > roster.promised.len() as isize;
        if free {
            roster.promised.push(crew.clone());
        }
        free
    }

    /// Sends a new thread to the crew.
    ///
    /// # Errors
    /// `RuntimeError`: the system gives no further thread, or the interpreter is ending.
    pub(crate) fn send_new(&'static self, py: Python<'_>, crew: Arc<Crew>) -> PyResult<()> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err(
                "the interpreter is ending: no tasks can be started",
            ));
        }
        let seat = Arc::new(Seat {
            crew: AtomicPtr::default(),
            thread: OnceLock::new(),
        });
        seat.give(crew);
        let name = format!("treadle-{}", self.started.fetch_add(1, Ordering::Relaxed));
        let body = {
            let seat = seat.clone();
            move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
                self.serve(args.py(), &seat);
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
        start().inspect_err(|_| {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            seat.take();
        })
    }

    /// The life of a thread.
    fn serve(&'static self, py: Python<'_>, seat: &Arc<Seat>) {
        // Nothing else initialises it: every seat has one thread.
        let _ = seat.thread.set(std::thread::current());
        loop {
            let mut end = None;
            while let Some(crew) = seat.take() {
                let left = crew.work(py);
                if fork::generation() != self.generation {
                    // A task forked, and this is the child: it has come to the end of all it has
                    // to do, and the engine of its parent is not its own.
                    fork::end_child(py, 0);
                }
                if left.has_to_announce() {
                    end = Some(crew.end.clone());
                }
                // Dropping a crew may run Python, so the way home begins after it.
                drop(crew);
                if self.come_home(seat, left) {
                    break;
                }
                if let Some(end) = end.take() {
                    py.detach(|| end.announce());
                }
            }
            py.detach(|| {
                end.inspect(|end| end.announce());
                self.wait(seat);
            });
            if seat.crew.load(Ordering::Relaxed).is_null() && self.retire(seat) {
                return;
            }
        }
    }

    /// The thread has left a run. Whether it is idle; otherwise it has another crew.
    fn come_home(&self, seat: &Arc<Seat>, left: Left) -> bool {
        let mut roster = self.roster();
        match left {
            Left::Finished(threads) => roster.returning += threads as isize - 1,
            Left::Late => roster.returning -= 1,
            Left::Early | Left::Ended => {}
        }
        match roster.promised.pop() {
            Some(crew) => seat.give(crew),
            None => roster.idle.push(seat.clone()),
        }
        seat.crew.load(Ordering::Relaxed).is_null()
    }

    /// Nobody came for a long time. Whether the thread may end.
    fn retire(&self, seat: &Arc<Seat>) -> bool {
        let mut roster = self.roster();
        let Some(position) = roster
            .idle
            .iter()
            .position(|other| Arc::ptr_eq(other, seat))
        else {
            // Whoever has just taken the seat off the list is about to give it a crew.
            drop(roster);
            while seat.crew.load(Ordering::Relaxed).is_null() {
                std::hint::spin_loop();
            }
            return false;
        };
        roster.idle.remove(position);
        drop(roster);
        self.threads.fetch_sub(1, Ordering::Release);
        true
    }

    /// Waits for a crew, the end of the idle thread's life or that of the pool.
    fn wait(&self, seat: &Seat) {
        let came = || !seat.crew.load(Ordering::Relaxed).is_null();
        if look_out(came) {
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
            for seat in &self.roster().idle {
                if let Some(thread) = seat.thread.get() {
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
pub(crate) fn look_out(seen: impl Fn() -> bool) -> bool {
    let until = Instant::now() + LOOKOUT;
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
        // Whoever is looked out for may be waiting for this very core.
        std::thread::yield_now();
    }
}
