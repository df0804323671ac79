//! Objects on their way in: claimed, given memory, taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_memory::MemoryError;
use treadle_transfer::layout::Place;
use treadle_transfer::{Event, Extent, Failure, Message, StripeId, TransferId, Violation};

use super::{Garbage, Inner};
use crate::error::NetError;
use crate::memory::{Region, Target};
use crate::objects::{Received, Timings, frames};
use crate::peer::Shared;
use crate::segments::{self, Channel, Mappings};
use crate::wire::Header;

/// Objects that are taken in one go, at most this many bytes of them.
const MAX_TAKE: usize = 1 << 20;
/// Objects that need more fresh memory than this are compared with what there is, before they get
/// any.
const PLENTY: u64 = 256 << 20;
/// Objects whose descriptors are here before their headers: a sender has fewer offers open.
const MAX_EARLY: usize = 512;

/// How far an incoming object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Offered,
    Accepted,
    Complete,
    Failed(Failure),
}

/// An object on its way in.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) header: Header,
    pub(crate) inline: Bytes,
    pub(crate) regions: Vec<Arc<Region>>,
    pub(crate) state: State,
    started: Instant,
    accepted: Option<Instant>,
    finished: Option<Instant>,
    claimed: bool,
    /// Somebody waits for it to come as shared memory.
    wanted: bool,
}

impl Inner {
    /// An object's header arrived.
    pub(crate) fn offered(&mut self, mut header: Header, inline: Bytes, shared: &Arc<Shared>) {
        let now = shared.now();
        let object = header.object;
        let segments = std::mem::take(&mut header.segments);
        let event = Event::Received(Message::Offer {
            object,
            regions: header.layout.regions.clone(),
            cost: header.cost,
            shared: header.shared,
        });
        let inbound = Inbound {
            header,
            inline,
            regions: Vec::new(),
            state: State::Offered,
            started: Instant::now(),
            accepted: None,
            finished: None,
            claimed: false,
            wanted: false,
        };
        if self.pair.ended().is_some() {
            return;
        }
        if self.incoming.contains_key(&object) {
            self.violated(&Violation::Order(object.0, object.0));
            return;
        }
        let is_shared = inbound.header.shared;
        self.incoming.insert(object, inbound);
        self.order.push_back(object);
        self.last_incoming = object;
        self.handle(event, now);
        if self.pair.ended().is_some() {
            // It was a violation, so nobody will receive it.
            self.incoming.remove(&object);
            return;
        }
        if !is_shared {
            return;
        }
        if !segments.is_empty() {
            let files = segments.iter().map(|segment| self.kept.get(segment.file));
            let mappings = segments::map(shared, &segments, files);
            self.map(object, mappings, now);
        } else if let Some(mappings) = self.mapped.remove(&object) {
            self.map(object, mappings, now);
        }
    }

    /// Descriptors of an object's regions arrived and were mapped; if not, there are none.
    pub(crate) fn mapped(&mut self, object: TransferId, mappings: Mappings, now: Duration) {
        if self.incoming.contains_key(&object) {
            self.map(object, mappings, now);
        } else if object > self.last_incoming && self.mapped.len() < MAX_EARLY {
            self.mapped.insert(object, mappings);
        } else {
            self.discard(mappings.into_iter().map(Arc::new).collect());
            if object > self.last_incoming
                && let Some(channel) = &self.channel
            {
                // Nobody may send so many. What was dropped comes in bytes.
                channel.cut();
            }
        }
    }

    fn map(&mut self, object: TransferId, mappings: Mappings, now: Duration) {
        let Some(inbound) = self.incoming.get_mut(&object) else {
            return;
        };
        let lengths = mappings.iter().map(|region| region.len() as u64);
        if inbound.state == State::Offered
            && inbound.header.shared
            && lengths.eq(inbound.header.layout.regions.iter().copied())
        {
            inbound.regions = mappings.into_iter().map(Arc::new).collect();
            inbound.accepted = Some(Instant::now());
            self.handle(Event::Mapped(object), now);
        } else {
            self.discard(mappings.into_iter().map(Arc::new).collect());
            self.not_mapped(object);
        }
    }

    /// An object that was offered as shared memory has to come in bytes.
    fn not_mapped(&mut self, object: TransferId) {
        let Some(inbound) = self.incoming.get_mut(&object) else {
            return;
        };
        if inbound.header.shared && inbound.state == State::Offered {
            inbound.header.shared = false;
            if inbound.wanted {
                self.allocate(object);
            }
        }
    }

