//! Serving connections: what comes is taken, and what is due is done.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use treadle_broadcast::{Event, Neighbour};
use treadle_memory::Segments;
use treadle_net::{Poller, Wait};
use treadle_reactor::thread::lock;

use super::engine::Next;
use super::{Inner, SIGNAL, Wires};

/// The leader looks at least this often whether the node is over, and for unused connections.
const LOOK: Duration = Duration::from_millis(250);
/// And so soon after something came, then more rarely, where other threads have the most to say: what
/// is due by then, as results that wait for others are, wakes nobody. The engine's thread knows what
/// it has said itself.
const SOON: Duration = Duration::from_millis(10);
/// How often unused connections are looked for.
const SWEEP: Duration = Duration::from_secs(15);
/// A client keeps memory for the next payload so long; workers see to theirs with all of their memory.
const KEPT: Duration = Duration::from_secs(1);
/// How long connections are looked at when something is due already.
const GLANCE: Duration = Duration::from_millis(1);

/// When to look at what, for the leader.
#[derive(Debug)]
pub(super) struct Upkeep {
    look: Duration,
    looked: Instant,
    swept: Instant,
}

impl Default for Upkeep {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            look: SOON,
            looked: now,
            swept: now,
        }
    }
}

impl Inner {
    /// The engine's thread leads until there is a cast for it.
    pub(super) fn lead_for_engine(self: &Arc<Self>, wires: &Wires, deadline: Instant) -> Next {
        let weak = Arc::downgrade(self);
        let mut forever = Wait {
            deadline: None,
            interrupted: None,
        };
        // The standby thread stops at once.
        let Ok(Some(_leader)) = wires.leadership.lead(&mut || false, &mut forever) else {
            return Next::Nothing;
        };
        let upkeep = &mut *lock(&wires.upkeep);
        loop {
            if let Some(next) = self.engine.take() {
                return next;
            }
            let is_over = !turn(&weak, &wires.poller, Some(deadline), upkeep);
            if is_over || Instant::now() >= deadline {
                return self.engine.take().unwrap_or(Next::Nothing);
            }
        }
    }
}

/// Waits for something to come or to be due, at most until `limit`, and does it; `false`: the node
/// is over.
pub(super) fn turn(
    inner: &Weak<Inner>,
    poller: &Arc<Poller>,
    limit: Option<Instant>,
    upkeep: &mut Upkeep,
) -> bool {
    let look = match limit {
        Some(_) => LOOK,
        None => upkeep.look,
    };
    let wakes = {
        let Some(inner) = inner.upgrade() else {
            return false;
        };
        let node = lock(&inner.node);
        if node.is_over() {
            return false;
        }
        let now = Instant::now();
        let wakes = node
            .due()
            .map_or(now + look, |due| due.min(now + look))
            // However late it is: others may have spoken in time.
            .max(now + GLANCE);
        // Under the node's lock: an event after this sees it, and wakes the leader if it is due earlier.
        *lock(&inner.wakes) = Some(wakes);
        limit.map_or(wakes, |limit| wakes.min(limit))
    };
    let turn = poller.next(&mut Wait {
        deadline: Some(wakes),
        interrupted: None,
    });
    upkeep.look = match &turn {
        Ok(_) => SOON,
        Err(_) => LOOK.min(upkeep.look * 2),
    };
    let Some(inner) = inner.upgrade() else {
        return false;
    };
    *lock(&inner.wakes) = None;
    let is_swept = upkeep.swept.elapsed() > SWEEP;
    inner.with(|node, deferred| {
        if let Ok(turn) = &turn
            && turn.key() != SIGNAL
        {
            node.take(turn.key(), deferred);
        }
        node.open(deferred);
        if node.due().is_some_and(|due| due <= Instant::now()) {
            node.handle(Event::Tick, deferred);
        }
        if is_swept {
            node.sweep(deferred);
        }
    });
    if is_swept {
        upkeep.swept = Instant::now();
    }
    if matches!(inner.me, Neighbour::Top(_)) && upkeep.looked.elapsed() > LOOK {
        upkeep.looked = Instant::now();
        Segments::global().expire(KEPT);
    }
    true
}
