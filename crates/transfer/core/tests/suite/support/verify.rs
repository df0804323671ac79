//! What must hold: after each step, and at the end.

use treadle_transfer::{Failure, TransferId};

use super::plan::Promise;
use super::side::{Fate, Stage};
use super::stripe::{Stripe, Writer};
use super::world::{Key, World};

impl World {
    pub(crate) fn check_side(&mut self, side: usize) -> Result<(), String> {
        let config = &self.plan.configs[side];
        self.sides[side].pair.check()?;
        self.sides[side].check_memory(config.credit, config.prefetch)?;
        let limit = config.stripes.unwrap_or(config.max_stripes);
        let in_use = |(key, stripe): &(&Key, &Stripe)| {
            key.0 == side && stripe.writer == Writer::Open && !stripe.retiring
        };
        let used = self.stripes.iter().filter(in_use).count();
        if used > limit || self.sides[side].pair.stats().stripes > limit {
            return Err(format!("{used} stripes, the limit is {limit}"));
        }
        Ok(())
    }

    /// At the end: what was promised.
    pub(crate) fn verify(&mut self) -> Result<(), String> {
        for side in 0..2 {
            self.check_side(side)?;
            let stats = self.sides[side].pair.stats();
            self.summary.replaced[side] = stats.replaced;
            self.summary.corrupt[side] = stats.corrupt;
            self.summary.ends[side] = self.sides[side].end.clone();
            if stats.sending != 0 {
                return Err(format!("side {side} still sends {} objects", stats.sending));
            }
            for (index, fate) in self.sides[side].fates.iter().enumerate() {
                self.summary.failed[side] += usize::from(*fate != Fate::Sent);
                self.verify_object(side, TransferId(index as u64), fate)?;
            }
        }
        match (self.plan.promise, &self.summary.ends) {
            (Promise::Delivery, [None, None]) | (Promise::End, [Some(_), Some(_)]) => Ok(()),
            (Promise::Clarity, [None, None]) => Ok(()),
            (Promise::Clarity, ends) if ends.iter().all(Option::is_some) => Ok(()),
            (_, ends) => Err(format!("the pair ended: {ends:?}")),
        }
    }

    pub(crate) fn verify_object(
        &self,
        side: usize,
        object: TransferId,
        fate: &Fate,
    ) -> Result<(), String> {
        let inbound = self.sides[1 - side].inbox.get(&object);
        let stage = inbound.map(|inbound| inbound.stage);
        let ended = self.sides.iter().any(|side| side.end.is_some());
        let allowed = match fate {
            Fate::Pending => false,
            Fate::Sent => {
                let empty = self.plan.objects[side][object.0 as usize]
                    .regions
                    .is_empty();
                stage == Some(Stage::Taken) || (empty && ended)
            }
            // The cancellation may cross with the end of the transfer.
            Fate::Failed(Failure::Cancelled) => {
                self.plan.objects[side][object.0 as usize].cancel.is_some()
            }
            Fate::Failed(Failure::Refused(_)) => stage == Some(Stage::Refused),
            Fate::Failed(Failure::Corrupt(_)) => self.plan.promise != Promise::Delivery,
            Fate::Failed(_) => ended,
        };
        if allowed {
            Ok(())
        } else {
            Err(format!(
                "{object:?} of side {side}: {fate:?} there, {stage:?} here"
            ))
        }
    }
}
