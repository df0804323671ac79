//! The virtual data connections, the drivers at their ends, and the faults.

use std::time::Duration;

use treadle_sim_kernel::Link;
use treadle_transfer::{Event, Extent, Message, PairEnd};

use super::plan::{End, Fault, TIMEOUT};
use super::stripe::{Reader, Stripe, Writer};
use super::world::{At, Guard, Item, Key, Packet, World};

impl World {
    /// Starts to connect a stripe; `own` when its sender dials.
    pub(crate) fn connect(&mut self, key: Key, own: bool) {
        let (owner, _) = key;
        let network = &self.plan.network;
        let (rate, latency, buffer) = (network.rate, network.latency, network.buffer);
        let stripe = Stripe {
            rate: self.kernel.random.between(rate.0, rate.1),
            latency: self.kernel.random.micros(latency.0, latency.1),
            buffer: self.kernel.random.between(buffer.0, buffer.1),
            writer: Writer::Opening,
            reader: Reader::Pending,
            stalled: false,
            broken: false,
            retiring: false,
            handed: 0,
            writing: None,
            buffered: 0,
            free_at: Duration::ZERO,
            link: Link::default(),
            lost_after: None,
            arriving: None,
        };
        let latency = stripe.latency;
        let joined = self.kernel.now() + latency + self.kernel.random.micros(0, 2_000);
        let opened = self.kernel.now() + latency * 2 + self.kernel.random.micros(0, 2_000);
        let (joined, opened) = if own {
            (joined, opened)
        } else {
            (opened, joined)
        };
        self.stripes.insert(key, stripe);
        let bad = &mut self.plan.network.bad_opens[owner];
        let goes_wrong = *bad > 0 && self.kernel.random.chance(50);
        *bad -= u64::from(goes_wrong);
        let how = if goes_wrong {
            self.kernel.random.below(4)
        } else {
            9
        };
        let later = self.kernel.random.micros(0, 100_000);
        let failed = if own {
            Item::OpenFailed(key)
        } else {
            Item::DialFailed(key)
        };
        let dialler = if own { owner } else { 1 - owner };
        match how {
            // It is refused.
            0 => self.schedule_at(dialler, joined.max(opened), failed),
            // The side that listened has it, the one that dialled does not.
            1 if own => {
                self.schedule_at(1 - owner, joined, Item::Joined(key));
                self.schedule_at(owner, opened + later, failed);
            }
            1 => {
                self.schedule_at(owner, opened, Item::Opened(key));
                self.schedule_at(1 - owner, joined + later, failed);
                if self.kernel.random.chance(50) {
                    self.schedule_at(owner, joined + later * 2, Item::Lost(key));
                }
            }
            // The side that dialled has it, the other does not.
            2 if own => {
                self.schedule_at(owner, opened, Item::Opened(key));
                let stripe = self.stripes.get_mut(&key).expect("inserted above");
                stripe.stalled = true;
                if self.kernel.random.chance(50) {
                    self.schedule_at(owner, opened + later, Item::Lost(key));
                }
            }
            2 => {
                self.schedule_at(1 - owner, joined, Item::Joined(key));
                let ended = Item::Ended { key, local: false };
                self.schedule_at(1 - owner, joined + later, ended);
            }
            // A black hole from the start.
            3 if own => self.schedule_at(owner, opened + TIMEOUT, failed),
            3 => {
                self.schedule_at(1 - owner, joined, Item::Joined(key));
                let stripe = self.stripes.get_mut(&key).expect("inserted above");
                stripe.stalled = true;
            }
            _ => {
                self.schedule_at(1 - owner, joined, Item::Joined(key));
                self.schedule_at(owner, opened, Item::Opened(key));
            }
        }
        let stripe = self.stripes.get_mut(&key).expect("inserted above");
        stripe.link.arrival(joined);
    }

    pub(crate) fn joined(&mut self, key: Key) -> Result<(), String> {
        let (owner, id) = key;
        let stripe = self.stripes.get_mut(&key).expect("it was dialled");
        if stripe.reader != Reader::Pending {
            return Ok(());
        }
        if stripe.broken {
            stripe.reader = Reader::Closed;
            let dialled = self.plan.configs[1 - owner].dials;
            return match dialled {
                true => self.event(1 - owner, Event::DialFailed(id, "it was cut".into())),
                false => Ok(()),
            };
        }
        stripe.reader = Reader::Reading;
        self.event(1 - owner, Event::Joined(id))
    }

