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
    /// What keeps the scheduler correct.
    pub guards: Guards,
}

/// Checks that keep the scheduler correct. Simulations switch them off one by one, to prove that
/// they notice; nobody else does.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Guards {
    /// Reports of a worker that was lost are ignored.
    pub incarnation: bool,
    /// Reports about another attempt than the present one are ignored.
    pub attempt: bool,
    /// A task that is taken back is assigned anew only when the worker has answered.
    pub retraction: bool,
    /// A cancelled task that still runs keeps its slot, and is never resumed.
    pub cancellation: bool,
    /// Tasks that only create data wait while a worker is over its budget of bytes.
    pub budget: bool,
    /// They do not wait for longer than [`Config::relief`], nor for a worker where nothing runs.
    pub relief: bool,
    /// Tasks that need resources are taken back for workers that have them.
    pub scarcity: bool,
    /// Tasks that can run elsewhere are found behind those that cannot.
    pub search: bool,
    /// A value that is lost is asked for at the clients that keep it.
    pub keeping: bool,
    /// What a task with effects did is gone with the worker that ran it.
    pub effects: bool,
    /// It is gone when [`Invalidate`](crate::Event::Invalidate) says so, where the value is small, too.
    pub invalidation: bool,
    /// Those that rely on it begin anew then.
    pub recall: bool,
}

impl Config {
    /// [`Config::prefill`] in microseconds.
    #[inline]
    pub(crate) fn prefill_micros(&self) -> u64 {
        self.prefill.as_secs() * 1_000_000 + u64::from(self.prefill.subsec_micros())
    }
}

impl Default for Guards {
    fn default() -> Self {
        Self {
            incarnation: true,
            attempt: true,
            retraction: true,
            cancellation: true,
            budget: true,
            relief: true,
            scarcity: true,
            search: true,
            keeping: true,
            effects: true,
            invalidation: true,
            recall: true,
        }
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
            guards: Guards::default(),
        }
    }
}
