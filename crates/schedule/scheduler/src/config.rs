//! Settings of the scheduler.

use core::time::Duration;

/// The longest time between two [`Tick`](crate::Event::Tick)s.
pub const TICK: Duration = Duration::from_millis(100);

/// Settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many workers may be lost while they run a task before the task fails.
    pub allowed_losses: u32,
    /// Bytes a second between two hosts, until it has been measured.
    pub bandwidth: f64,
    /// How much ready work, in time, is sent to a worker beyond what it runs.
    pub prefill: Duration,
    /// How many tasks are sent to a worker beyond what it runs, at most.
    pub prefill_tasks: u32,
    /// A worker whose memory is full and that has a free slot is sent a task that creates data all
    /// the same when it was sent none for so long.
    pub relief: Duration,
    /// For how long nothing may move before [`Stuck`](crate::Effect::Stuck).
    pub patience: Duration,
    /// How many transitions the story keeps.
    pub story: usize,
    /// Whether small values keep what led to them: [`Scheduler::keep_lineage`](crate::Scheduler::keep_lineage).
    pub lineage: bool,
}

treadle_guards::guards! {
    /// Checks that keep the scheduler correct.
    #[doc(hidden)]
    pub enum Guard {
        /// Reports of a worker that was lost are ignored.
        Incarnation,
        /// Reports about another attempt than the present one are ignored.
        Attempt,
        /// A task that is taken back is assigned anew only when the worker has answered.
        Retraction,
        /// A cancelled task that still runs keeps its slot, and is never resumed.
        Cancellation,
        /// Tasks that only create data wait while a worker is over its budget of bytes.
        Budget,
        /// They do not wait for longer than [`Config::relief`], nor for a worker where nothing runs.
        Relief,
        /// Tasks that need resources are taken back for workers that have them.
        Scarcity,
        /// Tasks that can run elsewhere are found behind those that cannot.
        Search,
        /// A value that is lost is asked for at the clients that keep it.
        Keeping,
        /// What a task with effects did is gone with the worker that ran it.
        Effects,
        /// It is gone when [`Invalidate`](crate::Event::Invalidate) says so, where the value is small, too.
        Invalidation,
        /// Those that rely on it begin anew then.
        Recall,
        /// Small values that were computed from it can be made anew, too.
        Derived,
    }
}

impl Config {
    /// [`Config::prefill`] in microseconds.
    #[inline]
    pub(crate) fn prefill_micros(&self) -> u64 {
        self.prefill.as_secs() * 1_000_000 + u64::from(self.prefill.subsec_micros())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            allowed_losses: 3,
            bandwidth: 1e9,
            prefill: Duration::from_millis(5),
            prefill_tasks: 1024,
            relief: Duration::from_millis(500),
            patience: Duration::from_secs(30),
            story: 1 << 16,
            lineage: false,
        }
    }
}
