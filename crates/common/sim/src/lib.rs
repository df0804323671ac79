//! The simulation kernel: what the simulations of all planes share.
//!
//! A plane brings its plan (what happens, drawn from a seed), its [`World`] (the production cores and
//! what takes the place of sockets, disks and functions around them) and its oracle (what must hold).
//! The kernel brings the virtual clock with its agenda, cuts of the network, pauses of processes,
//! [`Random`] numbers, [`Link`]s, the trace, and the loop that runs a world to its end and seeds one
//! after the other.

mod link;
mod random;
mod seeds;
mod trace;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

pub use link::{Line, Link};
pub use random::{Random, mix};
pub use seeds::{assert_happened, assert_noticed, run_seeds};
pub use trace::Trace;
pub use world::World;

/// What is to happen.
pub trait Item: std::fmt::Debug {
    /// Whether it comes again and again, whatever happens: heartbeats, ticks.
    fn is_periodic(&self) -> bool {
        false
    }
}

/// The virtual clock: what happens when. `N` names the nodes of the network and their processes.
pub struct Kernel<I, N> {
    /// All that the world draws while it runs.
    pub random: Random,
    /// What has happened.
    pub trace: Trace,
    now: Duration,
    steps: u64,
    number: u64,
    agenda: BTreeMap<(Duration, u64), I>,
    /// Items on the agenda that are not periodic.
    busy: u64,
    quiet_since: Duration,
    /// Until when nothing gets through between two nodes.
    cuts: BTreeMap<(N, N), Duration>,
    /// Until when nothing gets through between a node and all others.
    isolated: BTreeMap<N, Duration>,
    /// Until when a process does nothing.
    paused: BTreeMap<N, Duration>,
}

impl<I: Item, N: Copy + Ord> Kernel<I, N> {
    /// A clock that starts at zero with an empty agenda.
    pub fn new(random: Random, trace: Trace) -> Self {
        Self {
            random,
            trace,
            now: Duration::ZERO,
            steps: 0,
            number: 0,
            agenda: BTreeMap::new(),
            busy: 0,
            quiet_since: Duration::ZERO,
            cuts: BTreeMap::new(),
            isolated: BTreeMap::new(),
            paused: BTreeMap::new(),
        }
    }

    /// The time since the simulation began.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Items that have happened.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// For so long nothing but periodic items has happened, and nothing else was to come.
    pub fn quiet(&self) -> Duration {
        self.now - self.quiet_since
    }

    /// Counts [`Kernel::quiet`] from now on.
    pub fn restart_quiet(&mut self) {
        self.quiet_since = self.now;
    }

    /// When something happens next.
    pub fn next_at(&self) -> Option<Duration> {
        Some(self.agenda.first_key_value()?.0.0)
    }

    /// It is so late: a clock that another one leads.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// Schedules something `delay` from now.
    pub fn schedule(&mut self, delay: Duration, item: I) {
        self.schedule_at(self.now + delay, item);
    }

    /// Schedules something at a time, or now if that is past. What is scheduled at the same time
    /// happens in the order in which it was scheduled.
    pub fn schedule_at(&mut self, at: Duration, item: I) {
        self.busy += u64::from(!item.is_periodic());
        self.number += 1;
        self.agenda.insert((at.max(self.now), self.number), item);
    }

    /// Drops items from the agenda.
    pub fn retain(&mut self, mut keeps: impl FnMut(&I) -> bool) {
        self.agenda.retain(|_, item| keeps(item));
        let items = self.agenda.values();
        self.busy = items.filter(|item| !item.is_periodic()).count() as u64;
    }

    /// Lets nothing through between two nodes for so long.
    pub fn cut(&mut self, one: N, other: N, length: Duration) {
        extend(
            &mut self.cuts,
            (one.min(other), one.max(other)),
            self.now + length,
        );
    }

    /// Lets nothing through between a node and all others for so long.
    pub fn isolate(&mut self, node: N, length: Duration) {
        extend(&mut self.isolated, node, self.now + length);
    }

    /// Until when nothing gets through between two nodes, if they are cut now.
    pub fn cut_until(&self, one: N, other: N) -> Option<Duration> {
        let cut = self.cuts.get(&(one.min(other), one.max(other)));
        let alone = [one, other].map(|node| self.isolated.get(&node));
        let until = cut.max(alone[0]).max(alone[1]).copied();
        until.filter(|&until| until > self.now)
    }

    /// Stops a process for so long.
    pub fn pause(&mut self, process: N, length: Duration) {
        extend(&mut self.paused, process, self.now + length);
    }

    /// Until when a process does nothing, if it is paused now.
    pub fn paused_until(&self, process: N) -> Option<Duration> {
        let until = self.paused.get(&process).copied();
        until.filter(|&until| until > self.now)
    }

    /// Says something about what happens, in the trace.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        self.trace.add(|| format!("{:>12}     {}", "", what()));
    }

    /// Takes the next item, with the number that keeps its place if it is put back.
    fn pop(&mut self) -> Option<(u64, I)> {
        let ((at, number), item) = self.agenda.pop_first()?;
        self.now = at;
        Some((number, item))
    }

    /// Puts an item back that waits. What waits keeps its order.
    fn put_back(&mut self, until: Duration, number: u64, item: I) {
        self.agenda.insert((until, number), item);
    }

    /// An item happens now.
    fn begin(&mut self, item: &I) {
        let is_periodic = item.is_periodic();
        self.steps += 1;
        self.busy -= u64::from(!is_periodic);
        let at = self.now;
        if !is_periodic {
            self.trace.add(|| format!("{at:>12?} {item:?}"));
        }
    }

    /// An item has happened.
    fn end(&mut self, is_periodic: bool) {
        if !is_periodic || self.busy > 0 {
            self.quiet_since = self.now;
        }
    }
}

/// Lets something last until a time, or longer if it does already.
fn extend<K: Ord>(map: &mut BTreeMap<K, Duration>, key: K, until: Duration) {
    let last = map.entry(key).or_insert(until);
    *last = until.max(*last);
}
