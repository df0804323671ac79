//! The applications that send and receive.

use std::time::Duration;

use treadle_transfer::{Event, TransferId};

use super::side::Stage;
use super::stripe::Reader;
use super::world::{Item, World};

impl World {
    pub(crate) fn send(&mut self, side: usize, index: usize) -> Result<(), String> {
        self.sides[side].asked[index] = true;
        let planned = &self.plan.objects[side][index];
        let event = Event::Send {
            object: TransferId(index as u64),
            regions: planned.regions.clone(),
            cost: planned.cost,
            shared: planned.shared,
        };
        self.event(side, event)
    }

    /// Asks for the next object.
    pub(crate) fn receive(&mut self, side: usize) -> Result<(), String> {
        let habits = &self.plan.habits[side];
        let pause = self.kernel.random.micros(0, habits.receive);
        let Some(&object) = self.sides[side].order.front() else {
            self.sides[side].waits = true;
            return Ok(());
        };
        let inbound = self.sides[side].inbound(object)?;
        match inbound.stage {
            Stage::Header => {
                self.sides[side].awaited = Some(object);
                return self.allocate(side, object);
            }
            Stage::Allocating | Stage::Memory => {
                self.sides[side].awaited = Some(object);
                return Ok(());
            }
            Stage::Complete => {
                inbound
                    .verify()
                    .map_err(|error| format!("{object:?}: {error}"))?;
                inbound.stage = Stage::Taken;
                if self.sides[side]
                    .received
                    .last()
                    .is_some_and(|last| *last >= object)
                {
                    return Err(format!("{object:?} is received out of order"));
                }
                self.sides[side].received.push(object);
                self.summary.received[side] += 1;
                self.summary.finished = self.kernel.now();
                self.sides[side].order.pop_front();
                self.event(side, Event::Take(object))?;
            }
            Stage::Failed | Stage::Refused => {
                self.sides[side].order.pop_front();
            }
            Stage::Taken => return Err(format!("{object:?} is there twice")),
        }
        self.sides[side].awaited = None;
        self.schedule(side, pause, Item::Receive);
        Ok(())
    }

    pub(crate) fn allocate(&mut self, side: usize, object: TransferId) -> Result<(), String> {
        self.sides[side].inbound(object)?.stage = Stage::Allocating;
        let delay = self
            .kernel
            .random
            .micros(0, self.plan.habits[side].allocate);
        self.schedule(side, delay, Item::Allocated(object));
        Ok(())
    }

    /// There is memory for an object, or a mapping, or neither.
    pub(crate) fn allocated(&mut self, side: usize, object: TransferId) -> Result<(), String> {
        let habits = &self.plan.habits[side];
        let refuses = self.kernel.random.chance(habits.refuses);
        let maps = self.kernel.random.chance(habits.maps);
        let inbound = self.sides[side].inbound(object)?;
        if inbound.stage != Stage::Allocating {
            // It was cancelled meanwhile. The driver need not know.
            return self.event(side, Event::Accept(object));
        }
        if refuses {
            inbound.stage = Stage::Refused;
            self.wake_receiver(side, object);
            return self.event(side, Event::Refuse(object, "no room".into()));
        }
        inbound.stage = Stage::Memory;
        inbound.mapped = inbound.shared && maps;
        let mapped = inbound.mapped;
        self.event(
            side,
            if mapped {
                Event::Mapped(object)
            } else {
                Event::Accept(object)
            },
        )
    }

    pub(crate) fn completed(&mut self, side: usize, object: TransferId) -> Result<(), String> {
        for ((owner, _), stripe) in &self.stripes {
            if let Some((extent, true)) = stripe.arriving
                && *owner != side
                && extent.object == object
                && stripe.reader == Reader::Reading
                && self.kernel.now() < stripe.link.last()
                && !stripe.stalled
            {
                return Err(format!(
                    "{object:?} is complete while {extent:?} is written"
                ));
            }
        }
        let inbound = self.sides[side].inbound(object)?;
        let ready = inbound.stage == Stage::Memory
            || (inbound.stage == Stage::Header && inbound.bytes == 0);
        if !ready {
            return Err(format!("{object:?} is complete after {:?}", inbound.stage));
        }
        inbound
            .verify()
            .map_err(|error| format!("{object:?}: {error}"))?;
        inbound.stage = Stage::Complete;
        self.wake_receiver(side, object);
        Ok(())
    }

    /// The application may be waiting for this object.
    pub(crate) fn wake_receiver(&mut self, side: usize, object: TransferId) {
        if self.sides[side].awaited == Some(object) {
            self.sides[side].awaited = None;
            self.schedule(side, Duration::ZERO, Item::Receive);
        }
    }
}