    pub(crate) fn opened(&mut self, key: Key) -> Result<(), String> {
        let stripe = self.stripes.get_mut(&key).expect("it was dialled");
        // A driver may notice only now that a stripe was dropped meanwhile.
        let late = stripe.writer == Writer::Closed && self.kernel.random.chance(50);
        if stripe.writer == Writer::Opening && !stripe.broken {
            stripe.writer = Writer::Open;
            self.event(key.0, Event::Opened(key.1))
        } else if late {
            self.event(key.0, Event::Opened(key.1))
        } else {
            Ok(())
        }
    }

    pub(crate) fn open_failed(&mut self, key: Key) -> Result<(), String> {
        let stripe = self.stripes.get_mut(&key).expect("it was dialled");
        if stripe.writer != Writer::Opening {
            return Ok(());
        }
        stripe.writer = Writer::Closed;
        stripe.broken = true;
        let delay = self.kernel.random.micros(0, 20_000);
        self.schedule(1 - key.0, delay, Item::Ended { key, local: false });
        let reason = "the network says so".to_owned();
        self.event(key.0, Event::OpenFailed(key.1, reason))
    }

    /// The sending driver: fills the socket's buffer.
    pub(crate) fn pump(&mut self, key: Key) -> Result<(), String> {
        let (owner, id) = key;
        // It may have been woken because the other side acknowledged something.
        let live = |stripe: &Stripe| stripe.writer == Writer::Open && !stripe.stalled;
        if self.stripes.get(&key).is_some_and(live) {
            self.event(owner, Event::Drained(id, 0))?;
        }
        loop {
            let stripe = match self.stripes.get_mut(&key) {
                Some(stripe) if stripe.writer == Writer::Open => stripe,
                _ => return Ok(()),
            };
            if stripe.writing.is_none() {
                stripe.writing = self.sides[owner].pair.next_extent(id, self.kernel.now());
                if stripe.writing.is_some() {
                    stripe.handed += 1;
                    let used = self.sides[owner].pair.stats().stripes;
                    self.summary.last[owner] = used;
                    self.summary.most[owner] = self.summary.most[owner].max(used);
                }
            }
            let Some(extent) = stripe.writing else {
                if stripe.retiring {
                    let end = stripe.link.last();
                    stripe.writer = Writer::Closed;
                    self.schedule_at(1 - owner, end, Item::Ended { key, local: false });
                }
                return Ok(());
            };
            if !stripe.has_room(extent.length) {
                return Ok(());
            }
            stripe.writing = None;
            self.transmit(key, extent);
            self.event(owner, Event::Drained(id, extent.length))?;
        }
    }

    /// The network: carries an extent from the socket's buffer to the other side.
    pub(crate) fn transmit(&mut self, key: Key, extent: Extent) {
        let (owner, _) = key;
        let intact = self.flips[owner] == 0;
        self.flips[owner] -= u64::from(!intact);
        let stripe = self.stripes.get_mut(&key).expect("it is pumped");
        stripe.buffered += extent.length;
        let per_second = 1_000_000_000 * extent.length;
        let mut start = self.kernel.now().max(stripe.free_at);
        let mut end = start + Duration::from_nanos(per_second / stripe.rate);
        if let Some(rate) = self.plan.network.bottleneck {
            let time = Duration::from_nanos(per_second / rate);
            let (begins, ends) = self.bottleneck[owner].send(start, time);
            (start, end) = (begins, end.max(ends));
        }
        stripe.free_at = end;
        let begins = stripe.link.arrival(start + stripe.latency);
        let arrives = stripe.link.arrival(end + stripe.latency);
        self.schedule_at(owner, end, Item::Transmitted(key, extent.length));
        for _ in 0..1 + u8::from(!Guard::Duplicate.holds()) {
            self.schedule_at(1 - owner, begins, Item::Begin(key, extent));
            self.schedule_at(1 - owner, arrives, Item::Arrive(key, intact));
        }
    }

    pub(crate) fn begin(&mut self, key: Key, extent: Extent) -> Result<(), String> {
        let (owner, id) = key;
        let stripe = self.stripes.get_mut(&key).expect("it carries something");
        if !stripe.carries(self.kernel.now()) {
            return Ok(());
        }
        let receiver = &mut self.sides[1 - owner];
        let wanted = receiver.pair.begin(id, &extent);
        let wanted =
            wanted.map_err(|violation| format!("side {} reports: {violation}", 1 - owner))?;
        stripe.arriving = Some((extent, wanted));
        if wanted {
            receiver.inbound(extent.object)?.write(&extent)?;
        }
        Ok(())
    }

