//! What a fork does to shared memory: parent and child go on with a copy each.

use std::cell::RefCell;
use std::sync::MutexGuard;

use super::state::{Holds, State};
use super::{INSTANCES, Segments, lock};
use crate::idle::Idle;
use crate::memfd;

/// Every lock, held across a fork so that the child finds them open and everything consistent.
struct Held {
    states: Vec<MutexGuard<'static, State>>,
    _instances: MutexGuard<'static, Vec<&'static Segments>>,
}

thread_local! {
    /// The handlers of a fork run on one thread, in the child too.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Freezes what is in use: parent and child would see each other's writes.
pub(crate) fn before_fork() {
    let instances = lock(&INSTANCES);
    let mut states: Vec<_> = instances.iter().map(|segments| segments.state()).collect();
    for live in states.iter_mut().flat_map(|state| state.live.values_mut()) {
        if !live.frozen && live.freeze().is_err() {
            memfd::keep_from_children(&live.region);
        }
        live.retired = true;
    }
    let held = Held {
        states,
        _instances: instances,
    };
    let _ = HELD.try_with(|slot| slot.replace(Some(held)));
}

pub(crate) fn after_fork_in_parent() {
    let _ = HELD.try_with(|slot| drop(slot.take()));
}

/// Idle and parked segments are the parent's, and so are the loans.
pub(crate) fn after_fork_in_child() {
    let _ = HELD.try_with(|slot| {
        let Some(mut held) = slot.take() else { return };
        for state in &mut held.states {
            state.idle = Idle::default();
            state.parked.clear();
            state.parked_bytes = 0;
            for live in state.live.values_mut() {
                live.shared = None;
                live.holds = Holds::default();
            }
        }
    });
}