    /// The descriptor connection is gone.
    pub(crate) fn channel_ended(&mut self, channel: &Arc<Channel>) {
        if self
            .channel
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, channel))
        {
            self.channel = None;
            let shared: Vec<_> = self
                .incoming
                .iter()
                .filter(|(_, inbound)| inbound.header.shared)
                .map(|(object, _)| *object)
                .collect();
            for object in shared {
                self.not_mapped(object);
            }
        }
    }

    /// The next object that nobody has claimed; the error when there will be none.
    pub(crate) fn claim(&mut self) -> Option<Result<TransferId, NetError>> {
        while let Some(object) = self.order.pop_front() {
            let Some(inbound) = self.incoming.get_mut(&object) else {
                continue;
            };
            if inbound.state == State::Failed(Failure::Cancelled) && !self.is_gapless {
                let inbound = self.incoming.remove(&object).expect("found above");
                self.discard(inbound.regions);
                continue;
            }
            inbound.claimed = true;
            return Some(Ok(object));
        }
        self.ended().map(|end| Err(NetError::Ended(end)))
    }

    /// Whether [`Self::claim`] has an answer. There may be none after all, where an object was
    /// cancelled by its sender.
    pub(crate) fn has_next(&self) -> bool {
        !self.order.is_empty() || self.ended().is_some()
    }

    pub(crate) fn unclaim(&mut self, object: TransferId) {
        let Some(inbound) = self.incoming.get_mut(&object) else {
            return;
        };
        inbound.claimed = false;
        if matches!(inbound.state, State::Failed(_)) {
            let inbound = self.incoming.remove(&object).expect("found above");
            self.discard(inbound.regions);
            return;
        }
        let at = self.order.partition_point(|other| *other < object);
        self.order.insert(at, object);
        self.changed = true;
    }

    pub(crate) fn inbound(&self, object: TransferId) -> &Inbound {
        &self.incoming[&object]
    }

    pub(crate) fn state(&self, object: TransferId) -> State {
        self.incoming[&object].state.clone()
    }

    /// Gives an offered object its memory. Targets that are not used come back.
    pub(crate) fn accept(
        &mut self,
        object: TransferId,
        mut targets: Vec<Option<Target>>,
    ) -> Result<Vec<Option<Target>>, NetError> {
        let inbound = self
            .incoming
            .get_mut(&object)
            .expect("claimed objects exist");
        for (target, size) in targets.iter().zip(&inbound.header.sizes) {
            if let Some(target) = target
                && target.len() as u64 != *size
            {
                return Err(NetError::Target {
                    target: target.len() as u64,
                    frame: *size,
                });
            }
        }
        if inbound.state != State::Offered {
            return Ok(targets);
        }
        if inbound.header.shared && self.channel.is_some() {
            inbound.wanted = true;
            return Ok(targets);
        }
        let layout = &inbound.header.layout;
        // A target replaces a whole region, so only a frame that has a region to itself can have one.
        let mut places: Vec<Option<usize>> = vec![None; layout.regions.len()];
        for (index, place) in layout.places.iter().enumerate() {
            if let Place::Region { region, .. } = *place
                && layout.regions[region as usize] == inbound.header.sizes[index]
            {
                places[region as usize] = Some(index);
            }
        }
        let has_target = |frame: &Option<usize>| {
            frame.is_some_and(|index| targets.get(index).is_some_and(Option::is_some))
        };
        let fresh: u64 = layout
            .regions
            .iter()
            .zip(&places)
            .filter(|(_, frame)| !has_target(frame))
            .map(|(length, _)| length)
            .sum();
        afford(fresh)?;
        let mut regions = Vec::with_capacity(layout.regions.len());
        for (length, frame) in layout.regions.iter().zip(places) {
            let target = frame.and_then(|index| targets.get_mut(index)?.take());
            regions.push(Arc::new(match target {
                Some(target) => Region::target(target),
                None => Region::allocate(*length)?,
            }));
        }
        self.accepted(object, regions);
        Ok(targets)
    }

    fn accepted(&mut self, object: TransferId, regions: Vec<Arc<Region>>) {
        let inbound = self
            .incoming
            .get_mut(&object)
            .expect("accepted objects exist");
        inbound.regions = regions;
        inbound.state = State::Accepted;
        inbound.accepted = Some(Instant::now());
        self.effects_of(Event::Accept(object));
    }

    pub(crate) fn refuse(&mut self, object: TransferId, event: Event, now: Duration) {
        if let Some(inbound) = self.incoming.remove(&object) {
            self.discard(inbound.regions);
        }
        self.handle(event, now);
    }

    pub(crate) fn take(&mut self, object: TransferId, now: Duration) -> Result<Received, NetError> {
        match self.state(object) {
            State::Complete => {}
            State::Failed(failure) => return Err(failure.into()),
            State::Offered | State::Accepted => return Err(NetError::Timeout),
        }
        let inbound = self.incoming.remove(&object).expect("its state is known");
        self.handle(Event::Take(object), now);
        Ok(received(inbound))
    }

    /// Takes the next objects as long as they came in their headers alone.
    pub(crate) fn take_small(&mut self, most: usize, now: Duration, into: &mut Vec<Received>) {
        let mut bytes = 0;
        while into.len() < most && bytes < MAX_TAKE {
            let Some(object) = self.order.front() else {
                return;
            };
            let small = |inbound: &Inbound| {
                inbound.state == State::Complete && inbound.header.layout.regions.is_empty()
            };
            if !self.incoming.get(object).is_some_and(small) {
                return;
            }
            let object = self.order.pop_front().expect("the front");
            let inbound = self.incoming.remove(&object).expect("found above");
            bytes += inbound.inline.len();
            self.handle(Event::Take(object), now);
            into.push(received(inbound));
        }
    }

    pub(crate) fn progress(&self, object: TransferId) -> (u64, u64) {
        let total = self.incoming[&object].header.layout.body();
        self.pair.progress(object).unwrap_or((total, total))
    }

    /// Where the bytes of an extent belong; `None`: nowhere, they are dropped.
    pub(crate) fn destination(&mut self, stripe: StripeId, extent: &Extent) -> Option<Arc<Region>> {
        match self.pair.begin(stripe, extent) {
            Ok(true) => {
                let inbound = self.incoming.get(&extent.object)?;
                inbound.regions.get(extent.region as usize).cloned()
            }
            Ok(false) => None,
            Err(violation) => {
                self.violated(&violation);
                None
            }
        }
    }

    /// Memory for an object that nobody has asked for yet.
    pub(super) fn allocate(&mut self, object: TransferId) {
        let Some(inbound) = self.incoming.get(&object) else {
            return;
        };
        if inbound.state != State::Offered {
            return;
        }
        let layout = &inbound.header.layout;
        let regions: Result<Vec<_>, _> = afford(layout.body()).and_then(|()| {
            let lengths = layout.regions.iter();
            lengths
                .map(|length| Region::allocate(*length).map(Arc::new))
                .collect()
        });
        match regions {
            Ok(regions) => self.accepted(object, regions),
            Err(error) if inbound.wanted => {
                let reason = error.to_string();
                if let Some(inbound) = self.incoming.get_mut(&object) {
                    inbound.state = State::Failed(Failure::Refused(reason.clone()));
                }
                self.changed = true;
                self.effects_of(Event::Refuse(object, reason));
            }
            // It waits until it is asked for; whoever asks gets the error.
            Err(_) => {}
        }
    }

    /// Every byte is in its place.
    pub(super) fn completed(&mut self, object: TransferId, shared: &Arc<Shared>) {
        if let Some(inbound) = self.incoming.get_mut(&object) {
            inbound.state = State::Complete;
            inbound.finished = Some(Instant::now());
            if inbound.header.shared {
                let bytes = inbound.header.layout.body();
                shared.bytes_shared.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        self.changed = true;
    }

    /// It will not be complete. Whoever claimed it is told; nobody else needs to know.
    pub(super) fn receive_failed(&mut self, object: TransferId, failure: Failure) {
        if let Some(inbound) = self.incoming.get_mut(&object) {
            let is_kept = self.is_gapless && failure == Failure::Cancelled;
            inbound.state = State::Failed(failure);
            let regions = std::mem::take(&mut inbound.regions);
            if !inbound.claimed && !is_kept {
                self.incoming.remove(&object);
                if let Ok(at) = self.order.binary_search(&object) {
                    self.order.remove(at);
                }
            }
            self.discard(regions);
        }
        self.changed = true;
    }

    /// Nobody receives into these any more, whatever stripes still bring. They are dropped without the lock.
    fn discard(&mut self, regions: Vec<Arc<Region>>) {
        regions.iter().for_each(|region| region.close());
        self.garbage.push(Garbage::Regions(regions));
    }
}

/// Whether there can be so much memory. The system would let it be mapped, piece by piece, and end
/// the process later.
fn afford(bytes: u64) -> Result<(), MemoryError> {
    if bytes > PLENTY && bytes > treadle_memory::memory_limit() {
        return Err(MemoryError::OutOfMemory {
            len: usize::try_from(bytes).unwrap_or(usize::MAX),
            available: treadle_memory::memory_limit(),
        });
    }
    Ok(())
}

fn received(inbound: Inbound) -> Received {
    let header = &inbound.header;
    Received {
        kind: header.kind,
        frames: frames(
            &header.sizes,
            &header.layout,
            &inbound.inline,
            &inbound.regions,
        ),
        timings: Timings {
            started: inbound.started,
            accepted: inbound.accepted,
            finished: inbound.finished.unwrap_or(inbound.started),
        },
    }
}
