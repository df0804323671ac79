//! Objects that bring the batches of several pushes. Each push is admitted, or given up, by itself.

use std::sync::Arc;

use bytes::Bytes;
use treadle_net::{Incoming as Object, NetError, SMALL};
use treadle_shuffle::{ConnectionId, Push};

use crate::held::Held;
use crate::incoming::{Arrived, open};

/// What will bring the bytes of a push.
#[derive(Debug)]
pub(crate) enum Offered {
    Alone(Object),
    /// The number of the object among those with several, and the position of the batch.
    Together(u64, usize),
}

/// Such an object.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) from: ConnectionId,
    /// Until its bytes are here.
    pub(crate) object: Option<Object>,
    slots: Slots,
    /// The batches, once they are here: of pushes of which nothing was decided yet.
    batches: Vec<Option<Bytes>>,
}

/// How far the pushes of an object are.
#[derive(Debug, Default)]
struct Slots {
    is_accepted: bool,
    /// Admitted, and its bytes have not arrived.
    admitted: Vec<(usize, Push)>,
    /// How many have neither arrived nor were given up.
    open: usize,
}

impl Slots {
    /// A push is admitted, whose bytes are not here. `true`: they are to come, which they were not before.
    fn admit(&mut self, at: usize, push: Push) -> bool {
        self.admitted.push((at, push));
        !std::mem::replace(&mut self.is_accepted, true)
    }

    /// The bytes are here. Those that were admitted have arrived.
    fn arrive(&mut self) -> Vec<(usize, Push)> {
        self.open -= self.admitted.len();
        std::mem::take(&mut self.admitted)
    }

    /// One that was not admitted has arrived when it was, or is not wanted.
    fn end(&mut self) {
        self.open -= 1;
    }

    fn is_over(&self) -> bool {
        self.open == 0
    }
}

impl Bundle {
    pub(crate) fn new(from: ConnectionId, object: Object, pushes: usize) -> Self {
        Self {
            from,
            object: Some(object),
            slots: Slots {
                open: pushes,
                ..Slots::default()
            },
            batches: Vec::new(),
        }
    }

    /// Whether all pushes have arrived or were given up.
    pub(crate) fn is_over(&self) -> bool {
        self.slots.is_over()
    }

    /// A push that was not admitted is not wanted. `true`: neither is any other.
    pub(crate) fn give_up(&mut self, at: usize) -> bool {
        self.slots.end();
        if let Some(batch) = self.batches.get_mut(at) {
            *batch = None;
        }
        self.is_over()
    }

    /// Accepts the bytes of a push. Returns them if they are here already.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn admit(
        &mut self,
        push: Push,
        at: usize,
        held: &Arc<Held>,
    ) -> Result<Option<Option<Arrived>>, NetError> {
        self.take(held)?;
        let Some(object) = &self.object else {
            self.slots.end();
            return Ok(Some(self.arrived(at, &push)));
        };
        if self.slots.admit(at, push) {
            object.accept(Vec::new())?;
        }
        Ok(None)
    }

    /// Adds the pushes that were admitted to `all`, if their bytes are here.
    ///
    /// # Errors
    /// They have not come, and will not.
    pub(crate) fn collect(
        &mut self,
        held: &Arc<Held>,
        all: &mut Vec<(Push, Option<Arrived>)>,
    ) -> Result<(), NetError> {
        if self.slots.admitted.is_empty() {
            return Ok(());
        }
        self.take(held)?;
        if self.object.is_none() {
            for (at, push) in self.slots.arrive() {
                all.push((push, self.arrived(at, &push)));
            }
        }
        Ok(())
    }

    /// Takes the bytes, if they are here.
    fn take(&mut self, held: &Arc<Held>) -> Result<(), NetError> {
        if let Some(object) = self.object.take_if(|object| object.is_done()) {
            self.batches = batches(object, held)?;
        }
        Ok(())
    }

    fn arrived(&mut self, at: usize, push: &Push) -> Option<Arrived> {
        let batch = self.batches.get_mut(at)?.take()?;
        open(push, &batch).map(|table| (batch, table))
    }
}

/// The batches of an object.
///
/// # Errors
/// They have not come.
fn batches(object: Object, held: &Arc<Held>) -> Result<Vec<Option<Bytes>>, NetError> {
    let frames = object.take()?.frames.into_iter().skip(1);
    let batches = frames.map(|frame| {
        let bytes = match (frame.len() as u64) < SMALL {
            // It shares its memory with others, which may be needed for longer.
            true => Bytes::copy_from_slice(frame.as_slice()),
            false => frame.into_bytes(),
        };
        Some(held.charge(bytes))
    });
    Ok(batches.collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What happens to a push of several, before or after the bytes are here.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Admitted,
        GivenUp,
    }

    fn fates() -> impl Strategy<Value = Vec<(usize, Fate)>> {
        let fate = prop_oneof![Just(Fate::Admitted), Just(Fate::GivenUp)];
        let fates = prop::collection::vec(fate, 1..9);
        fates.prop_flat_map(|fates| {
            let all: Vec<_> = fates.into_iter().enumerate().collect();
            Just(all).prop_shuffle()
        })
    }

    fn push(at: usize) -> Push {
        Push {
            shuffle: treadle_shuffle::ShuffleId(1),
            group: treadle_shuffle::GroupId::default(),
            batch: treadle_shuffle::BatchId {
                map: at as u32,
                ..Default::default()
            },
            tally: treadle_shuffle::Tally::default(),
            length: 1,
        }
    }

    proptest! {
        /// Each push that is admitted arrives once, whatever becomes of the others, and in whatever order.
        #[test]
        fn those_that_are_admitted_arrive_once(fates in fates(), come_after in 0_usize..9) {
            let mut slots = Slots { open: fates.len(), ..Slots::default() };
            let (mut arrived, mut accepted) = (Vec::new(), 0);
            for (step, &(at, fate)) in fates.iter().enumerate() {
                prop_assert!(!slots.is_over());
                if step == come_after {
                    arrived.extend(slots.arrive().into_iter().map(|(at, _)| at));
                }
                match fate {
                    Fate::Admitted if step < come_after => {
                        accepted += u32::from(slots.admit(at, push(at)));
                    }
                    Fate::Admitted => {
                        slots.end();
                        arrived.push(at);
                    }
                    Fate::GivenUp => slots.end(),
                }
            }
            arrived.extend(slots.arrive().into_iter().map(|(at, _)| at));
            prop_assert!(slots.is_over());
            prop_assert!(accepted <= 1, "the bytes are asked for once");
            let is_admitted = |(_, fate): &&(usize, Fate)| matches!(fate, Fate::Admitted);
            let expected: Vec<usize> = fates.iter().filter(is_admitted).map(|(at, _)| *at).collect();
            prop_assert_eq!(arrived, expected);
        }
    }
}