    pub(crate) fn arrive(&mut self, key: Key, intact: bool) -> Result<(), String> {
        let (owner, id) = key;
        let stripe = self.stripes.get_mut(&key).expect("it carries something");
        if !stripe.carries(self.kernel.now()) {
            return Ok(());
        }
        let Some((extent, wanted)) = stripe.arriving.take() else {
            return Ok(());
        };
        if wanted {
            let inbound = self.sides[1 - owner].inbound(extent.object)?;
            inbound.written(&extent, intact)?;
        }
        let intact = intact || !Guard::BlindChecksum.holds();
        self.event(1 - owner, Event::Arrived { stripe: id, intact })
    }

    pub(crate) fn ended(&mut self, key: Key, local: bool) -> Result<(), String> {
        let (owner, id) = key;
        let Some(stripe) = self.stripes.get_mut(&key) else {
            return Ok(());
        };
        if stripe.reader == Reader::Pending {
            stripe.broken = true;
        }
        if stripe.reader != Reader::Reading || (stripe.stalled && !local) {
            return Ok(());
        }
        stripe.reader = Reader::Closed;
        let writer = stripe.writer;
        // The sender notices when it writes, if nobody tells it before.
        if writer != Writer::Closed && !stripe.stalled && self.kernel.random.chance(50) {
            let delay = self.kernel.random.micros(0, 20_000);
            self.schedule(owner, delay, Item::Lost(key));
        }
        self.event(1 - owner, Event::Ended(id))
    }

    pub(crate) fn lost(&mut self, key: Key) -> Result<(), String> {
        let (owner, id) = key;
        let stripe = self.stripes.get_mut(&key).expect("it was dialled");
        match stripe.writer {
            Writer::Closed => Ok(()),
            Writer::Opening if self.kernel.random.chance(50) => self.open_failed(key),
            _ => self.event(owner, Event::Lost(id)),
        }
    }

    /// The sending driver closes a connection at once.
    pub(crate) fn close(&mut self, key: Key) {
        let (owner, _) = key;
        let Some(stripe) = self.stripes.get_mut(&key) else {
            return;
        };
        if stripe.writer == Writer::Closed && !stripe.retiring {
            return;
        }
        stripe.writer = Writer::Closed;
        let more = self.kernel.random.micros(0, 5_000);
        stripe.lose_after(self.kernel.now() + more);
        let stalled = stripe.stalled;
        if !stalled {
            let delay = more + self.kernel.random.micros(0, 5_000);
            self.schedule(1 - owner, delay, Item::Ended { key, local: false });
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) -> Result<(), String> {
        self.kernel.tell(|| format!("{fault:?}"));
        match fault {
            Fault::Cut { owner, which, end } => {
                if let Some(key) = self.find(owner, which) {
                    self.cut(key, end);
                }
            }
            Fault::Stall { owner, which } => {
                if let Some(key) = self.find(owner, which) {
                    self.stripes.get_mut(&key).expect("found").stalled = true;
                }
            }
            Fault::Flip { owner } => self.flips[owner] += 1,
            Fault::Pause { side, length } => {
                self.kernel.pause(side, length);
            }
            Fault::ControlCut => {
                self.control_cut = true;
                self.kernel
                    .retain(|At(_, item)| !matches!(item, Item::Control(_)));
            }
            Fault::Goodbye { side } => {
                self.packet(side, Packet::Message(Message::Goodbye));
                let mut effects = Vec::new();
                self.sides[side].pair.end(PairEnd::Goodbye, &mut effects);
                self.perform(side, effects)?;
            }
        }
        Ok(())
    }

    pub(crate) fn find(&self, owner: usize, which: u64) -> Option<Key> {
        let alive = |(key, stripe): (&Key, &Stripe)| {
            let alive = stripe.writer != Writer::Closed || stripe.reader == Reader::Reading;
            (key.0 == owner && alive && !stripe.stalled).then_some(*key)
        };
        let keys: Vec<_> = self.stripes.iter().filter_map(alive).collect();
        (!keys.is_empty()).then(|| keys[which as usize % keys.len()])
    }

    pub(crate) fn cut(&mut self, key: Key, end: End) {
        let (owner, _) = key;
        let soon = self.kernel.random.micros(0, 3_000);
        let later = self.kernel.random.micros(0, 100_000);
        let (writer, reader) = match end {
            End::Writer => (soon, later),
            End::Reader => (later, soon),
            End::Both => (soon, soon),
        };
        let stripe = self.stripes.get_mut(&key).expect("found");
        stripe.lose_after(self.kernel.now() + reader);
        self.schedule(owner, writer, Item::Lost(key));
        self.schedule(1 - owner, reader, Item::Ended { key, local: false });
    }
}
